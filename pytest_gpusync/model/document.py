"""The type of JSON documents, in which measurements travel between processes and into files."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]
"""A JSON object: plain data."""
