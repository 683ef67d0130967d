"""A run's files analyzed unit by unit, in several processes where that pays, and in spite of what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gpusync_lint.model.finding_keys import numbered
from gpusync_lint.model.findings import Analysis, FileError
from gpusync_lint.project import partition
from gpusync_lint.project.imports import beginnings, module_of
from gpusync_lint.project.lazy_modules import Component, Library
from gpusync_lint.run import parallel
from gpusync_lint.syntax.parsing import normalize, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from gpusync_lint.model.findings import EngineSettings, Finding, Source
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import CallGraph, FunctionHeat, Place

MAX_CULPRITS = 5
"""Files that the engine may fail on one by one before it is taken to fail on all."""
WORTH_SHARING = 200_000
"""Characters of source, some 5,000 lines, from which on starting a process pays."""
_PROJECT = "<project>"
_FAILED = "internal error"
_TASKS = 512
"""Tasks that the units are shared out in, at most."""


@dataclass(frozen=True, slots=True)
class Part:
    """One unit of a run, and what was found in it."""

    unit: partition.Unit
    analysis: Analysis
    tracebacks: tuple[str, ...] = ()
    """Of internal errors."""


class Files(Protocol):
    """The files of a run by their numbers, which are those in its units."""

    components: dict[tuple[int, ...], Component]
    """By component, what its parts share."""

    def path(self, place: int) -> str:
        """The path of one."""

    def size(self, place: int) -> int:
        """Its size, about."""

    def source(self, place: int) -> Source:
        """One with its text."""


class Given:
    """Files whose texts are there."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.components: dict[tuple[int, ...], Component] = {}

    def path(self, place: int) -> str:
        """The path of one."""
        return self._sources[place].path

    def size(self, place: int) -> int:
        """Its size in characters."""
        return len(self._sources[place].text)

    def source(self, place: int) -> Source:
        """One with its text."""
        return self._sources[place]


def analyze_sources(
    sources: Sequence[Source],
    settings: EngineSettings,
    imported: Sequence[partition.Imports],
    *,
    jobs: int = 1,
    done: Callable[[int], None] = lambda files: None,
) -> list[Part]:
    """Analyze files unit by unit; what comes out does not depend on the number of processes, `jobs`.

    `imported` is what `units.imports` finds in each. `done` is told of files that are finished.
    """
    return linked(
        analyze_units(Given(sources), settings, partition.divide(sources, imported, roots(settings)), jobs, done)
    )


def analyze_units(
    files: Files, settings: EngineSettings, rest: Sequence[partition.Unit], jobs: int, done: Callable[[int], None]
) -> list[Part]:
    """Analyze units, in several processes where that pays; the heat of parts is not final before they are `linked`."""
    size = sum(_size(unit, files) for unit in rest)
    if jobs > 1 and len(rest) > 1 and size >= WORTH_SHARING and parallel.CAN_FORK:
        return _shared_out(files, settings, rest, jobs, done)
    found = []
    for unit in rest:
        found.append(_analyze_unit(unit, files, settings))
        done(len(unit.indices))
    return found


def roots(settings: EngineSettings) -> frozenset[str]:
    """The top-level modules whose import makes a file one to analyze."""
    from gpusync_lint.catalogue.roots import frameworks
    from gpusync_lint.inference.named_barriers import named_by

    return frameworks() | named_by(settings.barriers).roots


def _size(unit: partition.Unit, files: Files) -> int:
    return sum(files.size(place) for place in unit.indices)


def _analyze_unit(unit: partition.Unit, files: Files, settings: EngineSettings, without: Container[int] = ()) -> Part:
    """Analyze a unit, without some of its files."""
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
    """The component of a unit, which its parts share."""
    known = files.components.get(unit.component)
    if known is None:
        modules = {module_of(files.path(place)): place for place in unit.component}
        library = Library(files.source)
        known = Component(modules, beginnings(modules), library, unit.uses_device)
        files.components[unit.component] = known
    return known


