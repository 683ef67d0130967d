"""What was found before, kept in `.gpusync_cache/` so that only what a change touches is analysed again.

One document holds, for one way of calling the linter in one folder: the files of the last run (name, time of change,
size, digests of the text and of its outline, unit) and its units (`units.divide`), each with what was found, and the
files beside its own that had a say. A finding depends on nothing else but the settings, the linter and Python; these
make up the document's identity. Of the parts of a large component a second document says how their functions run: how
often a line runs is known only with all of them. A document that cannot be read, or of another identity, is as good as
none. JSON, because what lies in a project's folder must not be able to run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import astuple, dataclass, field, replace
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusync_lint import analysis, running, units
from gpusync_lint._version import __version__
from gpusync_lint.atomic import replace_file
from gpusync_lint.discovery import read
from gpusync_lint.model import Analysis, Confidence, Edit, FileError, Finding, Fix, Heat, Source, Span
from gpusync_lint.summaries import bindable, speaks_of_device, weight
from gpusync_lint.suppressions import MARKER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpusync_lint.discovery import Listed
    from gpusync_lint.model import EngineSettings, Running

FOLDER = ".gpusync_cache"
SCHEMA = "gpusync.cache/3"
KEPT = 16
"""Documents in the folder, for as many ways of calling the linter; those used longest ago are removed."""
_HEATS = {heat.value: heat for heat in Heat}
_CONFIDENCES = {confidence.value: confidence for confidence in Confidence}
_UNSURE = 2_000_000_000
"""Nanoseconds before the document was written in which a change may have left a file's time as it was."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is known of a file."""

    mtime: int
    size: int
    digest: str
    outline: str
    """A digest of what decides which files are analysed together."""
    names: str
    """A digest of the names that it may bind; empty where nobody asked for them."""
    unit: int
    """The number of its unit; -1 for a file that cannot be read, or holds no Python."""
    loud: bool
    """Whether its text is needed even when nothing has changed: it has findings, errors or allow comments."""


@dataclass(slots=True)
class _Unit:
    """What is known of a unit."""

    analysis: Analysis
    own: tuple[str, ...]
    idle: tuple[str, ...]
    read: tuple[str, ...]
    """Paths of the other files on whose text depends what was found in it."""
    asked: tuple[str, ...]
    """Paths of those that had a say by the names that they may bind."""
    component: int
    """Of a part, the number of the component; -1 for a unit that is whole."""
    device: bool
    plain: bool


