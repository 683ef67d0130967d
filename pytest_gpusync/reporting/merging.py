"""Merges several run files into one: those of the ranks of a distributed run, or of the shards of a test suite.

A merged run is a run (``gpusync.run/1``) like any other. It lists its ``parts``, the files it was made of, and each
region names its own. The result does not depend on the order of the files.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import msgspec
from gpusync_lint.files.line_ranges import merge_ranges
from gpusync_lint.files.run_files import Environment, Origin

from pytest_gpusync.model.measurement import COVERAGES
from pytest_gpusync.reporting.run_figures import RunFigures
from pytest_gpusync.reporting.run_file import SCHEMA
from pytest_gpusync.reporting.run_filter import TEST, value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpusync.model.document import Document
    from pytest_gpusync.reporting.run_filter import Filter

_COMPARED: Final = ("device", "gpu", "driver", "recorder", "coverage", "torch", "python")
"""Fields of an environment in which the parts of a run may differ."""


class NothingLeftError(LookupError):
    """There is no run to merge."""


@dataclass(frozen=True)
class _Part:
    """The run of one process."""

    file: str
    rank: int | None
    environment: Document
    regions: list[Document]
    lines: Document | None
    origin: Document | None
    label: str = field(default="", compare=False)


def merge_runs(runs: Iterable[tuple[str, Document]], filters: Sequence[Filter] = ()) -> Document:
    """Return the runs as one run object.

    Args:
        runs: the path of each file, as the user gave it, and its run object, which has been checked if it was read
            from a file; a merged run contributes its parts.
        filters: only parts and tests that fulfill all of them.

    Raises:
        NothingLeftError: there are no runs, or none fulfills the filters.
    """
    found = (part for file, document in runs for part in _parts(file, document))
    parts = sorted((part for part in found if not filters or _keep(part, filters)), key=_order)
    if not parts:
        raise NothingLeftError
    parts = [replace(part, label=label) for part, label in zip(parts, _labels(parts), strict=True)]
    named = Counter(name for part in parts for name in {region["name"] for region in part.regions})
    return {
        "schema": SCHEMA,
        "environment": _environment(parts),
        "regions": [
            {**region, "name": f"{region['name']} [{part.label}]" if named[region["name"]] > 1 else region["name"]}
            | {"part": number}
            for number, part in enumerate(parts)
            for region in part.regions
        ],
        "lines": _lines(parts),
        "rank": None,
        "origin": _origin(parts),
        "parts": [
            {"file": part.file, "label": part.label, "rank": part.rank, "environment": part.environment}
            | {"lines": part.lines, "origin": part.origin}
            for part in parts
        ],
    }


def _keep(part: _Part, filters: Sequence[Filter]) -> bool:
    """Return whether a part fulfills the filters, after removing its regions that do not."""
    of_regions = [one for one in filters if one.name == TEST]
    if of_regions:
        part.regions[:] = [region for region in part.regions if all(one.matches(region["name"]) for one in of_regions)]
    figures = RunFigures(
        part.file, msgspec.convert(part.environment, Environment), msgspec.convert(part.origin, Origin | None), {}, {}
    )
    matches = all(one.matches(value_of(figures, one.name)) for one in filters if one.name != TEST)
    return matches and (bool(part.regions) or not of_regions)


def _parts(file: str, document: Document) -> list[_Part]:
    merged = document.get("parts")
    if merged is None:
        rank, lines, origin = document.get("rank"), document.get("lines"), document.get("origin")
        return [_Part(file, rank, document["environment"], document["regions"], lines, origin)]
    return [
        _Part(
            part["file"],
            part["rank"],
            part["environment"],
            [_unlabeled(region, part["label"]) for region in document["regions"] if region["part"] == number],
            part["lines"],
            part.get("origin"),
        )
        for number, part in enumerate(merged)
    ]


def _unlabeled(region: Document, label: str) -> Document:
    """Return a region of a merged run under its original name."""
    kept = {key: value for key, value in region.items() if key != "part"}
    return {**kept, "name": region["name"].removesuffix(f" [{label}]")}


def _order(part: _Part) -> tuple[Any, ...]:
    """Return a sort key: ranks in order; files by name, with ``run-10`` after ``run-9``."""
    pieces = re.findall(r"0*([0-9]+)|([^0-9]+)", part.file)
    natural = [(len(digits), digits or text) for digits, text in pieces]  # a number of any length
    return part.rank is None, part.rank or 0, natural


def _labels(parts: Sequence[_Part]) -> list[str]:
    """Return distinct labels of the parts, as short as possible: the rank, the name of the file, or its path."""
    ranks = [f"rank {part.rank}" for part in parts if part.rank is not None]
    stems = [PurePath(part.file).stem for part in parts]
    files = [part.file for part in parts]
    for labels in (ranks, stems, files):
        if len(labels) == len(parts) == len(set(labels)):
            return labels
    # Parts of merged runs may come from files of the same path.
    return [f"{file} {number}" for number, file in enumerate(files, start=1)]


def _environment(parts: Sequence[_Part]) -> Document:
    """Return the common environment, or that of the part that saw least, with a note of the differences."""
    measured = [part for part in parts if part.environment["recorder"] is not None]
    if not measured:
        return parts[0].environment
    least = min(measured, key=lambda part: COVERAGES.index(part.environment["coverage"]))
    differing = [key for key in _COMPARED if len({part.environment[key] for part in measured}) > 1]
    notes = list(dict.fromkeys(part.environment["note"] for part in measured if part.environment["note"]))
    if differing:
        notes.insert(0, "the parts of this run differ: " + "; ".join(_difference(key, measured) for key in differing))
    idle = len(parts) - len(measured)
    if idle:
        notes.append(f"{idle} of {len(parts)} parts measured nothing")
    return {**least.environment, "note": "; ".join(notes) or None}


def _difference(key: str, parts: Sequence[_Part]) -> str:
    """Return ``torch 2.11.0 (rank 0, rank 1) and 2.13.0 (rank 2)``."""
    holders: dict[str, list[str]] = {}
    for part in parts:
        holders.setdefault(str(part.environment[key] or "none"), []).append(part.label)
    listed = [
        f"{value} ({', '.join(labels) if len(labels) <= 3 else f'{len(labels)} parts'})"
        for value, labels in holders.items()
    ]
    return f"{key} {' and '.join(listed)}"


def _lines(parts: Sequence[_Part]) -> Document | None:
    """Return the lines that ran in any part; None unless every part recorded them."""
    ran: dict[str, list[list[int]]] = {}
    for part in parts:
        if part.lines is None:
            return None
        for path, ranges in part.lines.items():
            ran.setdefault(path, []).extend(ranges)
    return {path: merge_ranges(ran[path]) for path in sorted(ran)}


def _origin(parts: Sequence[_Part]) -> Document:
    """Return what the origins of all parts agree on, with the date of the latest one."""
    origins = [part.origin or {} for part in parts]
    shared: Document = {}
    for key in ("command", "commit", "version", "source_url"):
        values = {origin.get(key) for origin in origins}
        shared[key] = values.pop() if len(values) == 1 else None
    named = [origin.get("labels") or {} for origin in origins]
    shared["labels"] = {key: value for key, value in named[0].items() if all(each.get(key) == value for each in named)}
    return {**shared, "date": max((origin["date"] for origin in origins if origin.get("date")), default=None)}
