"""Verdicts and measurements as lines of text."""

from __future__ import annotations

from dataclasses import fields, replace
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

from gpusync_lint.escaping import escaped

from pytest_gpusync.model.budgets import WHOLE_REGION, unit_of, why_not_measured
from pytest_gpusync.model.line_counts import counted_per_step, line_counts
from pytest_gpusync.model.measurement import Environment
from pytest_gpusync.model.site_counts import device_counts
from pytest_gpusync.model.sizes import format_size
from pytest_gpusync.reporting.by_device import counts_text, uses_other_devices
from pytest_gpusync.reporting.compiler_rows import compilation_rows
from pytest_gpusync.reporting.site_rows import align, line_row, source_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.model.budgets import Verdict
    from pytest_gpusync.model.line_counts import LineCount
    from pytest_gpusync.model.measurement import Measurement, Race

LINES_SHOWN: Final = 10
"""Lines shown at normal verbosity; ``-v`` shows all."""

RACES_NOT_CHECKED: Final = "races were not checked: they are found on the simulated device"

MORE_HINT: Final = "-v shows all"

TORCH_MEMORY_BUDGETS: Final = ("allocated_growth", "reserved_growth")
"""Memory budgets whose allocations torch can list."""


def environment_from(document: dict[str, Any]) -> Environment:
    """Return the environment of a run object, ignoring fields added by later versions."""
    return Environment(**{field.name: document[field.name] for field in fields(Environment) if field.name in document})


def device_text(environment: Environment) -> str:
    """Return device, recorder and coverage, as one clause."""
    return f"{device_name(environment)}, recorder {environment.recorder}, coverage {environment.coverage}"


def device_name(environment: Environment) -> str:
    """Return the device as reports name it."""
    if environment.device == "simulated":
        return "simulated CUDA device"
    if environment.device == "none":
        return "no GPU"
    driver = f" (driver {environment.driver})" if environment.driver else ""
    return (environment.gpu or "CUDA device") + driver


def render_verdict(verdict: Verdict, measurement: Measurement, *, limit: int | None = LINES_SHOWN) -> list[str]:
    """Return the sentence of a verdict, the lines that broke it (at most `limit`; None for all), and the device."""
    rows = [
        verdict.sentence,
        *_rows(verdict.offenders, measurement, limit),
        *_grown_rows(verdict, measurement, limit),
        *_other_races(verdict, measurement, limit),
        *_titled("not counted:", verdict.uncounted, measurement, limit),
        f"  {device_text(measurement.environment)}{_source(verdict)}",
    ]
    return [escaped(row) for row in rows]


def _source(verdict: Verdict) -> str:
    """Return where a budget was set, if not in the line that the failure shows."""
    source = verdict.budget.source
    is_elsewhere = source.startswith(("--", "marker ")) or " in " in source
    return f"; budget set by {source}" if is_elsewhere else ""


def _grown_rows(verdict: Verdict, measurement: Measurement, limit: int | None) -> list[str]:
    """Return the lines whose allocations made memory grow, for a broken budget of torch's memory."""
    if verdict.outcome != "failed" or verdict.budget.quantity not in TORCH_MEMORY_BUDGETS or not measurement.grown:
        return []
    shown = measurement.grown if limit is None else measurement.grown[:limit]
    places = [f"{line.path}:{line.line}" for line in shown]
    width = max(map(len, places))
    rows = [
        f"  {place:<{width}}  {source_text(line.path, line.line) or line.function}  "
        f"{format_size(line.bytes_per_step)} per step"
        for place, line in zip(places, shown, strict=True)
    ]
    if len(shown) < len(measurement.grown):
        rows.append(f"  and {plural(len(measurement.grown) - len(shown), 'line')} more ({MORE_HINT})")
    return ["  allocated by:", *rows]


def _other_races(verdict: Verdict, measurement: Measurement, limit: int | None) -> list[str]:
    """Return the races that the sentence of a verdict about races leaves out."""
    if verdict.budget.quantity != "races" or not measurement.races:
        return []
    return race_rows(measurement.races[1:], limit)


def race_rows(races: Sequence[Race], limit: int | None, hint: str = MORE_HINT) -> list[str]:
    """Return one row for each race, at most `limit`; None for all."""
    shown = races if limit is None else races[:limit]
    rows = [f"  {race.message}" + (f" ({race.times:,} times)" if race.times > 1 else "") for race in shown]
    if len(shown) < len(races):
        rows.append(f"  and {plural(len(races) - len(shown), 'race')} more ({hint})")
    return rows


