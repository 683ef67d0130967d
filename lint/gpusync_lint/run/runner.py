"""One run of the linter: analyze, judge, fix to a fixpoint, and say what remains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from gpusync_lint.files.discovery import Listed, read
from gpusync_lint.model.finding_keys import numbered
from gpusync_lint.model.findings import MARKER, FileError, Source
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.spans import Edit, Span
from gpusync_lint.settings.selection import Level, Reported, level_at, report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import date

    from gpusync_lint.accept.baseline import Baseline, Entry
    from gpusync_lint.accept.observed_runs import Observed
    from gpusync_lint.files.discovery import SourceFile
    from gpusync_lint.files.notebook import Notebook
    from gpusync_lint.model.findings import Analysis, EngineSettings, Finding, Fix
    from gpusync_lint.model.operations import Operation
    from gpusync_lint.rewrite.apply import Chosen
    from gpusync_lint.run.cache import Memory
    from gpusync_lint.settings.selection import Selection

MAX_ROUNDS = 20
"""Rounds of fixing before the fixes are taken to undo each other."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to report, and what to fix."""

    names: Mapping[str, str]
    """Every code and its rule name."""
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
    """The folders that are linted, absolute: a file below one that is not there any more has no findings."""
    context: tuple[Source, ...] = ()
    """More of the project, to be read and not reported on."""
    memory: Memory | None = None
    """What is known from an earlier run; None to analyze everything."""
    quiet: tuple[Listed, ...] = ()
    """Files that were not read, because nothing is to be said of them."""
    jobs: int = 1
    """Processes to analyze with; what is found does not depend on it."""
    progress: Callable[[int], None] = lambda files: None
    """Told of files whose analysis is finished."""
    write: bool = True
    """False computes the fixed text without touching a file."""
    edits: bool = False
    """Whether the edits of fixes are to be shown."""


@dataclass(frozen=True, slots=True)
class Change:
    """A file that fixes or allow comments changed."""

    file: SourceFile
    raw: str
    """The new text, with the line ends of the old one."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many warnings have one code."""

    code: str
    name: str
    count: int
    fixable: int
    """How many of them have a fix, safe or not."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found, and what remains after its fixes."""

    reported: tuple[Reported, ...]
    errors: tuple[FileError, ...]
    files: int
    texts: Mapping[str, str]
    """The text that the findings stand in, by path; lines end in newlines. Of a notebook: its joined source."""
    notebooks: Mapping[str, Notebook] = field(default_factory=dict)
    """The notebooks among the files, by path, as they are now."""
    fixed: int = 0
    fixed_files: int = 0
    allowed: int = 0
    """Warnings that comments were added for."""
    allowed_files: int = 0
    changes: tuple[Change, ...] = ()
    tracebacks: tuple[str, ...] = ()
    """Of internal errors."""
    observed: Observed | None = None
    """What runs saw of the findings; None without a run."""
    accepting: tuple[Entry, ...] | None = None
    """What the baseline would hold if it accepted every warning; None without a baseline."""
    edits: Mapping[tuple[str, tuple[Operation, ...]], tuple[Edit, ...]] = field(default_factory=dict)
    """What the operations of fixes stand for, by path, where the request asked for it."""

    @property
    def warnings(self) -> list[Finding]:
        """Findings that count: at level warning, and accepted neither by a comment nor by the baseline."""
        return [one.finding for one in self.reported if one.level is Level.WARNING and one.accepted is None]

    @property
    def notes(self) -> list[Finding]:
        """Findings at level note that nothing accepts."""
        return [one.finding for one in self.reported if one.level is Level.NOTE and one.accepted is None]

    @property
    def baselined(self) -> list[Finding]:
        """Findings that the baseline accepts, of either level."""
        return [one.finding for one in self.reported if one.baselined]

    @property
    def suppressed(self) -> list[Finding]:
        """Findings that a comment allows, of either level."""
        return [one.finding for one in self.reported if one.finding.suppressed is not None]

    def edits_of(self, finding: Finding) -> tuple[Edit, ...]:
        """The edits of a finding's fix, in the text of its file. Raises KeyError where nobody asked for edits."""
        return () if finding.fix is None else self.edits[finding.path, finding.fix.operations]

    def in_cell(self, path: str, span: Span) -> tuple[int | None, Span]:
        """Where a range of `texts` is for a person: the number of its cell (None for no notebook), the range in it."""
        notebook = self.notebooks.get(path)
        return (None, span) if notebook is None else notebook.in_cell(span)

    def in_file(self, path: str, span: Span) -> Span:
        """Where a range of `texts` lies in the file."""
        notebook = self.notebooks.get(path)
        return span if notebook is None else notebook.in_file(span)

    def error_line(self, error: FileError) -> int | None:
        """The line of the file that an error is about, where it is about one."""
        notebook = self.notebooks.get(error.path)
        if notebook is None or error.cell is None:
            return error.line
        return notebook.line_in_file(error.cell, error.line or 1)

    def edit_in_file(self, path: str, edit: Edit) -> Edit:
        """The edit of the file that does what an edit of its text does."""
        notebook = self.notebooks.get(path)
        return edit if notebook is None else notebook.edit_in_file(edit)

    def file_text(self, path: str) -> str:
        """What the file holds, for the ranges of `in_file`."""
        notebook = self.notebooks.get(path)
        return self.texts.get(path, "") if notebook is None else notebook.document

    def place(self, finding: Finding) -> str:
        """``train.py:14:5``, or ``train.ipynb:cell 3:2:5``."""
        cell, span = self.in_cell(finding.path, finding.span)
        return f"{finding.path}:{'' if cell is None else f'cell {cell}:'}{span.line}:{span.column}"

    @property
    def statistics(self) -> list[Count]:
        """The warnings of each code, the most frequent first."""
        counts = Counter((one.code, one.name) for one in self.warnings)
        fixable = Counter(one.code for one in self.warnings if one.fix is not None)
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return [Count(code, name, count, fixable[code]) for (code, name), count in ordered]


