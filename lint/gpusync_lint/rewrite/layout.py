"""The layout of a source: positions, and which operations are possible there.

Only lines and positions of `ast` are used, so this is fast. A rule offers a fix only if all operations are possible, so
that the number of fixable warnings is right although edits are written later, and only on request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpusync_lint.model.operations import (
    AddFirstArgument,
    AddKeyword,
    InsertAfter,
    InsertBefore,
    RemoveComment,
    RemoveStatement,
    ReplaceExpression,
    ReplaceInComment,
    ReplaceStatements,
)
from gpusync_lint.model.spans import Span

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Sequence

    from gpusync_lint.model.operations import Operation, Template

_NO_COMMENT = "there is no comment at this position"
_LOST_COMMENT = "a comment would be lost"
MAX_DEPTH = 300
"""The maximum depth of expressions that are rewritten. Much deeper ones crash libcst."""

_END_OF_LINE = re.compile(r"[ \t]*;?[ \t]*(#.*)?$")
_ELIF = re.compile(r"elif\b")
_TYPE_COMMENT = re.compile(r"#\s*type:")


class Layout:
    """The lines of a source."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines

    def span(self, node: ast.expr | ast.stmt) -> Span:
        """The span of a node; of a definition with its decorators."""
        end_line = node.end_lineno or node.lineno
        end = node.end_col_offset or node.col_offset
        line, column = node.lineno, self.column(node.lineno, node.col_offset)
        if decorators := getattr(node, "decorator_list", None):
            line, column = self.line_of("@", decorators[0].lineno)
        return Span(line, column, end_line, self.column(end_line, end))

    def line_of(self, start: str, line: int) -> tuple[int, int]:
        """The nearest line, on or above a line, whose code starts with a text, and the column of that text."""
        while not self.lines[line - 1].lstrip().startswith(start):
            line -= 1
        return line, self.indentation(line) + 1

    def indentation(self, line: int) -> int:
        """The width of the indentation of a line."""
        text = self.lines[line - 1]
        return len(text) - len(text.lstrip())

    def column(self, line: int, offset: int) -> int:
        """The column of an offset of `ast`, which counts bytes of UTF-8 from 0."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        if text.isascii():
            return offset + 1
        return len(text.encode()[:offset].decode(errors="replace")) + 1

    def text(self, span: Span) -> str:
        """The source of a span."""
        if span.line == span.end_line:
            return self.lines[span.line - 1][span.column - 1 : span.end_column - 1]
        middle = self.lines[span.line : span.end_line - 1]
        first = self.lines[span.line - 1][span.column - 1 :]
        return "\n".join([first, *middle, self.lines[span.end_line - 1][: span.end_column - 1]])

    def length(self, template: Template) -> int | None:
        """The number of characters of a template with its parts; None if a part has several lines."""
        if any(part.line != part.end_line for part in template.parts):
            return None
        written = sum(part.end_column - part.column for part in template.parts)
        return len(template.text) - len("{}") * len(template.parts) + written

    def has_type_comment(self, first: int, last: int) -> bool:
        """Whether a comment in these lines is a type comment."""
        return any(_TYPE_COMMENT.search(line) for line in self.lines[first - 1 : last])

    def obstacle(self, operation: Operation) -> str | None:
        """The reason that an operation is not possible; None if it is."""
        check = _OBSTACLES.get(operation.__class__)
        return None if check is None else check(self, operation)

    def _replacement(self, operation: ReplaceExpression) -> str | None:
        return _LOST_COMMENT if self._loses_comment(operation.span, operation.new.parts) else None

    def _argument(self, operation: AddKeyword | AddFirstArgument) -> str | None:
        return "there is a comment in the call" if "#" in self.text(operation.span) else None

    def _statements(self, operation: ReplaceStatements) -> str | None:
        return _LOST_COMMENT if "#" in self.text(operation.span) else None

    def _insertion_before(self, operation: InsertBefore) -> str | None:
        return None if self._starts_line(operation.span) else "the statement does not start its line"

    def _insertion_after(self, operation: InsertAfter) -> str | None:
        has_own_lines = self._starts_line(operation.span) and self._ends_line(operation.span)
        return None if has_own_lines else "the statement shares its lines with another one"

    def _removal(self, operation: RemoveStatement) -> str | None:
        span = operation.span
        if "#" in self.text(span):
            return _LOST_COMMENT
        after = self.lines[span.end_line - 1][span.end_column - 1 :]
        has_own_lines = self._starts_line(span) and not after.strip()
        return None if has_own_lines else "the statement shares its lines with something else"

    def _comment_removal(self, operation: RemoveComment) -> str | None:
        return None if self.text(operation.span).startswith("#") else _NO_COMMENT

    def _comment_replacement(self, operation: ReplaceInComment) -> str | None:
        before = self.lines[operation.span.line - 1][: operation.span.column - 1]
        return None if "#" in before else _NO_COMMENT

    def starts_line(self, line: int, column: int) -> bool:
        """Whether a position is the first one on its line, which does not continue the line before."""
        before = self.lines[line - 2] if line > 1 else ""
        continued = before.endswith("\\") and "#" not in before
        return not self.lines[line - 1][: column - 1].strip() and not continued

    def _starts_line(self, span: Span) -> bool:
        """Whether a statement can be inserted before this one, on a line of its own."""
        elif_ = _ELIF.match(self.lines[span.line - 1], span.column - 1)
        return self.starts_line(span.line, span.column) and not elif_

    def _ends_line(self, span: Span) -> bool:
        return _END_OF_LINE.match(self.lines[span.end_line - 1], span.end_column - 1) is not None

    def _loses_comment(self, span: Span, kept: Sequence[Span]) -> bool:
        """Whether a span may contain a comment outside of the parts that are kept."""
        if "#" not in self.text(span):
            return False
        line, column = span.line, span.column
        for part in sorted(part for part in kept if span.contains(part)):
            if (line, column) < part[:2] and "#" in self.text(Span(line, column, part.line, part.column)):
                return True
            line, column = max((line, column), part[2:])
        return "#" in self.text(Span(line, column, span.end_line, span.end_column))


_OBSTACLES: dict[type, Callable[[Layout, Any], str | None]] = {
    ReplaceExpression: Layout._replacement,
    AddKeyword: Layout._argument,
    AddFirstArgument: Layout._argument,
    ReplaceStatements: Layout._statements,
    InsertBefore: Layout._insertion_before,
    InsertAfter: Layout._insertion_after,
    RemoveStatement: Layout._removal,
    RemoveComment: Layout._comment_removal,
    ReplaceInComment: Layout._comment_replacement,
}