def _unreadable(sources: Sequence[Source]) -> Iterator[FileError]:
    """The files that are not valid Python."""
    for source in sources:
        parsed = parse(normalize(source.text))
        if parsed.tree is None:
            yield FileError(source.path, parsed.line, parsed.message)


def linked(found: Sequence[Part]) -> list[Part]:
    """The parts, those of larger components with the heat of their findings as all of the component tells it."""
    from gpusync_lint.heat.call_graph import propagate

    graph: CallGraph = {}
    for part in found:
        if part.analysis.links is not None:
            graph |= part.analysis.links.graph
    heats = propagate(graph)
    return [part if part.analysis.links is None else with_heat(part, heats) for part in found]


def with_heat(part: Part, heats: Mapping[Key, FunctionHeat]) -> Part:
    """A part of a larger component, with the heats that follow from the call graph of the whole component."""
    links = part.analysis.links
    assert links is not None
    findings = tuple(heated(zip(part.analysis.findings, links.places, strict=True), heats))
    return replace(part, analysis=replace(part.analysis, findings=findings))


def heated(placed: Iterable[tuple[Finding, Place | None]], heats: Mapping[Key, FunctionHeat]) -> list[Finding]:
    """Findings, those of a file together, with the heat of their places, and with the keys that follow from it."""
    from gpusync_lint.heat.call_graph import heat_at

    files: dict[str, list[Finding]] = {}
    for one, place in placed:
        files.setdefault(one.path, []).append(one if place is None else replace(one, heat=heat_at(place, heats)))
    return [one for each in files.values() for one in numbered(each)]


def combined(found: Sequence[Analysis], files: int) -> Analysis:
    """The analyses of units as that of a run, in path and line order.

    Where the engine failed on file after file it is taken to fail on all: then the first few are named.
    """
    findings = sorted(
        (finding for each in found for finding in each.findings), key=lambda one: (one.path, one.span, one.code)
    )
    errors = sorted((error for each in found for error in each.errors), key=lambda error: error.path)
    failed = [error for error in errors if error.message.startswith(_FAILED) and error.path != _PROJECT]
    if len(failed) > MAX_CULPRITS and not any(error.path == _PROJECT for error in errors):
        kept = [error for error in errors if error not in failed[MAX_CULPRITS:]]
        errors = [FileError(_PROJECT, None, failed[0].message), *kept]
    return Analysis(tuple(findings), tuple(errors), files)


