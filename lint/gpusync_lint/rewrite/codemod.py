"""Conversion of the operations of fixes to edits, with libcst.

An expression is rewritten in the syntax tree of its statement (`fragments`), which preserves layout and comments. The
edit replaces only the expression. A fix is written completely or not at all: an operation that cannot be written raises
CodemodError. This module loads libcst (0.2 s), so it is imported only when edits are needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import libcst as cst

from gpusync_lint.model.operations import (
    AddComment,
    AddFirstArgument,
    AddKeyword,
    InsertAfter,
    InsertBefore,
    RemoveComment,
    RemoveStatement,
    RenameCalled,
    ReplaceExpression,
    ReplaceInComment,
    ReplaceStatements,
)
from gpusync_lint.model.spans import Edit, Span
from gpusync_lint.rewrite import arguments
from gpusync_lint.rewrite.fragments import Fragment, FragmentError, Fragments
from gpusync_lint.rewrite.layout import Layout
from gpusync_lint.rewrite.precedence import needs_parentheses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpusync_lint.model.operations import Operation, Template

_RECURSION = 4000
"""The recursion limit, in Python frames. libcst needs about eight frames for each level of `ast`."""
_OF_EXPRESSIONS = (ReplaceExpression, AddKeyword, AddFirstArgument, RenameCalled)
_BRACKETED = (
    cst.Arg, cst.SubscriptElement, cst.List, cst.Set, cst.Dict, cst.ListComp, cst.SetComp, cst.DictComp,
)  # fmt: skip
"""Nodes with brackets, or inside brackets."""
_EMPTY = cst.Module([])
_PARENTHESES = ((cst.LeftParen(),), (cst.RightParen(),))

_Parentheses = tuple[Sequence[cst.LeftParen], Sequence[cst.RightParen]]

_OfExpression = ReplaceExpression | AddKeyword | AddFirstArgument | RenameCalled


class CodemodError(ValueError):
    """An operation cannot be written. The message is one line."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


class Codemod:
    """Converts operations on a source, whose lines end with `\
`, to edits."""

    def __init__(self, text: str) -> None:
        self.layout = Layout(text.split("\n"))
        self.fragments = Fragments(text, self.layout)
        self._written: dict[tuple[Operation, ...], tuple[Edit, ...] | CodemodError] = {}

    def edits(self, operations: Sequence[Operation]) -> tuple[Edit, ...]:
        """The edits for the operations of a fix, in their order.

        Raises CodemodError if one of them cannot be written.
        """
        key = tuple(operations)
        found = self._written.get(key)
        if found is None:
            line = key[0].span.line if key else 1
            try:
                with _deep_recursion():
                    found = _Writer(self, key).edits()
            except (CodemodError, FragmentError) as error:
                found = CodemodError(error.line, str(error))
            except Exception as error:  # libcst raises many types of errors for invalid trees
                first = str(error).partition("\n")[0]
                found = CodemodError(line, f"{type(error).__name__}: {first}")
            self._written[key] = found
        if isinstance(found, CodemodError):
            raise found
        return found


@contextmanager
def _deep_recursion() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


