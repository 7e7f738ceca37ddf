"""WATCH: GPUs, kernel log and shared memory into Events."""
