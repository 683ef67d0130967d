"""What was found before, kept in `.gpusync_cache/` so that only what a change touches is analysed again.

One document holds, for one way of calling the linter in one folder: the files of the last run (name, time of change,
size, digest of the text, digest of the imports, unit) and its units (`units.divide`), each with a digest of the paths
and texts of all its files, and what was found. A finding depends on nothing outside of its unit but the settings, the
linter and Python; these make up the document's identity. A document that cannot be read, or of another identity, is
as good as none. JSON, because what lies in a project's folder must not be able to run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import astuple, dataclass, field
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusync_lint import analysis, units
from gpusync_lint._version import __version__
from gpusync_lint.atomic import replace_file
from gpusync_lint.discovery import read
from gpusync_lint.model import Analysis, Confidence, Edit, FileError, Finding, Fix, Heat, Span
from gpusync_lint.suppressions import MARKER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusync_lint.discovery import Listed
    from gpusync_lint.model import EngineSettings, Source

FOLDER = ".gpusync_cache"
SCHEMA = "gpusync.cache/1"
KEPT = 16
"""Documents in the folder, for as many ways of calling the linter; those used longest ago are removed."""
_UNSURE = 2_000_000_000
"""Nanoseconds before the document was written in which a change may have left a file's time as it was."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is known of a file."""

    mtime: int
    size: int
    digest: str
    imports: str
    unit: str
    """The digest of its unit; empty for a file that cannot be read, or holds no Python."""
    loud: bool
    """Whether its text is needed even when nothing has changed: it has findings, errors or allow comments."""


@dataclass(slots=True)
class Memory:
    """What is known of the files of a run before they are read, and what is to be known after it."""

    location: Path
    settings: EngineSettings
    identity: str
    listed: Sequence[Listed]
    entries: dict[str, _Entry] = field(default_factory=dict)
    """By path, of the last run."""
    known: dict[str, Analysis] = field(default_factory=dict)
    """What was found in each unit of the last run, by its digest."""
    quiet: frozenset[str] = frozenset()
    """Paths of files that need not be read: unchanged, in a unit that is, with nothing to show."""
    settled: frozenset[str] = frozenset()
    """Paths of all files in units that are unchanged."""
    changed: bool = True
    """Whether there is something to write."""

    def analyse(self, sources: Sequence[Source], jobs: int, done: Callable[[int], None]) -> tuple[Analysis, list[str]]:
        """Analyse those sources whose units have changed; the findings of all files of the run."""
        rest = [source for source in sources if source.path not in self.settled]
        imported = [units.imports(source.text) for source in rest]
        digests = [text_digest(source.text) for source in rest]

        def known(places: tuple[int, ...]) -> Analysis | None:
            return self.known.get(_unit_digest([(rest[place].path, digests[place]) for place in places]))

        done(len(self.listed) - len(rest))
        parts = analysis.parts(rest, self.settings, imported, jobs=jobs, done=done, known=known)
        before = [self.known[unit] for unit in dict.fromkeys(self.entries[path].unit for path in self.settled) if unit]
        whole = analysis.combined([*before, *(part.analysis for part in parts)], len(sources) + len(self.quiet))
        self._remember(rest, digests, imported, parts)
        return whole, [trace for part in parts for trace in part.tracebacks]

    def _remember(
        self,
        sources: Sequence[Source],
        digests: Sequence[str],
        imported: Sequence[units.Imports],
        parts: Sequence[analysis.Part],
    ) -> None:
        """Bring `entries` and `known` up to date."""
        entries = {path: self.entries[path] for path in sorted(self.settled)}
        found = {entry.unit: self.known[entry.unit] for entry in entries.values() if entry.unit}
        listed = {one.path: one for one in self.listed}
        for part in parts:
            if part.tracebacks:  # what went wrong may go well the next time
                continue
            unit = _unit_digest([(sources[place].path, digests[place]) for place in part.places])
            found[unit] = part.analysis
            shown = {finding.path for finding in part.analysis.findings} | {one.path for one in part.analysis.errors}
            for place in part.places:
                path = sources[place].path
                one = listed[path]
                loud = path in shown or MARKER in sources[place].text or one.notebook
                entries[path] = _Entry(
                    one.mtime, one.size, digests[place], _imports_digest(imported[place]), unit, loud
                )
        readable = {source.path for source in sources}
        for path, one in listed.items():
            if path not in readable and path not in entries:
                entries[path] = _Entry(one.mtime, one.size, "", "", "", True)
        self.entries, self.known = entries, found

    def save(self) -> None:
        """Write the document, unless nothing has changed. What cannot be written is not kept."""
        if not self.changed:
            return
        numbers = {unit: number for number, unit in enumerate(["", *self.known])}
        document = {
            "schema": SCHEMA,
            "identity": self.identity,
            "written": time.time_ns(),
            "units": [[unit, _plain(found)] for unit, found in self.known.items()],
            "files": [
                [path, one.mtime, one.size, one.digest, one.imports, numbers[one.unit], int(one.loud)]
                for path, one in self.entries.items()
            ],
        }
        with contextlib.suppress(OSError):
            folder = self.location.parent
            if not folder.is_dir():
                folder.mkdir()
                (folder / ".gitignore").write_text("# Made by gpusync lint; may be deleted at any time.\n*\n")
            replace_file(self.location, json.dumps(document, separators=(",", ":")).encode())
            _prune(folder)


