"""The baseline: warnings that a project accepts for now, so that only new ones fail a run.

The file is a JSON list. Its first element names the schema, each further one is an entry on a line of its own, sorted
by key; commas lead their lines, so that adding or removing an entry changes that line and no other, and branches merge.
A key holds path, function, code, normalized source and its ordinal in the function, but no line number: a function that
moves keeps its entries, a second occurrence in it is new. Paths are relative to the folder of the file.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpusync_lint.accept.rules import FRAMEWORK, RULES
from gpusync_lint.files.atomic_write import replace_file
from gpusync_lint.model.findings import Finding, UserError
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.spans import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SCHEMA = "gpusync.baseline/1"

DEFAULT_NAME = "gpusync-baseline.json"

STALE = "GS905"

_KEY = re.compile(r'"key":\s*("(?:[^"\\]|\\.)*")')

MAX_SOURCE = 120
"""Characters of a source line that an entry quotes at most."""


class BaselineError(UserError):
    """A baseline file that cannot be used, in one line that names it."""


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One accepted warning."""

    key: str
    code: str
    source: str
    """The line as it was when the entry was written, for the reader of the file."""

    @property
    def path(self) -> str:
        """The file it is about, from the folder of the baseline."""
        return self.key.partition("::")[0]


@dataclass(frozen=True, slots=True)
class Baseline:
    """What one baseline file holds."""

    location: Path
    """Absolute."""
    shown: str
    text: str
    """What the file holds; empty for one that is not there yet."""
    entries: tuple[Entry, ...]

    def relative(self, location: Path) -> str:
        """How keys here name a file, given its absolute path; it takes the place of the finding's path."""
        try:
            return Path(os.path.relpath(location, self.location.parent)).as_posix()
        except ValueError:  # another drive
            return location.as_posix()

    def file_of(self, entry: Entry) -> Path:
        """The absolute path of the file that an entry is about."""
        return Path(os.path.normpath(self.location.parent / entry.path))

    def stale(self, gone: Iterable[tuple[Entry, Confidence]]) -> list[Finding]:
        """Findings about entries that nothing answers to any more, in the baseline file itself."""
        place: dict[str, Span] = {}
        for number, line in enumerate(self.text.split("\n"), 1):
            match = _KEY.search(line)
            if match is not None:
                place.setdefault(json.loads(match[1]), Span(number, 1, number, len(line) + 1))
        return [
            Finding(
                code=STALE,
                name=RULES[STALE].name,
                path=self.shown,
                span=place.get(entry.key, Span(1, 1, 1, 1)),
                message=f"{entry.code} in {entry.path} (`{entry.source}`) is in the baseline and no longer in the code",
                remedy="take it out with --write-baseline",
                heat=Heat.STEP,
                confidence=confidence,
                framework=FRAMEWORK,
                key=f"{self.shown}::{STALE}::{entry.key}",
            )
            for entry, confidence in gone
        ]


def empty(location: Path, shown: str) -> Baseline:
    """A baseline without a file."""
    return Baseline(location, shown, "", ())


