"""Scheduling: the files of a run are analyzed unit by unit, in several processes, and failures are isolated."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from gpusync_lint.model.finding_keys import numbered
from gpusync_lint.model.findings import Analysis, FileError
from gpusync_lint.project import partition
from gpusync_lint.project.imports import beginnings, module_of
from gpusync_lint.project.lazy_modules import Component, Library
from gpusync_lint.syntax.parsing import normalize, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from gpusync_lint.model.findings import EngineSettings, Finding, Source
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import CallGraph, FunctionHeat, Place
    from gpusync_lint.run.parallel import Died

T = TypeVar("T")

MAX_CULPRITS = 5
"""The number of files with internal errors that are named one by one."""
WORTH_SHARING = 200_000
"""The number of characters of source, about 5,000 lines, from which on a process is worth starting."""
WORTH_SPAWNING = 1_000_000
"""The same where processes cannot be forked: a new one imports the linter, which takes half a second."""
_PROJECT = "<project>"
_FAILED = "internal error"
_TOO_DEEP = "too deeply nested, or too large, to analyze"
_TASKS = 512
"""The maximum number of tasks that units are grouped into."""


@dataclass(frozen=True, slots=True)
class Part:
    """A unit of a run and its analysis."""

    unit: partition.Unit
    analysis: Analysis
    tracebacks: tuple[str, ...] = ()
    """Those of internal errors."""


class Files(Protocol):
    """The files of a run, by the indices that units contain."""

    components: dict[tuple[int, ...], Component]
    """The components whose parts have been analyzed, by the indices of their files."""

    def path(self, place: int) -> str:
        """The path of a file."""

    def size(self, place: int) -> int:
        """The approximate size of a file."""

    def source(self, place: int) -> Source:
        """A file with its text."""


class Given:
    """Files whose texts are in memory."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.components: dict[tuple[int, ...], Component] = {}

    def path(self, place: int) -> str:
        """The path of a file."""
        return self._sources[place].path

    def size(self, place: int) -> int:
        """The size of a file in characters."""
        return len(self._sources[place].text)

    def source(self, place: int) -> Source:
        """A file with its text."""
        return self._sources[place]


def analyze_sources(
    sources: Sequence[Source],
    settings: EngineSettings,
    imported: Sequence[partition.Imports],
    *,
    jobs: int = 1,
    done: Callable[[int], None] = lambda files: None,
) -> list[Part]:
    """Analyze files unit by unit.

    Args:
        sources: the files.
        settings: the settings of the engine.
        imported: the imports of each file, as `partition.imports` returns them.
        jobs: the number of processes. The result does not depend on it.
        done: is called with the number of files that are finished.
    """
    return linked(
        analyze_units(Given(sources), settings, partition.divide(sources, imported, roots(settings)), jobs, done)
    )


def analyze_units(
    files: Files, settings: EngineSettings, units: Sequence[partition.Unit], jobs: int, done: Callable[[int], None]
) -> list[Part]:
    """Analyze units, in several processes if that is faster. The heat of parts is final only once they are `linked`."""
    size = sum(_size(unit, files) for unit in units)
    if jobs > 1 and len(units) > 1 and size >= WORTH_SHARING:
        from gpusync_lint.run import parallel  # loads modules that small runs do not need

        if parallel.CAN_FORK:
            return _analyze_in_parallel(files, settings, units, jobs, done)
        if size >= WORTH_SPAWNING:
            from gpusync_lint.run import spawned

            with contextlib.suppress(spawned.NoWorkersError):
                return _analyze_in_parallel(files, settings, units, jobs, done)
    parts = []
    for unit in units:
        parts.append(_analyze_unit(unit, files, settings))
        done(len(unit.indices))
    return parts


def roots(settings: EngineSettings) -> frozenset[str]:
    """The top-level modules that make a file worth analyzing if it imports one of them."""
    from gpusync_lint.catalogue.roots import frameworks
    from gpusync_lint.inference.named_barriers import named_by

    return frameworks() | named_by(settings.barriers).roots


def _size(unit: partition.Unit, files: Files) -> int:
    return sum(files.size(place) for place in unit.indices)


def _analyze_unit(unit: partition.Unit, files: Files, settings: EngineSettings, without: Container[int] = ()) -> Part:
    """Analyze a unit. `without` are the indices of files to leave out."""
    own = [files.source(place) for place in unit.indices if place not in without]
    if unit.parse_only:
        return Part(unit, Analysis((), tuple(_unreadable(own)), len(own)))
    component: Component | None = None
    if unit.component:
        paths = frozenset(files.path(place) for place in unit.without_framework)
        component = replace(_component(unit, files), without_framework=paths)
    analysis, tracebacks = analyze_isolating_failures(own, settings, component=component)
    return Part(unit, analysis, tuple(tracebacks))


