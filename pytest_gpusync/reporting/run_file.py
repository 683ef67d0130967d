"""The run file: ``gpusync.run/1``, described field by field in docs/schemas/run-1.schema.json.

Measurements also travel as its region objects: between the workers of a distributed run, from a test to the session's
summary, and into every other report.
"""

from __future__ import annotations

import json
import platform
import re
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from gpusync_lint.files.atomic_write import replace_file

from pytest_gpusync.distributed.rank_exchange import rank
from pytest_gpusync.machine import devices
from pytest_gpusync.model.budgets import why_not_measured
from pytest_gpusync.model.line_counts import cause_of
from pytest_gpusync.model.site_counts import device_counts, site_counts, syncs_per_step
from pytest_gpusync.model.site_key import normalized
from pytest_gpusync.reporting.compilation import compilation_document, with_codes
from pytest_gpusync.reporting.not_counted import not_counted_document
from pytest_gpusync.reporting.origin import origin_document
from pytest_gpusync.reporting.quantities import elapsed_document, estimate_document, memory_document, timing_document
from pytest_gpusync.reporting.rule_names import rule_for
from pytest_gpusync.reporting.site_rows import source_text
from pytest_gpusync.reporting.sync_sequence import sequence_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpusync.model.budgets import Verdict
    from pytest_gpusync.model.document import Document
    from pytest_gpusync.model.measurement import Environment, Measurement, Race, SiteCount
    from pytest_gpusync.reporting.quantities import Elapsed

SCHEMA: Final = "gpusync.run/1"

_COLUMN: Final = re.compile(r"\[\n[-+.\deE,\s]*(?:null[-+.\deE,\s]*)*\n *\]")
"""A list of numbers over several lines of JSON; inside a JSON string there is no line break."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def environment_document(environment: Environment | None) -> Document:
    """Return the environment object; without any measurement (None), device, recorder and coverage are null."""
    if environment is not None:
        return asdict(environment)
    build = devices.torch_build()
    return {
        "torch": build[0] if build else None,
        "python": platform.python_version(),
        "device": None,
        "gpu": None,
        "driver": None,
        "recorder": None,
        "coverage": None,
        "note": None,
    }


def region_document(measurement: Measurement, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the region object of a measurement and its verdicts. Rule codes are null until the run is written."""
    problem = why_not_measured(measurement)
    per_step = None if problem is not None else syncs_per_step(measurement)
    counts = site_counts(measurement)
    outcome = _outcome(verdicts, problem)
    if outcome == "not_measured" and problem is None:
        sentence = next(verdict.sentence for verdict in verdicts if verdict.outcome == "not_measured")
        problem = sentence.removeprefix("Not measured: ")
    return {
        "name": measurement.name,
        "outcome": outcome,
        "problem": problem,
        "steps": measurement.steps,
        "warmup": measurement.warmup,
        "step_source": measurement.step_source,
        "device_used": measurement.device_used,
        "process": measurement.process,
        "syncs": None if per_step is None else _counted(measurement),
        "syncs_per_step": None if per_step is None else {"max": max(per_step), "median": median(per_step)},
        "per_step": per_step,
        "devices": None if per_step is None else [count._asdict() for count in device_counts(measurement)],
        "not_counted": not_counted_document(measurement),
        "sites": [_site(count, measurement.executions) for count in counts],
        "races": None if measurement.races is None else [_race(race) for race in measurement.races],
        "compilation": compilation_document(measurement),
        "order": sequence_document(measurement, counts),
        "memory": memory_document(measurement),
        "timing": timing_document(measurement),
        "verdicts": [_verdict(verdict) for verdict in verdicts],
    }


def unmeasured_document(name: str, problem: str) -> Document:
    """Return the region object of something that could not be measured at all."""
    return {
        "name": name,
        "outcome": "not_measured",
        "problem": problem,
        "steps": None,
        "warmup": None,
        "step_source": None,
        "device_used": None,
        "process": None,
        "syncs": None,
        "syncs_per_step": None,
        "per_step": None,
        "devices": None,
        "not_counted": None,
        "sites": [],
        "races": None,
        "compilation": None,
        "order": None,
        "memory": None,
        "timing": None,
        "verdicts": [],
    }


def elapsed_region_document(name: str, found: Elapsed) -> Document:
    """Return the region object of a result of gpu_elapsed, which counts no syncs."""
    return {
        **unmeasured_document(name, ""),
        "outcome": "measured",
        "problem": None,
        "device_used": True,
        "timing": elapsed_document(found),
    }


