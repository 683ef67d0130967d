"""Escaping of text that this project did not write: file names, source lines, comments, configuration, run files.

Such text may contain control characters, which change what a terminal shows or does; characters that reverse the
direction of text; ends of lines; and commands that the log of a CI job obeys, such as `::error::`. Both packages write
it to terminals and logs through the functions of this module. Output formats have a function each for what is special
in them besides.
"""

from __future__ import annotations

import re

_COMMAND = re.compile(r"^(\s*):(?=:)|(?<=#)#(?=\[|vso\[|teamcity\[)", re.MULTILINE)
"""The character to escape in a command: of GitHub at the beginning of a line (`::`) or within one (`##[`), of Azure
(`##vso[`), of TeamCity (`##teamcity[`)."""


def escaped(text: str) -> str:
    """A text as one line for terminals and logs. Characters that cannot be printed, except tabs, and the beginning of
    a command become escapes.

    >>> escaped("a\\x1b[31m\\n::error::b")
    'a\\\\x1b[31m\\\\n::error::b'
    """
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char == "\t" else _escape(char) for char in text)
    return _COMMAND.sub(lambda match: f"{match[1] or ''}\\x{ord(match[0][-1]):02x}", text)


def escaped_lines(text: str) -> str:
    """A text of several lines for terminals and logs. Each line is `escaped`."""
    return "\n".join(map(escaped, text.split("\n")))


def masked(text: str) -> str:
    """A line for terminals and logs, with as many characters: what would be escaped becomes U+FFFD, except for tabs."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
    return _COMMAND.sub(lambda match: f"{match[1] or ''}\N{REPLACEMENT CHARACTER}", text)


def escaped_json(document: str) -> str:
    """A document in JSON that is pure ASCII, for logs. It has the same meaning."""
    return document.replace("##", r"#\u0023").replace("\x7f", r"\u007f")


def _escape(char: str) -> str:
    """The escape of a character in Python's notation; of a byte of a name that is not Unicode, that of the byte."""
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")
