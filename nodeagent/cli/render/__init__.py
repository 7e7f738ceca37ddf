"""How values look: trees, tables and pictures; no reading, no judging."""