class _Writer:
    """Converts the operations of a fix."""

    def __init__(self, codemod: Codemod, operations: Sequence[Operation]) -> None:
        self._layout = codemod.layout
        self._fragments = codemod.fragments
        self._operations = operations
        self._changes: dict[Span, list[_OfExpression]] = {}
        for operation in operations:
            if isinstance(operation, _OF_EXPRESSIONS):
                self._changes.setdefault(operation.span, []).append(operation)

    def edits(self) -> tuple[Edit, ...]:
        for operation in self._operations:
            obstacle = self._layout.obstacle(operation)
            if obstacle is not None:
                raise CodemodError(operation.span.line, obstacle)
        found = [self._edit(operation) for operation in self._operations]
        return tuple(dict.fromkeys(edit for edit in found if edit is not None))

    def _edit(self, operation: Operation) -> Edit | None:
        """The edit of an operation; None if that of another one includes it."""
        span = operation.span
        if isinstance(operation, _OF_EXPRESSIONS):
            outer = any(other != span and other.contains(span) for other in self._changes)
            return None if outer else self._of_expression(span)
        if isinstance(operation, InsertBefore):
            place = Span(*span[:2], *span[:2])
            return Edit(place, f"{self._statement(operation)}\n{self._indentation(span)}")
        if isinstance(operation, InsertAfter):
            column = len(self._layout.lines[span.end_line - 1]) + 1
            place = Span(span.end_line, column, span.end_line, column)
            return Edit(place, f"\n{self._indentation(span)}{self._statement(operation)}")
        if isinstance(operation, ReplaceStatements):
            return Edit(span, self._statement(operation))
        if isinstance(operation, RemoveStatement):
            return Edit(Span(span.line, 1, span.end_line + 1, 1), "")
        return self._of_comment(operation)

    # expressions

    def _of_expression(self, span: Span) -> Edit:
        fragment = self._fragments.at(span.line)
        node = fragment.expression(span)
        operations = self._changes[span]
        inside = any(other != span and span.contains(other) for other in self._changes)
        last = operations[-1]
        if len(operations) == 1 and isinstance(last, RenameCalled) and not inside:
            return Edit(fragment.span(arguments.called_name(node)), last.name)
        for careful in (False, True):
            rewriter = _Rewriter(self, fragment, span, node if careful else None)
            try:
                code = fragment.module.visit(rewriter).code
            except cst.CSTValidationError:  # `return(a, b)` without its parentheses
                continue
            replacement = fragment.replacement(span, code)
            if replacement is not None and (careful or not self._makes_double_brace(span, replacement)):
                return Edit(span, replacement)
        raise CodemodError(span.line, "the expression cannot be replaced here")

    def _makes_double_brace(self, span: Span, replacement: str) -> bool:
        """Whether there would be two adjacent braces, which are an escaped brace in an f-string."""
        before = self._layout.lines[span.line - 1][: span.column - 1]
        return replacement.startswith("{") and before.endswith("{")

    def changes_in(self, span: Span) -> Iterator[tuple[Span, list[_OfExpression]]]:
        """The operations on expressions inside a span."""
        return ((other, operations) for other, operations in self._changes.items() if span.contains(other))

    def part(self, span: Span) -> cst.BaseExpression:
        """The expression with a span."""
        return self._fragments.at(span.line).expression(span)

    # statements

    def _statement(self, operation: InsertBefore | InsertAfter | ReplaceStatements) -> str:
        """The code of a new statement, without a line end."""
        tree = _filled(operation.new, cst.parse_statement, self.part, is_statement=True)
        code = _EMPTY.code_for_node(tree)
        if len(cst.parse_module(code).body) != 1:
            raise CodemodError(operation.span.line, "the new statement has more than one line")
        return code.removesuffix("\n")

    def _indentation(self, span: Span) -> str:
        """The indentation of a statement."""
        return self._layout.lines[span.line - 1][: span.column - 1]

    # comments

    def _of_comment(self, operation: AddComment | ReplaceInComment | RemoveComment) -> Edit:
        span = operation.span
        line = self._layout.lines[span.line - 1]
        if isinstance(operation, AddComment):
            possible = self._fragments.at(span.line).comment_lines
            if not possible:
                raise CodemodError(span.line, "no line of the statement can have a comment")
            number = min((one for one in possible if one >= span.end_line), default=possible[-1])
            line = self._layout.lines[number - 1]
            return Edit(Span(number, len(line.rstrip()) + 1, number, len(line) + 1), f"  {operation.text}")
        if isinstance(operation, ReplaceInComment):
            return Edit(span, operation.text)
        before = line[: span.column - 1]
        if before.strip():
            return Edit(Span(span.line, len(before.rstrip()) + 1, span.line, span.end_column), "")
        return Edit(Span(span.line, 1, span.line + 1, 1), "")