def render_measurement(
    measurement: Measurement,
    *,
    verbose: bool = False,
    width: int = 100,
    color: bool = False,
    limit: int | None = LINES_SHOWN,
    hint: str = MORE_HINT,
) -> list[str]:
    """Return a measurement as text: one sentence, the lines of its measured steps, and the device.

    Args:
        measurement: a closed region.
        verbose: show every line in full, and lines that synced only in warm-up or after the last step.
        width: columns of the terminal; longer rows are cut unless `verbose`.
        color: highlight the sentence and the device with ANSI sequences.
        limit: most rows of each kind; None for all.
        hint: how to show the rest, printed if rows are left out.
    """
    shown = None if verbose else limit
    found = line_counts(measurement)
    counted = [line for line in found if line.counted and any(line.by_step)]
    excused = [line for line in found if not line.counted and any(line.by_step)]
    rows = _rows(counted, measurement, shown, hint) + _titled("not counted:", excused, measurement, shown, hint)
    if verbose:
        rows += _outside_rows([line for line in found if not any(line.by_step)])
    else:
        rows = [text if len(text) <= width else text[: max(width - 1, 1)] + "…" for text in rows]
    environment = measurement.environment
    if measurement.races:
        found_races = race_rows(measurement.races, shown, hint)
        wrapped = [part for row in found_races for part in wrap(row, max(width, 40), subsequent_indent="    ")]
        rows = [f"{plural(len(measurement.races), 'race')}:", *(wrapped if not verbose else found_races), *rows]
    head, tail = total_sentence(measurement), f"  {device_text(environment)}"
    if environment.note:
        tail += f"; {environment.note}"
    if measurement.races is None and environment.device == "cuda":
        tail += f"; {RACES_NOT_CHECKED}"
    compiled = compilation_rows(measurement.compilation or (), measurement.warmup, shown)
    head, *rows, tail = map(escaped, [head, *_device_rows(measurement), *rows, *compiled, tail])
    if color:
        head, tail = f"\x1b[1m{head}\x1b[0m", f"\x1b[2m{tail}\x1b[0m"
    return [head, *rows, tail]


def _device_rows(measurement: Measurement) -> list[str]:
    """Return the syncs by device; nothing if there is none of another device than ``cuda:0``."""
    counts = device_counts(measurement)
    if not uses_other_devices(counts):
        return []
    steps = "" if measurement.step_source == WHOLE_REGION else ", in the whole region"
    return [f"  by device: {counts_text(counts)}{steps}"]


def total_sentence(measurement: Measurement) -> str:
    """Return how many syncs a step made, in one sentence."""
    problem = why_not_measured(measurement)
    if problem is not None:
        return f"Not measured: {problem}"
    per_step = sorted(counted_per_step(line_counts(measurement), measurement))
    if measurement.step_source == WHOLE_REGION:
        return plural(per_step[0], "sync")
    # The lower of two middle values: a number of syncs that a step really made.
    median, most = per_step[(len(per_step) - 1) // 2], per_step[-1]
    unit = unit_of(measurement)
    rate = f"{plural(most, 'sync')} per {unit}"
    if median != most:
        rate = f"{plural(median, 'sync')} per {unit}, {most} in the worst"
    warmup = f" after {plural(measurement.warmup, unit)} of warm-up" if measurement.warmup else ""
    return f"{rate}, over {plural(len(per_step), unit)}{warmup} (a {unit} ends at {measurement.step_source})"


def wrap_line(line: str) -> list[str]:
    """Return a line broken between words into rows that fit the terminal; unbroken if the output is not a terminal.

    ``COLUMNS`` overrides the width.
    """
    width = get_terminal_size((0, 0)).columns
    if not width or len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip())
    return wrap(
        line,
        max(width, 2 * indent + 8),
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def plural(number: int, noun: str) -> str:
    """Return "1 sync", "2 syncs"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _rows(found: Sequence[LineCount], measurement: Measurement, limit: int | None, hint: str = MORE_HINT) -> list[str]:
    whole = measurement.step_source == WHOLE_REGION
    shown = found if limit is None else found[:limit]
    named = uses_other_devices(device_counts(measurement))
    drawn = align(line_row(line, whole_region=whole, name_devices=named) for line in shown)
    if len(shown) < len(found):
        drawn.append(f"  and {plural(len(found) - len(shown), 'line')} more ({hint})")
    return drawn


def _titled(
    title: str, found: Sequence[LineCount], measurement: Measurement, limit: int | None, hint: str = MORE_HINT
) -> list[str]:
    drawn = _rows(found, measurement, limit, hint)
    return [f"  {title}", *drawn] if drawn else []


def _outside_rows(found: Sequence[LineCount]) -> list[str]:
    """Return rows for lines that synced only in warm-up or after the last step, with a plain number instead of
    a rate.
    """
    if not found:
        return []
    rows = []
    for line in found:
        drawn = line_row(line, whole_region=True)
        rows.append(replace(drawn, rate=plural(line.outside_measured_steps, "sync")))
    return ["  only in warm-up or after the last step:", *align(rows)]