@dataclass(slots=True)
class Memory:
    """What is known of the files of a run before they are read, and what is to be known after it."""

    location: Path
    settings: EngineSettings
    identity: str
    listed: Sequence[Listed]
    entries: dict[str, _Entry] = field(default_factory=dict)
    """By path, of the last run; of this one after `analyse`."""
    kept: list[_Unit] = field(default_factory=list)
    """The units of the last run; of this one after `analyse`."""
    stamps: list[str] = field(default_factory=list)
    """Of each component that was cut into parts, what its second document begins with."""
    quiet: frozenset[str] = frozenset()
    """Paths of files that need not be read: unchanged, in a unit that is, with nothing to show."""
    touched: frozenset[int] | None = None
    """The numbers of the units that a change touches; None where files have to be divided into units anew."""
    changed: bool = True
    """Whether there is something to write."""
    _runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The second documents that have been read, by component."""
    _new_runs: dict[int, dict[str, Running]] = field(default_factory=dict)
    """What is to be written to them: by component and first own path of the part."""

    def analyse(self, sources: Sequence[Source], jobs: int, done: Callable[[int], None]) -> tuple[Analysis, list[str]]:
        """Analyse those sources whose units have changed; the findings of all files of the run."""
        if self.touched is None:
            parts = self._divided(sources, jobs, done)
        else:
            parts = self._again(sources, self.touched, jobs, done)
        whole = analysis.combined([part.analysis for part in parts], len(sources) + len(self.quiet))
        return whole, [trace for part in parts for trace in part.tracebacks]

    # files are divided into units anew

    def _divided(self, sources: Sequence[Source], jobs: int, done: Callable[[int], None]) -> list[analysis.Part]:
        imported = [units.imports(source.text) for source in sources]
        digests = {source.path: text_digest(source.text) for source in sources}
        places = {source.path: place for place, source in enumerate(sources)}

        def known(unit: units.Unit) -> Analysis | None:
            return self._known(unit, [source.path for source in sources], places, digests, same_names)

        @cache
        def same_names(path: str) -> bool:
            return _names(path, sources[places[path]].text) == self.entries[path].names

        parts = analysis.parts(sources, self.settings, imported, jobs=jobs, done=done, known=known)
        loud = self._loud(parts, analysis.Given(sources))
        components: dict[tuple[int, ...], int] = {}
        self.kept, self._new_runs = [], {}
        entries: dict[str, _Entry] = {}
        listed = {one.path: one for one in self.listed}
        for part in parts:
            if part.tracebacks:  # what went wrong may go well the next time
                continue
            component = components.setdefault(part.unit.component, len(components)) if part.unit.component else -1
            stored = self._stored(part, component, analysis.Given(sources))
            for place, path in zip(part.unit.places, stored.own, strict=True):
                one = listed[path]
                outline = _outline(sources[place].text, imported[place])
                entries[path] = _Entry(one.mtime, one.size, digests[path], outline, "", len(self.kept), path in loud)
            self.kept.append(stored)
        for path, one in listed.items():
            if path not in entries and path not in digests:
                entries[path] = _Entry(one.mtime, one.size, "", "", "", -1, True)
        self.entries = entries
        self._name_those_asked(places, analysis.Given(sources))
        self.stamps = [""] * len(components)
        return parts

    def _known(
        self,
        unit: units.Unit,
        paths: Sequence[str],
        places: Mapping[str, int],
        digests: Mapping[str, str],
        same_names: Callable[[str], bool],
    ) -> Analysis | None:
        """What was found in a unit before, if nothing that it depends on has changed."""
        entry = self.entries.get(paths[unit.places[0]])
        if entry is None or entry.unit < 0:
            return None
        stored = self.kept[entry.unit]
        alike = (
            stored.own == tuple(paths[place] for place in unit.places)
            and stored.idle == tuple(paths[place] for place in unit.idle)
            and (stored.component >= 0, stored.device, stored.plain) == (bool(unit.component), unit.device, unit.plain)
        )
        depends = (*stored.own, *stored.read, *stored.asked)
        if not alike or not all(path in digests and path in self.entries for path in depends):
            return None
        if any(self.entries[path].digest != digests[path] for path in (*stored.own, *stored.read)):
            return None
        if any(self.entries[path].digest != digests[path] and not same_names(path) for path in stored.asked):
            return None
        if not unit.component:
            return stored.analysis
        if {paths[place] for place in unit.component} != set(self._component(stored.component)):
            return None  # what is imported may be found elsewhere
        return self._with_runs(stored, places)

    def _component(self, number: int) -> Iterator[str]:
        return (path for stored in self.kept if stored.component == number for path in stored.own)

    # the units are those of the last run, some of them are analysed again

    def _again(
        self, sources: Sequence[Source], touched: frozenset[int], jobs: int, done: Callable[[int], None]
    ) -> list[analysis.Part]:
        files = _Lazily(self.listed, sources)
        components = {self.kept[number].component for number in touched} - {-1}
        places = files.places
        rest: list[units.Unit] = []
        kept: list[analysis.Part] = []
        numbers: dict[tuple[int, ...], int] = {}
        inside = {number: tuple(places[path] for path in self._component(number)) for number in components}
        for number, stored in enumerate(self.kept):
            unit = units.Unit(
                tuple(places[path] for path in stored.own),
                tuple(places[path] for path in stored.idle),
                inside.get(stored.component, ()),
                stored.device,
                stored.plain,
            )
            numbers[unit.places] = number
            before: Analysis | None = stored.analysis
            if stored.component in components and number not in touched:
                before = self._with_runs(stored, places)
            if number in touched or before is None:
                rest.append(unit)
            else:
                kept.append(analysis.Part(unit, before))
        done(len(self.listed) - sum(len(unit.places) for unit in rest))
        parts = analysis.linked(kept + analysis.analysed(files, self.settings, rest, jobs, done))
        loud = self._loud([part for part in parts if part.unit in rest], files)
        again = {path for unit in rest for path in (files.path(place) for place in unit.places)}
        failed: set[int] = set()
        self._new_runs = {}
        for part in parts:
            number = numbers[part.unit.places]
            if part.tracebacks:
                failed.add(number)
            if number not in touched and self.kept[number].component not in components:
                continue
            self.kept[number] = self._stored(part, self.kept[number].component, files)
        for one in self.listed:
            entry = self.entries[one.path]
            if one.path in again:
                text = files.source(places[one.path]).text
                names = _names(one.path, text) if entry.names else ""
                entry = _Entry(
                    one.mtime, one.size, text_digest(text), entry.outline, names, entry.unit, one.path in loud
                )
            self.entries[one.path] = entry
        self._name_those_asked(places, files)
        for path in [path for path, entry in self.entries.items() if entry.unit in failed]:
            del self.entries[path]
        return parts

    # both

    def _name_those_asked(self, places: Mapping[str, int], files: analysis.Files) -> None:
        """Note the names that files may bind which were asked for them."""
        for path in {path for stored in self.kept for path in stored.asked}:
            entry = self.entries.get(path)
            if entry is not None and not entry.names:
                self.entries[path] = replace(entry, names=_names(path, files.source(places[path]).text))

    def _stored(self, part: analysis.Part, component: int, files: analysis.Files) -> _Unit:
        running = part.analysis.running
        own = tuple(files.path(place) for place in part.unit.places)
        if running is not None:
            self._new_runs.setdefault(component, {})[own[0]] = running
        return _Unit(
            replace(part.analysis, running=None),
            own,
            tuple(files.path(place) for place in part.unit.idle),
            tuple(files.path(place) for place in sorted(running.read)) if running is not None else (),
            tuple(files.path(place) for place in sorted(running.asked)) if running is not None else (),
            component,
            part.unit.device,
            part.unit.plain,
        )

    def _loud(self, parts: Sequence[analysis.Part], files: analysis.Files) -> set[str]:
        """Paths of the files that have something to show."""
        listed = {one.path: one for one in self.listed}
        loud: set[str] = set()
        for part in parts:
            loud |= {finding.path for finding in part.analysis.findings}
            loud |= {error.path for error in part.analysis.errors}
            for place in part.unit.places:
                path = files.path(place)
                if listed[path].notebook or MARKER in files.source(place).text:
                    loud.add(path)
        return loud

    def _with_runs(self, stored: _Unit, places: Mapping[str, int]) -> Analysis | None:
        """What was found in a part, with what its heat depends on; None where that has been lost."""
        number = stored.component
        try:
            document = self._runs.get(number)
            if document is None:
                document = self._runs[number] = json.loads(self._runs_file(number).read_bytes())
            if document["stamp"] != self.stamps[number]:
                return None
            run = running.restored(document["parts"][stored.own[0]])
            read_before = frozenset(places[path] for path in stored.read)
            asked = frozenset(places[path] for path in stored.asked)
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None
        if len(run.places) != len(stored.analysis.findings):
            return None
        return replace(stored.analysis, running=replace(run, read=read_before, asked=asked))

    def _runs_file(self, component: int) -> Path:
        return self.location.with_name(f"{self.location.stem}.part-{component}.json")

    def save(self) -> None:
        """Write the documents, unless nothing has changed. What cannot be written is not kept."""
        if not self.changed:
            return
        now = time.time_ns()
        numbers = {path: number for number, path in enumerate(self.entries)}
        with contextlib.suppress(OSError, KeyError):
            folder = self.location.parent
            if not folder.is_dir():
                folder.mkdir()
                (folder / ".gitignore").write_text("# Made by gpusync lint; may be deleted at any time.\n*\n")
            for component, runs in self._new_runs.items():
                stamp = self.stamps[component] = f"{now}-{component}"
                parts = {first: running.plain(run) for first, run in runs.items()}
                replace_file(self._runs_file(component), _json({"stamp": stamp, "parts": parts}))
            document = {
                "schema": SCHEMA,
                "identity": self.identity,
                "written": now,
                "stamps": self.stamps,
                "units": [
                    [
                        _plain(one.analysis),
                        [numbers[path] for path in one.own],
                        [numbers[path] for path in one.idle],
                        [numbers[path] for path in one.read],
                        [numbers[path] for path in one.asked],
                        one.component,
                        int(one.device),
                        int(one.plain),
                    ]
                    for one in self.kept
                ],
                "files": [
                    [path, one.mtime, one.size, one.digest, one.outline, one.names, one.unit, int(one.loud)]
                    for path, one in self.entries.items()
                ],
            }
            replace_file(self.location, _json(document))
            _prune(folder)


class _Lazily:
    """The files of a run, each read when its text is asked for."""

    def __init__(self, listed: Sequence[Listed], sources: Sequence[Source]) -> None:
        self._listed = listed
        self._sources = {source.path: source for source in sources}
        self.exports: dict[int, tuple[frozenset[str], bool]] = {}
        self.places = {one.path: place for place, one in enumerate(listed)}

    def path(self, place: int) -> str:
        """The path of one."""
        return self._listed[place].path

    def size(self, place: int) -> int:
        """Its size in bytes."""
        return max(0, self._listed[place].size)

    def source(self, place: int) -> Source:
        """One with its text; an empty one where it has become unreadable."""
        path = self._listed[place].path
        if path not in self._sources:
            file = read(self._listed[place])
            self._sources[path] = Source(path, "") if file is None else file.source
        return self._sources[path]


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
    renamed: set[str] = set()
    whole = len(listed) == len(memory.entries)
    later = False
    for one in listed:
        entry = memory.entries.get(one.path)
        if entry is None:
            whole = False
            continue
        if (entry.mtime, entry.size) == (one.mtime, one.size) and one.mtime < written - _UNSURE:
            continue
        file = read(one)
        if file is None or entry.unit < 0:
            whole = False
        elif text_digest(file.source.text) != entry.digest:
            changed.add(one.path)
            if entry.names and entry.names != _names(one.path, file.source.text):
                renamed.add(one.path)
            whole = whole and _outline(file.source.text, units.imports(file.source.text)) == entry.outline
        else:
            later = True
            memory.entries[one.path] = replace(entry, mtime=one.mtime, size=one.size)
    if not whole:  # which files belong together has to be found out again
        return memory
    memory.touched = frozenset(
        number
        for number, unit in enumerate(memory.kept)
        if changed and not (changed.isdisjoint((*unit.own, *unit.read)) and renamed.isdisjoint(unit.asked))
    )
    memory.quiet = frozenset(
        path for path, entry in memory.entries.items() if not entry.loud and entry.unit not in memory.touched
    )
    memory.changed = bool(changed) or later
    return memory


def text_digest(text: str) -> str:
    """Stands for a text."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()


