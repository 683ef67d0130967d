"""What every rule is given, and the helpers that rules share."""
