"""Reports: each draws the same measurements."""
