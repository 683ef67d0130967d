"""Cuts the statements that the rules look at out of their file, and parses them with libcst.

Of a compound statement only the header is parsed, and all statements of a file in one go: libcst costs ten times what
`ast` does, so it is given no more than what has to be judged.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import libcst as cst

from gpusync_lint.pairing import STATEMENTS, Pairing
from gpusync_lint.parsing import MAX_DEPTH, depth_exceeds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusync_lint.summaries import FunctionInfo

_FORM_FEED = re.compile(r"^[ \t]*\f+", re.M)


def pair(lines: list[str], statements: Sequence[tuple[ast.stmt, FunctionInfo]]) -> Pairing:
    """Parse statements with libcst and pair them with their `ast`.

    `lines` are the file's lines without line ends; each statement comes with the function, or module body, that it
    stands in. Left out are those that are nested too deeply for libcst, and those that libcst cannot read.
    """
    pieces: list[tuple[str, ast.stmt, FunctionInfo]] = []
    for statement, fn in statements:
        if type(statement) in STATEMENTS and not _too_deep(statement):
            pieces.append((_code(lines, statement), statement, fn))
    paired = Pairing()
    nodes = _parse("".join(code for code, _, _ in pieces), len(pieces))
    for index, (code, statement, fn) in enumerate(pieces):
        alone = None if nodes is not None else _parse(code, 1)
        node = nodes[index] if nodes is not None else alone[0] if alone is not None else None
        if node is not None:
            paired.add(node, statement, fn)
    return paired


def _parse(code: str, count: int) -> list[cst.CSTNode] | None:
    """The statements in a piece of source; None where libcst does not find as many as there should be."""
    try:
        module = cst.parse_module(code)
    except Exception:
        # ParserSyntaxError, and the internal errors libcst raises for text it cannot read: nothing to judge.
        return None
    nodes: list[cst.CSTNode] = []
    for node in module.body:
        nodes.append(node.body[0] if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1 else node)
    return nodes if len(nodes) == count else None


def _too_deep(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Match):
        return any(depth_exceeds(part, MAX_DEPTH) for part in _expressions(statement))
    return any(depth_exceeds(part, MAX_DEPTH) for part in ast.iter_child_nodes(statement) if isinstance(part, ast.expr))


def _expressions(statement: ast.Match) -> list[ast.expr]:
    return [statement.subject, *(case.guard for case in statement.cases if case.guard is not None)]


def _code(lines: list[str], statement: ast.stmt) -> str:
    """A statement as source of its own; of a compound statement the header, over an empty block."""
    if isinstance(statement, (ast.If, ast.While)):
        word = "if" if isinstance(statement, ast.If) else "while"
        return f"{word} ({_cut(lines, statement.test)}): pass\n"
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return f"for ({_cut(lines, statement.target)}) in ({_cut(lines, statement.iter)}): pass\n"
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        items = ", ".join(f"({_cut(lines, item.context_expr)})" for item in statement.items)
        return f"with {items}: pass\n"
    if isinstance(statement, ast.Match):
        guards = (f" if ({_cut(lines, case.guard)})" if case.guard is not None else "" for case in statement.cases)
        cases = "".join(f"    case _{guard}: pass\n" for guard in guards)
        return f"match ({_cut(lines, statement.subject)}):\n{cases}"
    return f"{_cut(lines, statement)}\n"


def _cut(lines: list[str], node: ast.stmt | ast.expr) -> str:
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    piece = lines[first : last + 1]
    piece[-1] = _bytes(piece[-1], 0, node.end_col_offset)
    piece[0] = _bytes(piece[0], node.col_offset, None)
    code = "\n".join(piece)
    return _FORM_FEED.sub("", code) if "\f" in code else code


def _bytes(line: str, start: int, end: int | None) -> str:
    """A part of a line, by offsets in bytes of UTF-8, as `ast` counts."""
    return line[start:end] if line.isascii() else line.encode()[start:end].decode(errors="replace")
