"""``--add-ignores``: an allow comment for every live warning, where Python lets a comment stand.

A line that ends in a backslash, or inside a string, cannot hold one; the last line of a statement always can. So the
comment stands at the end of the line that the finding ends in, or of the next one of its statement that can hold it. A
comment that gives the same reason for the same statement gets the new code instead of a twin.
"""

from __future__ import annotations

import io
import token
import tokenize
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusync_lint.accept import allow_comments
from gpusync_lint.accept.rules import RULES
from gpusync_lint.model.findings import Edit, Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from gpusync_lint.accept.allow_comments import Allow
    from gpusync_lint.model.findings import Finding

_OPENING = {getattr(token, name, -1) for name in ("FSTRING_START", "TSTRING_START")}
_CLOSING = {getattr(token, name, -1) for name in ("FSTRING_END", "TSTRING_END")}


class ReasonError(ValueError):
    """A reason that an allow comment cannot give, in one line."""


@dataclass(frozen=True, slots=True)
class _Statement:
    first: int
    last: int
    open_lines: tuple[int, ...]
    """The lines at whose end a comment may stand; the last one among them."""


def check_reason(reason: str, names: Mapping[str, str], today: date) -> None:
    """Raises ReasonError for a reason that would not be read back as it is written."""
    code = next(code for code in names if code not in RULES)
    comment = f"# gpusync: allow[{code}] {reason}"
    if "\n" in reason or "\r" in reason:
        raise ReasonError("a reason is one line")
    allows, problems = allow_comments.read("", f"x = 1  {comment}\n", names=names, today=today)
    if problems:
        raise ReasonError(problems[0])
    if [allow.source for allow in allows] != [comment.rstrip()]:
        raise ReasonError("a reason holds no comment of its own (` # `)")


def comments(
    findings: Sequence[Finding],
    path: str,
    text: str,
    reason: str,
    *,
    names: Mapping[str, str],
    today: date,
) -> tuple[list[Edit], int]:
    """The edits that allow the findings of one file, and how many findings that are.

    Findings about comments and baselines cannot be allowed and are passed over. Raises
    suppressions.UnreadableCommentsError.
    """
    allows, _ = allow_comments.read(path, text, names=names, today=today)
    statements = _statements(text)
    lines = text.split("\n")
    added: dict[Span, set[str]] = {}
    appended: dict[_Statement, tuple[int, set[str]]] = {}
    count = 0
    for finding in sorted(findings, key=lambda one: (one.span, one.code)):
        statement = _statement_of(finding, statements)
        if statement is None or finding.code in RULES:
            continue
        count += 1
        twin = _twin(finding, allows, reason)
        if twin is not None:
            column = twin.span.column + twin.source.index("]")
            added.setdefault(Span(twin.span.line, column, twin.span.line, column), set()).add(finding.code)
        else:
            place = min(line for line in statement.open_lines if line >= min(finding.span.end_line, statement.last))
            appended.setdefault(statement, (place, set()))[1].add(finding.code)
    edits = [Edit(span, "".join(f", {code}" for code in sorted(codes))) for span, codes in added.items()]
    for line, codes in appended.values():
        written = lines[line - 1]
        span = Span(line, len(written.rstrip()) + 1, line, len(written) + 1)
        edits.append(Edit(span, f"  # gpusync: allow[{', '.join(sorted(codes))}] {reason}"))
    return edits, count


def _twin(finding: Finding, allows: Sequence[Allow], reason: str) -> Allow | None:
    """The comment on the finding's statement that gives this very reason."""
    for allow in allows:
        written = allow.source.partition("]")[2].strip()
        if allow.lines is not None and written == reason.strip() and allow.reaches(finding):
            return allow
    return None


def _statement_of(finding: Finding, statements: Sequence[_Statement]) -> _Statement | None:
    for statement in statements:
        if statement.first <= finding.span.line <= statement.last:
            return statement
    return None


def _statements(text: str) -> list[_Statement]:
    """The statements in order; of a compound one, its header. The text has been tokenized before without an error."""
    found: list[_Statement] = []
    first: int | None = None
    open_lines: list[int] = []
    strings = 0
    """Depth of strings whose parts are tokens of their own: not every line end in them can take a comment."""
    outside = {tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
    for one in tokenize.generate_tokens(io.StringIO(text).readline):
        if one.type == tokenize.NEWLINE:
            last = one.start[0]
            found.append(_Statement(first or last, last, (*open_lines, last)))
            first = None
            open_lines = []
        elif first is not None and one.type == tokenize.NL and not strings:
            open_lines.append(one.start[0])
        elif first is None and one.type not in outside:
            first = one.start[0]
        strings += (one.type in _OPENING) - (one.type in _CLOSING)
    return found
