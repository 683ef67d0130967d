"""The baseline: warnings that a project accepts for now, so that only new ones fail a run.

The file is a JSON list. Its first element names the schema; each further element is an entry on its own line, sorted by
key. Commas are at the beginning of lines, so adding or removing an entry changes only its line, and branches merge. A
key contains path, function, code, source and ordinal, but no line number: a function that is moved keeps its entries,
and a second finding in it is new. Paths are relative to the folder of the file.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpusync_lint.accept.rules import FRAMEWORK, RULES
from gpusync_lint.files.atomic_write import replace_file
from gpusync_lint.files.regular_file import MAX_DOCUMENT, read_regular
from gpusync_lint.model.findings import Finding, UserError
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.spans import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SCHEMA = "gpusync.lint-baseline/1"

PLUGIN_SCHEMA = "gpusync.test-baseline/"
"""The beginning of the schema of the pytest plugin's baseline, which is given here by mistake."""

DEFAULT_NAME = "gpusync-lint-baseline.json"

STALE = "GS905"

_KEY = re.compile(r'"key":\s*("(?:[^"\\]|\\.)*")')

_FAMILY = SCHEMA.partition("/")[0] + "/"

MAX_SOURCE = 120
"""The maximum length, in characters, of the source line in an entry."""


class BaselineError(UserError):
    """A baseline file cannot be used. The message is one line that names it."""


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One accepted warning."""

    key: str
    code: str
    source: str
    """The source line when the entry was written, for readers of the file."""

    @property
    def path(self) -> str:
        """The path of the source file, relative to the folder of the baseline."""
        return self.key.partition("::")[0]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The content of a baseline file."""

    location: Path
    """The absolute path."""
    name: str
    """The path as displayed."""
    text: str
    """The text of the file; empty if it does not exist yet."""
    entries: tuple[Entry, ...]

    def relative(self, location: Path) -> str:
        """The path by which keys of this baseline name a file, given its absolute path."""
        try:
            return Path(os.path.relpath(location, self.location.parent)).as_posix()
        except ValueError:  # another drive
            return location.as_posix()

    def file_of(self, entry: Entry) -> Path:
        """The absolute path of the source file of an entry."""
        return Path(os.path.normpath(self.location.parent / entry.path))

    def stale(self, gone: Iterable[tuple[Entry, Confidence]]) -> list[Finding]:
        """Findings about entries that match no finding any more. They are located in the baseline file."""
        spans: dict[str, Span] = {}
        for number, line in enumerate(self.text.split("\n"), 1):
            match = _KEY.search(line)
            if match is not None:
                spans.setdefault(json.loads(match[1]), Span(number, 1, number, len(line) + 1))
        return [
            Finding(
                code=STALE,
                name=RULES[STALE].name,
                path=self.name,
                span=spans.get(entry.key, Span(1, 1, 1, 1)),
                message=f"{entry.code} in {entry.path} (`{entry.source}`) is in the baseline but no longer in the code",
                remedy="Remove it with --write-baseline",
                heat=Heat.STEP,
                confidence=confidence,
                framework=FRAMEWORK,
                key=f"{self.name}::{STALE}::{entry.key}",
            )
            for entry, confidence in gone
        ]


def empty(location: Path, name: str) -> Baseline:
    """An empty baseline whose file does not exist yet."""
    return Baseline(location, name, "", ())


