"""The analysis of one folder for an editor: as the command line finds it, and quickly for a single file.

`complete` gives what ``gpusync lint`` gives in the folder, with the texts of open documents in place of the files. It
keeps its results in the format of the cache, so only the units that a change affects are analyzed again. A unit can be
as large as the project, and then takes seconds.

`quick` analyzes one file, and reads of the others only the definitions that the file uses, as for a part of a large
component. Of the callers in other files it knows only what the last complete analysis has found about how often they
enter a function, so it serves to say what an edit changes (`provisional`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpusync_lint.files.discovery import SUFFIXES, Listed, discover, display_path, in_memory
from gpusync_lint.model import codes
from gpusync_lint.model.findings import Analysis, Source, UserError
from gpusync_lint.run.runner import Request, configured, run
from gpusync_lint.settings.config import Config, find, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpusync_lint.accept.baseline import Baseline
    from gpusync_lint.accept.observed_runs import Observation, Runs
    from gpusync_lint.files.discovery import Found, SourceFile
    from gpusync_lint.files.notebook import Notebook
    from gpusync_lint.model.findings import EngineSettings, FileError
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.levels import Confidence, Heat
    from gpusync_lint.model.placement import Entry
    from gpusync_lint.project.lazy_modules import Component
    from gpusync_lint.run.cache import Cache
    from gpusync_lint.run.outcome import Outcome
    from gpusync_lint.settings.selection import Reported

_LARGEST_QUICK = 400_000
"""The number of characters, about 10,000 lines, beyond which a file is not analyzed quickly."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings in one open document."""

    document: str
    """The text that the editor held when it was analyzed."""
    text: str = ""
    """The text that spans refer to, with `\\n` as line end; of a notebook its joined source."""
    reported: tuple[Reported, ...] = ()
    """Without those that a comment or the baseline accepts."""
    errors: tuple[FileError, ...] = ()
    notebook: Notebook | None = None
    observations: Mapping[str, Observation] = field(default_factory=dict)
    """By the key of a finding, what the runs of ``--observed`` show."""
    runs: str = ""
    """Which runs these are: their names, the GPU and the date."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an analysis found in open documents."""

    documents: Mapping[str, Checked]
    """By absolute path. A document that is excluded, or is not Python, is left out."""
    problem: str = ""
    """Why nothing could be analyzed: a mistake in the settings, in one line."""
    tracebacks: tuple[str, ...] = ()
    """Those of internal errors."""
    entries: Mapping[Key, Entry] = field(default_factory=dict)
    """Of a complete analysis, the functions that are entered repeatedly, for `FolderAnalysis.scan`."""