def _component(unit: partition.Unit, files: Files) -> Component:
    """The component that a unit is a part of. It is created once and shared by its parts."""
    component = files.components.get(unit.component)
    if component is None:
        modules = {module_of(files.path(place)): place for place in unit.component}
        library = Library(files.source)
        component = Component(modules, beginnings(modules), library, unit.uses_device)
        files.components[unit.component] = component
    return component


def _unreadable(sources: Sequence[Source]) -> Iterator[FileError]:
    """An error for each file that is not valid Python."""
    for source in sources:
        parsed = parse(normalize(source.text))
        if parsed.tree is None:
            yield FileError(source.path, parsed.line, parsed.message)


def linked(parts: Sequence[Part]) -> list[Part]:
    """The parts, with the heat that follows from the call graph of all parts of a component."""
    from gpusync_lint.heat.call_graph import propagate

    graph: CallGraph = {}
    for part in parts:
        if part.analysis.links is not None:
            graph |= part.analysis.links.graph
    heats = propagate(graph)
    return [part if part.analysis.links is None else with_heat(part, heats) for part in parts]


def with_heat(part: Part, heats: Mapping[Key, FunctionHeat]) -> Part:
    """A part of a component, with the heat of its findings computed from that of functions."""
    links = part.analysis.links
    assert links is not None
    findings = tuple(heated(zip(part.analysis.findings, links.places, strict=True), heats))
    return replace(part, analysis=replace(part.analysis, findings=findings))


def heated(placed: Iterable[tuple[Finding, Place | None]], heats: Mapping[Key, FunctionHeat]) -> list[Finding]:
    """The findings with the heat of their places, grouped by file, and their keys numbered again."""
    from gpusync_lint.heat.call_graph import heat_at, unit_at
    from gpusync_lint.heat.capture import capture_at, judged

    files: dict[str, list[Finding]] = {}
    for one, place in placed:
        if place is not None:
            one = judged(one, heat_at(place, heats), capture_at(place, heats))
            one = replace(one, unit=unit_at(place, heats))
        files.setdefault(one.path, []).append(one)
    return [one for each in files.values() for one in numbered(each)]


def combined(analyses: Sequence[Analysis], files: int) -> Analysis:
    """Combine the analyses of units into that of a run, sorted by path and position.

    If the engine failed on many files, only the first ones are named, and the others are counted.
    """
    findings = sorted(
        (finding for each in analyses for finding in each.findings), key=lambda one: (one.path, one.span, one.code)
    )
    errors = sorted((error for each in analyses for error in each.errors), key=lambda error: error.path)
    failed = [error for error in errors if error.message.startswith(_FAILED) and error.path != _PROJECT]
    if len(failed) > MAX_CULPRITS:
        named = failed[:MAX_CULPRITS]
        others = f"{failed[MAX_CULPRITS].message}, and in {len(failed) - MAX_CULPRITS:,} files more"
        errors = [error for error in errors if error not in failed or error in named]
        errors.append(FileError(_PROJECT, None, others))
    return Analysis(tuple(findings), tuple(errors), files)


