"""The fleet: receives reports, keeps them, answers questions."""
