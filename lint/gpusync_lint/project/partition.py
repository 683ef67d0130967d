"""Which files are analysed together: what a run is divided into, so that it can be shared out, kept and forgotten.

Files that no chain of imports connects know nothing of each other, so each connected component is a unit of its own.
A component of more than `MAX_WHOLE` is cut along its folders into units of about `PART`; beside each of these some
files are read that import it, and what it imports is looked up where it is asked for. Files that no framework reaches
hold no findings: they are units of another kind, which are only parsed. The division follows from the files alone: it
is the same whatever the number of processes.

Imports are looked for in the text, because parsing costs a hundred times as much. What stands in a comment or a string
may be taken for one, which only connects more files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusync_lint.catalogue.roots import FRAMEWORK_ROOTS
from gpusync_lint.project import symbols
from gpusync_lint.project.resolution import SOURCE_FOLDERS
from gpusync_lint.project.symbols import weight

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpusync_lint.model.findings import Source

MAX_WHOLE = 8_000_000
"""Characters of source in a component that is analysed whole; all of its trees are in memory at once."""
PART = 300_000
"""Characters of source in the units that a larger component is cut into, about."""
_PLAIN = 500_000
"""Characters of source in a unit of files that are only parsed."""

_IMPORT = re.compile(
    r"(?:^|[;:])[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import\b[ \t]*(\([^)]*\)|(?:[^\n#;\\]|\\\n)*)"
    r"|import[ \t]+((?:[^\n#;\\]|\\\n)*))",
    re.MULTILINE,
)
_BEGIN = re.compile(r"(?:^|[;:])[ \t]*(?:from[ \t]+\.*[\w.]*[ \t]+)?import\b", re.MULTILINE)
_COMMENT = re.compile(r"#[^\n]*")

Imports = tuple[tuple[str, str], ...]
"""The modules that a file imports, each with the name taken from it (empty for a plain import), sorted."""


def imports(text: str) -> Imports:
    """The imports in a text."""
    found: set[tuple[str, str]] = set()
    for match in _statements(text):
        module, labels, plain = match.groups()
        if plain is not None:
            found.update((word, "") for word in map(_name, plain.split(",")) if word)
        elif labels:
            items = _COMMENT.sub("", labels) if "#" in labels else labels
            found.update((module, _name(item)) for item in items.strip("() \t").split(",") if item.strip())
    return tuple(sorted(found))


def _statements(text: str) -> Iterator[re.Match[str]]:
    """The import statements in a text: looked for around the word alone, not at the beginning of every line."""
    place = done = 0
    while True:
        word = text.find("import", place)
        if word < 0:
            return
        place = word + len("import")
        begin = _BEGIN.search(text, max(text.rfind("\n", 0, word) + 1, done), place + 1)
        match = _IMPORT.match(text, begin.start()) if begin is not None else None
        if match is not None:
            yield match
            place = done = max(match.end(), place)


def _name(item: str) -> str:
    words = item.replace("\\", " ").split()
    return words[0] if words and words[0] != "*" else ""


@dataclass(frozen=True, slots=True)
class Unit:
    """Files that are analysed together: indices into the sources of a run, in their order."""

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
    return _uses(imported, FRAMEWORK_ROOTS) and symbols.speaks_of_device(text)


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
        self._folders: list[tuple[str, ...]] = []
        self._index: dict[tuple[str, ...], int] = {}
        for place, path in enumerate(paths):
            parts = tuple(path.removesuffix(".py").split("/"))
            self._folders.append(parts[:-1])
            self._index[parts[:-1] if parts[-1] == "__init__" else parts] = place
        self._heads = {parts[:length] for parts in self._index for length in range(len(parts) + 1)}
        """Every beginning of the name of a module."""
        self._words = {word for parts in self._index for word in parts}
        self._known: dict[tuple[tuple[str, ...], str, str], int] = {}

    def targets(self, place: int, imported: Imports) -> set[int]:
        """The files that one imports."""
        folder = self._folders[place]
        found = set()
        for module, label in imported:
            key = (folder, module, label)
            target = self._known.get(key)
            if target is None:
                target = self._known[key] = self._resolve(folder, module, label)
            if target >= 0 and target != place:
                found.add(target)
        return found

    def _resolve(self, folder: tuple[str, ...], module: str, label: str) -> int:
        stripped = module.lstrip(".")
        words = (*(stripped.split(".") if stripped else ()), *((label,) if label else ()))
        relative = stripped != module
        if relative:
            roots: Iterable[tuple[str, ...]] = [folder[: len(folder) - (len(module) - len(stripped) - 1)]]
        elif not words or words[0] not in self._words:
            return -1
        else:
            above = [folder[:length] for length in range(len(folder), -1, -1)]
            roots = [root for base in above for root in (base, *((*base, sub) for sub in SOURCE_FOLDERS))]
        for root in roots:
            if (*root, *words[:1]) not in self._heads:
                continue
            for length in range(len(words), -1 if relative else 0, -1):
                target = self._index.get((*root, *words[:length]))
                if target is not None:
                    return target
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
