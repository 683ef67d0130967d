"""A run's files analysed unit by unit, in several processes where that pays, and in spite of what goes wrong."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpusync_lint import parallel, units
from gpusync_lint.model import Analysis, FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusync_lint.model import EngineSettings, Source

MAX_CULPRITS = 5
"""Files that the engine may fail on one by one before it is taken to fail on all."""
WORTH_SHARING = 600_000
"""Characters of source, some 15,000 lines, from which on starting a process pays."""
_PROJECT = "<project>"
_FAILED = "internal error"
_TASKS = 512
"""Tasks that the units are shared out in, at most."""


@dataclass(frozen=True, slots=True)
class Part:
    """One unit of a run, and what was found in it."""

    places: tuple[int, ...]
    """Indices into the sources."""
    analysis: Analysis
    tracebacks: tuple[str, ...] = ()
    """Of internal errors."""


def parts(
    sources: Sequence[Source],
    settings: EngineSettings,
    imported: Sequence[units.Imports],
    *,
    jobs: int = 1,
    done: Callable[[int], None] = lambda files: None,
    known: Callable[[tuple[int, ...]], Analysis | None] = lambda places: None,
) -> list[Part]:
    """Analyse files unit by unit; what comes out does not depend on the number of processes, `jobs`.

    `imported` is what `units.imports` finds in each. `done` is told of files that are finished, `known` is asked for
    the analysis of a unit before it is made.
    """
    found: list[Part] = []
    rest: list[tuple[int, ...]] = []
    for places in units.divide(sources, imported):
        analysis = known(places)
        if analysis is None:
            rest.append(places)
        else:
            found.append(Part(places, analysis))
            done(len(places))
    size = sum(len(sources[place].text) for places in rest for place in places)
    if jobs > 1 and len(rest) > 1 and size >= WORTH_SHARING and parallel.CAN_FORK:
        return found + _shared_out(sources, settings, rest, jobs, done)
    for places in rest:
        found.append(Part(places, *_sound([sources[place] for place in places], settings)))
        done(len(places))
    return found


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
    sources: Sequence[Source],
    settings: EngineSettings,
    rest: Sequence[tuple[int, ...]],
    jobs: int,
    done: Callable[[int], None],
) -> list[Part]:
    """Large units first, each a task of its own, small ones together."""
    import gpusync_lint.engine  # noqa: F401  before the fork, so that no worker has to load it

    sizes = {places: sum(len(sources[place].text) for place in places) for places in rest}
    ordered = sorted(rest, key=lambda places: (-sizes[places], places))
    room = max(WORTH_SHARING // 4, sum(sizes.values()) // _TASKS + 1)
    tasks: list[list[tuple[int, ...]]] = []
    filled = room
    for places in ordered:
        if filled >= room:
            tasks.append([])
            filled = 0
        tasks[-1].append(places)
        filled += sizes[places]

    def work(task: int) -> list[Part]:
        return [Part(places, *_sound([sources[place] for place in places], settings)) for places in tasks[task]]

    found: list[Part] = []
    finished = iter(parallel.fork_each(len(tasks), work, jobs, partial(done, 0)))
    for task, result in zip(tasks, finished, strict=True):
        if isinstance(result, parallel.Died):
            found += [_after_a_death(sources, settings, places, result, jobs) for places in task]
        else:
            found += result
        done(sum(len(places) for places in task))
    return found


def _after_a_death(
    sources: Sequence[Source], settings: EngineSettings, places: tuple[int, ...], death: parallel.Died, jobs: int
) -> Part:
    """Find the files on which a worker dies, report those, and analyse the others of the unit without them."""

    def alone(task: int) -> bool:
        _sound([sources[places[task]]], settings)
        return True

    def together(task: int) -> tuple[Analysis, tuple[str, ...]]:
        return _sound([sources[place] for place in sound], settings)

    batch = range(0, len(places), parallel.MAX_TASKS)
    lives: list[bool | parallel.Died] = []
    for start in batch:
        count = min(parallel.MAX_TASKS, len(places) - start)
        lives += parallel.fork_each(count, lambda task, start=start: alone(start + task), jobs)  # type: ignore[misc]
    fatal = {place: life for place, life in zip(places, lives, strict=True) if isinstance(life, parallel.Died)}
    sound = [place for place in places if place not in fatal]
    errors = [
        FileError(sources[place].path, None, f"the process that analysed it died ({life.how}); it is left out")
        for place, life in fatal.items()
    ]
    if not sound:
        return Part(places, Analysis((), tuple(errors), len(places)))
    (again,) = parallel.fork_each(1, together, 1)
    if isinstance(again, parallel.Died):
        more = f" and {len(sound) - 1} files that belong with it" if len(sound) > 1 else ""
        message = f"the process that analysed it{more} died ({again.how})"
        errors.append(FileError(sources[sound[0]].path, None, message))
        return Part(places, Analysis((), tuple(errors), len(places)))
    analysis, tracebacks = again
    return Part(places, Analysis(analysis.findings, (*analysis.errors, *errors), len(places)), tracebacks)


def _sound(sources: Sequence[Source], settings: EngineSettings) -> tuple[Analysis, tuple[str, ...]]:
    analysis, tracebacks = analyse(sources, settings)
    return analysis, tuple(tracebacks)


def analyse(
    sources: Sequence[Source], settings: EngineSettings, context: Sequence[Source] = ()
) -> tuple[Analysis, list[str]]:
    """Ask the engine. Where it fails, find the files it fails on, report those, and analyse the others without them.

    Returns the analysis and the tracebacks of internal errors. After MAX_CULPRITS such files the fault is taken to lie
    in none of them, and nothing is analysed.
    """
    from gpusync_lint.engine import analyze

    try:
        return analyze(sources, settings, context), []
    except Exception as error:
        if context:  # what it fails on may lie there, and nobody asked about that
            analysis, tracebacks = analyse(sources, settings)
            return analysis, [traceback.format_exc(), *tracebacks]
        project = FileError(_PROJECT, None, internal_error(error))
        tracebacks = [traceback.format_exc()]
    culprits: list[FileError] = []
    sound: list[Source] = []
    for source in sources:
        try:
            analyze([source], settings)
        except Exception as error:
            culprits.append(FileError(source.path, None, internal_error(error)))
            tracebacks.append(traceback.format_exc())
            if len(culprits) == MAX_CULPRITS:
                break
        else:
            sound.append(source)
    if not culprits or len(culprits) == MAX_CULPRITS:
        return Analysis((), (project, *culprits), len(sources)), tracebacks[:1]
    rest, more = analyse(sound, settings)
    return Analysis(rest.findings, (*rest.errors, *culprits), len(sources)), tracebacks[1:] + more


def internal_error(error: Exception) -> str:
    """One line about a failure that is no fault of the user's."""
    lines = str(error).splitlines() or [""]
    return f"{_FAILED}, a bug in gpusync: {type(error).__name__}: {lines[0]} (--verbose shows the traceback)"