def run(files: Sequence[SourceFile], errors: Sequence[FileError], request: Request) -> Outcome:
    """Lint the files; apply and write fixes and allow comments as requested. `errors` are those met while reading."""
    state = _Run(files, request)
    changes = request.fix or request.allow_reason is not None
    outcome = state.change() if changes else state.judge()
    if request.edits:
        outcome = state.with_edits(outcome)
    return replace(outcome, errors=(*errors, *outcome.errors))


class _Texts(Mapping[str, str]):
    """The texts of all files of a run, those that have not been read for it read when they are asked for."""

    def __init__(self, texts: Mapping[str, str], quiet: Sequence[Listed]) -> None:
        self._texts = dict(texts)
        self._quiet = {one.path: one for one in quiet}

    def __getitem__(self, path: str) -> str:
        text = self._texts.get(path)
        if text is None:
            file = read(self._quiet[path])
            text = self._texts[path] = "" if file is None else file.source.text
        return text

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts.keys() | self._quiet.keys())

    def __len__(self) -> int:
        return len(self._texts.keys() | self._quiet.keys())


@dataclass(slots=True)
class _Run:
    files: Sequence[SourceFile]
    request: Request
    raws: dict[str, str] = field(default_factory=dict)
    """The text of each file as fixed so far, with its own line ends."""
    texts: dict[str, str] = field(default_factory=dict)
    """The same with newlines only."""
    notebooks: dict[str, Notebook] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    """Files that are left as they were, because a fix for them failed."""
    problems: list[FileError] = field(default_factory=list)
    """Fixes that failed."""
    unwritable: Mapping[tuple[str, Fix], FileError] = field(default_factory=dict)
    """Fixes, by path, that are offered and cannot be written."""
    memory: Memory | None = None
    """What is known from an earlier run, or from an earlier round of this one."""
    edited: set[str] = field(default_factory=set)
    """Files whose text has changed since they were analyzed."""
    rounds: int = 0
    """How often the files have been analyzed."""

    def __post_init__(self) -> None:
        self.memory = self.request.memory
        for file in self.files:
            if file.notebook is not None:
                self.notebooks[file.source.path] = file.notebook
            self._set(file.source.path, file.raw)

    def _set(self, path: str, raw: str) -> str | None:
        """Give a file a new text; the reason why not, where it is none."""
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
        """Analyze the texts as they are now, and decide what is reported."""
        request = self.request
        analysis, tracebacks = self._analysis([Source(path, text) for path, text in self.texts.items()])
        errors = [self._in_cell(error) for error in analysis.errors]
        failed = {error.path for error in errors}
        enabled = self._enabled()
        alone = {file.source.path for file in self.files if file.named}
        by_path = _by_path([self._checked(finding) for finding in analysis.findings])
        for path, text in self.texts.items():
            if MARKER not in text or path in failed:
                continue
            from gpusync_lint.accept import allow_comments, comments

            own = by_path.get(path, [])
            try:
                judged = allow_comments.apply(
                    own,
                    path,
                    text,
                    names=request.names,
                    enabled=enabled,
                    today=request.today,
                    alone=path in alone,
                )
                by_path[path] = numbered(judged)
            except comments.UnreadableCommentsError as error:
                errors.append(FileError(path, None, str(error)))
            except Exception as error:
                import traceback

                from gpusync_lint.run.schedule import internal_error

                errors.append(FileError(path, None, internal_error(error)))
                tracebacks.append(traceback.format_exc())
        selected = [one for own in by_path.values() for one in own if enabled(one.code, one.path)]
        outcome = Outcome(
            reported=report(selected, request.heat, request.confidence),
            errors=(*errors, *self.problems),
            files=analysis.files,
            texts=_Texts(self.texts, request.quiet) if request.quiet else self.texts,
            notebooks=self.notebooks,
            tracebacks=tuple(tracebacks),
        )
        if request.baseline is None:
            return outcome
        everything = [one for own in by_path.values() for one in own]
        return self._against(request.baseline, outcome, everything, {error.path for error in errors})

    def _analysis(self, sources: Sequence[Source]) -> tuple[Analysis, list[str]]:
        """Analyze all files; after a round of fixes only what that has touched, where that can be told."""
        request = self.request
        progress = request.progress if self.rounds == 0 else lambda files: None
        self.rounds += 1
        edited, self.edited = self.edited, set()
        if self.memory is not None:
            if self.rounds > 1:
                self.memory.edited([source for source in sources if source.path in edited])
            return self.memory.analyze(sources, request.jobs, progress, self._reports)
        from gpusync_lint.project.partition import imports
        from gpusync_lint.run.schedule import analyze_isolating_failures, analyze_sources, combined

        if request.context:
            return analyze_isolating_failures(sources, request.settings, request.context)
        imported = [imports(source.text) for source in sources]
        found = analyze_sources(sources, request.settings, imported, jobs=request.jobs, done=progress)
        tracebacks = [trace for part in found for trace in part.tracebacks]
        return combined([part.analysis for part in found], len(sources)), tracebacks

    def _reports(self, heat: Heat, confidence: Confidence) -> bool:
        """Whether a finding of this heat and confidence may have to be known."""
        request = self.request
        return request.baseline is not None or level_at(heat, confidence, request.heat, request.confidence) is not None

    def _against(
        self, reference: Baseline, outcome: Outcome, everything: Sequence[Finding], failed: set[str]
    ) -> Outcome:
        """The outcome with what the baseline accepts, and with findings about its stale entries."""
        from gpusync_lint.accept import baseline

        request = self.request
        relative = {file.source.path: reference.relative(file.location) for file in self.files}
        relative.update((one.path, reference.relative(one.location)) for one in request.quiet)
        failed = failed | {path for path, notebook in self.notebooks.items() if notebook.errors}
        at = {file.location: file.named for file in self.files if file.source.path not in failed}
        at.update((one.location, one.named) for one in request.quiet if one.path not in failed)

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
            texts=_Texts({**self.texts, reference.name: reference.text}, request.quiet) if about else outcome.texts,
            accepting=(*comparison.not_compared, *kept, *now),
        )

    def _in_cell(self, error: FileError) -> FileError:
        notebook = self.notebooks.get(error.path)
        if notebook is None or error.line is None:
            return error
        cell, span = notebook.in_cell(Span(error.line, 1, error.line, 1))
        return replace(error, line=span.line, cell=cell)

    def _checked(self, finding: Finding) -> Finding:
        """Without a fix that cannot be written, or would change what is not Python in a notebook."""
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
            locations.update((one.path, one.at) for one in self.request.quiet)
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
        """Fix and add comments as the request says, write what changed, and say what remains."""
        originals = {file.source.path: file.raw for file in self.files}
        fixed = dict.fromkeys(originals, 0)
        allowed = dict.fromkeys(originals, 0)
        if not self.request.context:
            from gpusync_lint.run import cache

            listed = [Listed(file.source.path, str(file.location), file.named, -1, 0) for file in self.files]
            self.memory = cache.for_one_run(self.request.settings, listed)
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
        """Fix round by round until nothing is left to fix."""
        from gpusync_lint.rewrite import apply

        for round_number in range(MAX_ROUNDS + 1):
            changed = False
            unwritable: dict[tuple[str, Fix], FileError] = {}
            for path, findings in _by_path(outcome.warnings).items():
                fixes = [one.fix for one in findings if one.fix is not None and (one.fix.safe or self.request.unsafe)]
                if path in self.frozen or not fixes:
                    continue
                written = _Written(path, self.texts[path])
                chosen = apply.choose(findings, written.edits_of, unsafe=self.request.unsafe)
                unwritable.update(((path, fix), error) for fix, error in written.refused.items())
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
        """The outcome with fixes that cannot be written as errors, and their findings without a fix."""
        if not unwritable:
            return outcome
        self.unwritable = unwritable
        errors = [self._in_cell(error) for error in unwritable.values()]
        self.problems += errors
        reported = tuple(replace(one, finding=self._checked(one.finding)) for one in outcome.reported)
        return replace(outcome, reported=reported, errors=(*outcome.errors, *errors))

    def with_edits(self, outcome: Outcome) -> Outcome:
        """The outcome with the edits of all fixes in it."""
        edits: dict[tuple[str, tuple[Operation, ...]], tuple[Edit, ...]] = {}
        unwritable: dict[tuple[str, Fix], FileError] = {}
        for path, findings in _by_path([one.finding for one in outcome.reported]).items():
            fixes = [one.fix for one in findings if one.fix is not None]
            if fixes:
                written = _Written(path, outcome.texts[path])
                edits.update(((path, fix.operations), written.edits_of(fix)) for fix in fixes)
                unwritable.update(((path, fix), error) for fix, error in written.refused.items())
        return replace(self._without_unwritable(outcome, unwritable), edits=edits)

    def _allow(self, reason: str, counts: dict[str, int], outcome: Outcome) -> Outcome:
        """Add a comment for every warning that is left."""
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
        """Apply the fixes to one text; the reason why not, where they cannot be."""
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
        """Leave a file as it was, and say why."""
        self.frozen.add(path)
        self._set(path, original)
        self.problems.append(self._in_cell(FileError(path, line, problem)))

    def _write(self, originals: Mapping[str, str], outcome: Outcome) -> Outcome:
        if not self.request.write:
            return outcome
        from gpusync_lint.rewrite import apply

        refused = False
        for file in self.files:
            path = file.source.path
            if file.stdin or self.raws[path] == originals[path]:
                continue
            try:
                apply.write(file, self.raws[path])
            except apply.WriteError as error:
                self._refuse(path, originals[path], f"not written: {error}")
                refused = True
        return self.judge() if refused else outcome


