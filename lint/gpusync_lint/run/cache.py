"""What was found before, kept in `.gpusync_cache/` so that only what a change touches is analyzed again.

One document (`document`) holds, for one way of calling the linter in one folder: the files of the last run (name, time
of change, size, digests of the text and of its outline, unit) with the findings in each, and its units
(`units.divide`) with what had a say of files beside their own. A finding depends on nothing else but the settings, the
linter and Python; these make up the document's identity. How often a line runs is known only with all parts of a
larger component: for each of these a second document holds the graph of how its functions run, and what linking these
graphs has told of it. As long as a part that is analyzed again hands over the graph that it did before, the others
need not even be looked at. A document that cannot be read, or of another identity, is as good as none. JSON, because
what lies in a project's folder must not be able to run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import astuple, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from gpusync_lint._version import __version__
from gpusync_lint.files.discovery import read
from gpusync_lint.model.findings import MARKER, Analysis, Source
from gpusync_lint.run.cache_file import (
    READ,
    DamagedError,
    Document,
    UnitRow,
    bits,
    line,
    parsed,
    read_lines,
    write_lines,
)
from gpusync_lint.run.graph_rows import graph_row, heats_row, read_graph, read_heats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpusync_lint.files.discovery import Listed
    from gpusync_lint.model.findings import EngineSettings, Finding
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.levels import Confidence, Heat
    from gpusync_lint.model.placement import CallGraph, FunctionHeat, Place
    from gpusync_lint.project import partition
    from gpusync_lint.project.lazy_modules import Component
    from gpusync_lint.run import schedule

FOLDER = ".gpusync_cache"
KEPT = 16
"""Documents in the folder, for as many ways of calling the linter; those used longest ago are removed."""
_NOTHING = b"null"
"""Stands for the graph of a part that could not be analyzed as one."""
_UNSURE = 2_000_000_000
"""Nanoseconds before the document was written in which a change may have left a file's time as it was."""


@dataclass(slots=True)
class _Plan:
    """What is to be done for a document whose other units are as they were."""

    afresh: dict[int, partition.Unit]
    """The units that are analyzed, by number."""
    runs: dict[int, _Runs]
    """Of each component in which there may be some, what is known of its parts."""


