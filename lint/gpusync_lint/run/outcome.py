"""The outcome of a run: the findings that remain after fixes, and where they are in the files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpusync_lint.files.discovery import Listed, read
from gpusync_lint.settings.selection import Level

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusync_lint.accept.baseline import Entry
    from gpusync_lint.accept.observed_runs import Observed
    from gpusync_lint.files.discovery import SourceFile
    from gpusync_lint.files.notebook import Notebook
    from gpusync_lint.model.findings import FileError, Finding
    from gpusync_lint.model.operations import Operation
    from gpusync_lint.model.spans import Edit, Span
    from gpusync_lint.settings.selection import Reported


@dataclass(frozen=True, slots=True)
class Change:
    """A file that was changed by fixes or allow comments."""

    file: SourceFile
    raw: str
    """The new text, with the line ends of the file."""


@dataclass(frozen=True, slots=True)
class Count:
    """The number of warnings with a code."""

    code: str
    name: str
    count: int
    fixable: int
    """The number of them with a fix, safe or unsafe."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    reported: tuple[Reported, ...]
    errors: tuple[FileError, ...]
    files: int
    texts: Mapping[str, str]
    """By path, the text that the spans of findings refer to, with `\n` as line end; of a notebook its joined source."""
    notebooks: Mapping[str, Notebook] = field(default_factory=dict)
    """By path, the notebooks among the files, after fixes."""
    fixed: int = 0
    fixed_files: int = 0
    allowed: int = 0
    """The number of warnings for which comments were added."""
    allowed_files: int = 0
    changes: tuple[Change, ...] = ()
    tracebacks: tuple[str, ...] = ()
    """Those of internal errors."""
    observed: Observed | None = None
    """The findings as runs observed them; None without a run."""
    accepting: tuple[Entry, ...] | None = None
    """The entries of a baseline that accepts all warnings; None without a baseline."""
    edits: Mapping[tuple[str, tuple[Operation, ...]], tuple[Edit, ...]] = field(default_factory=dict)
    """By path and operations, the edits of fixes, if they were requested."""

    @property
    def warnings(self) -> list[Finding]:
        """The findings of level warning that neither a comment nor the baseline accepts."""
        return [one.finding for one in self.reported if one.level is Level.WARNING and one.accepted is None]

    @property
    def notes(self) -> list[Finding]:
        """The findings of level note that neither a comment nor the baseline accepts."""
        return [one.finding for one in self.reported if one.level is Level.NOTE and one.accepted is None]

    @property
    def baselined(self) -> list[Finding]:
        """The findings that the baseline accepts."""
        return [one.finding for one in self.reported if one.baselined]

    @property
    def suppressed(self) -> list[Finding]:
        """The findings that a comment allows."""
        return [one.finding for one in self.reported if one.finding.suppressed is not None]

    def edits_of(self, finding: Finding) -> tuple[Edit, ...]:
        """The edits of the fix of a finding, in the text of its file. Raises KeyError if edits were not requested."""
        return () if finding.fix is None else self.edits[finding.path, finding.fix.operations]

    def in_cell(self, path: str, span: Span) -> tuple[int | None, Span]:
        """The number of the notebook cell that contains a span of `texts`, if any, and the span in the cell."""
        notebook = self.notebooks.get(path)
        return (None, span) if notebook is None else notebook.in_cell(span)

    def in_file(self, path: str, span: Span) -> Span:
        """The span in the file, for a span of `texts`."""
        notebook = self.notebooks.get(path)
        return span if notebook is None else notebook.in_file(span)

    def error_line(self, error: FileError) -> int | None:
        """The line of the file that an error is about; None if it is about no line."""
        notebook = self.notebooks.get(error.path)
        if notebook is None or error.cell is None:
            return error.line
        return notebook.line_in_file(error.cell, error.line or 1)

    def edit_in_file(self, path: str, edit: Edit) -> Edit:
        """The edit of the file, for an edit of its text."""
        notebook = self.notebooks.get(path)
        return edit if notebook is None else notebook.edit_in_file(edit)

    def file_text(self, path: str) -> str:
        """The content of the file, for the spans of `in_file`."""
        notebook = self.notebooks.get(path)
        return self.texts.get(path, "") if notebook is None else notebook.document

    def place(self, finding: Finding) -> str:
        """``train.py:14:5``, or ``train.ipynb:cell 3:2:5``."""
        cell, span = self.in_cell(finding.path, finding.span)
        return f"{finding.path}:{'' if cell is None else f'cell {cell}:'}{span.line}:{span.column}"

    @property
    def statistics(self) -> list[Count]:
        """The number of warnings for each code, the most frequent ones first."""
        counts = Counter((one.code, one.name) for one in self.warnings)
        fixable = Counter(one.code for one in self.warnings if one.fix is not None)
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return [Count(code, name, count, fixable[code]) for (code, name), count in ordered]


def accept_all(outcome: Outcome) -> Outcome:
    """The outcome after the baseline was written: it accepts all warnings, and no entry is stale."""
    from gpusync_lint.accept import baseline

    reported = [one for one in outcome.reported if one.finding.code != baseline.STALE]
    return replace(
        outcome,
        reported=tuple(
            replace(one, baselined=True) if one.level is Level.WARNING and one.accepted is None else one
            for one in reported
        ),
    )


class Texts(Mapping[str, str]):
    """The texts of all files of a run. Files that were not read are read on access."""

    def __init__(self, texts: Mapping[str, str], unread: Sequence[Listed]) -> None:
        self._texts = dict(texts)
        self._unread = {one.path: one for one in unread}

    def __getitem__(self, path: str) -> str:
        text = self._texts.get(path)
        if text is None:
            file = read(self._unread[path])
            text = self._texts[path] = "" if file is None else file.source.text
        return text

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts.keys() | self._unread.keys())

    def __len__(self) -> int:
        return len(self._texts.keys() | self._unread.keys())