class FolderAnalysis:
    """The files of a folder, and what is known of them between two analyses."""

    def __init__(self, folder: Path, named: str | None, observed: Sequence[str]) -> None:
        """`named` is the only file to lint, for a document outside of all workspace folders."""
        self._folder = folder
        self._named = named
        self._observed = observed
        self._listed: dict[str, Listed] = {}
        """The files that were read, by displayed path."""
        self._on_disk: dict[str, SourceFile] = {}
        self._config = Config()
        self._cache: Cache | None = None
        self._settings: EngineSettings | None = None
        self._texts: dict[str, str] = {}
        """The texts of the last complete analysis."""
        self._quick: _Quick | None = None
        self._loaded: tuple[list[int], Runs, str] | None = None

    def complete(self, documents: Mapping[str, str]) -> Answer:
        """The findings in open documents, by absolute path, equal to those of the command line."""
        try:
            request, found = self._scanned()
            files, errors, listed = self._with_documents(found, documents)
            request = self._with_results(request, found, files, listed)
            outcome = run(files, errors, request)
            entries = {} if self._cache is None else self._cache.entries
            return Answer(self._documents(outcome, files, documents), "", outcome.tracebacks, entries)
        except UserError as error:
            self._cache = None
            return Answer({}, str(error))
        except BaseException:
            self._cache = None
            raise

    def scan(self, documents: Mapping[str, str], entries: Mapping[Key, Entry]) -> Answer:
        """Read the files that `quick` refers to, and those of the documents that are open from memory.

        Args:
            documents: the texts of open documents, by absolute path.
            entries: the functions that are entered repeatedly, as far as a complete analysis has found.
        """
        try:
            request, found = self._scanned()
            files, _, _ = self._with_documents(found, documents)
            request = replace(request, baseline=_baseline(self._config, self._folder), folders=found.folders)
        except UserError as error:
            self._quick = None
            return Answer({}, str(error))
        if self._quick is None or not self._quick.updated(files, request):
            self._quick = _Quick(files, request)
        self._quick.entries = entries
        return Answer({})

    def quick(self, path: str, text: str) -> Answer:
        """The findings in one document, as far as the file and the definitions that it uses show."""
        if self._quick is None:
            answer = self.scan({}, {})
            if self._quick is None:
                return answer
        if len(text) > _LARGEST_QUICK or not self._is_linted(path):
            return Answer({})
        file, errors = in_memory(self._listing(path), text)
        if file is None:
            return Answer({})
        try:
            outcome = self._quick.outcome(file, errors)
            return Answer(self._documents(outcome, [file], {path: text}), tracebacks=outcome.tracebacks)
        except UserError as error:  # a run file that cannot be read
            return Answer({}, str(error))

    def _scanned(self) -> tuple[Request, Found]:
        """Read the settings, and the files that have changed on disk."""
        at = find(self._folder)
        names = codes.names()
        self._config = config = Config() if at is None else load(at, names)
        found = discover(
            ["." if self._named is None else self._named],
            cwd=self._folder,
            excludes=config.excludes,
            stdin=bytes,
            respect_gitignore=config.respect_gitignore,
            unneeded=self._unchanged,
        )
        read = {file.source.path: file for file in found.files}
        self._on_disk = read | {one.path: self._on_disk[one.path] for one in found.unread}
        self._listed = {path: one for path, one in self._listed.items() if path in self._on_disk}
        return configured(config, names, datetime.now().astimezone().date()), found

    def _unchanged(self, listed: Sequence[Listed]) -> frozenset[str]:
        """The files that need not be read again."""
        known, self._listed = self._listed, {one.path: one for one in listed}
        return frozenset(
            one.path for one in listed if known.get(one.path) == one and not self._on_disk[one.path].notebook
        )

    def _listing(self, path: str) -> Listed:
        displayed = display_path(Path(path), self._folder)
        return self._listed.get(displayed) or Listed(displayed, path, self._named is not None, -1, 0)

    def _is_linted(self, path: str) -> bool:
        """Whether a document is among the files to lint, or is new and would be."""
        if self._listing(path).path in self._on_disk:
            return True
        return not os.path.exists(path) and path.endswith(SUFFIXES) and not self._config.excludes(path)

    def _with_documents(
        self, found: Found, documents: Mapping[str, str]
    ) -> tuple[list[SourceFile], list[FileError], list[Listed]]:
        """The files of the folder, with the texts of open documents; and the errors in them."""
        files, errors = dict(self._on_disk), {error.path: error for error in found.errors}
        listed = dict(self._listed)
        for path, text in documents.items():
            one = self._listing(path)
            if one.path not in errors and not self._is_linted(path):
                continue
            errors.pop(one.path, None)
            files.pop(one.path, None)
            file, wrong = in_memory(one, text)
            errors.update((error.path, error) for error in wrong)
            listed[one.path] = one
            if file is not None:
                files[one.path] = file
        ordered = sorted(files.values(), key=lambda file: file.source.path)
        return ordered, list(errors.values()), sorted(listed.values(), key=lambda one: one.path)

    def _with_results(
        self, request: Request, found: Found, files: Sequence[SourceFile], listed: Sequence[Listed]
    ) -> Request:
        """The settings of a complete run, with the results of the last one."""
        request = replace(request, baseline=_baseline(self._config, self._folder), folders=found.folders)
        if self._named is not None:
            from gpusync_lint.project.import_context import context_of

            return replace(request, context=context_of(files, cwd=self._folder, excludes=self._config.excludes))
        from gpusync_lint.run.cache import temporary_cache

        texts = {file.source.path: file.source.text for file in files}
        cache = self._cache
        if cache is None or cache.document is None or self._settings != request.settings:
            cache = temporary_cache(request.settings, listed)
        elif texts.keys() == self._texts.keys() and [one.path for one in listed] == cache.document.paths:
            cache.listed = listed
            cache.edited([file.source for file in files if self._texts[file.source.path] != file.source.text])
        else:
            cache.listed, cache.outdated = listed, None
        self._cache, self._settings, self._texts = cache, request.settings, texts
        return replace(request, cache=cache)

    def _runs(self) -> tuple[Runs, str]:
        """The runs of ``--observed``, and what they are. They are read again if the time of a file has changed."""
        from gpusync_lint.accept import observed_runs

        paths = [os.path.join(self._folder, name) for name in self._observed]
        times = [os.stat(path).st_mtime_ns if os.path.exists(path) else 0 for path in paths]
        if self._loaded is None or self._loaded[0] != times:
            runs = observed_runs.load(self._observed, self._folder)
            named = "; ".join(_origin(name, self._folder) for name in self._observed)
            self._loaded = (times, runs, named)
        return self._loaded[1:]

    def _documents(
        self, outcome: Outcome, files: Sequence[SourceFile], documents: Mapping[str, str]
    ) -> dict[str, Checked]:
        """What was found in each document."""
        linted = {file.source.path for file in files} | {error.path for error in outcome.errors}
        observations: Mapping[str, Observation] = {}
        named = ""
        if self._observed:
            from gpusync_lint.accept import observed_runs

            runs, named = self._runs()
            observations = observed_runs.join(outcome.reported, runs, self._folder, linted).observations
        result = {}
        for path, document in documents.items():
            displayed = self._listing(path).path
            if displayed not in linted:
                continue
            own = tuple(one for one in outcome.reported if one.finding.path == displayed and one.accepted is None)
            result[path] = Checked(
                document,
                outcome.texts.get(displayed, ""),
                own,
                tuple(error for error in outcome.errors if error.path == displayed),
                outcome.notebooks.get(displayed),
                {one.finding.key: observations[one.finding.key] for one in own if one.finding.key in observations},
                named,
            )
        return result


