"""Which files are analysed together: what a run is divided into, so that it can be shared out, kept and forgotten.

Files that no chain of imports connects know nothing of each other, so each connected component is a unit of its own.
Only a component of more than `MAX_WHOLE` is cut: between the folders in which its paths first differ, which then are
packages of their own. The division follows from the files alone: it is the same whatever the number of processes.

Imports are looked for in the text, because parsing costs a hundred times as much. What stands in a comment or a string
may be taken for one, which only connects more files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpusync_lint.project import SOURCE_FOLDERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusync_lint.model import Source

MAX_WHOLE = 20_000_000
"""Characters of source in a component beyond which packages that import each other are analysed one by one."""

_IMPORT = re.compile(
    r"(?:^|[;:])[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import\b[ \t]*(\([^)]*\)|(?:[^\n#;\\]|\\\n)*)"
    r"|import[ \t]+((?:[^\n#;\\]|\\\n)*))",
    re.MULTILINE,
)
_COMMENT = re.compile(r"#[^\n]*")

Imports = tuple[tuple[str, str], ...]
"""The modules that a file imports, each with the name taken from it (empty for a plain import), sorted."""


def imports(text: str) -> Imports:
    """The imports in a text."""
    found: set[tuple[str, str]] = set()
    for match in _IMPORT.finditer(text):
        module, labels, plain = match.groups()
        if plain is not None:
            found.update((word, "") for word in map(_name, plain.split(",")) if word)
        elif labels:
            items = _COMMENT.sub("", labels) if "#" in labels else labels
            found.update((module, _name(item)) for item in items.strip("() \t").split(",") if item.strip())
    return tuple(sorted(found))


def _name(item: str) -> str:
    words = item.replace("\\", " ").split()
    return words[0] if words and words[0] != "*" else ""


def divide(sources: Sequence[Source], imported: Sequence[Imports]) -> list[tuple[int, ...]]:
    """The units of a run, by the first path in each: indices into the sources, in their order."""
    links = _Links([source.path for source in sources])
    targets = [links.targets(place, found) for place, found in enumerate(imported)]
    units: list[tuple[int, ...]] = []
    for component in _components(range(len(sources)), targets):
        if sum(len(sources[place].text) for place in component) <= MAX_WHOLE:
            units.append(component)
        else:
            for package in _packages(component, sources):
                units += _components(package, targets)
    return sorted(units, key=lambda unit: sources[unit[0]].path)


def _packages(component: Sequence[int], sources: Sequence[Source]) -> list[list[int]]:
    parts = {place: sources[place].path.split("/") for place in component}
    common = 0
    while len({folders[common] for folders in parts.values()}) == 1:
        common += 1
    packages: dict[str, list[int]] = {}
    for place in component:
        packages.setdefault(parts[place][common], []).append(place)
    return list(packages.values())


class _Links:
    """Finds the files that imports mean."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._folders: list[tuple[str, ...]] = []
        self._index: dict[tuple[str, ...], int] = {}
        for place, path in enumerate(paths):
            parts = tuple(path.removesuffix(".py").split("/"))
            self._folders.append(parts[:-1])
            self._index[parts[:-1] if parts[-1] == "__init__" else parts] = place
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
