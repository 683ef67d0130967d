"""A Griffe extension for the Python reference: roles such as ``:class:`~a.b.C` `` in docstrings become code, `C`."""

from __future__ import annotations

import re
from typing import Any, Final

import griffe

_ROLE: Final = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")


class Roles(griffe.Extension):
    """Rewrites the docstrings of all objects as they are read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """See Griffe."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
