"""What a file defines at its top level, told apart by its text, so that one definition can be read without the rest.

Beside a part of a large project only single functions and classes of other files are of interest. Each stands on its
own lines, from the first decorator to the next line that begins at the margin; what remains of the file is its frame.
Strings are passed over as well as can be without a parser. Where that fails a piece does not parse, and the whole file
is read instead.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

from gpusync_lint.project.imports import at_start
from gpusync_lint.project.symbols import weight
from gpusync_lint.syntax.parsing import normalize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusync_lint.model.findings import Source

FRAME = ""
"""The label of what stands outside of all definitions: of its digest only what does more than to bind one name."""
NAMES = "*"
"""The label of the names that a file may bind."""
WHOLE = "**"
"""The label of all of its text."""
KIND = "?"
"""What follows a name in the label of what is known without reading: the kind of its definition, and whether it takes
more characters than the number that follows, if one does."""

_MARGIN = re.compile(
    r'''"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'''
    r"""|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"""
    r"""|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'|\#[^\n]*"""
    r"""|\n(?:(@)|(?:async[ \t]+def|def|class)[ \t]+(\w+)[ \t]*[:(\[]|(?=([^\s#)\]}])))""",
    re.DOTALL,
)
"""The ends of lines after which something begins at the margin: decorators, definitions and others.

Strings and comments are matched to be passed over. Every alternative begins with a character of its own, not with `^`:
then the rest of the text is passed over by a table, in less than half the time.
"""
_LEAST = 2048
_WORD = re.compile(r"\w+")
_ASSIGNMENT = re.compile(r"(\w+)[ \t]*(?::[^=\n]*)?=(?![=])")
_ANOTHER = re.compile(r"[\])][ \t]*=[^=]|:=|;|\A[^(\[{'\"#\n]*=")
"""What may bind another name in what follows the first `=`."""


def cost(text: str) -> int:
    """What reading a text takes of the room that there is: its characters, rounded up so that few edits tell."""
    return max(_LEAST, weight(text))


class Definitions:
    """The pieces of one file."""

    __slots__ = ("_classes", "_digests", "_frame", "_names", "_package", "_pieces", "_stated", "text")

    def __init__(self, source: Source) -> None:
        self.text = normalize(source.text)
        self._package = source.path.endswith(("__init__.py", "__init__.pyi"))
        self._frame: str | None = None
        self._pieces: dict[str, list[tuple[int, int]]] | None = None
        self._classes: set[str] = set()
        """The names that are classes where they are defined last."""
        self._names: tuple[frozenset[str], bool] | None = None
        self._digests: dict[str, str] = {}
        self._stated: dict[str, list[str]] | None = None

    @property
    def pieces(self) -> dict[str, list[tuple[int, int]]]:
        """By name, where in the text the definitions of that name begin and end."""
        if self._pieces is None:
            self._pieces = {}
            label, begin, decorated = "", 0, -1
            for at, match in _margins(self.text):
                if decorated < 0 and label:
                    self._pieces.setdefault(label, []).append((begin, at))
                    label = ""
                if match[1]:
                    decorated = at if decorated < 0 else decorated
                    continue
                label, begin = match[2] or "", at if decorated < 0 else decorated
                decorated = -1
                if match[0].startswith("\nclass"):
                    self._classes.add(label)
                else:
                    self._classes.discard(label)
            if label:
                self._pieces.setdefault(label, []).append((begin, len(self.text)))
        return self._pieces

    @property
    def frame(self) -> str:
        """The text with its definitions left out, line by line in its place."""
        if self._frame is None:
            kept, done = [], 0
            for begin, end in sorted(piece for pieces in self.pieces.values() for piece in pieces):
                kept += [self.text[done:begin], "\n" * self.text.count("\n", begin, end)]
                done = end
            self._frame = "".join([*kept, self.text[done:]])
        return self._frame

    def size(self, label: str) -> int:
        """Characters of the definitions of a name; as in its digest, blank lines after them do not count."""
        return sum(len(piece) for piece in self._defined(label))

    def text_of(self, label: str) -> str:
        """What stands under a label, each line in its place."""
        if label == FRAME:
            return self.frame
        if label == WHOLE:
            return self.text
        kept, line = [], 0
        for begin, end in self.pieces[label]:
            first = self.text.count("\n", 0, begin)
            kept += ["\n" * (first - line), self.text[begin:end]]
            line = first + self.text.count("\n", begin, end)
        return "".join(kept)

    def is_function(self, label: str) -> bool:
        """Whether what is defined under a name last is a function, rather than a class."""
        return label in self.pieces and label not in self._classes

    def _defined(self, label: str) -> list[str]:
        return [self.text[begin:end].rstrip() for begin, end in self.pieces.get(label, ())]

    @property
    def stated(self) -> dict[str, list[str]]:
        """By name the statements of the frame that do nothing but bind it, and under FRAME what else there is.

        Of imports there the top-level modules.
        """
        if self._stated is None:
            self._stated = {FRAME: []}
            modules: set[str] = set()
            begins = [at for at, _ in _margins(self.frame)]
            for begin, end in pairwise([*begins, len(self.frame)]):
                statement = self.frame[begin:end].strip()
                for name in _bound(statement) or [FRAME]:
                    self._stated.setdefault(name, []).append(statement)
                modules.update(one.module.partition(".")[0] for one in at_start(statement))
            self._stated[FRAME] += sorted(modules)
        return self._stated

    @property
    def names(self) -> tuple[frozenset[str], bool]:
        """The names that the file may bind, and whether it passes on all that other modules bind.

        Of a package's `__init__`, every word may be one that it imports.
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

    def digest(self, label: str) -> str:
        """Stands for what is found under a label; empty for a name that is not defined."""
        known = self._digests.get(label)
        if known is None:
            known = self._digests[label] = self._digest(label)
        return known

    def digests(self, labels: Iterable[str]) -> dict[str, str]:
        """What stands for the text under each of some labels."""
        return {label: self.digest(label) for label in labels}

    def _digest(self, label: str) -> str:
        if label == WHOLE:
            told = self.text
        elif label == NAMES:
            names, passes_on = self.names
            told = repr((sorted(names), passes_on))
        elif KIND in label:
            name, _, room = label.partition(KIND)
            told = repr((name in self.pieces, self.is_function(name), room and self.size(name) > int(room)))
        elif label == FRAME:
            told = repr((cost(self.frame), self.stated[FRAME]))
        elif label in self.pieces or label in self.stated:
            told = "\0".join([*self._defined(label), "", *self.stated.get(label, ())])  # no source holds that character
        else:
            return ""
        return blake2b(told.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def _margins(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Where something begins at the margin, outside of strings."""
    for match in _MARGIN.finditer(f"\n{text}"):
        if match.lastindex:
            yield match.start(), match


def _bound(statement: str) -> list[str]:
    """The names that a statement binds, where it can be seen to do nothing else."""
    assigned = _ASSIGNMENT.match(statement)
    if assigned is not None:
        return [] if _ANOTHER.search(statement[assigned.end() :]) else [assigned[1]]
    names = [one.bound for one in at_start(statement)]
    return [] if ";" in statement or "*" in names else names
