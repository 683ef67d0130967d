"""The key that identifies a function."""

from __future__ import annotations

Key = tuple[str, str]
"""The file and the qualified name of a function, followed by `#2` and so on if the file defines the name several times.
A key contains no line number, so a function keeps its key when it is moved within the file."""
