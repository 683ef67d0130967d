"""The other files of a large component, read where a part asks for them, one definition at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusync_lint.project.outline import FRAME, HOST_FIELDS, KIND, NAMES, WHOLE, Outline, cost
from gpusync_lint.project.symbols import define, read_symbols
from gpusync_lint.syntax.parsing import parse

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Collection, Iterable, Mapping

    from gpusync_lint.model.findings import Source
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.project.imports import Module
    from gpusync_lint.project.symbols import ModuleDef

MAX_READ = 30_000
"""The maximum number of characters of source that are read for a part from other files."""
MAX_KEPT = 2_000_000
"""The maximum number of characters of source whose trees are kept for other parts."""
MAX_DEFINITION = 10_000
"""The maximum length of a function or class that is read for a part, in characters."""
_MAX_STARS = 2


class Library:
    """The files of a component by number, with the sections that have been parsed. All parts share it.

    Trees are never modified, so several parts may use the same one.
    """

    def __init__(self, source_of: Callable[[int], Source]) -> None:
        self.source_of = source_of
        self._outlines: dict[int, Outline] = {}
        self._trees: dict[tuple[int, str], ast.Module | None] = {}
        self._budget = MAX_KEPT

    def outline(self, number: int) -> Outline:
        """The outline of a file."""
        known = self._outlines.get(number)
        if known is None:
            known = self._outlines[number] = Outline(self.source_of(number))
        return known

    def forget(self, number: int) -> None:
        """Read a file again when it is needed, because its text has changed."""
        outline = self._outlines.pop(number, None)
        for key in [key for key in self._trees if key[0] == number]:
            del self._trees[key]
            self._budget += 0 if outline is None else len(outline.text_of(key[1]))

    def tree(self, number: int, section: str) -> ast.Module | None:
        """The tree of a section of a file; None if it cannot be parsed."""
        key = (number, section)
        if key in self._trees:
            return self._trees[key]
        text = self.outline(number).text_of(section)
        tree = parse(text).tree
        if len(text) <= self._budget:
            self._budget -= len(text)
            self._trees[key] = tree
        return tree


@dataclass(frozen=True, slots=True)
class Component:
    """The component of which some files are a part."""

    modules: Mapping[Module, int]
    """The numbers of all files of the component, by their modules."""
    beginnings: frozenset[Module]
    """Every beginning of the name of a module."""
    library: Library
    uses_device: bool
    """Whether any file of the component mentions a device."""
    without_framework: frozenset[str] = frozenset()
    """The paths of files of the part that use no framework, not even through their imports."""


class LazyModules:
    """What a part reads of the other files of its component, within a budget."""

    def __init__(self, component: Component, own: Iterable[Module]) -> None:
        """`own` are the modules of the part itself."""
        self.beginnings = component.beginnings
        self.unreadable: set[Module] = set()
        """Modules that exceeded the budget, or could not be parsed."""
        self._library = component.library
        self._modules = component.modules
        self._budget = MAX_READ
        self._requested = set(own)
        self._numbers: dict[ModuleDef, int] = {}
        """The numbers of files whose frame was read."""
        self._defined: dict[tuple[int, str], bool] = {}
        """By number and name, whether a requested definition was within the budget."""
        self._sections: dict[int, set[str]] = {}
        """By number, the sections that were used, whether they exist or not."""

    def number(self, module: Module) -> int | None:
        """The number of a module that has not been read; None if it has been, or does not exist."""
        return None if module in self._requested else self._modules.get(module)

    def dependencies(self) -> dict[int, dict[str, str]]:
        """What the part has used of other files: by number, the sections with their digests."""
        return {
            number: {section: self._library.outline(number).digest(section) for section in sorted(sections)}
            for number, sections in self._sections.items()
        }

    def read(self, module: Module) -> ModuleDef | None:
        """A module without its definitions; None if it cannot be read."""
        number = self.number(module)
        if number is None:
            return None
        self._requested.add(module)
        outline = self._use(number, FRAME)
        if not self._fits(outline.frame):
            self.unreadable.add(module)
            return None
        tree = self._library.tree(number, FRAME)
        lazily = tree is not None
        if tree is None and self._fits(self._use(number, WHOLE).text):
            tree = self._library.tree(number, WHOLE)
        if tree is None:
            self.unreadable.add(module)
            return None
        self._budget -= cost(outline.frame if lazily else outline.text)
        found = read_symbols(self._library.source_of(number).path, outline.text, tree)
        found.called_only = True
        if lazily:
            found.outline = outline
            self._numbers[found] = number
        return found

    def define(self, file: ModuleDef, name: str) -> bool:
        """Read the definitions of a name in a file; False if they exceed the budget."""
        number = self._numbers[file]
        known = self._defined.get((number, name))
        if known is None:
            known = self._defined[number, name] = self._define(file, number, name)
        return known

    def _define(self, file: ModuleDef, number: int, name: str) -> bool:
        outline = self._library.outline(number)
        size, limit = outline.size(name), min(self._budget, MAX_DEFINITION)
        if size > limit:
            self._use(number, f"{name}{KIND}{limit}")
            return False
        self._use(number, name)
        if name not in outline.pieces:
            return True
        tree = self._library.tree(number, name)
        if tree is None and self._fits(self._use(number, WHOLE).text):
            size = len(outline.text)
            tree = self._library.tree(number, WHOLE)
        if tree is None:
            return False
        self._budget -= size
        define(file, name, tree)
        return True

    def function_key(self, module: Module, name: str) -> Key | None:
        """The key of a function that was not read, or of the `__init__` of a class; None if there is none."""
        number = self._modules.get(module)
        outline = None if number is None else self._use(number, name + KIND)
        if number is None or outline is None or name not in outline.pieces:
            return None
        qualname = name if outline.is_function(name) else f"{name}.__init__"
        return self._library.source_of(number).path, qualname

    def may_export(self, number: int, name: str, depth: int) -> bool:
        """Whether a module that has not been read may bind a name, itself or by a star import."""
        names, reexports = self._use(number, NAMES).names
        return name in names or (reexports and depth < _MAX_STARS)

    @property
    def modules(self) -> Collection[Module]:
        """All modules of the component."""
        return self._modules.keys()

    def host_fields(self, module: Module) -> frozenset[str]:
        """The names that a module of the component declares to be kept on the host."""
        return self._use(self._modules[module], HOST_FIELDS).host_fields

    def _fits(self, text: str) -> bool:
        return cost(text) <= self._budget

    def _use(self, number: int, section: str) -> Outline:
        """The outline of a file, of which a section is used."""
        self._sections.setdefault(number, set()).add(section)
        return self._library.outline(number)
