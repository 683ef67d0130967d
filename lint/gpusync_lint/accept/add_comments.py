"""``--add-ignores``: an allow comment for every live warning.

One comment serves all warnings of a statement. A comment there that gives the same reason gets the new code instead of
a second comment. `rewrite.codemod` decides on which line of the statement it is written.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from gpusync_lint.accept import allow_comments, comments
from gpusync_lint.accept.rules import RULES
from gpusync_lint.model.operations import AddComment, ReplaceInComment
from gpusync_lint.model.spans import Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from gpusync_lint.accept.allow_comments import Allow
    from gpusync_lint.model.findings import Finding
    from gpusync_lint.model.operations import Operation


class ReasonError(ValueError):
    """A reason that an allow comment cannot contain. The message is one line."""


def check_reason(reason: str, names: Mapping[str, str], today: date) -> None:
    """Check a reason. Raises ReasonError if it would not be read from a comment as it is written."""
    code = next(code for code in names if code not in RULES)
    comment = f"# gpusync: allow[{code}] {reason}"
    if "\n" in reason or "\r" in reason:
        raise ReasonError("a reason must be one line")
    allows, problems = allow_comments.read("", comments.read(f"x = 1  {comment}\n"), names=names, today=today)
    if problems:
        raise ReasonError(problems[0])
    if [allow.source for allow in allows] != [comment.rstrip()]:
        raise ReasonError("a reason cannot contain another comment (` # `)")


def additions(
    findings: Sequence[Finding],
    path: str,
    text: str,
    reason: str,
    *,
    names: Mapping[str, str],
    today: date,
) -> tuple[list[Operation], int]:
    """The operations that allow the findings of a file, and the number of these findings.

    Findings about comments and baselines cannot be allowed, and are ignored. Raises comments.UnreadableCommentsError.
    """
    found = comments.read(text)
    allows, _ = allow_comments.read(path, found, names=names, today=today)
    extended: dict[Span, set[str]] = {}
    added: dict[tuple[int, int], tuple[Span, set[str]]] = {}
    """By statement: the first finding in it, and all codes."""
    count = 0
    for finding in sorted(findings, key=lambda one: (one.span, one.code)):
        statement = _statement_of(finding, found.statements)
        if statement is None or finding.code in RULES:
            continue
        count += 1
        twin = _twin(finding, allows, reason)
        if twin is not None:
            column = twin.span.column + twin.source.index("]")
            extended.setdefault(Span(twin.span.line, column, twin.span.line, column), set()).add(finding.code)
        else:
            added.setdefault(statement, (finding.span, set()))[1].add(finding.code)
    operations: list[Operation] = [
        ReplaceInComment(span, "".join(f", {code}" for code in sorted(codes))) for span, codes in extended.items()
    ]
    for span, codes in added.values():
        operations.append(AddComment(span, f"# gpusync: allow[{', '.join(sorted(codes))}] {reason}"))
    return operations, count


def _twin(finding: Finding, allows: Sequence[Allow], reason: str) -> Allow | None:
    """The comment on the statement of a finding that has the same reason; None if there is none."""
    for allow in allows:
        written = allow.source.partition("]")[2].strip()
        if allow.lines is not None and written == reason.strip() and allow.reaches(finding):
            return allow
    return None


def _statement_of(finding: Finding, statements: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    place = bisect_right(statements, finding.span.line, key=lambda lines: lines[0]) - 1
    return statements[place] if place >= 0 and finding.span.line <= statements[place][1] else None