def _shared_out(
    files: Files,
    settings: EngineSettings,
    rest: Sequence[partition.Unit],
    jobs: int,
    done: Callable[[int], None],
) -> list[Part]:
    """Large units first, each a task of its own, small ones together."""
    import gpusync_lint.run.engine  # noqa: F401  before the fork, so that no worker has to load it

    sizes = {unit: _size(unit, files) for unit in rest}
    ordered = sorted(rest, key=lambda unit: (unit.parse_only, -sizes[unit], unit.indices))
    room = max(WORTH_SHARING // 2, sum(sizes.values()) // _TASKS + 1)
    tasks: list[list[partition.Unit]] = []
    filled = room
    for unit in ordered:
        if filled >= room:
            tasks.append([])
            filled = 0
        tasks[-1].append(unit)
        filled += sizes[unit]

    def work(task: int) -> list[tuple[Analysis, tuple[str, ...]]]:
        """Without the units: each would bring a list of all files of its component with it."""
        parts = [_analyze_unit(unit, files, settings) for unit in tasks[task]]
        return [(part.analysis, part.tracebacks) for part in parts]

    found: list[Part] = []
    finished = iter(parallel.fork_each(len(tasks), work, jobs, partial(done, 0)))
    for task, result in zip(tasks, finished, strict=True):
        if isinstance(result, parallel.Died):
            found += [_after_a_death(files, settings, unit, result, jobs) for unit in task]
        else:
            found += [Part(unit, *told) for unit, told in zip(task, result, strict=True)]
        done(sum(len(unit.indices) for unit in task))
    return found


def _after_a_death(
    files: Files, settings: EngineSettings, unit: partition.Unit, death: parallel.Died, jobs: int
) -> Part:
    """Find the files on which a worker dies, report those, and analyze the others of the unit without them."""
    places = unit.indices

    def alone(task: int) -> bool:
        _analyze_unit(partition.Unit((places[task],), parse_only=unit.parse_only), files, settings)
        return True

    def together(task: int) -> Part:
        return _analyze_unit(unit, files, settings, without=fatal)

    batch = range(0, len(places), parallel.MAX_TASKS)
    lives: list[bool | parallel.Died] = []
    for start in batch:
        count = min(parallel.MAX_TASKS, len(places) - start)
        lives += parallel.fork_each(count, lambda task, start=start: alone(start + task), jobs)  # type: ignore[misc]
    fatal = {place: life for place, life in zip(places, lives, strict=True) if isinstance(life, parallel.Died)}
    sound = [place for place in places if place not in fatal]
    errors = [
        FileError(files.path(place), None, f"the process that analyzed it died ({life.how}); it is left out")
        for place, life in fatal.items()
    ]
    if not sound:
        return Part(unit, Analysis((), tuple(errors), len(places)))
    (again,) = parallel.fork_each(1, together, 1)
    if isinstance(again, parallel.Died):
        more = f" and {len(sound) - 1} files that belong with it" if len(sound) > 1 else ""
        message = f"the process that analyzed it{more} died ({again.how})"
        errors.append(FileError(files.path(sound[0]), None, message))
        return Part(unit, Analysis((), tuple(errors), len(places)))
    found = replace(again.analysis, errors=(*again.analysis.errors, *errors), files=len(places))
    return Part(unit, found, again.tracebacks)


def analyze_isolating_failures(
    sources: Sequence[Source],
    settings: EngineSettings,
    context: Sequence[Source] = (),
    component: Component | None = None,
) -> tuple[Analysis, list[str]]:
    """Ask the engine. Where it fails, find the files it fails on, report those, and analyze the others without them.

    Returns the analysis and the tracebacks of internal errors. After MAX_CULPRITS such files the fault is taken to lie
    in none of them, and nothing is analyzed.
    """
    from gpusync_lint.run.engine import analyze

    try:
        return analyze(sources, settings, context, component), []
    except Exception as error:
        if context or component:  # what it fails on may lie there, and nobody asked about that
            analysis, tracebacks = analyze_isolating_failures(sources, settings)
            return analysis, [_traceback(), *tracebacks]
        project = FileError(_PROJECT, None, internal_error(error))
        tracebacks = [_traceback()]
    culprits: list[FileError] = []
    sound: list[Source] = []
    for source in sources:
        try:
            analyze([source], settings)
        except Exception as error:
            culprits.append(FileError(source.path, None, internal_error(error)))
            tracebacks.append(_traceback())
            if len(culprits) == MAX_CULPRITS:
                break
        else:
            sound.append(source)
    if not culprits or len(culprits) == MAX_CULPRITS:
        return Analysis((), (project, *culprits), len(sources)), tracebacks[:1]
    rest, more = analyze_isolating_failures(sound, settings)
    return Analysis(rest.findings, (*rest.errors, *culprits), len(sources)), tracebacks[1:] + more


def _traceback() -> str:
    """That of the exception that is being handled."""
    import traceback  # nothing but a bug asks for it

    return traceback.format_exc()


def internal_error(error: Exception) -> str:
    """One line about a failure that is no fault of the user's."""
    lines = str(error).splitlines() or [""]
    return f"{_FAILED}, a bug in gpusync: {type(error).__name__}: {lines[0]} (--verbose shows the traceback)"
