"""The comments for the linter in a file, each with the statement that it belongs to.

Comments are not part of `ast`, so Python's tokenizer finds them.
"""

from __future__ import annotations

import io
import tokenize
from dataclasses import dataclass, field, replace

from gpusync_lint.model.findings import MARKER
from gpusync_lint.model.spans import Span

_TRIVIA = {tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}


class UnreadableCommentsError(ValueError):
    """This version of Python cannot tokenize a file."""


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment that contains the marker."""

    text: str
    span: Span
    lines: tuple[int, int] | None
    """The first and last line of the statement that it belongs to; None if it is above no statement."""
    first_block: bool
    """Whether there is no code before it on its line."""


@dataclass(slots=True)
class Read:
    """The comments and statements of a file."""

    comments: list[Comment] = field(default_factory=list)
    statements: list[tuple[int, int]] = field(default_factory=list)
    """The first and last line of each simple statement, and of each header of a compound statement."""


def read(text: str) -> Read:
    """Find the comments and the statements of a file. Raises UnreadableCommentsError."""
    reader = _Reader()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                reader.comment(token)
            elif token.type == tokenize.NEWLINE:
                reader.end_statement(token.start[0])
            elif token.type not in _TRIVIA and reader.start is None:
                reader.start_statement(token.start[0])
    except (tokenize.TokenError, SyntaxError) as error:
        raise UnreadableCommentsError(f"its allow comments cannot be read: {error.args[0]}") from None
    return reader.found


class _Reader:
    """Assigns comments to statements."""

    def __init__(self) -> None:
        self.found = Read()
        self.start: int | None = None
        """The first line of the current statement."""
        self._above: list[tuple[int, int | None]] = []
        """The comments directly above the next statement: line, and index into `comments`; None without the marker."""
        self._inside: list[int] = []
        """The indices into `comments` of those in the current statement, or directly above it."""

    def comment(self, token: tokenize.TokenInfo) -> None:
        """Add a comment."""
        line = token.start[0]
        index = None
        if MARKER in token.string:
            index = len(self.found.comments)
            column = token.start[1] + 1
            span = Span(line, column, line, column + len(token.string))
            before = not self.found.statements and self.start is None
            self.found.comments.append(Comment(token.string, span, None, before))
        if self.start is None:
            if self._above and self._above[-1][0] != line - 1:
                self._above.clear()
            self._above.append((line, index))
        elif index is not None:
            self._inside.append(index)

    def start_statement(self, line: int) -> None:
        """Begin a statement."""
        self.start = line
        if self._above and self._above[-1][0] == line - 1:
            self._inside += [index for _, index in self._above if index is not None]
        self._above.clear()

    def end_statement(self, line: int) -> None:
        """End a statement, and assign its comments to it."""
        first = line if self.start is None else self.start
        for index in self._inside:
            self.found.comments[index] = replace(self.found.comments[index], lines=(first, line))
        self.found.statements.append((first, line))
        self._inside.clear()
        self.start = None
