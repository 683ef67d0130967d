"""The baseline file: how many syncs each test may make on each line, so that no change adds one unnoticed.

An entry identifies its line by path, function, kind of call and source text, not by number, so edits above it change
nothing. The file is JSON with one entry per line, sorted, each line starting with its comma: branches that add entries
can be merged line by line.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from pytest_gpusync.model.line_counts import measured_steps
from pytest_gpusync.model.site_key import Key, normalized, portable
from pytest_gpusync.reporting.site_rows import source_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpusync.model.measurement import Measurement, Site

SCHEMA: Final = "gpusync.test-baseline/1"

LINTER_SCHEMA: Final = "gpusync.lint-baseline/"
"""The beginning of the schema of the linter's baseline, which is given here by mistake."""

USUAL_NAME: Final = "gpusync-test-baseline.json"
"""The name of the file in the documentation."""


class _Entry(msgspec.Struct):
    """An entry as it is in the file."""

    test: str
    path: str
    function: str
    kind: str
    source: str
    syncs_per_step: Annotated[int, msgspec.Meta(ge=0)]


Counts = dict[Key, int]
"""Syncs in the worst step after warm-up, by line; lines without syncs are left out."""


class Folders(NamedTuple):
    """The two folders that paths are relative to."""

    root: Path
    """pytest's rootdir: for node ids and the paths of a baseline."""
    base: Path
    """Where pytest was started: for the paths of a measurement."""


class Baseline(NamedTuple):
    """The content of a baseline file."""

    tests: dict[str, Counts]
    """Entries by node id; a test without entries made no sync."""
    coverage: str | None
    """What the recorder could see when the file was written."""


class Change(NamedTuple):
    """A line whose syncs differ from the baseline."""

    key: Key
    before: int
    now: int


class BaselineError(ValueError):
    """A baseline file cannot be used; the message is one line with the cause and the remedy."""


def read_baseline(path: Path) -> Baseline:
    """Return the content of a baseline file; if a merge left an entry twice, the stricter one counts.

    Raises:
        BaselineError: the file is missing, or is not a baseline.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BaselineError(f"{path} does not exist; --gpu-sync-update-baseline creates it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    if any(line.startswith(("<<<<<<<", ">>>>>>>")) for line in text.splitlines()):
        raise BaselineError(f"{path} has conflict markers of a merge; keep the lines of both sides, or rewrite it")
    try:
        rows = json.loads(text)
    except ValueError as error:
        place = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise BaselineError(
            f"{path} is not JSON{place}; repair or delete it to use --gpu-sync-update-baseline"
        ) from None
    head = rows[0] if isinstance(rows, list) and rows else None
    if isinstance(head, dict) and str(head.get("schema")).startswith(LINTER_SCHEMA):
        raise BaselineError(
            f"{path} is a baseline of the linter; use it with gpusync lint --baseline, and give pytest a file of its "
            f"own, such as {USUAL_NAME}"
        )
    if not isinstance(head, dict) or head.get("schema") != SCHEMA:
        raise BaselineError(f"{path} is not a baseline of this version ({SCHEMA}); give another file")
    tests: dict[str, Counts] = {}
    for number, row in enumerate(rows[1:], start=1):
        try:
            entry = msgspec.convert(row, _Entry)
        except msgspec.ValidationError as error:
            raise BaselineError(f"{path}: entry {number}: {error}; delete the file to write it again") from None
        counts, key = tests.setdefault(entry.test, {}), Key(entry.path, entry.function, entry.kind, entry.source)
        counts[key] = min(entry.syncs_per_step, counts.get(key, entry.syncs_per_step))
    return Baseline(tests, head.get("coverage"))


def to_text(baseline: Baseline) -> str:
    """Return a baseline as the text of its file."""
    lines = [json.dumps({"schema": SCHEMA, "coverage": baseline.coverage})]
    for test, counts in sorted(baseline.tests.items()):
        for key, syncs in sorted(counts.items()):
            row = {"test": test, **key._asdict(), "syncs_per_step": syncs}
            lines.append("," + json.dumps(row, ensure_ascii=False))
    return "[" + "\n".join(lines) + "\n]\n"


def count(measurements: Iterable[Measurement], folders: Folders) -> Counts:
    """Return the syncs of a test by line: the most that a step of any of its closed regions made."""
    worst: Counts = {}
    keys: dict[tuple[Site, str], Key] = {}
    for measurement in measurements:
        steps = measured_steps(measurement)
        made: Counter[tuple[Key, int]] = Counter()
        for sync in measurement.all_syncs:
            if sync.allowed is None and not sync.background and sync.step is not None and sync.step in steps:
                if (sync.site, sync.kind) not in keys:
                    keys[sync.site, sync.kind] = key_of(sync.site, sync.kind, folders)
                made[keys[sync.site, sync.kind], sync.step] += 1
        for (key, _), syncs in made.items():
            worst[key] = max(worst.get(key, 0), syncs)
    return worst


def key_of(site: Site, kind: str, folders: Folders) -> Key:
    """Return the key of a site in a baseline."""
    if site.path.startswith("<"):
        return Key(site.path, site.function, kind, "")
    # A test may have changed the working directory that the path was relative to.
    there = folders.base / site.path
    file = there if there.exists() else Path(site.path).absolute()
    path = file.relative_to(folders.root) if file.is_relative_to(folders.root) else file
    text = normalized(source_text(str(file), site.line))
    return Key(portable(path.as_posix()), site.function, kind, text)


def increases(before: Mapping[Key, int], now: Mapping[Key, int]) -> list[Change]:
    """Return the lines that make more syncs than the baseline, the largest increase first."""
    found = [Change(key, before.get(key, 0), syncs) for key, syncs in now.items() if syncs > before.get(key, 0)]
    return sorted(found, key=lambda change: (change.before - change.now, change.key))


def decreases(before: Mapping[Key, int], now: Mapping[Key, int]) -> list[Change]:
    """Return the lines that make fewer syncs than the baseline; with 0 now, the entry is stale."""
    return [Change(key, syncs, now.get(key, 0)) for key, syncs in sorted(before.items()) if now.get(key, 0) < syncs]
