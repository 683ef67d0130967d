"""The cache in `.gpusync_cache/`: the findings of the last run, so that only what a change affects is analyzed again.

A document (`cache_file`) stores the files of a run with their findings, and the units that they were divided into
(`project.partition`) with the dependencies on other files. There is a document for each set of arguments with which the
linter is called in a folder. Findings depend only on these files, the settings, the linter and Python, which are the
identity of the document. For each component that is analyzed in parts, a second document stores what the heat of its
findings depends on (`component_heat`).

A document that cannot be read, or that has another identity, is ignored. The folder may have come with the project, so
nothing in it is trusted that the same user has not written (`cache_key`), a folder that is a link or belongs to another
user is not used, and no file is deleted whose name is not exactly one that the cache gives. The format is JSON, since a
file in the folder of a project must not be able to execute code.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import time
from dataclasses import astuple, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from gpusync_lint._version import __version__
from gpusync_lint.files.atomic_write import remove_abandoned
from gpusync_lint.files.discovery import read
from gpusync_lint.model.findings import MARKER, Analysis, Source
from gpusync_lint.run.cache_file import READ, DamagedError, Document, UnitRow, bits
from gpusync_lint.run.cache_key import NoKeyError, user_key
from gpusync_lint.run.cache_validity import (
    Changes,
    keeps_partition,
    outdated_units,
    outline_digest,
    text_digest,
    unchanged_units,
)
from gpusync_lint.run.component_heat import ComponentHeat, set_heats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpusync_lint.files.discovery import Listed
    from gpusync_lint.model.findings import EngineSettings, Finding
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.levels import Confidence, Heat
    from gpusync_lint.model.placement import Entry, Place
    from gpusync_lint.project import partition
    from gpusync_lint.project.lazy_modules import Component
    from gpusync_lint.run import schedule

FOLDER = ".gpusync_cache"
KEPT = 16
"""The number of documents that are kept. Those that were used longest ago are removed."""
_NAME = re.compile(r"(?P<document>lint-[0-9a-f]{8})(?:\.part-[0-9]+)?\.jsonl")
"""The names of the files."""


@dataclass(slots=True)
class _Plan:
    """The units to analyze. All other units of the document are valid."""

    units: dict[int, partition.Unit]
    """By number in the document, the units to analyze."""
    heats: dict[int, ComponentHeat]
    """By component with such units, the stored heat of its parts."""


@dataclass(slots=True)
class Cache:
    """The stored results for the files of a run."""

    location: Path | None
    """The path of the document; None for a cache that is kept only during a run."""
    key: bytes
    """What the documents are authenticated with."""
    settings: EngineSettings
    identity: str
    listed: Sequence[Listed]
    document: Document | None = None
    """The document of the last run, and after `analyze` that of this run."""
    unread: frozenset[str] = frozenset()
    """The paths of files that need not be read."""
    outdated: frozenset[int] | None = None
    """The numbers of the units that have to be analyzed again; None if files have to be divided into units again."""
    changed: bool = True
    """Whether the document has to be written."""
    note: str = ""
    """Why an existing document was not used, if that is unusual; one line for the user."""
    entries: dict[Key, Entry] = field(default_factory=dict)
    """The functions that are entered repeatedly, of the units that were analyzed with this object."""
    _heats: dict[int, ComponentHeat] = field(default_factory=dict)
    """By component, the documents of components that have to be written; all of them if none is written."""

    def analyze(
        self,
        sources: Sequence[Source],
        jobs: int,
        done: Callable[[int], None],
        wanted: Callable[[Heat, Confidence], bool] = lambda heat, confidence: True,
    ) -> tuple[Analysis, list[str]]:
        """Analyze the files whose units are outdated.

        Args:
            sources: the files that were read.
            jobs: the number of processes.
            done: is called with the number of files that are finished.
            wanted: whether findings of a heat and confidence are needed in files that were not read.

        Returns:
            The findings in all files of the run, and the tracebacks of internal errors.
        """
        files = len(sources) + len(self.unread)
        kinds = bits(wanted)
        try:
            return self._analysis(sources, jobs, done, kinds, files)
        except DamagedError:
            lazily = _LazyFiles(self.listed, sources)
            paths = self.unread.union(source.path for source in sources)
            everything = [lazily.source(place) for path, place in lazily.places.items() if path in paths]
            self.document, self.outdated, self.changed = None, None, True
            return self._analysis(everything, jobs, done, kinds, files)

    def edited(self, sources: Iterable[Source]) -> None:
        """Record new texts of files. The next `analyze` analyzes only what they affect."""
        document = self.document
        assert document is not None
        numbers = {path: number for number, path in enumerate(document.paths)}
        changed = {numbers[source.path]: source for source in sources}
        self.unread = frozenset()
        self.outdated = None
        if all(keeps_partition(document, number, source) for number, source in changed.items()):
            failed = {document.units[file] for file, digest in enumerate(document.digests) if not digest}
            self.outdated = frozenset(outdated_units(document, changed)) | (failed - {-1})

    def _analysis(
        self, sources: Sequence[Source], jobs: int, done: Callable[[int], None], kinds: int, files: int
    ) -> tuple[Analysis, list[str]]:
        from gpusync_lint.run.schedule import combined

        if self.document is not None and self.outdated is not None:
            tracebacks = self._update(self.document, self.outdated, sources, jobs, done)
        else:
            tracebacks = self._replace(sources, jobs, done)
        document = self.document
        assert document is not None
        with_findings = [file for file, shown in enumerate(document.shown) if shown & (kinds | READ)]
        found = Analysis(tuple(document.findings(with_findings, kinds)), tuple(document.errors_of()), files)
        return combined([found], files), tracebacks

    def _update(
        self,
        document: Document,
        outdated: frozenset[int],
        sources: Sequence[Source],
        jobs: int,
        done: Callable[[int], None],
    ) -> list[str]:
        """Analyze the outdated units of the document."""
        if not outdated:
            done(len(self.listed))
            return []
        from gpusync_lint.project import partition

        own = document.own()
        members = document.members()
        units = set(outdated)
        plan = _Plan({}, {})
        components = {}
        for number in {document.components[unit] for unit in outdated} - {-1}:
            components[number] = tuple(sorted(file for unit in members[number] for file in own[unit]))
            heat = self._stored_heat(document, number, members[number])
            if heat is None:
                units.update(members[number])
            plan.heats[number] = heat or ComponentHeat()
        for unit in sorted(units):
            row = document.unit(unit)
            component = components.get(document.components[unit], ())
            plan.units[unit] = partition.Unit(
                tuple(own[unit]), tuple(row.without_framework), component, row.uses_device, row.parse_only
            )
        done(len(self.listed) - sum(len(unit.indices) for unit in plan.units.values()))
        return self._complete(document, plan, _LazyFiles(self.listed, sources), range(len(self.listed)), jobs, done)

    def _replace(self, sources: Sequence[Source], jobs: int, done: Callable[[int], None]) -> list[str]:
        """Divide the files into units, and create a new document with the valid units of the old one."""
        from gpusync_lint.project import partition
        from gpusync_lint.run import schedule

        imported = [partition.imports(source.text) for source in sources]
        units = partition.divide(sources, imported, schedule.roots(self.settings))
        numbers = {one.path: number for number, one in enumerate(self.listed)}
        files = [numbers[source.path] for source in sources]
        document, plan = self._new_document(units, files)
        for file, source, imports in zip(files, sources, imported, strict=True):
            document.outlines[file] = outline_digest(source, imports)
        stored = [-1] * len(units)
        if self.document is not None:
            stored = unchanged_units(self.document, units, sources)
            self._copy_valid(self.document, document, plan, stored)
        self._heats.clear()
        for number, unit in enumerate(units):
            for place in unit.indices:
                document.units[files[place]] = number
        plan.units.update((number, unit) for number, unit in enumerate(units) if stored[number] < 0)
        done(sum(len(unit.indices) for number, unit in enumerate(units) if stored[number] >= 0))
        self.document = document
        return self._complete(document, plan, schedule.Given(sources), files, jobs, done)

    def _new_document(self, units: Sequence[partition.Unit], files: Sequence[int]) -> tuple[Document, _Plan]:
        """A document without results, and a plan without units."""
        components: dict[tuple[int, ...], int] = {}
        of_units = [components.setdefault(unit.component, len(components)) if unit.component else -1 for unit in units]
        document = Document.new(self.identity, [one.path for one in self.listed], of_units, [""] * len(components))
        for file, one in enumerate(self.listed):
            document.mtimes[file], document.sizes[file] = one.mtime, one.size
        for file in set(range(len(self.listed))).difference(files):  # it cannot be read, or contains no Python
            document.shown[file] = READ
        return document, _Plan({}, {number: ComponentHeat() for number in components.values()})

    def _copy_valid(self, old: Document, new: Document, plan: _Plan, stored: list[int]) -> None:
        """Copy units to a new document. Parts are copied only if the heat of their component is stored.

        Args:
            old: the old document.
            new: the new document.
            plan: gets the heats of the components.
            stored: by unit of the new document, its number in the old one, or -1. Set to -1 for units without heat.
        """
        members = old.members()
        for component, parts in new.members().items():
            before = {old.components[stored[unit]] for unit in parts if stored[unit] >= 0}
            heat = self._stored_heat(old, min(before), members[min(before)]) if before else None
            for unit in parts:
                if heat is None:
                    stored[unit] = -1
                elif stored[unit] >= 0:
                    plan.heats[component].graphs[unit] = heat.graphs[stored[unit]]
                    plan.heats[component].heats[unit] = heat.heats[stored[unit]]
        numbers_by_path = {path: file for file, path in enumerate(new.paths)}
        numbers = [numbers_by_path.get(path, -1) for path in old.paths]
        own = old.own()
        for unit, number in enumerate(stored):
            if number < 0:
                continue
            row = old.unit(number)
            without_framework = [numbers[file] for file in row.without_framework]
            dependencies = [(numbers[file], digests) for file, digests in row.dependencies]
            new.set_unit(unit, UnitRow(without_framework, row.uses_device, row.parse_only, dependencies))
            new.set_errors(unit, old.errors_of(number))
            for file in own[number]:
                new.copy_file(numbers[file], old, file)

    def _complete(
        self,
        document: Document,
        plan: _Plan,
        files: schedule.Files,
        numbers: Sequence[int],
        jobs: int,
        done: Callable[[int], None],
    ) -> list[str]:
        """Analyze the units of a plan and store the results. `numbers` are those of `files` in the document."""
        from gpusync_lint.run import schedule

        found = schedule.analyze_units(files, self.settings, list(plan.units.values()), jobs, done)
        unit_numbers = {unit.indices: number for number, unit in plan.units.items()}
        parts = {unit_numbers[part.unit.indices]: part for part in found}
        again = {files.path(place) for part in found for place in part.unit.indices}
        self.entries = {key: entry for key, entry in self.entries.items() if key[0] not in again}
        for part in found:
            self.entries.update(part.analysis.entries)
        members = document.members()
        for component, heat in plan.heats.items():
            self._update_heats(document, component, members[component], heat, parts)
        for number, part in parts.items():
            self._store(document, number, part, files, numbers)
        return [trace for part in found for trace in part.tracebacks]

    def _update_heats(
        self,
        document: Document,
        component: int,
        members: Sequence[int],
        stored: ComponentHeat,
        parts: dict[int, schedule.Part],
    ) -> None:
        """Compute the heat of a component, and set it in the parts that were analyzed and in the document."""
        from gpusync_lint.heat.call_graph import repeated_entries
        from gpusync_lint.run import schedule

        update = stored.updated(members, parts)
        if update.heat is not stored or not document.stamps[component]:
            self._heats[component] = update.heat
        own = document.own()
        for unit in update.graphs:
            if unit in parts:
                heats = update.heats(unit)
                parts[unit] = schedule.with_heat(parts[unit], heats)
                self.entries.update(repeated_entries(heats))
            elif update.heat.heats[unit] != stored.heats[unit]:
                heats = update.heats(unit)
                for file in own[unit]:
                    set_heats(document, file, heats)

    def _store(
        self, document: Document, number: int, part: schedule.Part, files: schedule.Files, numbers: Sequence[int]
    ) -> None:
        """Store the analysis of a unit."""
        unit, found = part.unit, part.analysis
        dependencies: list[tuple[int, dict[str, str]]] = []
        places: Sequence[Place | None] = [None] * len(found.findings)
        if found.links is not None:
            dependencies = [
                (numbers[place], dict(digests)) for place, digests in sorted(found.links.dependencies.items())
            ]
            places = found.links.places
        without_framework = [numbers[place] for place in unit.without_framework]
        document.set_unit(number, UnitRow(without_framework, unit.uses_device, unit.parse_only, dependencies))
        document.set_errors(number, found.errors)
        by_path: dict[str, list[tuple[Finding, Place | None]]] = {}
        for placed in zip(found.findings, places, strict=True):
            by_path.setdefault(placed[0].path, []).append(placed)
        for place in unit.indices:
            source, file = files.source(place), numbers[place]
            one = self.listed[file]
            document.mtimes[file], document.sizes[file] = one.mtime, one.size
            document.digests[file] = text_digest(source.text)
            if part.tracebacks:  # an internal error may not occur again
                document.mtimes[file], document.digests[file] = -1, ""
            document.shown[file] = READ if one.notebook or MARKER in source.text else 0
            document.set_findings(file, by_path.get(source.path, []))

    def _stored_heat(self, document: Document, component: int, members: Sequence[int]) -> ComponentHeat | None:
        """The stored heat of a component; None if it is not available."""
        if self.location is None:
            return self._heats.get(component)
        return ComponentHeat.read(
            _component_file(self.location, component), self.key, members, document.stamps[component]
        )

    def save(self) -> None:
        """Write the documents if they have changed. Errors are ignored."""
        document = self.document
        if not self.changed or document is None or self.location is None:
            return
        now = time.time_ns()
        with contextlib.suppress(OSError):
            folder = self.location.parent
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                note = "# Made by gpusync lint; may be deleted at any time.\n*\n"
                (folder / ".gitignore").write_text(note, encoding="utf-8")
            if _obstacle(folder):  # it was not there when the cache was opened
                return
            for component, heat in self._heats.items():
                stamp = document.stamps[component] = f"{now}-{component}"
                heat.write(_component_file(self.location, component), self.key, stamp)
            document.write(self.location, self.key, now)
            _prune(folder)


class _LazyFiles:
    """The files of a run. Each is read when its text is needed."""

    def __init__(self, listed: Sequence[Listed], sources: Sequence[Source]) -> None:
        self._listed = listed
        self._sources = {source.path: source for source in sources}
        self.components: dict[tuple[int, ...], Component] = {}
        self.places = {one.path: place for place, one in enumerate(listed)}

    def path(self, place: int) -> str:
        """The path of a file."""
        return self._listed[place].path

    def size(self, place: int) -> int:
        """The size of a file in bytes."""
        return max(0, self._listed[place].size)

    def source(self, place: int) -> Source:
        """A file with its text, which is empty if the file cannot be read any more."""
        path = self._listed[place].path
        if path not in self._sources:
            file = read(self._listed[place])
            self._sources[path] = Source(path, "") if file is None else file.source
        return self._sources[path]


def open_cache(root: Path, arguments: Sequence[str], settings: EngineSettings, listed: Sequence[Listed]) -> Cache:
    """Open the cache for a run. Files whose time or size has changed are read.

    Args:
        root: the folder that contains the cache.
        arguments: what distinguishes this way of calling the linter from others.
        settings: the settings of the engine.
        listed: the files of the run.
    """
    name = f"{crc32(chr(0).join(arguments).encode(errors='surrogateescape')):08x}"
    location = root / FOLDER / f"lint-{name}.jsonl"
    try:
        key = user_key()
        obstacle = _obstacle(location.parent)
    except NoKeyError as error:
        key, obstacle = b"", str(error)
    if obstacle:
        return replace(temporary_cache(settings, listed), note=f"the cache is not used: {obstacle}")
    cache = Cache(location, key, settings, _identity(arguments, settings), listed)
    try:
        document = Document.read(location, key)
        if document.identity == cache.identity:
            cache.document = document
            _compare(cache, document)
    except FileNotFoundError:
        pass
    except (OSError, DamagedError) as error:
        cache.document = cache.outdated = None
        cache.unread = frozenset()
        reason = "it is damaged, or was not written by you on this machine"
        cache.note = (
            f"{location}: ignored, because {(error.strerror or error) if isinstance(error, OSError) else reason}"
        )
    return cache


def temporary_cache(settings: EngineSettings, listed: Sequence[Listed]) -> Cache:
    """An empty cache that is not written, for a run that analyzes its files several times."""
    return Cache(None, b"", settings, "", listed)


def _obstacle(folder: Path) -> str:
    """Why a folder cannot be used for the cache; empty if it can be, or does not exist."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder"
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        return f"{folder} belongs to another user"
    return ""


