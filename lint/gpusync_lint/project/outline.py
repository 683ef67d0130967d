"""The outline of a file: where its top-level definitions are, found in the text without parsing it.

A part of a large component needs only single functions and classes of other files. Each occupies its own lines, from
its first decorator to the next line that starts at the margin. What remains of the file is its frame. Strings are
skipped as well as possible without a tokenizer; if that fails, a definition does not parse, and the whole file is read.

An outline is divided into sections, each with a digest, so that a part depends only on the sections that it has used.
A section is a definition, by its name, or one of those below.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

from gpusync_lint.project.host_fields import host_fields
from gpusync_lint.project.imports import at_start
from gpusync_lint.syntax.parsing import normalize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusync_lint.model.findings import Source

FRAME = ""
"""The section outside of all definitions. Its digest leaves out the statements that only bind a name."""
NAMES = "*"
"""The section of the names that a file may bind."""
WHOLE = "**"
"""The section of the whole text."""
HOST_FIELDS = "%"
"""The section of the names that are declared to be kept on the host."""
KIND = "?"
"""After a name: the section of what is known of a definition without reading it, which is its kind and, if a number
follows, whether it is longer than this number of characters."""

_MARGIN = re.compile(
    r'''"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'''
    r"""|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"""
    r"""|"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|'[^'\\\n]*(?:\\.[^'\\\n]*)*'?|\#[^\n]*"""
    r"""|\n(?:(@)|(?:async[ \t]+def|def|class)[ \t]+(\w+)[ \t]*[:(\[]|(?=([^\s#)\]}])))""",
    re.DOTALL,
)
"""The ends of lines after which a decorator, a definition or something else starts at the margin.

Strings and comments are matched in order to skip them; a string without an end extends to the end of its line, so that
the time is linear. Every alternative starts with a character, not with `^`, so that
the regex engine can search for these characters, which takes less than half the time.
"""
_LEAST = 2048
_WORD = re.compile(r"\w+")
_ASSIGNMENT = re.compile(r"(\w+)[ \t]*(?::[^=\n]*)?=(?![=])")
_ANOTHER = re.compile(r"[\])][ \t]*=[^=]|:=|;|\A[^(\[{'\"#\n]*=")
"""Matches the rest of an assignment, after the first `=`, if it may bind another name."""