def _names(path: str, text: str) -> str:
    names, passes_on = bindable(text, package=path.endswith("__init__.py"))
    told = (sorted(names), passes_on, weight(text))
    return blake2b(repr(told).encode(errors="surrogatepass"), digest_size=6).hexdigest()


def _outline(text: str, imported: units.Imports) -> str:
    told = (imported, weight(text), speaks_of_device(text))
    return blake2b(repr(told).encode(errors="surrogatepass"), digest_size=6).hexdigest()


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


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
        paths = [str(row[0]) for row in document["files"]]
        known = [
            _Unit(
                _restored(found),
                tuple(paths[place] for place in own),
                tuple(paths[place] for place in idle),
                tuple(paths[place] for place in read_before),
                tuple(paths[place] for place in asked),
                int(component),
                bool(device),
                bool(plain),
            )
            for found, own, idle, read_before, asked, component, device, plain in document["units"]
        ]
        entries = {
            str(path): _Entry(int(mtime), int(size), str(digest), str(outline), str(names), int(unit), bool(loud))
            for path, mtime, size, digest, outline, names, unit, loud in document["files"]
        }
        if any(entry.unit >= len(known) for entry in entries.values()):
            return 0
        stamps = [str(stamp) for stamp in document["stamps"]]
        if any(unit.component >= len(stamps) for unit in known):
            return 0
        written = int(document["written"])
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return 0
    memory.entries, memory.kept, memory.stamps = entries, known, stamps
    return written


def _prune(folder: Path) -> None:
    every = sorted(folder.glob("lint-*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    calls = dict.fromkeys(path.name.partition(".")[0] for path in every)
    kept = set(list(calls)[:KEPT])
    for path in every:
        if path.name.partition(".")[0] not in kept:
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
                code, name, path, Span(*span), message, remedy, _HEATS[heat], _CONFIDENCES[confidence], framework, key,
                None if fix is None else Fix(fix[0], tuple(Edit(Span(*s), t) for s, t in fix[1]), fix[2], fix[3]),
            )
            for code, name, path, span, message, remedy, heat, confidence, framework, key, fix in findings
        ),
        tuple(FileError(path, line, message) for path, line, message in errors),
        files,
    )  # fmt: skip
