"""READ: kernel and driver facts into a Snapshot. root.py is the only door to /sys and /proc."""
