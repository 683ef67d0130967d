"""Replacing IPython's syntax in notebook cells, so that the rest of a cell can be parsed as Python.

A line that IPython would translate becomes ``pass``, or ``None`` if its result is assigned. A statement that is run by
``%prun`` or similar keeps its position. The number of lines does not change. None of this syntax is valid Python at the
start of a statement, so no Python is lost.

What is timed is marked, for the rule about timing: a statement under ``%time`` or ``%timeit`` follows ``...;``, and the
first line of a cell under ``%%time`` or ``%%timeit`` becomes ``...; N``, with the number of lines that follow it.
"""

from __future__ import annotations

import ast
import re

PYTHON_CELL_MAGICS = frozenset(
    {"capture", "debug", "memit", "prun", "pyinstrument", "scalene", "snakeviz", "time", "timeit", "wandb"}
)
"""Cell magics whose body is Python that runs in the scope of the notebook. The bodies of others are ignored."""

_CELL_MAGIC = re.compile(r"%%(\w*)")
_MAGIC = re.compile(r"(?P<indent>\s*)(?:[%!/;,]|\?{1,2}\s*[\w%]|%{0,2}[\w.*\[\]'\"() ]+\?{1,2}\s*$)")
_RUN = re.compile(
    r"(?P<indent>\s*)(?P<magic>%(?P<name>time|timeit|prun)\s+(?:-[a-z]+(?:\s*\d+)?\s+)*)(?P<statement>[^-\s].*)"
)
_TIMING = frozenset({"time", "timeit"})
_ASSIGNED = re.compile(r"(?P<target>\s*[^#'\"=!<>:]+=\s*)[%!](?!=)")
_TOKEN = re.compile(
    r"(?P<comment>\#.*)|(?P<quote>'''|\"\"\"|'|\")|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<last>\\$)|[^\#'\"()\[\]{}\\]+|."
)


def mask(source: str) -> str:
    """The cell as Python with the same number of lines. Lines that are Python already do not change."""
    lines = source.split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return source
    cell_magic = _CELL_MAGIC.match(lines[first])
    if cell_magic is not None:
        if cell_magic[1] not in PYTHON_CELL_MAGICS:
            return "\n" * (len(lines) - 1)
        lines[first] = f"...; {len(lines) - first - 1}" if cell_magic[1] in _TIMING else ""
    reader = _Reader()
    number = 0
    while number < len(lines):
        line = lines[number]
        replaced = _replaced(line) if reader.at_statement else None
        if replaced is None:
            reader.read(line)
        else:
            lines[number] = replaced
            while line.endswith("\\") and number + 1 < len(lines):
                number += 1
                line = lines[number]
                lines[number] = ""
        number += 1
    return "\n".join(lines)


def _replaced(line: str) -> str | None:
    """The replacement for a line that only IPython understands; None for a line of Python."""
    match = _RUN.match(line)
    if match is not None and _is_python(match["statement"]):
        # It is as wide as the magic, so that the statement keeps its columns.
        before = "...;" if match["name"] in _TIMING else "pass;"
        return f"{match['indent']}{before:{len(match['magic'])}}{match['statement']}"
    match = _MAGIC.match(line)
    if match is not None:
        return f"{match['indent']}pass"
    match = _ASSIGNED.match(line)
    return None if match is None else f"{match['target']}None"


def _is_python(statement: str) -> bool:
    try:
        ast.parse(statement)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


class _Reader:
    """Tracks strings, brackets and continued lines, to know whether the next line starts a statement."""

    def __init__(self) -> None:
        self._depth = 0
        self._string: str | None = None
        self._continued = False

    @property
    def at_statement(self) -> bool:
        return self._string is None and self._depth == 0 and not self._continued

    def read(self, line: str) -> None:
        self._continued = False
        position = 0
        while position < len(line):
            if self._string is not None:
                position = self._through_string(line, position)
                continue
            match = _TOKEN.match(line, position)
            if match is None:
                return
            if match["quote"]:
                self._string = match["quote"]
            elif match["open"]:
                self._depth += 1
            elif match["close"]:
                self._depth = max(0, self._depth - 1)
            elif match["last"]:
                self._continued = True
            position = match.end()
        if self._string is not None and len(self._string) == 1 and not line.endswith("\\"):
            self._string = None  # an unclosed string ends at the end of its line

    def _through_string(self, line: str, position: int) -> int:
        """The position after the string, or after the line if the string continues."""
        quote = self._string or ""
        while position < len(line):
            if line[position] == "\\":
                position += 2
            elif line.startswith(quote, position):
                self._string = None
                return position + len(quote)
            else:
                position += 1
        return len(line)