def weight(text: str) -> int:
    """The number of characters in a text, rounded up so that a small edit does not change it."""
    size = len(text)
    unit = 1 << max(0, size.bit_length() - 3)
    return -(-size // unit) * unit


def cost(text: str) -> int:
    """The part of the budget that reading a text takes: its characters, rounded up so that few edits change it."""
    return max(_LEAST, weight(text))


class Outline:
    """The outline of one file."""

    __slots__ = ("_bindings", "_classes", "_digests", "_frame", "_host_fields", "_names", "_package", "_pieces", "text")

    def __init__(self, source: Source) -> None:
        self.text = normalize(source.text)
        self._package = source.path.endswith(("__init__.py", "__init__.pyi"))
        self._frame: str | None = None
        self._pieces: dict[str, list[tuple[int, int]]] | None = None
        self._classes: set[str] = set()
        """The names whose last definition is a class."""
        self._names: tuple[frozenset[str], bool] | None = None
        self._digests: dict[str, str] = {}
        self._bindings: dict[str, list[str]] | None = None
        self._host_fields: frozenset[str] | None = None

    @property
    def pieces(self) -> dict[str, list[tuple[int, int]]]:
        """By name, the beginnings and ends of its definitions in the text."""
        if self._pieces is None:
            self._pieces = {}
            name, begin, decorated = "", 0, -1
            for at, match in _margins(self.text):
                if decorated < 0 and name:
                    self._pieces.setdefault(name, []).append((begin, at))
                    name = ""
                if match[1]:
                    decorated = at if decorated < 0 else decorated
                    continue
                name, begin = match[2] or "", at if decorated < 0 else decorated
                decorated = -1
                if match[0].startswith("\nclass"):
                    self._classes.add(name)
                else:
                    self._classes.discard(name)
            if name:
                self._pieces.setdefault(name, []).append((begin, len(self.text)))
        return self._pieces

    @property
    def frame(self) -> str:
        """The text without its definitions. Every other line keeps its number."""
        if self._frame is None:
            kept, done = [], 0
            for begin, end in sorted(piece for pieces in self.pieces.values() for piece in pieces):
                kept += [self.text[done:begin], "\n" * self.text.count("\n", begin, end)]
                done = end
            self._frame = "".join([*kept, self.text[done:]])
        return self._frame

    def size(self, name: str) -> int:
        """The number of characters in the definitions of a name, without blank lines after them."""
        return sum(len(piece) for piece in self._defined(name))

    def text_of(self, section: str) -> str:
        """The text of a section. Every line keeps its number."""
        if section == FRAME:
            return self.frame
        if section == WHOLE:
            return self.text
        kept, line = [], 0
        for begin, end in self.pieces[section]:
            first = self.text.count("\n", 0, begin)
            kept += ["\n" * (first - line), self.text[begin:end]]
            line = first + self.text.count("\n", begin, end)
        return "".join(kept)

    def is_function(self, name: str) -> bool:
        """Whether the last definition of a name is a function, rather than a class."""
        return name in self.pieces and name not in self._classes

    def _defined(self, name: str) -> list[str]:
        return [self.text[begin:end].rstrip() for begin, end in self.pieces.get(name, ())]

    @property
    def bindings(self) -> dict[str, list[str]]:
        """By name, the statements of the frame that only bind it; under FRAME, the other statements.

        FRAME also contains the top-level modules of all imports.
        """
        if self._bindings is None:
            self._bindings = {FRAME: []}
            modules: set[str] = set()
            begins = [at for at, _ in _margins(self.frame)]
            for begin, end in pairwise([*begins, len(self.frame)]):
                statement = self.frame[begin:end].strip()
                for name in _bound(statement) or [FRAME]:
                    self._bindings.setdefault(name, []).append(statement)
                modules.update(one.module.partition(".")[0] for one in at_start(statement))
            self._bindings[FRAME] += sorted(modules)
        return self._bindings

    @property
    def names(self) -> tuple[frozenset[str], bool]:
        """The names that the file may bind, and whether it re-exports all names of another module.

        In the `__init__` of a package every word may be a name that it imports.
        """
        if self._names is None:
            words: set[str] = set()
            if self._package:
                words.update(_WORD.findall(self.text))
            else:
                for line in self.text.split("\n"):
                    if line[:1].isidentifier() or line.lstrip().startswith(("class ", "def ", "async def ")):
                        words.update(_WORD.findall(line[:200])[:3])
            self._names = frozenset(words), self._package and "import *" in self.text
        return self._names

    @property
    def host_fields(self) -> frozenset[str]:
        """The names that the file declares to be kept on the host."""
        if self._host_fields is None:
            self._host_fields = host_fields(self.text)
        return self._host_fields

    def digest(self, section: str) -> str:
        """The digest of a section; empty for a name that is not defined."""
        known = self._digests.get(section)
        if known is None:
            known = self._digests[section] = self._digest(section)
        return known

    def digests(self, sections: Iterable[str]) -> dict[str, str]:
        """The digests of sections."""
        return {section: self.digest(section) for section in sections}

    def _digest(self, section: str) -> str:
        if section == WHOLE:
            content = self.text
        elif section == NAMES:
            names, reexports = self.names
            content = repr((sorted(names), reexports))
        elif section == HOST_FIELDS:
            content = repr(sorted(self.host_fields))
        elif KIND in section:
            name, _, room = section.partition(KIND)
            content = repr((name in self.pieces, self.is_function(name), room and self.size(name) > int(room)))
        elif section == FRAME:
            content = repr((cost(self.frame), self.bindings[FRAME]))
        elif section in self.pieces or section in self.bindings:
            # No source contains the character NUL.
            content = "\0".join([*self._defined(section), "", *self.bindings.get(section, ())])
        else:
            return ""
        return blake2b(content.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def _margins(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """The positions at which something starts at the margin, outside of strings."""
    for match in _MARGIN.finditer(f"\n{text}"):
        if match.lastindex:
            yield match.start(), match


def _bound(statement: str) -> list[str]:
    """The names that a statement binds, if it evidently does nothing else; otherwise none."""
    assigned = _ASSIGNMENT.match(statement)
    if assigned is not None:
        return [] if _ANOTHER.search(statement[assigned.end() :]) else [assigned[1]]
    names = [one.bound for one in at_start(statement)]
    return [] if ";" in statement or "*" in names else names
