"""Which findings are reported, and how loudly: codes chosen by prefix or name, levels by heat and confidence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from gpusync_lint.model.findings import Finding, UserError
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import PurePosixPath


class Level(str, Enum):
    """How loudly a finding is reported."""

    WARNING = "warning"
    """Counts for the exit code."""
    NOTE = "note"
    """In the outputs for programs and in the closing line of the text output; never fails a run."""


class UnknownCodeError(UserError):
    """A code, prefix or rule name that no rule has; the message suggests the nearest one."""


def resolve(word: str, names: Mapping[str, str]) -> str:
    """Turn a code (``GS201``), a prefix (``GS2``) or a rule name (``item-read``) into a code prefix.

    `names` maps every code to its rule name. Raises UnknownCodeError.
    """
    if any(code.startswith(word) for code in names) and word.startswith("GS"):
        return word
    for code, name in names.items():
        if word == name:
            return code
    known = [*names, *names.values()]
    near = nearest(word.upper(), known) or nearest(word.lower(), known)
    hint = f"did you mean {near}?" if near else "`gpusync rule` lists them all"
    raise UnknownCodeError(f"no rule has the code or name {word!r}; {hint}")


def resolve_all(words: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """`resolve` over comma-separated words, in order and without repeats."""
    parts = (part.strip() for word in words for part in word.split(","))
    return tuple(dict.fromkeys(resolve(part, names) for part in parts if part))


@dataclass(frozen=True, slots=True)
class Layer:
    """One place that selects codes: the configuration, or the command line above it."""

    select: tuple[str, ...] | None = None
    """Code prefixes; None leaves the choice of the layer below."""
    ignore: tuple[str, ...] = ()


def _reach(prefixes: Iterable[str], code: str) -> int:
    """Length of the longest prefix that covers the code; 0 for none."""
    return max((len(prefix) for prefix in prefixes if code.startswith(prefix)), default=0)


@dataclass(frozen=True, slots=True)
class Selection:
    """Decides which codes count, and in which files."""

    layers: tuple[Layer, ...] = ()
    """Farthest first; a nearer `select` replaces what is below it, a nearer `ignore` narrows it."""
    per_file: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = ()
    """Code prefixes that are ignored in files whose path matches."""
    root: PurePosixPath | None = None
    """The absolute folder that the patterns of `per_file` start from."""

    def enabled(self, code: str, location: PurePosixPath | None = None) -> bool:
        """Whether findings of this code count in the file at this absolute path.

        Within one layer the longest prefix wins, so ``select = ["GS201"]`` with ``ignore = ["GS2"]`` keeps GS201.
        """
        on = True
        for layer in self.layers:
            if layer.select is not None:
                on = _reach(layer.select, code) > _reach(layer.ignore, code)
            elif _reach(layer.ignore, code):
                on = False
        return on and not self._ignored_in_file(code, location)

    def _ignored_in_file(self, code: str, location: PurePosixPath | None) -> bool:
        if location is None or self.root is None:
            return False
        try:
            relative = location.relative_to(self.root).as_posix()
        except ValueError:
            relative = location.as_posix()
        return any(_reach(codes, code) and pattern.match(relative) for pattern, codes in self.per_file)


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a path pattern as configuration files use it.

    ``*`` and ``?`` stay within one path component, ``**`` crosses them. A pattern without a slash matches a component
    at any depth, one with a slash starts at the configuration's folder; either covers everything below what it
    matches. Raises ValueError for a character range that runs backwards.
    """
    body = pattern.removeprefix("./").rstrip("/")
    anywhere = "/" not in body
    parts: list[str] = []
    for piece in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]/]+\])", body.lstrip("/")):
        if piece == "**/":
            parts.append("(?:[^/]+/)*")
        elif piece == "**":
            parts.append(".*")
        elif piece == "*":
            parts.append("[^/]*")
        elif piece == "?":
            parts.append("[^/]")
        elif piece.startswith("["):
            parts.append("[^" + piece[2:] if piece.startswith("[!") else piece)
        else:
            parts.append(re.escape(piece))
    start = "(?:.*/)?" if anywhere else ""
    try:
        return re.compile(f"{start}{''.join(parts)}(?:/.*)?$", re.DOTALL)
    except re.error as error:
        raise ValueError(f"not a path pattern: {pattern!r} ({error})") from None


def level_of(finding: Finding, heat: Heat, confidence: Confidence) -> Level | None:
    """The level of a finding, or None when it is not reported at all.

    Everything at `heat` or hotter is a warning; what is cooler, down to once per epoch, is a note; findings less sure
    than `confidence` are left out.
    """
    return level_at(finding.heat, finding.confidence, heat, confidence)


def level_at(found: Heat, sure: Confidence, heat: Heat, confidence: Confidence) -> Level | None:
    """The level of the findings of a heat and a confidence."""
    if sure.rank > confidence.rank:
        return None
    if found.rank <= heat.rank:
        return Level.WARNING
    return Level.NOTE if found.rank <= Heat.EPOCH.rank else None


@dataclass(frozen=True, slots=True)
class Reported:
    """A finding with the level that the user's thresholds give it."""

    finding: Finding
    level: Level
    baselined: bool = False
    """Whether the baseline accepts it. One that a comment allows is not looked up."""

    @property
    def accepted(self) -> str | None:
        """Why it does not count, for a person: a comment or the baseline accepts it. None when it is live."""
        if self.finding.suppressed is not None:
            return f"allowed: {self.finding.suppressed}"
        return "in the baseline" if self.baselined else None


def report(findings: Sequence[Finding], heat: Heat, confidence: Confidence) -> tuple[Reported, ...]:
    """The findings that are reported, in path and line order."""
    ordered = sorted(findings, key=lambda one: (one.path, one.span, one.code))
    leveled = ((one, level_of(one, heat, confidence)) for one in ordered)
    return tuple(Reported(one, level) for one, level in leveled if level is not None)