class _Transformer(cst.CSTTransformer):
    """A transformer that knows the parents of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.above: list[cst.CSTNode] = []
        """The parents of the current node, outermost first."""

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Visit all nodes."""
        self.above.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        """Replace a node after its children."""
        self.above.pop()
        return self.changed(original_node, updated_node)

    def changed(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """The replacement of a node, given the original one and the one with replaced children."""
        raise NotImplementedError

    def needs_parentheses(self, node: cst.BaseExpression, place: cst.CSTNode) -> bool:
        """Whether an expression needs parentheses to replace the current node."""
        return needs_parentheses(node, self.above[-1] if self.above else None, place)

    def is_open(self) -> bool:
        """Whether the current node is outside of brackets, so that a line end would end its statement."""
        return not any(
            isinstance(node, _BRACKETED) or (isinstance(node, cst.BaseExpression) and node.lpar) for node in self.above
        )


class _Rewriter(_Transformer):
    """Applies the operations inside a span to the tree of a fragment, or to a part of it."""

    def __init__(
        self, writer: _Writer, fragment: Fragment, span: Span, in_parentheses: cst.BaseExpression | None = None
    ) -> None:
        super().__init__()
        self._writer = writer
        self._fragment = fragment
        self._changes = {fragment.expression(place): operations for place, operations in writer.changes_in(span)}
        self._in_parentheses = in_parentheses
        """A node whose replacement gets parentheses in any case."""

    def changed(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """Apply the operations on an expression."""
        for operation in self._changes.get(cast("cst.BaseExpression", original), ()):
            updated = self._applied(operation, original, updated)
        return updated

    def _applied(self, operation: _OfExpression, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        if isinstance(operation, ReplaceExpression):
            return self._replaced(operation, original, cast("cst.BaseExpression", updated))
        if not isinstance(updated, cst.Call):
            raise CodemodError(operation.span.line, "there is no call at this position")
        if isinstance(operation, RenameCalled):
            return arguments.renamed(updated, operation.name)
        value = cast("cst.BaseExpression", _filled(operation.value, cst.parse_expression, self._writer.part))
        if needs_parentheses(value, cst.Arg(value), value):
            value = _in_parentheses(value, _PARENTHESES)
        if isinstance(operation, AddKeyword):
            return arguments.with_keyword(updated, operation.name, value)
        return arguments.with_first(updated, value)

    def _replaced(
        self, operation: ReplaceExpression, original: cst.CSTNode, updated: cst.BaseExpression
    ) -> cst.BaseExpression:
        bare, around = _without_parentheses(updated)

        def part(span: Span) -> cst.BaseExpression:
            if span == operation.span:
                return bare
            node = self._writer.part(span)
            if not operation.span.contains(span):
                return node
            return cast("cst.BaseExpression", node.visit(_Rewriter(self._writer, self._fragment, span)))

        new, own = _without_parentheses(cast("cst.BaseExpression", _filled(operation.new, cst.parse_expression, part)))
        if around[0] and not own[0]:
            return _in_parentheses(new, around)
        if own[0]:
            return _in_parentheses(_in_parentheses(new, own), around)
        if (
            original is self._in_parentheses
            or self.needs_parentheses(new, original)
            or (self.is_open() and _ends_a_line(new))
        ):
            return _in_parentheses(new, _PARENTHESES)
        return new


def _filled(
    template: Template,
    parse: Callable[[str], cst.CSTNode],
    part: Callable[[Span], cst.BaseExpression],
    *,
    is_statement: bool = False,
) -> cst.CSTNode:
    """The tree of a template, with its parts inserted."""
    pieces = template.text.split("{}")
    hole = "_part"
    while hole in template.text:
        hole += "_"
    names = {f"{hole}{number}": span for number, span in enumerate(template.parts)}
    text = "".join(piece + name for piece, name in zip(pieces, [*names, ""], strict=True))
    expressions = {name: part(span) for name, span in names.items()}
    return cast("cst.CSTNode", parse(text).visit(_Filler(expressions, is_statement=is_statement)))


class _Filler(_Transformer):
    """Replaces names by the parts of a template."""

    def __init__(self, parts: dict[str, cst.BaseExpression], *, is_statement: bool) -> None:
        super().__init__()
        self._parts = parts
        self._is_statement = is_statement

    def changed(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """Replace a name by its part."""
        if not isinstance(original, cst.Name) or original.value not in self._parts:
            return updated
        bare, own = _without_parentheses(self._parts[original.value])
        if original.lpar:
            return _in_parentheses(bare, (original.lpar, original.rpar))
        if not self.above:
            return bare
        if self.needs_parentheses(bare, original) or (self._is_statement and self.is_open() and _ends_a_line(bare)):
            return _in_parentheses(bare, own if own[0] else _PARENTHESES)
        return bare


def _without_parentheses(node: cst.BaseExpression) -> tuple[cst.BaseExpression, _Parentheses]:
    """An expression with the position that `ast` reports, and the parentheses around it that are redundant."""
    kept = 1 if isinstance(node, (cst.Tuple, cst.GeneratorExp)) and node.lpar else 0
    left, right = list(node.lpar), list(node.rpar)
    outer = left[: len(left) - kept], right[kept:]
    return node.with_changes(lpar=left[len(left) - kept :], rpar=right[:kept]), outer


def _in_parentheses(node: cst.BaseExpression, parentheses: _Parentheses) -> cst.BaseExpression:
    left, right = parentheses
    return node.with_changes(lpar=[*left, *node.lpar], rpar=[*node.rpar, *right])


def _ends_a_line(node: cst.BaseExpression) -> bool:
    """Whether an expression contains a line end outside of its own brackets."""
    code = _EMPTY.code_for_node(node)
    if "\n" not in code:
        return False
    try:
        cst.parse_expression(code)
    except cst.ParserSyntaxError:
        return True
    return False
