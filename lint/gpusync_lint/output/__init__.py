"""The ways in which an outcome is shown. Each module draws the same `Outcome` and decides nothing."""
