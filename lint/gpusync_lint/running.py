"""How the functions of parts of a project run, as plain lists that JSON can keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusync_lint.heat import FunctionRun, Place, Step
from gpusync_lint.model import Heat, Running

if TYPE_CHECKING:
    from gpusync_lint.heat import Key

_KINDS = ("loop", "guard", "exit", "error")
_SIGNS = ("layer", "weak", "strong", "loop")
_HEATS = tuple(Heat)


class _Table:
    """Steps, or paths, by number."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._known: dict[object, int] = {}

    def path(self, path: str) -> int:
        """The number of a path."""
        number = self._known.get(path)
        if number is None:
            number = self._known[path] = len(self.rows)
            self.rows.append(path)
        return number

    def step(self, step: Step | None) -> int:
        """The number of a step; -1 for none."""
        if step is None:
            return -1
        number = self._known.get(id(step))
        if number is None:
            parent = self.step(step.parent)
            number = self._known[id(step)] = len(self.rows)
            self.rows.append([_KINDS.index(step.kind), parent])
        return number


def plain(running: Running) -> list[Any]:
    """As lists, numbers and strings."""
    paths = _Table()
    tables: dict[Key, _Table] = {}
    rows: dict[Key, list[Any]] = {}
    for key, run in running.functions.items():
        steps = tables[key] = _Table()
        rows[key] = [
            paths.path(key[0]),
            key[1],
            run.convention.rank,
            run.remembered | run.method << 1 | run.inside << 2,
            steps.rows,
            [[_SIGNS.index(sign), steps.step(way)] for sign, way in run.signs],
            [[paths.path(path), line, steps.step(way), int(repeated)] for (path, line), way, repeated in run.calls],
            [steps.step(way) for way in run.batches],
        ]
    numbers = {key: number for number, key in enumerate(rows)}
    places = [
        None
        if place is None
        else [
            numbers[place.function],
            tables[place.function].step(place.way),
            int(place.repeated),
            int(place.deferred),
        ]
        for place in running.places
    ]
    return [paths.rows, list(rows.values()), places]


def restored(stored: list[Any]) -> Running:
    """What `plain` was made of. Raises ValueError, TypeError, LookupError or AttributeError for anything else."""
    paths, rows, found = stored
    functions: dict[Key, FunctionRun] = {}
    keys: list[Key] = []
    tables: list[list[Step]] = []
    for path, line, heat, flags, shapes, signs, calls, batches in rows:
        steps: list[Step] = []
        for kind, parent in shapes:
            steps.append(Step(_KINDS[kind], steps[parent] if parent >= 0 else None))
        key = (str(paths[path]), int(line))
        keys.append(key)
        tables.append(steps)
        functions[key] = FunctionRun(
            _HEATS[heat],
            bool(flags & 1),
            bool(flags & 2),
            bool(flags & 4),
            [(_SIGNS[sign], steps[way] if way >= 0 else None) for sign, way in signs],
            [((paths[at], on), steps[way] if way >= 0 else None, bool(again)) for at, on, way, again in calls],
            [steps[way] for way in batches],
        )
    places = tuple(
        None
        if one is None
        else Place(keys[one[0]], tables[one[0]][one[1]] if one[1] >= 0 else None, bool(one[2]), bool(one[3]))
        for one in found
    )
    return Running(functions, places)