def _origin(name: str, folder: Path) -> str:
    """A run with the GPU that it was measured on, and its date."""
    from gpusync_lint.files.run_files import read_run

    run = read_run(name, folder)
    simulated = "the simulated device" if run.environment.coverage == "simulated" else None
    about = (run.environment.gpu or simulated, None if run.origin is None else run.origin.date)
    return ", ".join([name, *(one for one in about if one)])


def _baseline(config: Config, folder: Path) -> Baseline | None:
    if config.baseline is None:
        return None
    from gpusync_lint.accept import baseline

    location = Path(os.path.normpath(config.baseline))
    return baseline.load(location, display_path(location, folder))


class _Quick:
    """Analyzes single files of a project."""

    def __init__(self, files: Sequence[SourceFile], request: Request) -> None:
        from gpusync_lint.project.imports import beginnings, module_of
        from gpusync_lint.project.lazy_modules import Component, Library
        from gpusync_lint.project.partition import device_use, imports
        from gpusync_lint.project.symbols import uses_device

        self._sources = [file.source for file in files]
        self._request = request
        self.entries: Mapping[Key, Entry] = {}
        modules = {module_of(source.path): number for number, source in enumerate(self._sources)}
        self._numbers = {source.path: number for number, source in enumerate(self._sources)}
        device = uses_device(device_use(source, imports(source.text)) for source in self._sources)
        self._library = Library(self._sources.__getitem__)
        self._component = Component(modules, beginnings(modules), self._library, device)

    def updated(self, files: Sequence[SourceFile], request: Request) -> bool:
        """Take the new texts of the files; False if the files are others."""
        if [file.source.path for file in files] != [source.path for source in self._sources]:
            return False
        self._request = request
        for number, file in enumerate(files):
            self._replace(number, file.source)
        return True

    def _replace(self, number: int, source: Source) -> None:
        if self._sources[number].text != source.text:
            self._sources[number] = source
            self._library.forget(number)

    def outcome(self, file: SourceFile, errors: Sequence[FileError]) -> Outcome:
        """The findings in a file with a new text."""
        number = self._numbers.get(file.source.path)
        if number is not None:
            self._replace(number, file.source)
        single = _SingleFile(self._component, self._request.settings, self.entries)
        return run([file], errors, replace(self._request, cache=single))


class _SingleFile:
    """Analyzes a file as a part of a component."""

    def __init__(self, component: Component, settings: EngineSettings, entries: Mapping[Key, Entry]) -> None:
        self._component = component
        self._settings = settings
        self._entries = entries

    def edited(self, sources: Iterable[Source]) -> None:
        """Nothing is kept from one analysis to the next."""

    def analyze(
        self,
        sources: Sequence[Source],
        jobs: int,
        done: Callable[[int], None],
        wanted: Callable[[Heat, Confidence], bool],
    ) -> tuple[Analysis, list[str]]:
        """The findings in the file. How often a line runs follows from the calls in the file, and from `entries`."""
        from gpusync_lint.heat.call_graph import with_entries
        from gpusync_lint.project.partition import Unit
        from gpusync_lint.run.schedule import Part, analyze_isolating_failures, linked

        found, tracebacks = analyze_isolating_failures(sources, self._settings, component=self._component)
        if found.links is not None:
            links = replace(found.links, graph=with_entries(found.links.graph, self._entries))
            found = replace(found, links=links)
        (part,) = linked([Part(Unit((0,)), found)])
        return part.analysis, tracebacks
