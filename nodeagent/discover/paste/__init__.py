"""What people paste, read into the same Snapshot as a machine: no agent needed on the other side.

Each module reads one kind of text and gives Parts; `read.py` recognises them, by content first,
and puts them together.
"""
