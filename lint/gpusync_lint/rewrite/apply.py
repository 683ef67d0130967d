"""Applying fixes: text edits that keep everything else of a file, byte for byte."""

from __future__ import annotations

import ast
import difflib
import os
import re
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpusync_lint.files.atomic_write import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusync_lint.files.discovery import SourceFile
    from gpusync_lint.model.findings import Finding, Fix
    from gpusync_lint.model.spans import Edit, Span

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")


class WriteError(OSError):
    """A fixed file that could not be written, in one line."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Fixes of one file that can be applied together."""

    fixes: tuple[Fix, ...]
    """In the order of their findings; one that several findings share counts for each."""
    edits: tuple[Edit, ...]


def choose(findings: Sequence[Finding], edits_of: Callable[[Fix], Sequence[Edit]], *, unsafe: bool) -> Chosen:
    """The fixes of one file that can be applied together. `edits_of` gives none for a fix that cannot be written.

    A fix is taken whole or not at all. One that touches text another one changes is left for the next round; an edit
    that two fixes share exactly (a statement that both need) is no conflict.
    """
    taken: dict[Edit, None] = {}
    chosen: list[Fix] = []
    for finding in sorted(findings, key=lambda one: (one.span, one.code)):
        fix = finding.fix
        if fix is None or not (fix.safe or unsafe):
            continue
        edits = edits_of(fix)
        if edits and all(edit in taken or not any(_clash(edit, other) for other in taken) for edit in edits):
            taken.update(dict.fromkeys(edits))
            chosen.append(fix)
    return Chosen(tuple(chosen), tuple(taken))


def _clash(one: Edit, other: Edit) -> bool:
    first, second = sorted((_range(one.span), _range(other.span)))
    if first[0] == second[0] or second[0] < first[1]:
        return True
    # Where an insertion touches a replacement, their order would be a guess.
    return second[0] == first[1] and second[0] == second[1]


def _range(span: Span) -> tuple[tuple[int, int], tuple[int, int]]:
    return (span.line, span.column), (span.end_line, span.end_column)


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Apply edits that do not overlap, from the bottom up. Raises ValueError for a span outside the text.

    Lines end as Python's do, with a line feed, a carriage return or both; a newline in a replacement is written as the
    text's first line ends.
    """
    starts: list[int] = []
    lengths: list[int] = []
    newline = "\n"
    for number, match in enumerate(_LINE.finditer(text)):
        line = match[0]
        content = line.rstrip("\r\n")
        if number == 0 and len(line) > len(content):
            newline = line[len(content) :]
        starts.append(match.start())
        lengths.append(len(content))

    def offset(line: int, column: int) -> int:
        if not 1 <= line <= len(starts) or not 1 <= column <= lengths[line - 1] + 1:
            raise ValueError(f"an edit at line {line}, column {column} lies outside the file")
        return starts[line - 1] + column - 1

    for edit in sorted(set(edits), key=lambda one: _range(one.span), reverse=True):
        start = offset(edit.span.line, edit.span.column)
        end = offset(edit.span.end_line, edit.span.end_column)
        if end < start:
            raise ValueError(f"an edit at line {edit.span.line} ends before it starts")
        text = text[:start] + edit.replacement.replace("\n", newline) + text[end:]
    return text


def compiles(text: str) -> bool:
    """Whether the text parses: by this Python, or by libcst for syntax newer than it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
        else:
            return True
    import libcst

    try:
        libcst.parse_module(text)
    except libcst.ParserSyntaxError:
        return False
    return True


def diff(before: str, after: str, path: str) -> str:
    """A unified diff that `patch` and `git apply` accept. To them a line ends with a line feed and nothing else.

    They take paths below the folder that they run in: of an absolute one, that is the root.
    """
    lines = []
    below = path.lstrip("/")
    for line in difflib.unified_diff(_fed_lines(before), _fed_lines(after), f"a/{below}", f"b/{below}"):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _fed_lines(text: str) -> list[str]:
    return [f"{line}\n" for line in text.split("\n")[:-1]] + [line for line in text.split("\n")[-1:] if line]


def document(file: SourceFile, raw: str) -> str:
    """What the file holds when its text is `raw`: the text itself, or the notebook around it."""
    return raw if file.notebook is None else file.notebook.with_source(raw).document


def encode(file: SourceFile, raw: str) -> bytes:
    """The bytes of a new text in the encoding of its file. Raises UnicodeEncodeError."""
    return document(file, raw).encode("utf-8-sig" if file.bom else file.encoding)


def write(file: SourceFile, raw: str) -> None:
    """Replace a file atomically, keeping its encoding, byte-order mark and permissions. Raises WriteError.

    A symbolic link stays one: what it points to is replaced. A file that has changed since it was read, or that is
    write-protected, is left as it is.
    """
    target = Path(os.path.realpath(file.location))
    try:
        if target.read_bytes() != encode(file, file.raw):
            raise WriteError("it changed while it was linted; run again")
        mode = stat.S_IMODE(target.stat().st_mode)
        if not mode & stat.S_IWUSR or not os.access(target, os.W_OK):
            raise WriteError("it is write-protected")
        replace_file(target, encode(file, raw), mode)
    except WriteError:
        raise
    except UnicodeEncodeError:
        raise WriteError(f"the new text does not fit its encoding {file.encoding}") from None
    except OSError as error:
        raise WriteError(error.strerror or str(error)) from None
