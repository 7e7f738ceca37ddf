"""nodeagentctl: commands, and render (table, picture and JSON from the same values)."""