@dataclass(slots=True)
class _Runs:
    """What is known of how the functions of a component run: lines of its document, by the number of the unit."""

    graphs: dict[int, bytes] = field(default_factory=dict)
    linked: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Memory:
    """What is known of the files of a run before they are read, and what is to be known after it."""

    location: Path | None
    """Of the document; None for what is known during one run only."""
    settings: EngineSettings
    identity: str
    listed: Sequence[Listed]
    document: Document | None = None
    """Of the last run; of this one after `analyze`."""
    quiet: frozenset[str] = frozenset()
    """Paths of files that need not be read."""
    touched: frozenset[int] | None = None
    """The numbers of the units that a change touches; None where files have to be divided into units anew."""
    changed: bool = True
    """Whether there is something to write."""
    _runs: dict[int, _Runs] = field(default_factory=dict)
    """The second documents that are to be written, by component; all of them where nothing is written."""

    def analyze(
        self,
        sources: Sequence[Source],
        jobs: int,
        done: Callable[[int], None],
        wanted: Callable[[Heat, Confidence], bool] = lambda heat, confidence: True,
    ) -> tuple[Analysis, list[str]]:
        """Analyze those sources whose units have changed.

        Gives the findings of all files of the run, of files that are not among `sources` only those that are `wanted`,
        and the tracebacks of internal errors.
        """
        files = len(sources) + len(self.quiet)
        kinds = bits(wanted)
        try:
            return self._analysis(sources, jobs, done, kinds, files)
        except DamagedError:
            lazily = _Lazily(self.listed, sources)
            given = self.quiet.union(source.path for source in sources)
            everything = [lazily.source(place) for path, place in lazily.places.items() if path in given]
            self.document, self.touched, self.changed = None, None, True
            return self._analysis(everything, jobs, done, kinds, files)

    def edited(self, sources: Iterable[Source]) -> None:
        """Take note of new texts of files, for the next `analyze`: it looks at no more than what they touch."""
        document = self.document
        assert document is not None
        numbers = {path: number for number, path in enumerate(document.paths)}
        changed = {numbers[source.path]: source for source in sources}
        self.quiet = frozenset()
        self.touched = None
        if all(_keeps_division(document, number, source) for number, source in changed.items()):
            failed = {document.units[file] for file, digest in enumerate(document.digests) if not digest}
            self.touched = frozenset(_touched(document, changed)) | (failed - {-1})

    def _analysis(
        self, sources: Sequence[Source], jobs: int, done: Callable[[int], None], kinds: int, files: int
    ) -> tuple[Analysis, list[str]]:
        from gpusync_lint.run.schedule import combined

        if self.document is not None and self.touched is not None:
            tracebacks = self._again(self.document, self.touched, sources, jobs, done)
        else:
            tracebacks = self._divided(sources, jobs, done)
        document = self.document
        assert document is not None
        loud = [file for file, shown in enumerate(document.shown) if shown & (kinds | READ)]
        found = Analysis(tuple(document.findings(loud, kinds)), tuple(document.errors_of()), files)
        return combined([found], files), tracebacks

    # the units are those of the last run, some of them are analyzed again

    def _again(
        self,
        document: Document,
        touched: frozenset[int],
        sources: Sequence[Source],
        jobs: int,
        done: Callable[[int], None],
    ) -> list[str]:
        if not touched:
            done(len(self.listed))
            return []
        from gpusync_lint.project import partition

        own = document.own()
        members = document.members()
        afresh = set(touched)
        runs = {}
        whole = {}
        for number in {document.components[unit] for unit in touched} - {-1}:
            whole[number] = tuple(sorted(file for unit in members[number] for file in own[unit]))
            known = self._runs_of(document, number, members[number])
            if known is None:
                afresh.update(members[number])
            runs[number] = known or _Runs()
        plan = _Plan({}, runs)
        for unit in sorted(afresh):
            row = document.unit(unit)
            component = whole.get(document.components[unit], ())
            plan.afresh[unit] = partition.Unit(
                tuple(own[unit]), tuple(row.without_framework), component, row.uses_device, row.parse_only
            )
        done(len(self.listed) - sum(len(unit.indices) for unit in plan.afresh.values()))
        return self._complete(document, plan, _Lazily(self.listed, sources), range(len(self.listed)), jobs, done)

    # files are divided into units anew

    def _divided(self, sources: Sequence[Source], jobs: int, done: Callable[[int], None]) -> list[str]:
        from gpusync_lint.project import partition
        from gpusync_lint.run import schedule

        imported = [partition.imports(source.text) for source in sources]
        division = partition.divide(sources, imported, schedule.roots(self.settings))
        numbers = {one.path: number for number, one in enumerate(self.listed)}
        files = [numbers[source.path] for source in sources]
        components: dict[tuple[int, ...], int] = {}
        of_units = [
            components.setdefault(unit.component, len(components)) if unit.component else -1 for unit in division
        ]
        document = Document.new(self.identity, list(numbers), of_units, [""] * len(components))
        for file, one in enumerate(self.listed):
            document.mtimes[file], document.sizes[file] = one.mtime, one.size
        for file in set(numbers.values()).difference(files):  # it cannot be read, or holds no Python
            document.shown[file] = READ
        for file, source, found in zip(files, sources, imported, strict=True):
            document.outlines[file] = _outline(source.text, found)
        plan = _Plan({}, {number: _Runs() for number in components.values()})
        before = [-1] * len(division) if self.document is None else self._before(self.document, division, sources)
        if self.document is not None:
            self._take_over(self.document, document, plan, before)
        self._runs.clear()
        finished = 0
        for number, unit in enumerate(division):
            for place in unit.indices:
                document.units[files[place]] = number
            if before[number] < 0:
                plan.afresh[number] = unit
            else:
                finished += len(unit.indices)
        done(finished)
        self.document = document
        return self._complete(document, plan, schedule.Given(sources), files, jobs, done)

    def _before(self, known: Document, division: Sequence[partition.Unit], sources: Sequence[Source]) -> list[int]:
        """Of each unit the number that it has in a document; -1 if something that it depends on has changed."""
        numbers = {path: file for file, path in enumerate(known.paths)}
        places = {source.path: place for place, source in enumerate(sources)}
        files = [numbers.get(source.path, -1) for source in sources]
        same = [
            file >= 0 and text_digest(source.text) == known.digests[file]
            for file, source in zip(files, sources, strict=True)
        ]
        from gpusync_lint.project.outline import Outline

        read: dict[int, Outline] = {}

        def defined(place: int) -> Outline:
            if place not in read:
                read[place] = Outline(sources[place])
            return read[place]

        own = known.own()
        whole = {
            component: sorted(file for part in parts for file in own[part])
            for component, parts in known.members().items()
        }

        def unchanged(unit: partition.Unit) -> int:
            if not all(same[place] for place in unit.indices):
                return -1
            number = known.units[files[unit.indices[0]]]
            if number < 0 or own[number] != sorted(files[place] for place in unit.indices):
                return -1
            row = known.unit(number)
            component = known.components[number]
            kind = (component >= 0, row.uses_device, row.parse_only)
            if kind != (bool(unit.component), unit.uses_device, unit.parse_only):
                return -1
            if sorted(row.without_framework) != sorted(files[place] for place in unit.without_framework):
                return -1
            if component >= 0 and whole[component] != sorted(files[place] for place in unit.component):
                return -1  # what is imported may be found elsewhere
            for file, labels in row.dependencies:
                place = places.get(known.paths[file])
                if place is None or not (same[place] or defined(place).digests(labels) == labels):
                    return -1
            return number

        return [unchanged(unit) for unit in division]

    def _take_over(self, known: Document, document: Document, plan: _Plan, before: list[int]) -> None:
        """Note what is known of units; of parts only if it is known as well how their functions run."""
        members = known.members()
        for component, parts in document.members().items():
            those = {known.components[before[unit]] for unit in parts if before[unit] >= 0}
            runs = self._runs_of(known, min(those), members[min(those)]) if those else None
            for unit in parts:
                if runs is None:
                    before[unit] = -1
                elif before[unit] >= 0:
                    plan.runs[component].graphs[unit] = runs.graphs[before[unit]]
                    plan.runs[component].linked[unit] = runs.linked[before[unit]]
        now = {path: file for file, path in enumerate(document.paths)}
        numbers = [now.get(path, -1) for path in known.paths]
        own = known.own()
        for unit, number in enumerate(before):
            if number < 0:
                continue
            row = known.unit(number)
            depends = [(numbers[file], labels) for file, labels in row.dependencies]
            document.set_unit(
                unit,
                UnitRow([numbers[file] for file in row.without_framework], row.uses_device, row.parse_only, depends),
            )
            document.set_errors(unit, known.errors_of(number))
            for file in own[number]:
                document.take_over(numbers[file], known, file)

    # both

    def _complete(
        self,
        document: Document,
        plan: _Plan,
        files: schedule.Files,
        numbers: Sequence[int],
        jobs: int,
        done: Callable[[int], None],
    ) -> list[str]:
        """Analyze what the plan says, and note all that follows; `numbers` are those that `files` have there."""
        from gpusync_lint.run import schedule

        found = schedule.analyze_units(files, self.settings, list(plan.afresh.values()), jobs, done)
        partition = {unit.indices: number for number, unit in plan.afresh.items()}
        parts = {partition[part.unit.indices]: part for part in found}
        members = document.members()
        for component, runs in plan.runs.items():
            self._link(document, component, members[component], runs, parts)
        for number, part in parts.items():
            self._note(document, number, part, files, numbers)
        return [trace for part in found for trace in part.tracebacks]

    def _link(
        self, document: Document, component: int, members: Sequence[int], runs: _Runs, parts: dict[int, schedule.Part]
    ) -> None:
        """Give the findings of parts their heat; those of other parts too, if one's functions run differently now."""
        from gpusync_lint.heat.call_graph import propagate
        from gpusync_lint.run import schedule

        given: dict[int, CallGraph] = {}
        graphs = dict(runs.graphs)
        for unit in members:
            if unit in parts:
                links = parts[unit].analysis.links
                if links is not None:
                    given[unit] = links.graph
                graphs[unit] = line(None if links is None else graph_row(links.graph))
        linked = runs.linked
        if graphs != runs.graphs:
            for unit in members:
                if unit not in parts and graphs[unit] != _NOTHING:
                    given[unit] = _graph(graphs[unit])
            heats = propagate({key: node for _, graph in sorted(given.items()) for key, node in graph.items()})
            linked = {unit: line(heats_row(given[unit], heats) if unit in given else None) for unit in members}
        if graphs != runs.graphs or not document.stamps[component]:
            self._runs[component] = _Runs(graphs, linked)
        own = document.own()
        for unit in members:
            if unit in parts:
                if unit in given:
                    parts[unit] = schedule.with_heat(parts[unit], _heats(given[unit], linked[unit]))
            elif unit in given and linked[unit] != runs.linked[unit]:
                unit_heats = _heats(given[unit], linked[unit])
                for file in own[unit]:
                    _set_heats(document, file, unit_heats)

    def _note(
        self, document: Document, number: int, part: schedule.Part, files: schedule.Files, numbers: Sequence[int]
    ) -> None:
        """Note what was found in a unit."""
        unit, found = part.unit, part.analysis
        depends: dict[int, dict[str, str]] = {}
        places: Sequence[Place | None] = [None] * len(found.findings)
        if found.links is not None:
            depends = {place: dict(labels) for place, labels in found.links.dependencies.items()}
            places = found.links.places
        row = [(numbers[place], labels) for place, labels in sorted(depends.items())]
        document.set_unit(
            number,
            UnitRow([numbers[place] for place in unit.without_framework], unit.uses_device, unit.parse_only, row),
        )
        document.set_errors(number, found.errors)
        inside: dict[str, list[tuple[Finding, Place | None]]] = {}
        for placed in zip(found.findings, places, strict=True):
            inside.setdefault(placed[0].path, []).append(placed)
        for place in unit.indices:
            source, file = files.source(place), numbers[place]
            one = self.listed[file]
            document.mtimes[file], document.sizes[file] = one.mtime, one.size
            document.digests[file] = text_digest(source.text)
            if part.tracebacks:  # what went wrong may go well the next time
                document.mtimes[file], document.digests[file] = -1, ""
            document.shown[file] = READ if one.notebook or MARKER in source.text else 0
            document.set_findings(file, inside.get(source.path, []))

    def _runs_of(self, document: Document, component: int, members: Sequence[int]) -> _Runs | None:
        """What is known of the parts of a component; None where that has been lost."""
        if self.location is None:
            return self._runs.get(component)
        try:
            header, *lines = read_lines(_runs_file(self.location, component))
            stamp = parsed(header, dict).get("stamp")
        except (OSError, DamagedError):
            return None
        if stamp != document.stamps[component] or len(lines) != 2 * len(members):
            return None
        half = len(members)
        return _Runs(dict(zip(members, lines[:half], strict=True)), dict(zip(members, lines[half:], strict=True)))

    def save(self) -> None:
        """Write the documents, unless nothing has changed. What cannot be written is not kept."""
        document = self.document
        if not self.changed or document is None or self.location is None:
            return
        now = time.time_ns()
        with contextlib.suppress(OSError):
            folder = self.location.parent
            if not folder.is_dir():
                folder.mkdir()
                (folder / ".gitignore").write_text("# Made by gpusync lint; may be deleted at any time.\n*\n")
            for component, runs in self._runs.items():
                stamp = document.stamps[component] = f"{now}-{component}"
                lines = [runs.graphs[unit] for unit in sorted(runs.graphs)]
                lines += [runs.linked[unit] for unit in sorted(runs.linked)]
                write_lines(_runs_file(self.location, component), [line({"stamp": stamp}), *lines])
            document.write(self.location, now)
            _prune(folder)


