"""What identifies a function."""

from __future__ import annotations

Key = tuple[str, str]
"""Stands for a function: its file and its qualified name; `#2` and so on follow the name of further ones in the file.
There is no line number in it: what an edit only moves stays as it was."""
