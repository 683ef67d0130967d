"""How often each line runs."""