class _Lazily:
    """The files of a run, each read when its text is asked for."""

    def __init__(self, listed: Sequence[Listed], sources: Sequence[Source]) -> None:
        self._listed = listed
        self._sources = {source.path: source for source in sources}
        self.components: dict[tuple[int, ...], Component] = {}
        self.places = {one.path: place for place, one in enumerate(listed)}

    def path(self, place: int) -> str:
        """The path of one."""
        return self._listed[place].path

    def size(self, place: int) -> int:
        """Its size in bytes."""
        return max(0, self._listed[place].size)

    def source(self, place: int) -> Source:
        """One with its text; an empty one where it has become unreadable."""
        path = self._listed[place].path
        if path not in self._sources:
            file = read(self._listed[place])
            self._sources[path] = Source(path, "") if file is None else file.source
        return self._sources[path]


def open_memory(
    root: Path,
    call: Sequence[str],
    settings: EngineSettings,
    listed: Sequence[Listed],
) -> Memory:
    """What is remembered of the files of a run.

    `root` is the folder that holds the cache, `call` what tells one way of calling the linter from another. Files whose
    time or size has changed are read.
    """
    name = f"{crc32(chr(0).join(call).encode(errors='surrogateescape')):08x}"
    location = root / FOLDER / f"lint-{name}.jsonl"
    memory = Memory(location, settings, _identity(call, settings), listed)
    try:
        document = Document.read(location)
        if document.identity == memory.identity:
            memory.document = document
            _compare(memory, document)
    except (OSError, DamagedError):
        memory.document = memory.touched = None
        memory.quiet = frozenset()
    return memory


