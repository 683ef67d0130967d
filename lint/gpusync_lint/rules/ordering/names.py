"""Streams, events, and what orders them, by their last names."""

from __future__ import annotations

import ast
import re

CURRENT_STREAMS = frozenset({"current_stream", "default_stream"})
NEW_STREAMS = frozenset({"Stream", "ExternalStream"})
EVENTS = frozenset({"Event", "ExternalEvent"})
HOST_EVENTS = ("threading.", "asyncio.", "multiprocessing.")
ORDERING = frozenset(
    {
        "backward", "is_completed", "query", "record", "record_event", "record_stream", "replay", "set_stream",
        "synchronize", "wait", "wait_event", "wait_stream",
    }
)  # fmt: skip
"""Methods and functions that order something, by their last names."""


ORDERS = re.compile(r"\b(?:wait|synchroni[sz]e|query|stream|event|barrier|join)", re.IGNORECASE)
"""Words of functions of the project that may order something."""


def last_name(node: ast.expr) -> str:
    """The last name of a callee: `stream` of `torch.cuda.stream`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
