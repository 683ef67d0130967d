"""Cuts the piece of source that the rules look at out of its file, and parses it with libcst."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gpusync_lint.pairing import Pairing
from gpusync_lint.parsing import MAX_DEPTH, depth_exceeds

if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence

    from gpusync_lint.summaries import FunctionInfo

_FORM_FEED = re.compile(r"^[ \t]*\f+", re.M)


def pair(lines: list[str], statement: ast.stmt, owner: FunctionInfo) -> Pairing | None:
    """Parse one statement (often a whole function) with libcst and pair it with its `ast`.

    `lines` are the file's lines without line ends; `owner` is the function, or module body, that the statement stands
    in. None when it is nested too deeply for libcst or libcst cannot read it.
    """
    if depth_exceeds(statement, MAX_DEPTH):
        return None
    code = _cut(lines, statement)
    indented = code[:1] in (" ", "\t")
    try:
        module = cst.parse_module(f"if 1:\n{code}" if indented else code)
    except Exception:
        # ParserSyntaxError, and the internal errors libcst raises for text it cannot read: nothing to judge.
        return None
    body: Sequence[cst.CSTNode] = module.body
    if indented:
        if not body or not isinstance(body[0], cst.If):
            return None
        body = body[0].body.body
    paired = Pairing(owner, owner.trace.dead)
    try:
        paired.statements(body, [statement])
    except RecursionError:
        return None
    return paired


def _cut(lines: list[str], statement: ast.stmt) -> str:
    first = min([statement.lineno, *(node.lineno for node in getattr(statement, "decorator_list", ()))])
    last = statement.end_lineno or statement.lineno
    piece = lines[first - 1 : last]
    before = piece[0].encode()[: statement.col_offset]
    compound = hasattr(statement, "body")
    if not compound or before.strip():  # a simple statement may share its lines with others
        end = piece[-1].encode()[: statement.end_col_offset].decode(errors="replace")
        piece[-1] = end
        piece[0] = piece[0].encode()[statement.col_offset :].decode(errors="replace")
        if last == first:
            piece[0] = (
                lines[first - 1].encode()[statement.col_offset : statement.end_col_offset].decode(errors="replace")
            )
    code = "\n".join(piece) + "\n"
    return _FORM_FEED.sub("", code) if "\f" in code else code
