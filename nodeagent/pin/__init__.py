"""ACT: the only code that changes a host; undo.py is the journal."""
