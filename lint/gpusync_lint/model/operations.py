"""The operations of fixes, as plain data. `rewrite.codemod` converts them to edits.

The span of an operation is that of an expression, a statement or a comment, without parentheses around it, as in `ast`.
`rewrite.layout` decides whether an operation is possible, before a fix is offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusync_lint.model.spans import Span


@dataclass(frozen=True, slots=True)
class Template:
    """New source: an expression or a simple statement, without a particular layout.

    Each ``{}`` in the text is replaced by an expression of the file, in the order of `parts`. If that is a part of the
    replaced expression, other operations of the fix are applied to it. Parentheses are added if they are necessary.
    """

    text: str
    parts: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplaceExpression:
    """Replace an expression. The old one may be a part of the new one."""

    span: Span
    new: Template


@dataclass(frozen=True, slots=True)
class AddKeyword:
    """Add a keyword argument to a call, after the other arguments."""

    span: Span
    name: str
    value: Template


@dataclass(frozen=True, slots=True)
class AddFirstArgument:
    """Add a positional argument to a call, before the other arguments."""

    span: Span
    value: Template


@dataclass(frozen=True, slots=True)
class RenameCalled:
    """Change the last name of the callee of a call: `x.item()` to `x.detach()`."""

    span: Span
    name: str


@dataclass(frozen=True, slots=True)
class InsertBefore:
    """Insert a statement on a new line before a statement."""

    span: Span
    new: Template


@dataclass(frozen=True, slots=True)
class InsertAfter:
    """Insert a statement on a new line after a statement."""

    span: Span
    new: Template


@dataclass(frozen=True, slots=True)
class ReplaceStatements:
    """Replace consecutive statements by a simple statement. The span is that from the first to the last one."""

    span: Span
    new: Template


@dataclass(frozen=True, slots=True)
class RemoveStatement:
    """Remove a statement and its lines. Its block must contain another statement."""

    span: Span


@dataclass(frozen=True, slots=True)
class AddComment:
    """Add a comment to the line in which the span ends.

    If that line cannot have a comment (it ends in a backslash or inside a string), it is added to the next line of the
    statement that can.
    """

    span: Span
    text: str
    """The comment, including ``#``."""


@dataclass(frozen=True, slots=True)
class ReplaceInComment:
    """Replace a part of a comment."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class RemoveComment:
    """Remove a comment and, if there is nothing else on the line, the line; otherwise the spaces before it."""

    span: Span


Operation = (
    ReplaceExpression
    | AddKeyword
    | AddFirstArgument
    | RenameCalled
    | InsertBefore
    | InsertAfter
    | ReplaceStatements
    | RemoveStatement
    | AddComment
    | ReplaceInComment
    | RemoveComment
)
"""A change of a fix."""
