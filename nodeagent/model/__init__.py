"""WORDS: frozen values. No I/O, no clock."""