def _compare(cache: Cache, document: Document) -> None:
    changes = Changes(document, cache.listed)
    if not changes.keeps_partition:
        return
    cache.outdated = frozenset(outdated_units(document, changes.texts)) if changes.texts else frozenset()
    cache.unread = frozenset(
        path
        for number, (path, shown) in enumerate(zip(document.paths, document.shown, strict=True))
        if not shown & READ and number not in changes.texts
    )
    cache.changed = bool(changes.texts) or changes.has_new_times


def _component_file(location: Path, component: int) -> Path:
    return location.with_name(f"{location.stem}.part-{component}.jsonl")


def _identity(arguments: Sequence[str], settings: EngineSettings) -> str:
    """What findings depend on apart from the files: the linter, Python, libcst, the arguments and the settings."""
    package = Path(__file__).parents[1]
    parts: list[object] = [list(arguments), __version__, sys.version_info[:3], astuple(settings)]
    for folder, folders, names in os.walk(package):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            stat = os.stat(os.path.join(folder, name))
            parts.append((folder[len(str(package)) :], name, stat.st_size, stat.st_mtime_ns))
    spec = find_spec("libcst")
    if spec is not None and spec.origin is not None:
        parts.append((spec.origin, Path(spec.origin).stat().st_mtime_ns))
    return repr(parts)


def _prune(folder: Path) -> None:
    """Remove the documents that were used longest ago, and what was left of a run that was killed."""
    times: dict[str, int] = {}
    with os.scandir(folder) as inside:
        entries = [entry for entry in inside if entry.is_file(follow_symlinks=False)]
    documents = [(match["document"], entry) for entry in entries if (match := _NAME.fullmatch(entry.name))]
    for document, entry in documents:
        times[document] = max(times.get(document, 0), entry.stat(follow_symlinks=False).st_mtime_ns)
    kept = frozenset(sorted(times, key=times.__getitem__, reverse=True)[:KEPT])
    for document, entry in documents:
        if document not in kept:
            os.unlink(entry.path)
    remove_abandoned(folder, _NAME)
