"""The rule class, the context that a rule gets, and helpers that rules share."""