def for_one_run(settings: EngineSettings, listed: Sequence[Listed]) -> Memory:
    """A memory that is empty and is not written: for a run that analyzes its files several times."""
    return Memory(None, settings, "", listed)


def _runs_file(location: Path, component: int) -> Path:
    return location.with_name(f"{location.stem}.part-{component}.jsonl")


def _compare(memory: Memory, document: Document) -> None:
    """Find out what has changed since the document was written. Raises DamagedError."""
    listed = memory.listed
    if [one.path for one in listed] != document.paths:  # which files belong together has to be found out again
        return
    certain = document.written - _UNSURE
    changed: dict[int, Source] = {}
    later = False
    mtimes = [one.mtime for one in listed]
    suspected: Iterable[tuple[int, tuple[Listed, int, int]]] = ()
    if mtimes != document.mtimes or max(mtimes, default=0) >= certain or [one.size for one in listed] != document.sizes:
        suspected = enumerate(zip(listed, document.mtimes, document.sizes, strict=True))
    for number, (one, mtime, size) in suspected:
        if one.mtime == mtime and one.size == size and mtime < certain:
            continue
        file = read(one)
        if file is None:
            return
        source = file.source
        if text_digest(source.text) == document.digests[number]:
            document.mtimes[number], document.sizes[number] = one.mtime, one.size
            later = True
            continue
        if not _keeps_division(document, number, source):
            return
        changed[number] = source
    memory.touched = frozenset(_touched(document, changed)) if changed else frozenset()
    memory.quiet = frozenset(
        path
        for number, (path, shown) in enumerate(zip(document.paths, document.shown, strict=True))
        if not shown & READ and number not in changed
    )
    memory.changed = bool(changed) or later


