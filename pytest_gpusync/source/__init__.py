"""Source lines: which line a Python frame is charged to, and which lines ran."""
