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
    found = Read()
    comments = found.comments
    above: list[tuple[int, int | None]] = []
    """The comment lines directly above the next statement: line, and index into `comments`; None without the marker."""
    inside: list[int] = []
    """The indices into `comments` of those in the current statement, or directly above it."""
    start: int | None = None
    """The first line of the current statement."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            line = token.start[0]
            if token.type == tokenize.COMMENT:
                index = None
                if MARKER in token.string:
                    index = len(comments)
                    column = token.start[1] + 1
                    span = Span(line, column, line, column + len(token.string))
                    before = not found.statements and start is None
                    comments.append(Comment(token.string, span, None, before))
                if start is None:
                    if above and above[-1][0] != line - 1:
                        above.clear()
                    above.append((line, index))
                elif index is not None:
                    inside.append(index)
            elif token.type == tokenize.NEWLINE:
                first = line if start is None else start
                for index in inside:
                    comments[index] = replace(comments[index], lines=(first, line))
                found.statements.append((first, line))
                inside.clear()
                start = None
            elif token.type not in _TRIVIA and start is None:
                start = line
                if above and above[-1][0] == line - 1:
                    inside += [index for _, index in above if index is not None]
                above.clear()
    except (tokenize.TokenError, SyntaxError) as error:
        raise UnreadableCommentsError(f"its allow comments cannot be read: {error.args[0]}") from None
    return found