def open_memory(
    root: Path,
    call: Sequence[str],
    settings: EngineSettings,
    listed: Sequence[Listed],
) -> Memory:
    """What is remembered of the files of a run.

    `root` is the folder that holds the cache, `call` what tells one way of calling the linter from another. Files whose
    time or size has changed are read.
    """
    name = blake2b("\0".join(call).encode(errors="surrogateescape"), digest_size=8).hexdigest()
    memory = Memory(root / FOLDER / f"lint-{name}.json", settings, _identity(settings), listed)
    written = _load(memory)
    if not memory.entries:
        return memory
    changed: set[str] = set()
    whole = len(listed) == len(memory.entries)
    touched = False
    for one in listed:
        entry = memory.entries.get(one.path)
        if entry is None:
            whole = False
            continue
        if (entry.mtime, entry.size) == (one.mtime, one.size) and one.mtime < written - _UNSURE:
            continue
        file = read(one)
        if file is None:
            whole = False
        elif text_digest(file.source.text) != entry.digest:
            changed.add(entry.unit)
            whole = whole and _imports_digest(units.imports(file.source.text)) == entry.imports
        else:
            touched = True
            memory.entries[one.path] = _Entry(one.mtime, one.size, entry.digest, entry.imports, entry.unit, entry.loud)
    if not whole:  # which files belong together has to be found out again
        return memory
    memory.settled = frozenset(path for path, entry in memory.entries.items() if entry.unit not in changed)
    memory.quiet = frozenset(path for path in memory.settled if not memory.entries[path].loud)
    memory.changed = bool(changed) or touched
    return memory


def text_digest(text: str) -> str:
    """Stands for a text."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()


def _imports_digest(found: units.Imports) -> str:
    return blake2b(repr(found).encode(errors="surrogatepass"), digest_size=6).hexdigest()


def _unit_digest(files: Sequence[tuple[str, str]]) -> str:
    return blake2b(repr(sorted(files)).encode(errors="surrogatepass"), digest_size=12).hexdigest()


def _identity(settings: EngineSettings) -> str:
    """Stands for the linter itself, what it runs on, and what it was told."""
    here = Path(__file__).parent
    parts: list[object] = [__version__, sys.version_info[:3], astuple(settings)]
    for folder in (here, here / "rules", here / "catalogue"):
        with os.scandir(folder) as inside:
            for entry in sorted(inside, key=lambda entry: entry.name):
                if entry.is_file():
                    stat = entry.stat()
                    parts.append((entry.name, stat.st_size, stat.st_mtime_ns))
    spec = find_spec("libcst")
    if spec is not None and spec.origin is not None:
        parts.append((spec.origin, Path(spec.origin).stat().st_mtime_ns))
    return blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def _load(memory: Memory) -> int:
    """Read the document; when it was written, 0 for none that is of use."""
    try:
        document = json.loads(memory.location.read_bytes())
        if document["schema"] != SCHEMA or document["identity"] != memory.identity:
            return 0
        names = ["", *(str(unit) for unit, _ in document["units"])]
        found = {str(unit): _restored(stored) for unit, stored in document["units"]}
        entries = {
            str(path): _Entry(int(mtime), int(size), str(digest), str(imports), names[unit], bool(loud))
            for path, mtime, size, digest, imports, unit, loud in document["files"]
        }
        written = int(document["written"])
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return 0
    memory.entries, memory.known = entries, found
    return written


def _prune(folder: Path) -> None:
    documents = sorted(folder.glob("lint-*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in documents[KEPT:]:
        path.unlink()


def _plain(found: Analysis) -> list[Any]:
    return [
        found.files,
        [
            [
                one.code, one.name, one.path, list(astuple(one.span)), one.message, one.remedy, one.heat.value,
                one.confidence.value, one.framework, one.key, _plain_fix(one.fix),
            ]
            for one in found.findings
        ],
        [[one.path, one.line, one.message] for one in found.errors],
    ]  # fmt: skip


def _plain_fix(fix: Fix | None) -> list[Any] | None:
    if fix is None:
        return None
    edits = [[list(astuple(edit.span)), edit.replacement] for edit in fix.edits]
    return [fix.title, edits, fix.safe, fix.hazard]


def _restored(stored: list[Any]) -> Analysis:
    files, findings, errors = stored
    return Analysis(
        tuple(
            Finding(
                code, name, path, Span(*span), message, remedy, Heat(heat), Confidence(confidence), framework, key,
                None if fix is None else Fix(fix[0], tuple(Edit(Span(*s), t) for s, t in fix[1]), fix[2], fix[3]),
            )
            for code, name, path, span, message, remedy, heat, confidence, framework, key, fix in findings
        ),
        tuple(FileError(path, line, message) for path, line, message in errors),
        files,
    )  # fmt: skip