def _analyze_in_parallel(
    files: Files,
    settings: EngineSettings,
    units: Sequence[partition.Unit],
    jobs: int,
    done: Callable[[int], None],
) -> list[Part]:
    """Analyze units in several processes. Large units are tasks of their own and come first; small ones are grouped."""
    import gpusync_lint.run.engine  # noqa: F401  loaded once, before the fork
    from gpusync_lint.run import parallel

    sizes = {unit: _size(unit, files) for unit in units}
    ordered = sorted(units, key=lambda unit: (unit.parse_only, -sizes[unit], unit.indices))
    capacity = max(WORTH_SHARING // 2, sum(sizes.values()) // _TASKS + 1)
    tasks: list[list[partition.Unit]] = []
    filled = capacity
    for unit in ordered:
        if filled >= capacity:
            tasks.append([])
            filled = 0
        tasks[-1].append(unit)
        filled += sizes[unit]

    found: list[Part] = []
    work = partial(_analyze_task, files, settings, tasks)
    results = iter(_in_workers(len(tasks), work, jobs, partial(done, 0)))
    for task, result in zip(tasks, results, strict=True):
        if isinstance(result, parallel.Died):
            found += [_analyze_without_fatal_files(files, settings, unit, jobs) for unit in task]
        else:
            found += [Part(unit, *analyzed) for unit, analyzed in zip(task, result, strict=True)]
        done(sum(len(unit.indices) for unit in task))
    return found


def _in_workers(
    count: int, work: Callable[[int], T], jobs: int, done: Callable[[], None] = lambda: None
) -> list[T | Died]:
    """Run tasks in several processes: forked ones where there are any, else new ones, for which `work` is pickled."""
    from gpusync_lint.run import parallel

    if parallel.CAN_FORK:
        return parallel.fork_each(count, work, jobs, done)
    from gpusync_lint.run import spawned

    return spawned.spawn_each(count, work, jobs, done)


def _analyze_task(
    files: Files, settings: EngineSettings, tasks: Sequence[Sequence[partition.Unit]], task: int
) -> list[tuple[Analysis, tuple[str, ...]]]:
    """The units are not part of the result, since each contains a list of all files of its component."""
    parts = [_analyze_unit(unit, files, settings) for unit in tasks[task]]
    return [(part.analysis, part.tracebacks) for part in parts]


def _analyze_rest(
    files: Files, settings: EngineSettings, unit: partition.Unit, fatal: frozenset[int], task: int
) -> Part:
    return _analyze_unit(unit, files, settings, without=fatal)


def _analyze_alone(files: Files, settings: EngineSettings, alone: Sequence[partition.Unit], task: int) -> None:
    _analyze_unit(alone[task], files, settings)


def _analyze_without_fatal_files(files: Files, settings: EngineSettings, unit: partition.Unit, jobs: int) -> Part:
    """Analyze a unit on which a worker died: find the files that kill a worker, report them, and leave them out."""
    from gpusync_lint.run import parallel

    fatal = _fatal_files(files, settings, unit, jobs)
    others = [place for place in unit.indices if place not in fatal]
    errors = [
        FileError(files.path(place), None, f"the process that analyzed it died ({death.how}); the file is left out")
        for place, death in fatal.items()
    ]
    if others:
        (part,) = _in_workers(1, partial(_analyze_rest, files, settings, unit, frozenset(fatal)), 1)
        if not isinstance(part, parallel.Died):
            errors = [*part.analysis.errors, *errors]
            analysis = replace(part.analysis, errors=tuple(errors), files=len(unit.indices))
            return Part(unit, analysis, part.tracebacks)
        count = len(others) - 1
        more = f" and {count} related file{'s' if count > 1 else ''}" if count else ""
        errors.append(FileError(files.path(others[0]), None, f"the process that analyzed it{more} died ({part.how})"))
    return Part(unit, Analysis((), tuple(errors), len(unit.indices)))


def _fatal_files(files: Files, settings: EngineSettings, unit: partition.Unit, jobs: int) -> dict[int, Died]:
    """The files of a unit on which a worker dies that analyzes the file alone."""
    from gpusync_lint.run import parallel

    fatal: dict[int, Died] = {}
    for start in range(0, len(unit.indices), parallel.MAX_TASKS):
        places = unit.indices[start : start + parallel.MAX_TASKS]
        alone = [partition.Unit((place,), parse_only=unit.parse_only) for place in places]
        results = _in_workers(len(places), partial(_analyze_alone, files, settings, alone), jobs)
        fatal.update(
            (place, result) for place, result in zip(places, results, strict=True) if isinstance(result, parallel.Died)
        )
    return fatal


def analyze_isolating_failures(
    sources: Sequence[Source],
    settings: EngineSettings,
    context: Sequence[Source] = (),
    component: Component | None = None,
) -> tuple[Analysis, list[str]]:
    """Analyze files. If the engine fails, find the files on which it fails, report them, and analyze the others.

    If it fails on the files only together, their findings are those of each file alone.

    Returns:
        The analysis, and the tracebacks of internal errors.
    """
    from gpusync_lint.run.engine import analyze

    try:
        return analyze(sources, settings, context, component), []
    except Exception as error:
        if context or component:  # the cause may be a file that is only read
            analysis, tracebacks = analyze_isolating_failures(sources, settings)
            return analysis, [_traceback(), *tracebacks]
        project = FileError(_PROJECT, None, internal_error(error))
        tracebacks = [_traceback()]
    culprits: list[FileError] = []
    sound: list[Source] = []
    alone: list[Analysis] = []
    for source in sources:
        try:
            alone.append(analyze([source], settings))
        except Exception as error:
            culprits.append(FileError(source.path, None, internal_error(error)))
            tracebacks.append(_traceback())
        else:
            sound.append(source)
    if culprits and sound:
        rest, more = analyze_isolating_failures(sound, settings)
        return Analysis(rest.findings, (*rest.errors, *culprits), len(sources)), tracebacks[1:] + more
    errors = [error for one in alone for error in one.errors]
    findings = [finding for one in alone for finding in one.findings]
    return Analysis(tuple(findings), (*(culprits or [project]), *errors), len(sources)), tracebacks[:1]


def _traceback() -> str:
    """The traceback of the current exception."""
    import traceback  # needed only after a bug

    return traceback.format_exc()


def internal_error(error: Exception) -> str:
    """The message about a bug of the linter, in one line."""
    if isinstance(error, (RecursionError, MemoryError)):
        return f"{_TOO_DEEP} ({type(error).__name__})"
    lines = str(error).splitlines() or [""]
    return f"{_FAILED}, a bug in gpusync: {type(error).__name__}: {lines[0]} (--verbose shows the traceback)"