def _keeps_division(document: Document, number: int, source: Source) -> bool:
    """Whether files are divided into units as before with a new text of one."""
    from gpusync_lint.project import partition

    outline = _outline(source.text, partition.imports(source.text))
    return document.units[number] >= 0 and outline == document.outlines[number]


def _touched(document: Document, changed: Mapping[int, Source]) -> Iterator[int]:
    """The units that a change touches: of their own files, or of something that they depend on."""
    from gpusync_lint.project.outline import Outline

    own = {document.units[file] for file in changed}
    now = {file: Outline(source) for file, source in changed.items()}
    for unit, depends in enumerate(document.dependencies):
        if unit in own:
            yield unit
        elif not changed.keys().isdisjoint(depends):
            rows = document.unit(unit).dependencies
            if any(now[file].digests(labels) != labels for file, labels in rows if file in now):
                yield unit


def text_digest(text: str) -> str:
    """Stands for a text."""
    from hashlib import blake2b  # it loads OpenSSL, which a run without changes does without

    return blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()


def _outline(text: str, imported: partition.Imports) -> str:
    from gpusync_lint.project import partition
    from gpusync_lint.project.symbols import weight

    return text_digest(repr((imported, weight(text), partition.mentions_device(text, imported))))


def _graph(stored: bytes) -> CallGraph:
    try:
        return read_graph(parsed(stored, list))
    except (LookupError, TypeError, ValueError):
        raise DamagedError from None


def _heats(graph: CallGraph, stored: bytes) -> dict[Key, FunctionHeat]:
    try:
        return read_heats(parsed(stored, list), graph)
    except (LookupError, TypeError, ValueError):
        raise DamagedError from None


def _set_heats(document: Document, file: int, heats: Mapping[Key, FunctionHeat]) -> None:
    """Give the findings in a file the heats of their places."""
    from gpusync_lint.run.schedule import heated

    placed = document.placed(file)
    findings = heated(placed, heats)
    if findings != [finding for finding, _ in placed]:
        document.set_findings(file, zip(findings, (place for _, place in placed), strict=True))


def _identity(call: Sequence[str], settings: EngineSettings) -> str:
    """Stands for the linter itself, what it runs on, and what it was told."""
    package = Path(__file__).parents[1]
    parts: list[object] = [list(call), __version__, sys.version_info[:3], astuple(settings)]
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
    every = sorted(folder.glob("lint-*.json*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    calls = dict.fromkeys(path.name.partition(".")[0] for path in every)
    kept = set(list(calls)[:KEPT])
    for path in every:
        if path.name.partition(".")[0] not in kept:
            path.unlink()
