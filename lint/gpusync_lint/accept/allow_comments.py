"""``# gpusync: allow[GS201] reason``: comments that allow findings, and findings about such comments.

A comment covers the statement that contains it or that follows it directly; for a compound statement, its header. With
``allow-file``, above the first statement, it covers the file. The reason is required. ``until=2027-03-01`` is the last
day on which it is valid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING

from gpusync_lint.accept import comments
from gpusync_lint.accept.rules import FRAMEWORK, RULES
from gpusync_lint.messages import nearest
from gpusync_lint.model.findings import Finding, Fix
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.operations import RemoveComment, ReplaceInComment
from gpusync_lint.model.spans import Span
from gpusync_lint.settings.selection import UnknownCodeError, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpusync_lint.accept.comments import Comment, Read
    from gpusync_lint.model.operations import Operation

_DIRECTIVE = re.compile(r"#\s*gpusync:\s*(?P<body>.*?)(?=\s#\s|\s#\s*gpusync:|$)")
_BODY = re.compile(r"(?P<verb>[A-Za-z_-]+)\s*\[(?P<codes>[^\]]*)\](?P<rest>.*)")
_UNTIL = re.compile(r"(?:^|\s)until=(?P<date>\S*)")
_VERBS = ("allow", "allow-file")
_SHAPE = "Write `# gpusync: allow[CODE] reason`"


@dataclass(frozen=True, slots=True)
class Allow:
    """A well-formed allow comment."""

    words: tuple[str, ...]
    """The codes as written."""
    prefixes: tuple[str, ...]
    """The code prefixes that the words stand for, in the same order."""
    reason: str
    until: date | None
    span: Span
    lines: tuple[int, int] | None
    """The first and last line that it covers; None for the whole file."""
    source: str
    """The text of the directive."""
    comment: Span | None
    """The comment, if it contains nothing else."""

    def reaches(self, finding: Finding) -> bool:
        """Whether the finding is at a line that the comment covers."""
        if self.lines is None:
            return True
        first, last = self.lines
        return first <= finding.span.end_line and finding.span.line <= last

    def covers(self, finding: Finding) -> str | None:
        """The word that allows the finding; None if there is none."""
        if not self.reaches(finding):
            return None
        for word, prefix in zip(self.words, self.prefixes, strict=True):
            if finding.code.startswith(prefix):
                return word
        return None


def apply(
    findings: Sequence[Finding],
    path: str,
    text: str,
    *,
    names: Mapping[str, str],
    enabled: Callable[[str, str], bool],
    today: date,
    alone: bool = False,
) -> list[Finding]:
    """Mark the findings of a file that a comment allows, and add findings about the comments.

    Args:
        findings: the findings of the file.
        path: its path.
        text: its text.
        names: the rule name of every code.
        enabled: whether a code is enabled in a file: a comment for a rule that is not enabled is not unused.
        today: the date on which `until=` is judged.
        alone: whether the file was linted without its project. An unused comment is then of low confidence, because
            the wait may be visible only together with callers in other files.

    Raises:
        comments.UnreadableCommentsError: the file cannot be tokenized.
    """
    return _File(path, comments.read(text), names, enabled, today, alone).apply(findings)


def read(path: str, found: Read, *, names: Mapping[str, str], today: date) -> tuple[list[Allow], list[str]]:
    """The valid allow comments of a file, and messages about the others."""
    file = _File(path, found, names, lambda code, path: True, today, alone=False)
    return file.allows(), [finding.message for finding in file.about]


class _File:
    def __init__(
        self,
        path: str,
        found: Read,
        names: Mapping[str, str],
        enabled: Callable[[str, str], bool],
        today: date,
        alone: bool,
    ) -> None:
        self.path = path
        self.comments = found.comments
        self.names = names
        self.enabled = enabled
        self.today = today
        self.unused_confidence = Confidence.LOW if alone else Confidence.HIGH
        self.about: list[Finding] = []
        """Findings about the comments."""
        self.ordinals: dict[tuple[str, str], int] = {}

    def allows(self) -> list[Allow]:
        return [allow for comment in self.comments for allow in self._read(comment)]

    def apply(self, findings: Sequence[Finding]) -> list[Finding]:
        allows = self.allows()
        used: set[tuple[int, str]] = set()
        marked = []
        for finding in findings:
            for index, allow in enumerate(allows):
                word = allow.covers(finding)
                if word is not None:
                    used.add((index, word))
                    if finding.suppressed is None:
                        finding = replace(finding, suppressed=allow.reason)
            marked.append(finding)
        for index, allow in enumerate(allows):
            self._unused(allow, [word for word in allow.words if (index, word) not in used])
        return marked + self.about

    def _read(self, comment: Comment) -> Iterator[Allow]:
        for match in _DIRECTIVE.finditer(comment.text):
            allow = self._parse(comment, match)
            if allow is not None:
                yield allow

    def _parse(self, comment: Comment, match: re.Match[str]) -> Allow | None:
        line, start = comment.span.line, comment.span.column + match.start()
        source = match[0].rstrip()
        span = Span(line, start, line, start + len(source))
        body = _BODY.match(match["body"])
        verb = body["verb"] if body else ""
        if body is None or verb not in _VERBS:
            word = verb or match["body"].partition("[")[0].partition(" ")[0]
            self._complain("GS904", span, source, f"`{source}` is not understood{_hint(word)}", _SHAPE)
            return None
        whole_file = verb == "allow-file"
        words, prefixes = self._codes(body["codes"], span, source)
        if not words:
            return None
        if whole_file and not comment.first_block:
            problem = f"`{source}` is below the first statement and has no effect"
            self._complain("GS904", span, source, problem, "Move it to the top of the file")
            return None
        until, rest, valid = self._until(body["rest"], span, source)
        if not valid:
            return None
        reason = rest.strip(" \t-:–—")
        if not self._is_in_effect(reason, until, span, source):
            return None
        whole_comment = match.start() == 0 and match.end() == len(comment.text)
        return Allow(
            words=words,
            prefixes=prefixes,
            reason=reason,
            until=until,
            span=span,
            lines=None if whole_file else comment.lines or (line, line),
            source=source,
            comment=comment.span if whole_comment else None,
        )

    def _is_in_effect(self, reason: str, until: date | None, span: Span, source: str) -> bool:
        """Whether a comment has a reason and has not expired. Otherwise that is reported."""
        if not any(letter.isalnum() for letter in reason):
            problem = f"`{source}` gives no reason and has no effect"
            self._complain("GS901", span, source, problem, "Write after the bracket why the wait is accepted")
            return False
        if until is not None and until < self.today:
            problem = f"`{source}` expired on {until.isoformat()} and has no effect"
            self._complain("GS902", span, source, problem, "Remove the wait, or change the date")
            return False
        return True

    def _codes(self, written: str, span: Span, source: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        words: dict[str, str] = {}
        given = [word.strip() for word in written.split(",") if word.strip()]
        if not given:
            self._complain("GS904", span, source, f"`{source}` names no code", _SHAPE)
        for word in given:
            try:
                prefix = resolve(word, self.names)
            except UnknownCodeError as error:
                self._complain("GS904", span, source, f"`{source}`: {error}", "Write a code, a prefix or a rule name")
                continue
            if prefix.startswith("GS9"):
                remedy = "Use `ignore` in [tool.gpusync] instead"
                self._complain("GS904", span, source, f"{word} cannot be allowed by a comment", remedy)
                continue
            words[word] = prefix
        return tuple(words), tuple(words.values())

    def _until(self, rest: str, span: Span, source: str) -> tuple[date | None, str, bool]:
        """The date, the text without it, and whether the date is valid."""
        match = _UNTIL.search(rest)
        if match is None:
            return None, rest, True
        try:
            until = date.fromisoformat(match["date"])
        except ValueError:
            problem = f"`{source}`: {match['date'] or 'nothing'!r} is not a date"
            self._complain("GS904", span, source, problem, "Write until=YYYY-MM-DD")
            return None, rest, False
        return until, rest[: match.start()] + rest[match.end() :], True

    def _unused(self, allow: Allow, words: list[str]) -> None:
        prefixes = dict(zip(allow.words, allow.prefixes, strict=True))
        words = [word for word in words if self._selected(prefixes[word])]
        if not words:
            return
        every = len(words) == len(allow.words)
        what = "allows no finding" if every else f"allows no finding of {', '.join(words)}"
        self._complain(
            "GS903",
            allow.span,
            allow.source,
            f"`{allow.source}` {what}",
            "Remove it" if every else f"Remove {', '.join(words)}",
            self._unused_fix(allow, words),
        )

    def _selected(self, prefix: str) -> bool:
        return any(code.startswith(prefix) and self.enabled(code, self.path) for code in self.names)

    def _unused_fix(self, allow: Allow, unused: list[str]) -> Fix | None:
        kept = [word for word in allow.words if word not in unused]
        operation: Operation
        if kept:
            line, column = allow.span.line, allow.span.column
            codes = Span(line, column + allow.source.index("[") + 1, line, column + allow.source.index("]"))
            operation = ReplaceInComment(codes, ", ".join(kept))
        elif allow.comment is not None:
            operation = RemoveComment(allow.comment)
        else:
            return None
        hazard = "if more of the project is linted, the line may be reported after all"
        return Fix("Remove what has no effect", (operation,), safe=False, hazard=hazard)

    def _complain(self, code: str, span: Span, source: str, message: str, remedy: str, fix: Fix | None = None) -> None:
        normal = " ".join(source.split())
        ordinal = self.ordinals[code, normal] = self.ordinals.get((code, normal), 0) + 1
        self.about.append(
            Finding(
                code=code,
                name=RULES[code].name,
                path=self.path,
                span=span,
                message=message,
                remedy=remedy,
                heat=Heat.STEP,
                confidence=self.unused_confidence if code == "GS903" else Confidence.HIGH,
                framework=FRAMEWORK,
                key=f"{self.path}::{code}::{normal}::{ordinal}",
                fix=fix,
            )
        )


def _hint(word: str) -> str:
    """The end of the message about a word that is not understood."""
    near = nearest(word.lower(), _VERBS)
    return f"; did you mean {near}[...]?" if near not in ("", word) else ""
