"""C, and the only Python that touches it."""
