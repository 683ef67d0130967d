"""Changes of source: applying edits, and writing them with libcst."""