def load(location: Path, shown: str) -> Baseline:
    """Read a baseline file. Raises BaselineError when it is not there, cannot be read or is none."""
    try:
        text = location.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise BaselineError(f"{shown}: no such baseline; --write-baseline creates it") from None
    except OSError as error:
        raise BaselineError(f"{shown}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BaselineError(f"{shown}: not a gpusync baseline: it is not UTF-8") from None
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        remedy = "resolve the merge conflict" if "<<<<<<< " in text else "delete it and use --write-baseline"
        raise BaselineError(f"{shown}:{error.lineno}: not valid JSON ({error.msg}); {remedy}") from None
    except RecursionError:
        raise BaselineError(f"{shown}: not a gpusync baseline: nested too deeply") from None
    return Baseline(location, shown, text, _entries(document, shown))


def _entries(document: object, shown: str) -> tuple[Entry, ...]:
    head = document[0] if isinstance(document, list) and document else None
    schema = head.get("schema") if isinstance(head, dict) else None
    if not isinstance(document, list) or not isinstance(schema, str) or not schema.startswith("gpusync.baseline/"):
        raise BaselineError(f"{shown}: not a gpusync baseline, which is a list that starts with the schema {SCHEMA!r}")
    if schema != SCHEMA:
        raise BaselineError(f"{shown}: its schema is {schema!r}, this version of gpusync reads {SCHEMA!r}")
    entries: dict[str, Entry] = {}
    for number, one in enumerate(document[1:], 1):
        values = [one.get(name) for name in ("key", "code", "source")] if isinstance(one, dict) else [None]
        if not all(isinstance(value, str) for value in values):
            raise BaselineError(f"{shown}: entry {number} needs the strings key, code and source")
        entry = Entry(*values)
        entries.setdefault(entry.key, entry)  # a merge may leave an entry twice
    return tuple(sorted(entries.values()))


def entry_of(key: str, finding: Finding, text: str) -> Entry:
    """The entry for a finding in a file with this text."""
    line = "".join(text.split("\n")[finding.span.line - 1 : finding.span.line]).strip()
    return Entry(key, finding.code, line if len(line) <= MAX_SOURCE else f"{line[: MAX_SOURCE - 3]}...")


def render(entries: Iterable[Entry]) -> str:
    """The text of the file."""
    lines = [f'[{{"schema": "{SCHEMA}"}}']
    lines += [f",{_line(entry)}" for entry in sorted({entry.key: entry for entry in entries}.values())]
    return "\n".join([*lines, "]"]) + "\n"


def _line(entry: Entry) -> str:
    document = {"key": entry.key, "code": entry.code, "source": entry.source}
    line = json.dumps(document, ensure_ascii=False)
    try:
        line.encode()
    except UnicodeEncodeError:  # a path that is not Unicode
        return json.dumps(document)
    return line


def write(baseline: Baseline, entries: Iterable[Entry]) -> None:
    """Write the file atomically, if it changes. Raises BaselineError."""
    text = render(entries)
    if text == baseline.text:
        return
    target = Path(os.path.realpath(baseline.location))
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        replace_file(target, text.encode(), mode)
    except OSError as error:
        raise BaselineError(f"{baseline.shown}: cannot be written: {error.strerror or error}") from None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a baseline says of one run."""

    accepted: frozenset[str]
    """Keys of the baseline that live findings have."""
    unjudged: tuple[Entry, ...]
    """Entries that this run could say nothing about: of other files, or of codes that are not selected."""
    stale: tuple[Finding, ...]


def compare(
    baseline: Baseline,
    live: Iterable[str],
    *,
    linted: Callable[[Path], bool | None],
    folders: Iterable[Path],
    enabled: Callable[[str, Path], bool],
) -> Comparison:
    """Hold a baseline against the keys of all live findings, whatever their heat and confidence.

    `linted(file)` is None for a file that was not linted (or could not be), else whether the rest of its project was
    linted with it; where it was not, a finding may be missing because its callers are, so a stale entry is of low
    confidence. A file below one of `folders` that no longer exists makes its entries stale. `enabled(code, file)` says
    which codes are selected.
    """
    keys = set(live)
    folders = tuple(folders)
    accepted, unjudged, gone = set(), [], []
    for entry in baseline.entries:
        file = baseline.file_of(entry)
        whole = linted(file)
        if whole is None and any(folder in file.parents for folder in folders) and not file.exists():
            whole = True
        if entry.key in keys:
            accepted.add(entry.key)
        elif whole is None or not enabled(entry.code, file):
            unjudged.append(entry)
        else:
            gone.append((entry, Confidence.HIGH if whole else Confidence.LOW))
    return Comparison(frozenset(accepted), tuple(unjudged), tuple(baseline.stale(gone)))
