"""Every framework and its barriers, as data."""
