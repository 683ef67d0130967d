"""A run of the linter: analyze the files, decide what to report, and apply fixes until none is left."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from gpusync_lint.files.discovery import Listed
from gpusync_lint.heat.capture import is_outside
from gpusync_lint.model.finding_keys import numbered
from gpusync_lint.model.findings import MARKER, EngineSettings, FileError, Source
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.spans import Edit, Span
from gpusync_lint.model.unit_messages import described
from gpusync_lint.run.outcome import Change, Outcome, Texts
from gpusync_lint.settings.selection import Level, level_at, report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import date

    from gpusync_lint.accept.baseline import Baseline
    from gpusync_lint.files.discovery import SourceFile
    from gpusync_lint.files.notebook import Notebook
    from gpusync_lint.model.findings import Analysis, Finding, Fix
    from gpusync_lint.model.operations import Operation
    from gpusync_lint.rewrite.apply import Chosen
    from gpusync_lint.settings.config import Config
from gpusync_lint.settings.selection import Selection


class Results(Protocol):
    """What finds the findings of a run: a cache, or an analysis of single files."""

    def edited(self, sources: Iterable[Source]) -> None:
        """Record new texts of files, before the next `analyze`."""

    def analyze(
        self,
        sources: Sequence[Source],
        jobs: int,
        done: Callable[[int], None],
        wanted: Callable[[Heat, Confidence], bool],
    ) -> tuple[Analysis, list[str]]:
        """The findings in the files, and the tracebacks of internal errors; see `cache.Cache.analyze`."""


MAX_ROUNDS = 20
"""The number of rounds of fixes after which fixes are assumed to undo each other."""


@dataclass(frozen=True, slots=True)
class Request:
    """The settings of a run."""

    names: Mapping[str, str]
    """The names of the rules, by code."""
    selection: Selection
    settings: EngineSettings
    today: date
    heat: Heat = Heat.STEP
    confidence: Confidence = Confidence.MEDIUM
    fix: bool = False
    unsafe: bool = False
    allow_reason: str | None = None
    """Add an allow comment with this reason for every warning that remains."""
    baseline: Baseline | None = None
    folders: tuple[Path, ...] = ()
    """The linted folders, as absolute paths. Files below them that do not exist any more have no findings."""
    context: tuple[Source, ...] = ()
    """Other files of the project, which are read and not checked."""
    cache: Results | None = None
    """The results of an earlier run; None to analyze everything."""
    unread: tuple[Listed, ...] = ()
    """The files that were not read, because they have not changed."""
    jobs: int = 1
    """The number of processes. The result does not depend on it."""
    progress: Callable[[int], None] = lambda files: None
    """Called with the number of files that are finished."""
    write: bool = True
    """Whether to write files. If False, fixed texts are only computed."""
    edits: bool = False
    """Whether to compute the edits of fixes."""


def configured(config: Config, names: Mapping[str, str], today: date) -> Request:
    """The settings of a run with a configuration and without options."""
    settings = EngineSettings(step_functions=config.step_functions, barriers=config.barriers)
    if config.torch_version is not None:
        settings = replace(settings, torch_version=config.torch_version)
    root = None if config.root is None else PurePosixPath(config.root.as_posix())
    selection = Selection(layers=(config.codes,), per_file=config.per_file_ignores, root=root)
    return Request(names=names, selection=selection, settings=settings, today=today, heat=config.heat)


def run(files: Sequence[SourceFile], errors: Sequence[FileError], request: Request) -> Outcome:
    """Lint files, and apply fixes and add allow comments as requested.

    Args:
        files: the files.
        errors: the errors that occurred when files were read. They become part of the outcome.
        request: the settings.
    """
    state = _Run(files, request)
    changes = request.fix or request.allow_reason is not None
    outcome = state.change() if changes else state.judge()
    if request.edits:
        outcome = state.with_edits(outcome)
    return replace(outcome, errors=(*errors, *outcome.errors))


@dataclass(slots=True)
class _Run:
    files: Sequence[SourceFile]
    request: Request
    raws: dict[str, str] = field(default_factory=dict)
    """The current text of each file, with its own line ends."""
    texts: dict[str, str] = field(default_factory=dict)
    """The current text of each file, with `\n` as line end; of a notebook the joined source of its cells."""
    notebooks: dict[str, Notebook] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    """The files that are not changed any more, because a fix has failed."""
    problems: list[FileError] = field(default_factory=list)
    """The errors about fixes that have failed."""
    unwritable: Mapping[tuple[str, Fix], FileError] = field(default_factory=dict)
    """By path, the fixes that cannot be written."""
    cache: Results | None = None
    """The results of an earlier run, or of an earlier round."""
    edited: set[str] = field(default_factory=set)
    """The files whose text has changed since they were analyzed."""
    rounds: int = 0
    """The number of analyses so far."""

    def __post_init__(self) -> None:
        self.cache = self.request.cache
        for file in self.files:
            if file.notebook is not None:
                self.notebooks[file.source.path] = file.notebook
            self._set(file.source.path, file.raw)

    def _set(self, path: str, raw: str) -> str | None:
        """Change the text of a file. Returns the problem if that is not possible."""
        text = raw.replace("\r\n", "\n").replace("\r", "\n") if "\r" in raw else raw
        notebook = self.notebooks.get(path)
        if notebook is not None:
            try:
                notebook = self.notebooks[path] = notebook.with_source(raw)
            except ValueError as error:
                return str(error)
            text = notebook.text
        self.raws[path] = raw
        self.texts[path] = text
        self.edited.add(path)
        return None

    def judge(self) -> Outcome:
        """Analyze the current texts, and decide what to report."""
        request = self.request
        analysis, tracebacks = self._analysis([Source(path, text) for path, text in self.texts.items()])
        errors = [self._in_cell(error) for error in analysis.errors]
        enabled = self._enabled()
        by_path = _by_path([described(self._checked(one)) for one in analysis.findings if not is_outside(one)])
        failed = {error.path for error in errors}
        for path, text in self.texts.items():
            if MARKER in text and path not in failed:
                problem, trace = self._apply_allow_comments(path, by_path, enabled)
                errors += problem
                tracebacks += trace
        selected = [one for own in by_path.values() for one in own if enabled(one.code, one.path)]
        outcome = Outcome(
            reported=report(selected, request.heat, request.confidence),
            errors=(*errors, *self.problems),
            files=analysis.files,
            texts=Texts(self.texts, request.unread) if request.unread else self.texts,
            notebooks=self.notebooks,
            tracebacks=tuple(tracebacks),
        )
        if request.baseline is None:
            return outcome
        everything = [one for own in by_path.values() for one in own]
        return self._with_baseline(request.baseline, outcome, everything, {error.path for error in errors})

    def _apply_allow_comments(
        self, path: str, by_path: dict[str, list[Finding]], enabled: Callable[[str, str], bool]
    ) -> tuple[list[FileError], list[str]]:
        """Apply the allow comments of a file to its findings in `by_path`. Returns errors and tracebacks."""
        from gpusync_lint.accept import allow_comments, comments

        try:
            findings = allow_comments.apply(
                by_path.get(path, []),
                path,
                self.texts[path],
                names=self.request.names,
                enabled=enabled,
                today=self.request.today,
                alone=any(file.named for file in self.files if file.source.path == path),
            )
        except comments.UnreadableCommentsError as error:
            return [FileError(path, None, str(error))], []
        except Exception as error:
            import traceback

            from gpusync_lint.run.schedule import internal_error

            return [FileError(path, None, internal_error(error))], [traceback.format_exc()]
        by_path[path] = numbered(findings)
        return [], []

    def _analysis(self, sources: Sequence[Source]) -> tuple[Analysis, list[str]]:
        """Analyze all files. After a round of fixes, only what it affects is analyzed, unless there is no cache."""
        request = self.request
        progress = request.progress if self.rounds == 0 else lambda files: None
        self.rounds += 1
        edited, self.edited = self.edited, set()
        if self.cache is not None:
            if self.rounds > 1:
                self.cache.edited([source for source in sources if source.path in edited])
            return self.cache.analyze(sources, request.jobs, progress, self._reports)
        from gpusync_lint.project.partition import imports
        from gpusync_lint.run.schedule import analyze_isolating_failures, analyze_sources, combined

        if request.context:
            return analyze_isolating_failures(sources, request.settings, request.context)
        imported = [imports(source.text) for source in sources]
        found = analyze_sources(sources, request.settings, imported, jobs=request.jobs, done=progress)
        tracebacks = [trace for part in found for trace in part.tracebacks]
        return combined([part.analysis for part in found], len(sources)), tracebacks

    def _reports(self, heat: Heat, confidence: Confidence) -> bool:
        """Whether findings of a heat and confidence are needed."""
        request = self.request
        return request.baseline is not None or level_at(heat, confidence, request.heat, request.confidence) is not None

    def _with_baseline(
        self, reference: Baseline, outcome: Outcome, everything: Sequence[Finding], failed: set[str]
    ) -> Outcome:
        """Apply a baseline: mark the findings that it accepts, and report its stale entries."""
        from gpusync_lint.accept import baseline

        request = self.request
        relative = {file.source.path: reference.relative(file.location) for file in self.files}
        relative.update((one.path, reference.relative(one.location)) for one in request.unread)
        failed = failed | {path for path, notebook in self.notebooks.items() if notebook.errors}
        at = {file.location: file.named for file in self.files if file.source.path not in failed}
        at.update((one.location, one.named) for one in request.unread if one.path not in failed)

        def key(finding: Finding) -> str:
            return f"{relative[finding.path]}{finding.key.removeprefix(finding.path)}"

        def linted(location: Path) -> bool | None:
            return None if location not in at else not at[location]

        def enabled(code: str, location: Path) -> bool:
            return request.selection.enabled(code, PurePosixPath(location.as_posix()))

        comparison = baseline.compare(
            reference,
            (key(one) for one in everything if one.suppressed is None),
            linted=linted,
            folders=request.folders,
            enabled=enabled,
        )
        reported = [
            replace(one, baselined=one.finding.suppressed is None and key(one.finding) in comparison.accepted)
            for one in outcome.reported
        ]
        kept = [entry for entry in reference.entries if entry.key in comparison.accepted]
        now = [
            baseline.entry_of(key(one.finding), one.finding, outcome.texts[one.finding.path])
            for one in reported
            if one.level is Level.WARNING and one.finding.suppressed is None
        ]
        stale = [one for one in comparison.stale if request.selection.enabled(one.code)]
        about = report(stale, request.heat, request.confidence)
        return replace(
            outcome,
            reported=(*reported, *about),
            texts=Texts({**self.texts, reference.name: reference.text}, request.unread) if about else outcome.texts,
            accepting=(*comparison.not_compared, *kept, *now),
        )

    def _in_cell(self, error: FileError) -> FileError:
        notebook = self.notebooks.get(error.path)
        if notebook is None or error.line is None:
            return error
        cell, span = notebook.in_cell(Span(error.line, 1, error.line, 1))
        return replace(error, line=span.line, cell=cell)

    def _checked(self, finding: Finding) -> Finding:
        """The finding, without a fix that cannot be written or would change other parts of a notebook than Python."""
        fix = finding.fix
        if fix is None:
            return finding
        notebook = self.notebooks.get(finding.path)
        allowed = notebook is None or notebook.allows(operation.span for operation in fix.operations)
        return finding if allowed and (finding.path, fix) not in self.unwritable else replace(finding, fix=None)

    def _enabled(self) -> Callable[[str, str], bool]:
        selection = self.request.selection
        locations: dict[str, Path | str] = {}
        if selection.per_file:
            locations.update((file.source.path, file.location) for file in self.files)
            locations.update((one.path, one.at) for one in self.request.unread)
        known: dict[tuple[str, str], bool] = {}

        def enabled(code: str, path: str) -> bool:
            location = locations.get(path, "")
            on = known.get((code, path if location else ""))
            if on is None:
                at = PurePosixPath(Path(location).as_posix()) if location else None
                on = known[code, path if location else ""] = selection.enabled(code, at)
            return on

        return enabled

    def change(self) -> Outcome:
        """Apply fixes and add comments as requested, write the changed files, and return what remains."""
        originals = {file.source.path: file.raw for file in self.files}
        fixed = dict.fromkeys(originals, 0)
        allowed = dict.fromkeys(originals, 0)
        if not self.request.context:
            from gpusync_lint.run.cache import temporary_cache

            listed = [Listed(file.source.path, str(file.location), file.named, -1, 0) for file in self.files]
            self.cache = temporary_cache(self.request.settings, listed)
        outcome = self.judge()
        if self.request.fix:
            outcome = self._fix(originals, fixed, outcome)
        if self.request.allow_reason is not None:
            outcome = self._allow(self.request.allow_reason, allowed, outcome)
        outcome = self._write(originals, outcome)
        changes = [Change(file, self.raws[file.source.path]) for file in self.files]
        changes = [change for change in changes if change.raw != change.file.raw]
        paths = [change.file.source.path for change in changes]
        return replace(
            outcome,
            changes=tuple(changes),
            fixed=sum(fixed[path] for path in paths),
            fixed_files=sum(fixed[path] > 0 for path in paths),
            allowed=sum(allowed[path] for path in paths),
            allowed_files=sum(allowed[path] > 0 for path in paths),
        )

    def _fix(self, originals: Mapping[str, str], counts: dict[str, int], outcome: Outcome) -> Outcome:
        """Apply fixes in rounds until none is left."""
        from gpusync_lint.rewrite import apply

        for round_number in range(MAX_ROUNDS + 1):
            changed = False
            unwritable: dict[tuple[str, Fix], FileError] = {}
            for path, findings in _by_path(outcome.warnings).items():
                fixes = [one.fix for one in findings if one.fix is not None and (one.fix.safe or self.request.unsafe)]
                if path in self.frozen or not fixes:
                    continue
                file_edits = _Edits(path, self.texts[path])
                chosen = apply.choose(findings, file_edits.edits_of, unsafe=self.request.unsafe)
                unwritable.update(((path, fix), error) for fix, error in file_edits.refused.items())
                if not chosen.fixes:
                    continue
                problem = (
                    self._apply(path, chosen)
                    if round_number < MAX_ROUNDS
                    else "its fixes undo each other; this is a bug in the rules"
                )
                if problem is None:
                    counts[path] += len(chosen.fixes)
                else:
                    self._refuse(path, originals[path], f"not fixed: {problem}")
                changed = True
            if not changed:
                break
            outcome = self.judge()
        return self._without_unwritable(outcome, unwritable)

    def _without_unwritable(self, outcome: Outcome, unwritable: Mapping[tuple[str, Fix], FileError]) -> Outcome:
        """Report fixes that cannot be written as errors, and remove them from their findings."""
        if not unwritable:
            return outcome
        self.unwritable = unwritable
        errors = [self._in_cell(error) for error in unwritable.values()]
        self.problems += errors
        reported = tuple(replace(one, finding=self._checked(one.finding)) for one in outcome.reported)
        return replace(outcome, reported=reported, errors=(*outcome.errors, *errors))

    def with_edits(self, outcome: Outcome) -> Outcome:
        """Add the edits of all fixes to an outcome."""
        edits: dict[tuple[str, tuple[Operation, ...]], tuple[Edit, ...]] = {}
        unwritable: dict[tuple[str, Fix], FileError] = {}
        for path, findings in _by_path([one.finding for one in outcome.reported]).items():
            fixes = [one.fix for one in findings if one.fix is not None]
            if fixes:
                file_edits = _Edits(path, outcome.texts[path])
                edits.update(((path, fix.operations), file_edits.edits_of(fix)) for fix in fixes)
                unwritable.update(((path, fix), error) for fix, error in file_edits.refused.items())
        return replace(self._without_unwritable(outcome, unwritable), edits=edits)

    def _allow(self, reason: str, counts: dict[str, int], outcome: Outcome) -> Outcome:
        """Add an allow comment for each warning."""
        from gpusync_lint.accept import add_comments, comments
        from gpusync_lint.rewrite import apply, codemod

        for path, findings in _by_path(outcome.warnings).items():
            if path not in self.raws or path in self.frozen:
                continue
            before = self.raws[path]
            try:
                operations, count = add_comments.additions(
                    findings, path, self.texts[path], reason, names=self.request.names, today=self.request.today
                )
                edits = codemod.Codemod(self.texts[path]).edits(operations)
            except comments.UnreadableCommentsError as error:
                self._refuse(path, before, f"no comments added: {error}")
                continue
            except codemod.CodemodError as error:
                self._refuse(path, before, f"no comments added: {error}; this is a bug in gpusync", error.line)
                continue
            if not edits:
                continue
            problem = self._set(path, apply.apply_edits(before, edits))
            if problem is None and apply.compiles(self.texts[path]):
                counts[path] = count
            else:
                problem = problem or "the text does not compile with them"
                self._refuse(path, before, f"no comments added: {problem}; this is a bug in gpusync")
        return self.judge()

    def _apply(self, path: str, chosen: Chosen) -> str | None:
        """Apply fixes to a file. Returns the problem if that is not possible."""
        from gpusync_lint.rewrite import apply

        titles = ", ".join(dict.fromkeys(fix.title for fix in chosen.fixes))
        try:
            raw = apply.apply_edits(self.raws[path], chosen.edits)
        except ValueError as error:
            return f"{error} (fix: {titles}); this is a bug in the rule"
        if raw == self.raws[path]:
            return f"the fix changes nothing (fix: {titles}); this is a bug in the rule"
        problem = self._set(path, raw)
        if problem is None and not apply.compiles(self.texts[path]):
            problem = "the fixed text does not compile"
        return None if problem is None else f"{problem} (fix: {titles}); this is a bug in the rule"

    def _refuse(self, path: str, original: str, problem: str, line: int | None = None) -> None:
        """Restore a file, do not change it any more, and report the problem."""
        self.frozen.add(path)
        self._set(path, original)
        self.problems.append(self._in_cell(FileError(path, line, problem)))

    def _write(self, originals: Mapping[str, str], outcome: Outcome) -> Outcome:
        if not self.request.write:
            return outcome
        from gpusync_lint.rewrite import apply

        refused = False
        folders = [os.path.realpath(folder) for folder in self.request.folders]
        own = [*folders, os.path.realpath(".")]
        for file in self.files:
            path = file.source.path
            if file.stdin or self.raws[path] == originals[path]:
                continue
            try:
                apply.write(file, self.raws[path], own if file.named else folders)
            except apply.WriteError as error:
                self._refuse(path, originals[path], f"not written: {error}")
                refused = True
        return self.judge() if refused else outcome


class _Edits:
    """The edits of the fixes of a file, and errors for fixes that cannot be written."""

    def __init__(self, path: str, text: str) -> None:
        from gpusync_lint.rewrite.codemod import Codemod

        self.refused: dict[Fix, FileError] = {}
        self._path = path
        self._codemod = Codemod(text)

    def edits_of(self, fix: Fix) -> tuple[Edit, ...]:
        """The edits of a fix; none if it cannot be written."""
        from gpusync_lint.rewrite.codemod import CodemodError

        try:
            return self._codemod.edits(fix.operations)
        except CodemodError as error:
            message = f"a fix cannot be written: {error} (fix: {fix.title}); this is a bug in gpusync"
            self.refused[fix] = FileError(self._path, error.line, message)
            return ()


def _by_path(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    result: dict[str, list[Finding]] = {}
    for finding in findings:
        result.setdefault(finding.path, []).append(finding)
    return result
