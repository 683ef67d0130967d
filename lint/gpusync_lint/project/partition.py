"""Which files are analyzed together: the division of a run into units, for processes and for the cache.

Files that no chain of imports connects do not affect each other, so each connected component is a unit. A component
larger than `MAX_WHOLE` is cut along its folders into parts of about `PART`, which read what they use of the other files
on demand. Files that no framework reaches contain no findings; they are units that are only parsed. The division
depends on the files alone, and not on the number of processes.

Imports are found in the text, because parsing takes a hundred times as long. A comment or a string may be taken for an
import, which only connects more files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import roots as frameworks
from gpusync_lint.project import symbols
from gpusync_lint.project.imports import beginnings, dotted, lookup, module_of, modules_in
from gpusync_lint.project.outline import weight

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusync_lint.model.findings import Source
    from gpusync_lint.project.imports import Module

MAX_WHOLE = 8_000_000
"""The maximum size, in characters, of a component that is analyzed whole. All of its trees are in memory at once."""
PART = 300_000
"""The approximate size, in characters, of the parts of a larger component."""
_PARSE_ONLY = 500_000
"""The size, in characters, of a unit of files that are only parsed."""

Imports = tuple[tuple[str, str], ...]
"""The modules that a file imports, each with the imported name (empty for the module itself), sorted."""


def imports(text: str) -> Imports:
    """The imports in a text."""
    return tuple(sorted(modules_in(text)))


@dataclass(frozen=True, slots=True)
class Unit:
    """Files that are analyzed together, as indices into the sources of a run."""

    indices: tuple[int, ...]
    """The files on which it reports."""
    without_framework: tuple[int, ...] = ()
    """For a part, those of its files that use no framework, not even through their imports."""
    component: tuple[int, ...] = ()
    """For a part of a larger component, all files of the component."""
    uses_device: bool = False
    """For a part of a larger component, whether any file of the component mentions a device."""
    parse_only: bool = False
    """Whether the files are only parsed, because no framework reaches them."""


def divide(sources: Sequence[Source], imported: Sequence[Imports], roots: frozenset[str]) -> list[Unit]:
    """The units of a run, sorted by their first paths.

    Args:
        sources: the files of the run.
        imported: the imports of each file.
        roots: the top-level modules whose import makes a file one to analyze.
    """
    links = _Links([source.path for source in sources])
    targets = [links.targets(index, found) for index, found in enumerate(imported)]
    graph = _Graph(sources, targets)
    users = graph.importers_of(index for index, found in enumerate(imported) if _uses(found, roots))
    reached = graph.imported_by(users)
    units = graph.parse_only_units([index for index in range(len(sources)) if index not in reached])
    for component in _components(sorted(reached), targets):
        if graph.size(component) <= MAX_WHOLE:
            units.append(Unit(component))
            continue
        device = symbols.uses_device(device_use(sources[index], imported[index]) for index in component)
        for part in graph.cut(sorted(component, key=lambda index: sources[index].path)):
            without = tuple(index for index in part if index not in users)
            units.append(Unit(part, without, component, device))
    return sorted(units, key=lambda unit: sources[unit.indices[0]].path)


def device_use(source: Source, imported: Imports) -> symbols.DeviceUse:
    """What a file shows of the device of its project; nothing if it does not use a framework."""
    uses = _uses(imported, frameworks.torch_family())
    return symbols.device_use(source.path, source.text) if uses else symbols.DeviceUse(0)


def _uses(imported: Imports, roots: frozenset[str]) -> bool:
    return any(module.partition(".")[0] in roots for module, _ in imported)


class _Graph:
    """The files of a run and what each imports."""

    def __init__(self, sources: Sequence[Source], targets: Sequence[set[int]]) -> None:
        self._sizes = [weight(source.text) for source in sources]
        self._paths = [source.path for source in sources]
        self._targets = targets
        self._importers: list[list[int]] = [[] for _ in sources]
        for index, found in enumerate(targets):
            for target in found:
                self._importers[target].append(index)

    def size(self, indices: Iterable[int]) -> int:
        """The number of characters of source, rounded."""
        return sum(self._sizes[index] for index in indices)

    def importers_of(self, start: Iterable[int]) -> frozenset[int]:
        """Files, and all that import them directly or indirectly."""
        return _closure(start, self._importers)

    def imported_by(self, start: Iterable[int]) -> frozenset[int]:
        """Files, and all that they import directly or indirectly."""
        return _closure(start, self._targets)

    def parse_only_units(self, indices: Iterable[int]) -> list[Unit]:
        """Units of files that are only parsed."""
        groups: list[list[int]] = []
        for index in indices:
            if not groups or self.size(groups[-1]) >= _PARSE_ONLY:
                groups.append([])
            groups[-1].append(index)
        return [Unit(tuple(group), parse_only=True) for group in groups]

    def cut(self, indices: Sequence[int], depth: int = 0) -> list[tuple[int, ...]]:
        """Divide files, sorted by path, along folders. Files that fit into one part stay together."""
        if len(indices) == 1 or self.size(indices) <= PART:
            return [tuple(indices)]
        folders: dict[str, list[int]] = {}
        for index in indices:
            words = self._paths[index].split("/")
            folders.setdefault("/".join(words[: depth + 1]), []).append(index)
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
        for index in links[stack.pop()]:
            if index not in found:
                found.add(index)
                stack.append(index)
    return frozenset(found)


class _Links:
    """Resolves imports to files."""

    def __init__(self, paths: Sequence[str]) -> None:
        modules = [module_of(path) for path in paths]
        self._folders = [tuple(path.split("/")[:-1]) for path in paths]
        self._index = {module: index for index, module in enumerate(modules)}
        self._beginnings = beginnings(modules)
        self._words = {word for module in modules for word in module}
        self._known: dict[tuple[Module, str, str], int] = {}

    def targets(self, index: int, imported: Imports) -> set[int]:
        """The files that a file imports."""
        folder = self._folders[index]
        found = set()
        for module, name in imported:
            key = (folder, module, name)
            target = self._known.get(key)
            if target is None:
                target = self._known[key] = self._resolve(folder, dotted(module, name))
            if target >= 0 and target != index:
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


def _components(indices: Iterable[int], targets: Sequence[set[int]]) -> list[tuple[int, ...]]:
    """The connected components of some files, along imports among these files only."""
    parent = {index: index for index in indices}

    def find(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for index in parent:
        for target in targets[index]:
            if target in parent:
                parent[find(index)] = find(target)
    components: dict[int, list[int]] = {}
    for index in parent:
        components.setdefault(find(index), []).append(index)
    return [tuple(component) for component in components.values()]
