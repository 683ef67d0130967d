"""What lies beside a part of a large project, read where it is asked for, one definition at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusync_lint.project.outline import FRAME, KIND, NAMES, WHOLE, Definitions, cost
from gpusync_lint.project.symbols import define, read_symbols
from gpusync_lint.syntax.parsing import parse

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterable, Mapping

    from gpusync_lint.model.findings import Source
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.project.imports import Module
    from gpusync_lint.project.symbols import ModuleDef

MAX_BESIDE = 30_000
"""Characters of source that are read beside a part of a project, at most."""
MAX_KEPT = 2_000_000
"""Characters of source whose trees are kept for other parts, at most."""
MAX_DEFINITION = 10_000
"""Characters of one function or class that is read for it, at most."""
_MAX_STARS = 2


class Library:
    """The files of a project, by number, and the pieces of them that were read; the same for all of its parts.

    Nothing changes a tree, so that many parts may use the same.
    """

    def __init__(self, source_of: Callable[[int], Source]) -> None:
        self.source_of = source_of
        self._definitions: dict[int, Definitions] = {}
        self._trees: dict[tuple[int, str], ast.Module | None] = {}
        self._room = MAX_KEPT

    def definitions(self, number: int) -> Definitions:
        """Where the definitions of a file stand."""
        known = self._definitions.get(number)
        if known is None:
            known = self._definitions[number] = Definitions(self.source_of(number))
        return known

    def tree(self, number: int, label: str) -> ast.Module | None:
        """What stands under a label of a file; None where that cannot be read."""
        key = (number, label)
        if key in self._trees:
            return self._trees[key]
        text = self.definitions(number).text_of(label)
        tree = parse(text).tree
        if len(text) <= self._room:
            self._room -= len(text)
            self._trees[key] = tree
        return tree


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a part of a larger project lies in."""

    modules: Mapping[Module, int]
    """The files of the project, those of the part included, as `module_of` tells them, each with a number."""
    beginnings: frozenset[Module]
    """Every beginning of the name of a module."""
    library: Library
    device: bool
    """Whether anything in the project speaks of a device."""
    idle: frozenset[str] = frozenset()
    """Paths of those given that use no framework, not even through what they import."""


class Beside:
    """The files around a part, and what has been read of them."""

    def __init__(self, around: Surroundings, given: Iterable[Module]) -> None:
        self.beginnings = around.beginnings
        self.unread: set[Module] = set()
        """Modules that there was no room for, or that cannot be read."""
        self._library = around.library
        self._modules = around.modules
        self._room = MAX_BESIDE
        self._asked = set(given)
        self._numbers: dict[int, int] = {}
        """By `id` of what was read of a file: its number."""
        self._answers: dict[tuple[int, str], bool] = {}
        """By number and name of the definitions that were asked for: whether there was room."""
        self._labels: dict[int, set[str]] = {}
        """By number: what was asked for, found or not."""

    def number(self, module: Module) -> int | None:
        """The number of a module that has not been read; None where it has, and where there is none."""
        return None if module in self._asked else self._modules.get(module)

    def depends(self) -> dict[int, dict[str, str]]:
        """On what of the files around the outcome depends: by number, the labels with what stood for them."""
        return {
            number: {label: self._library.definitions(number).digest(label) for label in sorted(labels)}
            for number, labels in self._labels.items()
        }

    def read(self, module: Module) -> ModuleDef | None:
        """The file of a module without its definitions; None where it cannot be read."""
        number = self.number(module)
        if number is None:
            return None
        self._asked.add(module)
        definitions = self._ask(number, FRAME)
        path = self._library.source_of(number).path
        if not self._fits(definitions.frame):
            self.unread.add(module)
            return None
        tree = self._library.tree(number, FRAME)
        lazily = tree is not None
        if tree is None and self._fits(self._ask(number, WHOLE).text):
            tree = self._library.tree(number, WHOLE)
        if tree is None:
            self.unread.add(module)
            return None
        self._room -= cost(definitions.frame if lazily else definitions.text)
        found = read_symbols(path, definitions.text, tree)
        found.called_only = True
        if lazily:
            found.definitions = definitions
            self._numbers[id(found)] = number
        return found

    def define(self, file: ModuleDef, label: str) -> bool:
        """Read what a file defines under a name; False where there is no room for it."""
        number = self._numbers[id(file)]
        known = self._answers.get((number, label))
        if known is None:
            known = self._answers[number, label] = self._define(file, number, label)
        return known

    def _define(self, file: ModuleDef, number: int, label: str) -> bool:
        definitions = self._library.definitions(number)
        size, room = definitions.size(label), min(self._room, MAX_DEFINITION)
        if size > room:
            self._ask(number, f"{label}{KIND}{room}")
            return False
        self._ask(number, label)
        if label not in definitions.pieces:
            return True
        tree = self._library.tree(number, label)
        if tree is None and self._fits(self._ask(number, WHOLE).text):
            size = len(definitions.text)
            tree = self._library.tree(number, WHOLE)
        if tree is None:
            return False
        self._room -= size
        define(file, label, tree)
        return True

    def unread_function(self, module: Module, label: str) -> Key | None:
        """The key of a function that was asked for and not read, or of what makes instances of a class."""
        number = self._modules.get(module)
        definitions = None if number is None else self._ask(number, label + KIND)
        if number is None or definitions is None or label not in definitions.pieces:
            return None
        name = label if definitions.is_function(label) else f"{label}.__init__"
        return self._library.source_of(number).path, name

    def may_export(self, number: int, label: str, depth: int) -> bool:
        """Whether a module that has not been read may bind a name, itself or by a star of its own."""
        names, passes_on = self._ask(number, NAMES).names
        return label in names or (passes_on and depth < _MAX_STARS)

    def _fits(self, text: str) -> bool:
        return cost(text) <= self._room

    def _ask(self, number: int, label: str) -> Definitions:
        self._labels.setdefault(number, set()).add(label)
        return self._library.definitions(number)