def run_document(
    environment: Environment | Document | None, regions: Iterable[Document], lines: Document | None = None
) -> Document:
    """Return the run object, with the source text of each line, and the linter's rule code for each that has one.

    `lines`: which lines of the project ran, by path, as inclusive ranges; None if that was not recorded.
    """
    described = environment if isinstance(environment, dict) else environment_document(environment)
    return {
        "schema": SCHEMA,
        "environment": described,
        "regions": [
            {**region, "sites": [_described(site) for site in region["sites"]]}
            | {"compilation": with_codes(region.get("compilation"))}
            for region in regions
        ],
        "lines": lines,
        "rank": rank(),
        "origin": origin_document(),
    }


def to_text(document: Document) -> str:
    """Return a run object as the text of its file."""
    # One region at a time: a column of numbers takes several times as much memory before it is on one line.
    members = []
    for key, value in document.items():
        if isinstance(value, list) and value:
            text = ",\n    ".join(_indented(item, 4) for item in value)
            members.append(f"  {json.dumps(key)}: [\n    {text}\n  ]")
        else:
            members.append(f"  {json.dumps(key)}: {_indented(value, 2)}")
    return escape_surrogates("{\n" + ",\n".join(members) + "\n}\n")


def _indented(value: Any, depth: int) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    text = _COLUMN.sub(lambda column: " ".join(column[0].split()).replace("[ ", "[").replace(" ]", "]"), text)
    return text.replace("\n", "\n" + " " * depth)


def escape_surrogates(text: str) -> str:
    """Return JSON text that can be encoded as UTF-8: a file name that is not UTF-8 has lone surrogates."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write_atomic(path: Path | str, text: str) -> None:
    """Write `text` to `path` so that readers see the old file or the new one, never a part; missing folders are
    created.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())


def _outcome(verdicts: Sequence[Verdict], problem: str | None) -> str:
    if problem is not None:
        return "not_measured"
    if not verdicts:
        return "measured"
    outcomes = {verdict.outcome for verdict in verdicts}
    return next(outcome for outcome in ("failed", "not_measured", "undecided", "passed") if outcome in outcomes)


def _counted(measurement: Measurement) -> int:
    return sum(1 for sync in measurement.all_syncs if sync.allowed is None and not sync.background)


def _site(count: SiteCount, executions: Mapping[tuple[str, int], int] | None) -> Document:
    return {
        "path": count.site.path,
        "line": count.site.line,
        "function": count.site.function,
        "code": None,  # filled in when the run is written, as are the next two
        "silent": None,
        "source": None,
        "kind": count.kind,
        "direction": count.direction,
        "syncs": count.syncs,
        "steps": count.steps,
        "per_step_max": count.per_step_max,
        "blocked_ms": count.blocked_ms,
        "bytes": count.nbytes,
        "via": count.site.via,
        "cause": cause_of(count.kind, count.site.via),
        "phase": count.phase,
        "thread": count.thread,
        "allowed": count.allowed,
        "background": count.background,
        "devices": [found._asdict() for found in count.devices],
        "executions": None if executions is None else executions.get((count.site.path, count.site.line)),
    }


def _race(race: Race) -> Document:
    return {
        "kind": race.kind,
        "path": race.site.path,
        "line": race.site.line,
        "function": race.site.function,
        "tensor": race.tensor,
        "shape": list(race.shape),
        "bytes": race.nbytes,
        "stream": race.stream,
        "other": {
            "path": race.other.path,
            "line": race.other.line,
            "function": race.other.function,
            "stream": race.other_stream,
        },
        "times": race.times,
        "message": race.message,
    }


def _described(site: Document) -> Document:
    """Return a site with its source text and its rule, unless it has them already."""
    if site["source"] is None and (text := source_text(site["path"], site["line"])):
        site = {**site, "source": normalized(text)}
    if site["code"] is not None:
        return site
    rule = rule_for(site["path"], site["line"], site["direction"])
    return site if rule is None else {**site, "code": rule.code, "silent": rule.silent}


def _verdict(verdict: Verdict) -> Document:
    over, within = getattr(verdict.budget, "over", None), getattr(verdict.budget, "within", None)
    return {
        "quantity": verdict.budget.quantity,
        "outcome": verdict.outcome,
        "max": verdict.budget.max,
        "exact": verdict.budget.exact,
        "percentile": getattr(verdict.budget, "percentile", None),
        "over": over and str(over),
        "within": within and within.text,
        "source": verdict.budget.source,
        "measured": verdict.syncs if verdict.estimate is None else verdict.estimate.value,
        "interval": None if verdict.estimate is None else estimate_document(verdict.estimate),
        "sentence": verdict.sentence,
    }
