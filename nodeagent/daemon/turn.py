"""The turn: (state, what was seen, now) -> (state, actions, report). Pure; time is an argument."""
