"""What a fix does to the source, as plain data. Rules name places; `rewrite.codemod` turns operations into edits.

A place is a range of the source in which an expression, a statement or a comment stands, without parentheses around it,
as `ast` gives it. What can be written there is decided by `rewrite.layout` before a fix is offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusync_lint.model.spans import Span


@dataclass(frozen=True, slots=True)
class Template:
    """New source: an expression or a simple statement in its plainest form.

    Each ``{}`` of the text stands for an expression of the file, in the order of `parts`: for one inside the expression
    that is replaced as the other operations of the fix leave it, for another one as it stands. Parentheses are added
    where an expression needs them.
    """

    text: str
    parts: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplaceExpression:
    """Put another expression in the place of one, which may be a part of it."""

    span: Span
    new: Template


@dataclass(frozen=True, slots=True)
class AddKeyword:
    """Give a call one more keyword argument, after the others."""

    span: Span
    name: str
    value: Template


@dataclass(frozen=True, slots=True)
class AddFirstArgument:
    """Give a call one more positional argument, before the others."""

    span: Span
    value: Template


@dataclass(frozen=True, slots=True)
class RenameCalled:
    """Give what a call calls another last name: `x.item()` to `x.detach()`."""

    span: Span
    name: str


@dataclass(frozen=True, slots=True)
class InsertBefore:
    """Put a statement on a line of its own before the statement in a place."""

    span: Span
    new: Template


@dataclass(frozen=True, slots=True)
class InsertAfter:
    """Put a statement on a line of its own after the statement in a place."""

    span: Span
    new: Template


@dataclass(frozen=True, slots=True)
class ReplaceStatements:
    """Put one simple statement in the place of consecutive ones, from the start of the first to the end of the last."""

    span: Span
    new: Template


@dataclass(frozen=True, slots=True)
class RemoveStatement:
    """Remove a statement with its lines. Another one must be left in its block."""

    span: Span


@dataclass(frozen=True, slots=True)
class AddComment:
    """Put a comment at the end of the line that a range ends in.

    Where Python lets none stand there (a backslash, a string over several lines) it goes to the end of the next line of
    the statement that can hold one.
    """

    span: Span
    text: str
    """With its ``#``."""


@dataclass(frozen=True, slots=True)
class ReplaceInComment:
    """Put another text in the place of a part of a comment."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class RemoveComment:
    """Remove a comment: with its line where it has one to itself, else with the blanks before it."""

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
"""One change of a fix."""
