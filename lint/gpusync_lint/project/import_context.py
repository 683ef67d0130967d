"""The context of files that are given by name: files of their project that are read but not reported on.

A commit hook is given the files of a commit, an editor gives one file. But how often a function runs is known from its
callers, and what a name holds from imported files, which may not be among them. So the files that the given files
import, and those that import them, are read as well, directly and indirectly, nearest first, within the limits below.
If none of them imports a framework, there can be no finding, and nothing is read.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import roots
from gpusync_lint.files.discovery import SUFFIXES, DecodeError, decode, display_path, enters
from gpusync_lint.files.regular_file import MAX_SOURCE, read_regular
from gpusync_lint.project.imports import dotted, lookup, modules_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpusync_lint.files.discovery import SourceFile
    from gpusync_lint.model.findings import Source
    from gpusync_lint.project.imports import Module

MAX_FILES = 48
"""The maximum number of files that are read as context. At most half of them are imports of the given files."""
MAX_BYTES = 500_000
"""The maximum size of the context. At most half of it is imports of the given files."""
MAX_SCANNED = 500
"""The maximum number of files that are searched for imports of the given files, nearest folders first."""
MAX_CALLERS = 2
"""How many steps importers are followed: to files that import a given file, and to files that import those."""

_MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg")


def context_of(files: Sequence[SourceFile], *, cwd: Path, excludes: Callable[[str], bool]) -> tuple[Source, ...]:
    """The context of those among `files` that were given by name."""
    named = [file for file in files if file.named and file.notebook is None]
    if not named:
        return ()
    search = _Search({file.location: file.raw.encode(errors="replace") for file in files}, excludes)
    search.add_imports([file.location for file in named])
    search.add_callers([file.location for file in named])
    if not search.uses_framework():
        return ()
    found = []
    for path in search.found:
        try:
            found.append(decode(search.texts[path], display_path(path, cwd), path).source)
        except DecodeError:
            continue  # errors in the context are not reported
    return tuple(found)


class _Search:
    """Follows imports in both directions, within the limits."""

    def __init__(self, files: dict[Path, bytes], excludes: Callable[[str], bool]) -> None:
        self.texts = dict(files)
        self.found: list[Path] = []
        self._excludes = excludes
        self._files = MAX_FILES // 2
        self._bytes = MAX_BYTES // 2
        self._folders = _Folders()

    def add_imports(self, start: Iterable[Path]) -> None:
        """Add the files of the project that some files import, directly or indirectly."""
        level = list(start)
        while level:
            targets = dict.fromkeys(target for path in level for target in self._imported(path))
            level = [target for target in targets if target not in self.texts and self._add(target)]

    def add_callers(self, start: Iterable[Path]) -> None:
        """Add the files that import some files, directly or indirectly, and the imports of these files."""
        self._files += MAX_FILES // 2
        self._bytes += MAX_BYTES // 2
        level = list(start)
        callers: list[Path] = []
        for _ in range(MAX_CALLERS):
            if not level or not self._files:
                break
            if callers and not self.uses_framework():
                break
            level = list(self._importers(level))
            callers.extend(level)
        self.add_imports(callers)

    def uses_framework(self) -> bool:
        """Whether any file that has been read imports a framework."""
        return any(_imports_framework(text) for text in self.texts.values())

    def _add(self, path: Path) -> bool:
        if not self._files or self._excludes(str(path)):
            return False
        data = _read(path)
        if data is None or len(data) > self._bytes:
            return False
        self._files -= 1
        self._bytes -= len(data)
        self.texts[path] = data
        self.found.append(path)
        return True

    def _imported(self, path: Path) -> Iterator[Path]:
        folder = str(path.parent)
        for module, name in _imports(self.texts[path]):
            target = self._folders.module(folder, dotted(module, name))
            if target is not None and target != path:
                yield target

    def _importers(self, targets: Sequence[Path]) -> Iterator[Path]:
        wanted = set(targets)
        stems = {path.parent.name if path.stem == "__init__" else path.stem for path in targets}
        words = [os.fsencode(stem) for stem in stems]
        for path in _near(targets, self._excludes, self._folders):
            if path in self.texts:
                continue
            data = _read(path)
            if data is None or not any(word in data for word in words):
                continue
            folder = str(path.parent)
            if any(
                self._folders.module(folder, dotted(module, name)) in wanted
                for module, name in _imports(data)
                if name in stems or not stems.isdisjoint(module.split("."))
            ):
                if self._add(path):
                    yield path
                if not self._files:
                    return


def _near(targets: Sequence[Path], excludes: Callable[[str], bool], known: _Folders) -> Iterator[Path]:
    """The Python files of the projects of some files: first those in their folders, then in the parents, and so on."""
    seen: set[str] = set()
    scanned = 0
    tops = dict.fromkeys(target.parent for target in targets)
    roots = {top: Path(known.root(str(top))) for top in tops}
    while tops:
        for top in tops:
            for folder, folders, names in os.walk(top):
                folders[:] = sorted(
                    name
                    for name in folders
                    if os.path.join(folder, name) not in seen and enters(Path(folder, name), excludes)
                )
                if folder in seen:
                    continue
                seen.add(folder)
                for name in sorted(names):
                    if name.endswith(SUFFIXES[:2]):
                        scanned += 1
                        if scanned > MAX_SCANNED:
                            return
                        yield Path(folder, name)
        above = {top.parent: roots[top] for top in tops if top != roots[top]}
        roots, tops = above, dict.fromkeys(above)


def _imports(data: bytes) -> list[tuple[str, str]]:
    return modules_in(data.decode(errors="replace"))


class _Folders:
    """The files and folders of a project. Each folder is listed once, instead of testing for single files."""

    def __init__(self) -> None:
        self._inside: dict[str, frozenset[str]] = {}
        self._marked: dict[str, str] = {}
        self._known: dict[tuple[str, str], Path | None] = {}

    def root(self, folder: str) -> str:
        """The folder of the project: the nearest one upwards with a marker of a project, else the folder itself."""
        return self._nearest(folder) or folder

    def _nearest(self, folder: str) -> str:
        """The nearest folder upwards with a marker of a project; empty if there is none."""
        found = self._marked.get(folder)
        if found is None:
            if not self._names(folder).isdisjoint(_MARKERS):
                found = folder
            else:
                above = os.path.dirname(folder)
                found = self._nearest(above) if above != folder else ""
            self._marked[folder] = found
        return found

    def module(self, folder: str, target: str) -> Path | None:
        """The file of the project that a dotted name refers to in a file of a folder."""
        key = (folder, target)
        if key not in self._known:
            self._known[key] = self._module(folder, target)
        return self._known[key]

    def _module(self, folder: str, target: str) -> Path | None:
        if not all(word.isidentifier() for word in target.lstrip(".").split(".") if word):
            return None
        top = len(Path(self.root(folder)).parts)
        for module, _ in lookup(Path(folder).parts, target, self._may_exist, top):
            found = self._file(module)
            if found is not None:
                return found
        return None

    def _may_exist(self, module: Module) -> bool:
        inside = self._names(os.path.join("", *module[:-1]))
        return bool(module) and (module[-1] in inside or f"{module[-1]}.py" in inside)

    def _file(self, module: Module) -> Path | None:
        """The file of a module. As in Python, a package comes before a file of the same name."""
        for *folders, name in ((*module, "__init__.py"), (*module[:-1], f"{module[-1]}.py")):
            above = os.path.join("", *folders)
            if name in self._names(above) and os.path.isfile(os.path.join(above, name)):
                return Path(above, name)
        return None

    def _names(self, folder: str) -> frozenset[str]:
        names = self._inside.get(folder)
        if names is None:
            try:
                names = frozenset(os.listdir(folder))
            except OSError:
                names = frozenset()
            self._inside[folder] = names
        return names


@cache
def _framework_import() -> re.Pattern[bytes]:
    modules = "|".join(sorted(roots.frameworks()))
    return re.compile(rf"^[ \t]*(?:from|import)[ \t]+(?:[^\n#]*[ ,])?(?:{modules})\b".encode(), re.MULTILINE)


def _imports_framework(text: bytes) -> bool:
    return _framework_import().search(text) is not None


def _read(path: Path) -> bytes | None:
    try:
        return read_regular(path, MAX_SOURCE)
    except OSError:
        return None
