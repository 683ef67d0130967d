"""The fragments of a source that libcst parses: single statements, or headers of compound statements.

libcst is eleven times as slow as `ast`, so `ast` finds the statements, and libcst parses only those that are rewritten.
A clause (`elif`, `except`, `case`) is completed by a line before it, and a header by a `pass` after it.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider, WhitespaceInclusivePositionProvider

from gpusync_lint.model.spans import Span
from gpusync_lint.rewrite.layout import MAX_DEPTH
from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.parsing import parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from libcst.metadata import CodeRange

    from gpusync_lint.rewrite.layout import Layout

_WORD = re.compile(r"[a-z]+")
_BEFORE = {
    "elif": "if 0:\n pass\n",
    "else": "if 0:\n pass\n",
    "except": "try:\n pass\n",
    "finally": "try:\n pass\n",
}
"""By first word of a clause, the lines that complete it to a statement."""
_TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))

_Clause = ast.ExceptHandler | ast.match_case


class FragmentError(ValueError):
    """libcst cannot parse a fragment. The message is one line."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(slots=True)
class _Head:
    """The lines of simple statements on common lines, or of the header of a compound statement or a clause."""

    kind: type[ast.AST]
    """The column of the first statement."""
    first: int
    column: int
    """The column of the first character that is no space."""
    last: int
    nodes: list[ast.AST]
    """The statements."""
    open: bool
    """Whether it is followed by a block, which is not part of it."""
    decorator: bool = False


class Fragments:
    """The fragments of a source. Each is parsed when it is needed."""

    def __init__(self, text: str, layout: Layout) -> None:
        self._text = text
        self._layout = layout
        self._known: dict[int, Fragment] = {}

    def at(self, line: int) -> Fragment:
        """The fragment that contains a line. Raises FragmentError."""
        head = None if self._tree is None else _head_at(line, self._tree.body, self._layout)
        if head is None:
            raise FragmentError(line, "there is no statement at this position")
        known = self._known.get(head.first)
        if known is None:
            known = self._known[head.first] = Fragment(head, self._layout.lines)
        return known

    @cached_property
    def _tree(self) -> ast.Module | None:
        return parse(self._text).tree


class Fragment:
    """A statement, or a header, that libcst has parsed. Raises FragmentError."""

    def __init__(self, head: _Head, lines: Sequence[str]) -> None:
        if any(map(_is_too_deep, head.nodes)):
            raise FragmentError(head.first, "the statement is nested too deeply")
        start = lines[head.first - 1][head.column - 1 :]
        before = "match 0:\n " if head.kind is ast.match_case else _BEFORE.get(_first_word(start), "")
        indentation = before.rpartition("\n")[2]
        self._first, self._last = head.first, head.last
        self._above = before.count("\n")
        """The number of lines that were added before the source."""
        self._shift = head.column - 1 - len(indentation)
        """The number of columns before the fragment on its first line."""
        self.text = before + "\n".join([start, *lines[head.first : head.last]]) + _after(head)
        try:
            self.module = cst.parse_module(self.text)
        except cst.ParserSyntaxError as error:
            raise FragmentError(head.first, f"libcst cannot read the statement: {error.message}") from None
        if self.module.code != self.text:
            raise FragmentError(head.first, "libcst does not reproduce the statement exactly")
        self._wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)

    def expression(self, span: Span) -> cst.BaseExpression:
        """The expression with a span of the source. Raises FragmentError."""
        node = self._expressions.get(span)
        if node is None:
            raise FragmentError(span.line, "there is no expression at this position")
        return node

    def span(self, node: cst.BaseExpression) -> Span:
        """The span of an expression in the source, without parentheses around it."""
        return self._span(self._wrapper.resolve(PositionProvider)[node])

    @cached_property
    def _expressions(self) -> Mapping[Span, cst.BaseExpression]:
        """The expressions, by their spans in the source as `ast` reports them."""
        found: dict[Span, cst.BaseExpression] = {}
        positions = self._wrapper.resolve(PositionProvider)
        for node, position in positions.items():
            if isinstance(node, cst.BaseExpression):
                found[self._span(position)] = node
                if isinstance(node, (cst.Tuple, cst.GeneratorExp)) and node.lpar:  # `ast` counts these in
                    opening, closing = self._span(positions[node.lpar[-1]]), self._span(positions[node.rpar[0]])
                    found[Span(*opening[:2], *closing[2:])] = node
        return found

    @cached_property
    def comment_lines(self) -> list[int]:
        """The lines that can end in a comment, in order. Before Python 3.12, those of an f-string cannot."""
        ends: set[int] = set()
        strings: set[int] = set()
        for node, position in self._wrapper.resolve(WhitespaceInclusivePositionProvider).items():
            if isinstance(node, (cst.TrailingWhitespace, cst.EmptyLine)):
                ends.add(self._span(position).line)
            elif isinstance(node, (cst.FormattedString, cst.TemplatedString)):
                span = self._span(position)
                strings.update(range(span.line, span.end_line))
        return sorted(line for line in ends - strings if self._first <= line <= self._last)

    def replacement(self, span: Span, code: str) -> str | None:
        """The new source of a span, from the code of a changed tree; None if the code differs outside of the span."""
        before = self.text[: self._offset(span.line, span.column)]
        after = self.text[self._offset(span.end_line, span.end_column) :]
        end = len(code) - len(after)
        if end < len(before) or not (code.startswith(before) and code.endswith(after)):
            return None
        return code[len(before) : end]

    def _span(self, position: CodeRange) -> Span:
        start, end = position.start, position.end
        return Span(*self._place(start.line, start.column), *self._place(end.line, end.column))

    def _place(self, line: int, column: int) -> tuple[int, int]:
        line -= self._above
        return line + self._first - 1, column + 1 + (self._shift if line == 1 else 0)

    def _offset(self, line: int, column: int) -> int:
        row = line - self._first + self._above
        start = 0
        for _ in range(row):
            start = self.text.index("\n", start) + 1
        return start + column - 1 - (self._shift if line == self._first else 0)


