"""Names of tensors that a file declares to be kept on the host, by an argument of a call that describes them.

    {"pixel_values": Field("image"), "image_sizes": Field("image", keep_on_cpu=True)}
    config["image_sizes"] = Field("image", keep_on_cpu=True)
    Config(image_sizes=Field("image", keep_on_cpu=True))

They are found in the text, since the files are many and few contain any.
"""

from __future__ import annotations

import re

_KEPT = re.compile(r"keep_(?:on|in)_(?:cpu|host)[ \t]*=[ \t]*True")
_NAMED = re.compile(r"(?:(\w+)[ \t]*=|[\"'](\w+)[\"'](?:\][ \t]*=|:))[ \t\n]*[\w.]+\Z")
"""Matches before the parenthesis of the call."""
_MAX_ARGUMENTS = 400
"""The maximum number of characters between the beginning of the call and the argument."""
_MAX_BEFORE = 200


def host_fields(text: str) -> frozenset[str]:
    """The names that a text declares to be kept on the host."""
    if "keep_" not in text:
        return frozenset()
    found = set()
    for match in _KEPT.finditer(text):
        opened = _opening(text, match.start())
        named = None if opened is None else _NAMED.search(text, max(0, opened - _MAX_BEFORE), opened)
        if named is not None:
            found.add(named[1] or named[2])
    return frozenset(found)


def _opening(text: str, position: int) -> int | None:
    """The position of the parenthesis that is open at a position; None if it is too far away."""
    depth = 0
    for at in range(position - 1, max(-1, position - _MAX_ARGUMENTS), -1):
        if text[at] == ")":
            depth += 1
        elif text[at] == "(":
            if not depth:
                return at
            depth -= 1
    return None
