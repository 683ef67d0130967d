"""Code lenses: above each function that waits in every step, how often, and the cost if a run has measured it."""

from __future__ import annotations

import ast
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lsprotocol import types

from gpusync_lint.heat.capture import FIRST_OTHER_CODE
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.spans import Span
from gpusync_lint.model.units import Unit
from gpusync_lint.server.provisional import moved, unchanged_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusync_lint.model.findings import Finding
    from gpusync_lint.server.analysis import Checked
    from gpusync_lint.server.values import Positions

SHOW = "gpusync.showFindings"
"""The command of a lens, with the address of a document, a position and locations, for clients that implement it."""


@dataclass(frozen=True, slots=True)
class Lens:
    """What is shown above a function."""

    line: int
    """The line of its ``def``."""
    title: str
    findings: tuple[Finding, ...]
    """Those in the function that run in every step."""


def lenses_of(checked: Checked) -> list[Lens] | None:
    """The lenses of a document, by line; None if its text is not valid Python."""
    hot = [one.finding for one in checked.reported if one.finding.heat is Heat.STEP]
    if not hot:
        return []
    try:
        functions = sorted(_functions(ast.parse(checked.text)))
    except (SyntaxError, ValueError, RecursionError):
        return None
    by_function: dict[int, list[Finding]] = {}
    for one in hot:
        around = _innermost(functions, one.span.line)
        if around is not None:
            by_function.setdefault(around, []).append(one)
    return [Lens(line, _title(found, checked), tuple(found)) for line, found in sorted(by_function.items())]


def _functions(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """The first line and the last line of each function."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno or node.lineno


def _innermost(functions: Sequence[tuple[int, int]], line: int) -> int | None:
    """The first line of the innermost function around a line."""
    before = functions[: bisect_right(functions, (line, float("inf")))]
    return next((first for first, last in reversed(before) if line <= last), None)


def _title(found: Sequence[Finding], checked: Checked) -> str:
    waits = sum(one.code < FIRST_OTHER_CODE for one in found)
    counts = [_count(waits, "wait")] if waits else []
    if len(found) > waits:
        counts.append(_count(len(found) - waits, "other finding" if waits else "finding"))
    units = {(one.unit or Unit.STEP).value for one in found}
    every = units.pop() if len(units) == 1 else Unit.STEP.value
    return f"every {every}: {', '.join(counts)}{_cost(found, checked)}"


def _cost(found: Sequence[Finding], checked: Checked) -> str:
    """What the runs measured, as a clause; empty if they recorded no sync. Findings on one line share its figures."""
    by_line = {
        one.span.line: seen for one in found if (seen := checked.observations.get(one.key)) is not None and seen.syncs
    }
    if not by_line:
        return ""
    syncs = sum(seen.syncs or 0 for seen in by_line.values())
    times = [seen.blocked_ms for seen in by_line.values() if seen.blocked_ms is not None]
    waited = f", the host waited {sum(times):,.1f} ms" if times else ""
    return f"; measured: {_count(syncs, 'sync')}{waited} ({checked.runs})"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def shown(
    lenses: Sequence[Lens], text: str, positions: Positions, *, commands: bool
) -> dict[str, list[types.CodeLens]]:
    """Lenses as values of the protocol, by the address of a document or cell.

    Args:
        lenses: the lenses.
        text: the analyzed text that they were made for.
        positions: the document as it is now; lines may have moved.
        commands: whether the client implements `SHOW`.
    """
    lines = unchanged_lines(text.split("\n"), positions.checked.text.split("\n"))
    found: dict[str, list[types.CodeLens]] = {}
    for lens in lenses:
        span = moved(Span(lens.line, 1, lens.line, 1), lines)
        if span is None:
            continue
        place = positions.place(span)
        command = types.Command(title=lens.title, command="")
        if commands:
            spans = [spot for one in lens.findings if (spot := moved(one.span, lines)) is not None]
            command = types.Command(
                lens.title, SHOW, arguments=[place.uri, place.range.start, list(map(positions.place, spans))]
            )
        found.setdefault(place.uri, []).append(types.CodeLens(range=place.range, command=command))
    return found