def _head_at(line: int, body: list[ast.stmt], layout: Layout) -> _Head | None:
    """The head that contains a line; None if the line has no code."""
    while True:
        near = _near(line, body, layout)
        for head in _heads(near, layout):
            if head.first <= line <= head.last:
                return head
        inside = [block for statement in near for block in blocks(statement)]
        above = [block for block in inside if _start(block[0], layout)[0] <= line]
        if not above:
            return None
        body = max(above, key=lambda block: _start(block[0], layout))


def _near(line: int, body: list[ast.stmt], layout: Layout) -> list[ast.stmt]:
    """The last statement of a block that starts on or above a line, with others on its lines."""

    def starts_line(statement: ast.stmt) -> bool:
        return layout.starts_line(*_start(statement, layout))

    end = bisect_right(body, line, key=lambda statement: _start(statement, layout)[0])
    first = max(end - 1, 0)
    while first and not starts_line(body[first]):
        first -= 1
    while end < len(body) and not starts_line(body[end]):
        end += 1
    return body[first:end]


def _heads(statements: list[ast.stmt], layout: Layout) -> Iterator[_Head]:
    """The heads of consecutive statements and of their clauses, without those inside their blocks."""
    head: _Head | None = None
    for statement in statements:
        yield from _decorators(statement, layout)
        start = statement.lineno, layout.column(statement.lineno, statement.col_offset)
        if head is None and layout.starts_line(*start):
            head = _head(statement, *start, layout)
        elif head is not None:  # after a semicolon
            head.last = max(head.last, statement.end_lineno or head.last)
            head.nodes.append(statement)
        for clause in _clauses(statement):
            yield _head(clause, *_start(clause, layout), layout)
        for name in ("orelse", "finalbody"):
            yield from _clause_on_one_line(getattr(statement, name, []), layout)
    if head is not None:
        yield head


def _clauses(statement: ast.stmt) -> Sequence[_Clause]:
    if isinstance(statement, ast.Match):
        return statement.cases
    return getattr(statement, "handlers", ())


def _head(node: ast.stmt | _Clause, line: int, column: int, layout: Layout) -> _Head:
    body: list[ast.stmt] = getattr(node, "body", [])
    inside: list[ast.AST] = [
        child
        for child in ast.iter_child_nodes(node)
        if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
    ]
    below = body[0] if body else node.cases[0] if isinstance(node, ast.Match) else None
    if below is None:
        return _Head(type(node), line, column, getattr(node, "end_lineno", line), inside, open=False)
    block = _start(below, layout)
    if not layout.starts_line(*block):
        return _Head(type(node), line, column, body[-1].end_lineno or line, [*inside, *body], open=False)
    return _Head(type(node), line, column, _last_before(block[0], layout), inside, open=True)


def _decorators(statement: ast.stmt, layout: Layout) -> Iterator[_Head]:
    """The heads of the decorators of a definition."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    starts = [*(layout.line_of("@", decorator.lineno)[0] for decorator in decorators), statement.lineno]
    for decorator, (line, below) in zip(decorators, pairwise(starts), strict=True):
        column, last = layout.indentation(line) + 1, _last_before(below, layout)
        yield _Head(type(statement), line, column, last, [decorator], open=False, decorator=True)


def _last_before(line: int, layout: Layout) -> int:
    """The last line of code before another one."""
    line -= 1
    while layout.lines[line - 1].lstrip()[:1] in ("", "#"):
        line -= 1
    return line


def _clause_on_one_line(block: list[ast.stmt], layout: Layout) -> Iterator[_Head]:
    """`else: x = 1`: the clause has no node of its own."""
    if block:
        line, column = _start(block[0], layout)
        if not layout.starts_line(line, column):
            start = layout.indentation(line) + 1
            yield _Head(type(block[0]), line, start, block[-1].end_lineno or line, list(block), open=False)


def _start(node: ast.stmt | _Clause, layout: Layout) -> tuple[int, int]:
    """The line and column at which a statement, with its decorators, or a clause starts."""
    if isinstance(node, ast.match_case):
        return layout.line_of("case", node.pattern.lineno)
    if isinstance(node, ast.ExceptHandler):
        return node.lineno, layout.column(node.lineno, node.col_offset)
    return layout.span(node)[:2]


def _after(head: _Head) -> str:
    """A fragment, completed to a statement."""
    if head.kind is ast.Match:
        return "\n case _:\n  pass\n"
    block = "\n  pass\n" if head.kind is ast.match_case else "\n pass\n"
    if head.decorator:
        return "\ndef f():\n pass\n"
    end = "finally:\n pass\n" if issubclass(head.kind, _TRIES) else ""
    return f"{block if head.open else chr(10)}{end}"


def _is_too_deep(node: ast.AST) -> bool:
    """Whether a node is nested too deeply for libcst."""
    stack = [(node, 0)]
    while stack:
        node, depth = stack.pop()
        depth += isinstance(node, ast.expr)
        if depth > MAX_DEPTH:
            return True
        stack += [(child, depth) for child in ast.iter_child_nodes(node)]
    return False


def _first_word(text: str) -> str:
    match = _WORD.match(text)
    return "" if match is None else match[0]
