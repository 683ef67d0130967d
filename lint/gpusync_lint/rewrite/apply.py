"""The application of fixes: text edits that preserve the rest of a file, byte for byte."""

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
from gpusync_lint.files.regular_file import MAX_DOCUMENT, read_regular
from gpusync_lint.syntax.parsing import is_safe_for_libcst

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from gpusync_lint.files.discovery import SourceFile
    from gpusync_lint.model.findings import Finding, Fix
    from gpusync_lint.model.spans import Edit, Span

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")


class WriteError(OSError):
    """A fixed file could not be written. The message is one line."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The fixes of a file that can be applied together."""

    fixes: tuple[Fix, ...]
    """The fixes in the order of their findings. A fix of several findings is repeated."""
    edits: tuple[Edit, ...]


def choose(findings: Sequence[Finding], edits_of: Callable[[Fix], Sequence[Edit]], *, unsafe: bool) -> Chosen:
    """Choose the fixes of a file that can be applied together.

    A fix is applied completely or not at all. If it changes the same text as another fix, the next round applies it. An
    edit that two fixes have in common (a statement that both insert) is not a conflict. For a fix that cannot be
    written, `edits_of` returns no edits.
    """
    taken: dict[Edit, None] = {}
    chosen: list[Fix] = []
    for finding in sorted(findings, key=lambda one: (one.span, one.code)):
        fix = finding.fix
        if fix is None or not (fix.safe or unsafe):
            continue
        edits = edits_of(fix)
        if edits and compatible(edits, taken):
            taken.update(dict.fromkeys(edits))
            chosen.append(fix)
    return Chosen(tuple(chosen), tuple(taken))


def compatible(edits: Iterable[Edit], taken: Collection[Edit]) -> bool:
    """Whether a fix with these edits can be applied together with fixes whose edits are `taken`."""
    return all(edit in taken or not any(_clash(edit, other) for other in taken) for edit in edits)


def _clash(one: Edit, other: Edit) -> bool:
    first, second = sorted((_range(one.span), _range(other.span)))
    if first[0] == second[0] or second[0] < first[1]:
        return True
    # If an insertion touches a replacement, their order is not defined.
    return second[0] == first[1] and second[0] == second[1]


def _range(span: Span) -> tuple[tuple[int, int], tuple[int, int]]:
    return (span.line, span.column), (span.end_line, span.end_column)


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Apply edits that do not overlap, the last one first. Raises ValueError for a span outside the text.

    Lines end with a line feed, a carriage return or both, as in Python. A newline in a replacement is written like the
    first line end of the text.
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
            raise ValueError(f"an edit at line {line}, column {column} is outside the file")
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
    if not is_safe_for_libcst(text):
        return False
    import libcst

    try:
        libcst.parse_module(text)
    except Exception:  # libcst raises many types of errors
        return False
    return True


def diff(before: str, after: str, path: str) -> str:
    """A unified diff for `patch` and `git apply`, in which only a line feed ends a line.

    Paths are relative to the folder in which these programs run; an absolute path is made relative to the root.
    """
    lines = []
    below = path.lstrip("/")
    for line in difflib.unified_diff(_fed_lines(before), _fed_lines(after), f"a/{below}", f"b/{below}"):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _fed_lines(text: str) -> list[str]:
    return [f"{line}\n" for line in text.split("\n")[:-1]] + [line for line in text.split("\n")[-1:] if line]


def document(file: SourceFile, raw: str) -> str:
    """The content of a file with the text `raw`: the text, or the notebook that contains it."""
    return raw if file.notebook is None else file.notebook.with_source(raw).document


def encode(file: SourceFile, raw: str) -> bytes:
    """A new text in the encoding of its file. Raises UnicodeEncodeError."""
    return document(file, raw).encode("utf-8-sig" if file.bom else file.encoding)


def write(file: SourceFile, raw: str, within: Sequence[str]) -> None:
    """Replace a file atomically, with the same encoding, byte-order mark, owner, permissions and attributes.

    The target of a symbolic link is replaced, not the link. A file that is write-protected, that has changed since it
    was read, or that is a link to a file elsewhere is not replaced.

    Args:
        file: the file.
        raw: its new text.
        within: the real paths of the folders in which the targets of links have to be.

    Raises:
        WriteError: it is not replaced.
    """
    target = Path(os.path.realpath(file.location))
    try:
        if file.location.is_symlink() and not any(target.is_relative_to(folder) for folder in within):
            raise WriteError(f"it is a link to {target}, outside of the linted folder; lint that file by its own name")
        if read_regular(target, MAX_DOCUMENT) != encode(file, file.raw):
            raise WriteError("it has changed since it was read; run again")
        if not target.stat().st_mode & stat.S_IWUSR or not os.access(target, os.W_OK):
            raise WriteError("it is write-protected")
        replace_file(target, encode(file, raw))
    except WriteError:
        raise
    except UnicodeEncodeError:
        raise WriteError(f"the new text cannot be encoded as {file.encoding}") from None
    except OSError as error:
        raise WriteError(error.strerror or str(error)) from None