def load(location: Path, name: str) -> Baseline:
    """Read a baseline file.

    Raises:
        BaselineError: it does not exist, cannot be read, or is not a baseline.
    """
    try:
        text = read_regular(location, MAX_DOCUMENT).decode("utf-8-sig")
    except FileNotFoundError:
        raise BaselineError(f"{name}: no such baseline; --write-baseline creates it") from None
    except OSError as error:
        raise BaselineError(f"{name}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BaselineError(f"{name}: not a gpusync baseline: it is not UTF-8") from None
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        remedy = "resolve the merge conflict" if "<<<<<<< " in text else "delete it and use --write-baseline"
        raise BaselineError(f"{name}:{error.lineno}: not valid JSON ({error.msg}); {remedy}") from None
    except RecursionError:
        raise BaselineError(f"{name}: not a gpusync baseline: nested too deeply") from None
    except ValueError:
        raise BaselineError(f"{name}: not a gpusync baseline: an integer has too many digits") from None
    return Baseline(location, name, text, _entries(document, name))


def _entries(document: object, name: str) -> tuple[Entry, ...]:
    head = document[0] if isinstance(document, list) and document else None
    schema = head.get("schema") if isinstance(head, dict) else None
    if isinstance(schema, str) and schema.startswith(PLUGIN_SCHEMA):
        raise BaselineError(
            f"{name}: this is a baseline of the pytest plugin; use it with pytest --gpu-sync-baseline, and give the "
            f"linter a file of its own, such as {DEFAULT_NAME}"
        )
    if not isinstance(document, list) or not isinstance(schema, str) or not schema.startswith(_FAMILY):
        raise BaselineError(f"{name}: not a gpusync baseline, which is a list that starts with the schema {SCHEMA!r}")
    if schema != SCHEMA:
        raise BaselineError(f"{name}: its schema is {schema!r}, but this version of gpusync reads {SCHEMA!r}")
    entries: dict[str, Entry] = {}
    for number, one in enumerate(document[1:], 1):
        values = [one.get(name) for name in ("key", "code", "source")] if isinstance(one, dict) else [None]
        if not all(isinstance(value, str) for value in values):
            raise BaselineError(f"{name}: entry {number} needs the strings key, code and source")
        entry = Entry(*values)
        entries.setdefault(entry.key, entry)  # a merge of branches may leave an entry twice
    return tuple(sorted(entries.values()))


def entry_of(key: str, finding: Finding, text: str) -> Entry:
    """The entry for a finding in a file with a text."""
    line = "".join(text.split("\n")[finding.span.line - 1 : finding.span.line]).strip()
    return Entry(key, finding.code, line if len(line) <= MAX_SOURCE else f"{line[: MAX_SOURCE - 3]}...")


def render(entries: Iterable[Entry]) -> str:
    """The text of a baseline file."""
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
    """Write the file atomically, unless its text would not change.

    Raises:
        BaselineError: the file cannot be written.
    """
    text = render(entries)
    if text == baseline.text:
        return
    target = Path(os.path.realpath(baseline.location))
    try:
        replace_file(target, text.encode())
    except OSError as error:
        raise BaselineError(f"{baseline.name}: cannot be written: {error.strerror or error}") from None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A baseline compared with the findings of a run."""

    accepted: frozenset[str]
    """The keys of entries that match a finding."""
    not_compared: tuple[Entry, ...]
    """Entries about which the run says nothing: their files were not linted, or their codes are not enabled."""
    stale: tuple[Finding, ...]
    """Findings about entries that match no finding."""


def compare(
    baseline: Baseline,
    keys: Iterable[str],
    *,
    linted: Callable[[Path], bool | None],
    folders: Iterable[Path],
    enabled: Callable[[str, Path], bool],
) -> Comparison:
    """Compare a baseline with the findings of a run.

    Args:
        baseline: the baseline.
        keys: the keys of all findings that no comment allows, of any heat and confidence.
        linted: for a file, None if it was not linted, else whether its project was linted with it. If it was not, a
            finding may be missing because its callers are, so that a stale entry is of low confidence.
        folders: the linted folders; entries of files below them that no longer exist are stale.
        enabled: whether a code is enabled in a file.
    """
    present = set(keys)
    folders = tuple(folders)
    accepted, not_compared, gone = set(), [], []
    for entry in baseline.entries:
        file = baseline.file_of(entry)
        whole = linted(file)
        if whole is None and any(folder in file.parents for folder in folders) and not file.exists():
            whole = True
        if entry.key in present:
            accepted.add(entry.key)
        elif whole is None or not enabled(entry.code, file):
            not_compared.append(entry)
        else:
            gone.append((entry, Confidence.HIGH if whole else Confidence.LOW))
    return Comparison(frozenset(accepted), tuple(not_compared), tuple(baseline.stale(gone)))
