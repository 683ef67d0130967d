"""Names of streams, events, and of what orders them; paths of expressions."""

from __future__ import annotations

import ast

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


def last_name(node: ast.expr) -> str:
    """The last name of a callee: `stream` of `torch.cuda.stream`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def path_of(node: ast.AST | None) -> str | None:
    """The path of a name, of an attribute, or of an element with a constant index: `self.buffers[0]`."""
    if isinstance(node, ast.Subscript):
        path = path_of(node.value)
        index = node.slice
        return f"{path}[{index.value!r}]" if path is not None and isinstance(index, ast.Constant) else None
    if isinstance(node, ast.Attribute):
        path = path_of(node.value)
        return None if path is None else f"{path}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None