class _Written:
    """The edits of fixes of one file, and what is wrong with those that cannot be written."""

    def __init__(self, path: str, text: str) -> None:
        from gpusync_lint.rewrite.codemod import Codemod

        self.refused: dict[Fix, FileError] = {}
        self._path = path
        self._codemod = Codemod(text)

    def edits_of(self, fix: Fix) -> tuple[Edit, ...]:
        """The edits of a fix; none where it cannot be written."""
        from gpusync_lint.rewrite.codemod import CodemodError

        try:
            return self._codemod.edits(fix.operations)
        except CodemodError as error:
            message = f"a fix cannot be written: {error} (fix: {fix.title}); this is a bug in gpusync"
            self.refused[fix] = FileError(self._path, error.line, message)
            return ()


def accept_all(outcome: Outcome) -> Outcome:
    """The outcome once the baseline has been written: every warning is in it, and no entry is stale."""
    from gpusync_lint.accept import baseline

    reported = [one for one in outcome.reported if one.finding.code != baseline.STALE]
    return replace(
        outcome,
        reported=tuple(
            replace(one, baselined=True) if one.level is Level.WARNING and one.accepted is None else one
            for one in reported
        ),
    )


def _by_path(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    result: dict[str, list[Finding]] = {}
    for finding in findings:
        result.setdefault(finding.path, []).append(finding)
    return result
