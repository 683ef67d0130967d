"""Which files are analyzed together: what a run is divided into, so that it can be shared out, kept and forgotten.

Files that no chain of imports connects know nothing of each other, so each connected component is a unit of its own.
A component of more than `MAX_WHOLE` is cut along its folders into units of about `PART`; beside each of these some
files are read that import it, and what it imports is looked up where it is asked for. Files that no framework reaches
hold no findings: they are units of another kind, which are only parsed. The division follows from the files alone: it
is the same whatever the number of processes.

Imports are looked for in the text, because parsing costs a hundred times as much. What stands in a comment or a string
may be taken for one, which only connects more files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import roots as frameworks
from gpusync_lint.project import symbols
from gpusync_lint.project.imports import beginnings, dotted, lookup, module_of, modules_in
from gpusync_lint.project.symbols import weight

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusync_lint.model.findings import Source
    from gpusync_lint.project.imports import Module

MAX_WHOLE = 8_000_000
"""Characters of source in a component that is analyzed whole; all of its trees are in memory at once."""
PART = 300_000
"""Characters of source in the units that a larger component is cut into, about."""
_PLAIN = 500_000
"""Characters of source in a unit of files that are only parsed."""

Imports = tuple[tuple[str, str], ...]
"""The modules that a file imports, each with the name taken from it (empty for a plain import), sorted."""


def imports(text: str) -> Imports:
    """The imports in a text."""
    return tuple(sorted(modules_in(text)))


@dataclass(frozen=True, slots=True)
class Unit:
    """Files that are analyzed together: indices into the sources of a run, in their order."""

    places: tuple[int, ...]
    """What is reported on."""
    idle: tuple[int, ...] = ()
    """Of a part, those of its files that use no framework, not even through what they import."""
    component: tuple[int, ...] = ()
    """Of a part of a larger component: all of that."""
    device: bool = False
    """Of a part of a larger component: whether anything in that component speaks of a device."""
    plain: bool = False
    """Whether no framework reaches these files, so that they are only parsed."""


def divide(sources: Sequence[Source], imported: Sequence[Imports], roots: frozenset[str]) -> list[Unit]:
    """The units of a run, by the first path in each. `roots` are the top-level modules whose import matters."""
    links = _Links([source.path for source in sources])
    targets = [links.targets(place, found) for place, found in enumerate(imported)]
    graph = _Graph(sources, targets)
    users = graph.importers_of(place for place, found in enumerate(imported) if _uses(found, roots))
    reached = graph.imported_by(users)
    units = graph.plain_units([place for place in range(len(sources)) if place not in reached])
    for component in _components(sorted(reached), targets):
        if graph.size(component) <= MAX_WHOLE:
            units.append(Unit(component))
            continue
        device = any(speaks_of_device(sources[place].text, imported[place]) for place in component)
        for part in graph.cut(sorted(component, key=lambda place: sources[place].path)):
            idle = tuple(place for place in part if place not in users)
            units.append(Unit(part, idle, component, device))
    return sorted(units, key=lambda unit: sources[unit.places[0]].path)


def speaks_of_device(text: str, imported: Imports) -> bool:
    """Whether a text mentions a device, where it uses a framework."""
    return _uses(imported, frameworks.torch_family()) and symbols.speaks_of_device(text)


def _uses(imported: Imports, roots: frozenset[str]) -> bool:
    return any(module.partition(".")[0] in roots for module, _ in imported)


class _Graph:
    """The files of a run and what each imports."""

    def __init__(self, sources: Sequence[Source], targets: Sequence[set[int]]) -> None:
        self._sizes = [weight(source.text) for source in sources]
        self._paths = [source.path for source in sources]
        self._targets = targets
        self._importers: list[list[int]] = [[] for _ in sources]
        for place, found in enumerate(targets):
            for target in found:
                self._importers[target].append(place)

    def size(self, places: Iterable[int]) -> int:
        """Characters of source."""
        return sum(self._sizes[place] for place in places)

    def importers_of(self, start: Iterable[int]) -> frozenset[int]:
        """These files, and all that import them, directly or not."""
        return _closure(start, self._importers)

    def imported_by(self, start: Iterable[int]) -> frozenset[int]:
        """These files, and all that they import, directly or not."""
        return _closure(start, self._targets)

    def plain_units(self, places: Iterable[int]) -> list[Unit]:
        """Files that are only parsed, some at a time."""
        groups: list[list[int]] = []
        for place in places:
            if not groups or self.size(groups[-1]) >= _PLAIN:
                groups.append([])
            groups[-1].append(place)
        return [Unit(tuple(group), plain=True) for group in groups]

    def cut(self, places: Sequence[int], depth: int = 0) -> list[tuple[int, ...]]:
        """Divide files, given in the order of their paths, along folders; what fits into one unit stays together."""
        if len(places) == 1 or self.size(places) <= PART:
            return [tuple(places)]
        folders: dict[str, list[int]] = {}
        for place in places:
            words = self._paths[place].split("/")
            folders.setdefault("/".join(words[: depth + 1]), []).append(place)
        merged: list[tuple[int, ...]] = []
        for inside in folders.values():
            for group in self.cut(inside, depth + 1):
                if merged and self.size(merged[-1]) + self.size(group) <= PART:
                    merged[-1] += group
                else:
                    merged.append(group)
        return merged


def _closure(start: Iterable[int], links: Sequence[Iterable[int]]) -> frozenset[int]:
    found = set(start)
    stack = list(found)
    while stack:
        for place in links[stack.pop()]:
            if place not in found:
                found.add(place)
                stack.append(place)
    return frozenset(found)


class _Links:
    """Finds the files that imports mean."""

    def __init__(self, paths: Sequence[str]) -> None:
        modules = [module_of(path) for path in paths]
        self._folders = [tuple(path.split("/")[:-1]) for path in paths]
        self._index = {module: place for place, module in enumerate(modules)}
        self._beginnings = beginnings(modules)
        self._words = {word for module in modules for word in module}
        self._known: dict[tuple[Module, str, str], int] = {}

    def targets(self, place: int, imported: Imports) -> set[int]:
        """The files that one imports."""
        folder = self._folders[place]
        found = set()
        for module, name in imported:
            key = (folder, module, name)
            target = self._known.get(key)
            if target is None:
                target = self._known[key] = self._resolve(folder, dotted(module, name))
            if target >= 0 and target != place:
                found.add(target)
        return found

    def _resolve(self, folder: Module, target: str) -> int:
        if not target.startswith(".") and target.partition(".")[0] not in self._words:
            return -1
        for module, _ in lookup(folder, target, self._beginnings.__contains__):
            found = self._index.get(module)
            if found is not None:
                return found
        return -1


def _components(places: Iterable[int], targets: Sequence[set[int]]) -> list[tuple[int, ...]]:
    """The components of files, along imports between them alone."""
    parent = {place: place for place in places}

    def find(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for place in parent:
        for target in targets[place]:
            if target in parent:
                parent[find(place)] = find(target)
    components: dict[int, list[int]] = {}
    for place in parent:
        components.setdefault(find(place), []).append(place)
    return [tuple(component) for component in components.values()]
