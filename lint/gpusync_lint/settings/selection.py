"""Which findings are reported and at which level: codes by prefix or name, levels by heat and confidence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from gpusync_lint.messages import nearest
from gpusync_lint.model.findings import Finding, UserError
from gpusync_lint.model.levels import Confidence, Heat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import PurePosixPath


class Level(str, Enum):
    """The level at which a finding is reported."""

    WARNING = "warning"
    """It fails the run."""
    NOTE = "note"
    """It never fails the run. Outputs for programs contain it; the text output counts it."""


class UnknownCodeError(UserError):
    """No rule has a code, prefix or name. The message suggests the nearest one."""


def resolve(word: str, names: Mapping[str, str]) -> str:
    """The code prefix for a code (``GS201``), a prefix (``GS2``) or a rule name (``item``).

    Args:
        word: what the user wrote.
        names: the rule name of every code.

    Raises:
        UnknownCodeError: no rule has it.
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
    """`resolve` for each of several comma-separated lists, in order and without repeats."""
    parts = (part.strip() for word in words for part in word.split(","))
    return tuple(dict.fromkeys(resolve(part, names) for part in parts if part))


@dataclass(frozen=True, slots=True)
class Layer:
    """A source of code selection: the configuration, or the command line, which overrides it."""

    select: tuple[str, ...] | None = None
    """Code prefixes; None for those of the layer below."""
    ignore: tuple[str, ...] = ()
    extend: tuple[str, ...] = ()
    """Code prefixes that are added to what this layer, or the layers below it, select."""


def _reach(prefixes: Iterable[str], code: str) -> int:
    """The length of the longest of the prefixes that match the code; 0 for none."""
    return max((len(prefix) for prefix in prefixes if code.startswith(prefix)), default=0)


@dataclass(frozen=True, slots=True)
class Selection:
    """Decides which codes are enabled in which files."""

    layers: tuple[Layer, ...] = ()
    """Lowest priority first. A `select` replaces the layers below it; `ignore` and `extend` change them."""
    per_file: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = ()
    """Path patterns, and the code prefixes that are ignored in matching files."""
    root: PurePosixPath | None = None
    """The absolute folder that these patterns are relative to."""

    def enabled(self, code: str, location: PurePosixPath | None = None) -> bool:
        """Whether a code is enabled in the file at an absolute path.

        Within a layer the longest prefix wins: ``select = ["GS201"]`` with ``ignore = ["GS2"]`` enables GS201.
        """
        on = True
        for layer in self.layers:
            chosen, dropped = _reach((*(layer.select or ()), *layer.extend), code), _reach(layer.ignore, code)
            if layer.select is not None or chosen or dropped:
                on = chosen > dropped
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
    """Compile a path pattern of the configuration.

    ``*`` and ``?`` match within a path component, ``**`` matches across components. A pattern without a slash matches a
    component at any depth; a pattern with a slash is relative to the folder of the configuration. Either matches
    everything below a folder that it matches.

    Raises:
        ValueError: a character range runs backwards.
    """
    body = pattern.removeprefix("./").rstrip("/")
    text = _Glob()
    if "/" not in body:
        text.begin(r"(?:[^/]*/)*?")
    for piece in re.split(r"((?:(?<=/)|(?<![\s\S]))\*\*/|\*\*|\*|\?|\[[^\]/]+\])", body.lstrip("/")):
        if piece == "**/":
            text.begin(r"(?:[^/]+/)*?")
        elif piece == "**":
            text.begin(r".*?")
        elif piece == "*":
            text.star()
        elif piece == "?":
            text.fixed += "[^/]"
        elif piece.startswith("["):
            text.fixed += "[^" + piece[2:] if piece.startswith("[!") else piece
        else:
            text.fixed += re.escape(piece)
    try:
        return re.compile(text.end(), re.DOTALL)
    except re.error as error:
        raise ValueError(f"not a path pattern: {pattern!r} ({error})") from None


class _Glob:
    """The regular expression of a path pattern, whose time is polynomial whatever the pattern.

    If a gap of any length is followed by a fixed part and another gap of the same kind, the first place where the fixed
    part matches is as good as any other. So both are an atomic group, which is never tried again; without that,
    `*a*a*a*b` would take exponential time. An atomic group is a lookahead with a reference, as before Python 3.11.
    """

    def __init__(self) -> None:
        self.fixed = ""
        """A part of fixed length, after the last gap."""
        self._done = ""
        self._across = ""
        """The last gap that extends across path components."""
        self._inside: list[str] = []
        """The fixed parts since then, with a gap within a path component before each but the first."""
        self._groups = 0

    def star(self) -> None:
        """Add a gap within a path component."""
        self._inside.append(self.fixed)
        self.fixed = ""

    def begin(self, gap: str) -> None:
        """Add a gap across path components."""
        self._close("")
        self._across = gap

    def end(self) -> str:
        """The complete expression. It matches whole path components."""
        self._close(r"(?=/|\Z)")
        return self._done

    def _close(self, anchor: str) -> None:
        first, *rest = [*self._inside, self.fixed]
        if rest:
            rest[-1] += anchor
        else:
            first += anchor
        inside = first + "".join(self._atomic(f"[^/]*?{part}") for part in rest)
        self._done += self._atomic(self._across + inside) if self._across else inside
        self._across, self._inside, self.fixed = "", [], ""

    def _atomic(self, expression: str) -> str:
        self._groups += 1
        return f"(?=(?P<g{self._groups}>{expression}))(?P=g{self._groups})"


def level_of(finding: Finding, heat: Heat, confidence: Confidence) -> Level | None:
    """The level of a finding; None if it is not reported.

    A finding at `heat` or hotter is a warning, a cooler one down to once per epoch is a note. A finding of less than
    `confidence` is not reported.
    """
    return level_at(finding.heat, finding.confidence, heat, confidence)


def level_at(found: Heat, certainty: Confidence, heat: Heat, confidence: Confidence) -> Level | None:
    """`level_of` a finding with the heat `found` and the confidence `certainty`."""
    if certainty.rank > confidence.rank:
        return None
    if found.rank <= heat.rank:
        return Level.WARNING
    return Level.NOTE if found.rank <= Heat.EPOCH.rank else None


@dataclass(frozen=True, slots=True)
class Reported:
    """A finding and the level at which it is reported."""

    finding: Finding
    level: Level
    baselined: bool = False
    """Whether it is in the baseline. False for a finding that a comment allows."""

    @property
    def accepted(self) -> str | None:
        """Why it does not fail the run, for display: a comment or the baseline accepts it; else None."""
        if self.finding.suppressed is not None:
            return f"allowed: {self.finding.suppressed}"
        return "in the baseline" if self.baselined else None


def report(findings: Sequence[Finding], heat: Heat, confidence: Confidence) -> tuple[Reported, ...]:
    """The findings that are reported, by path and line."""
    ordered = sorted(findings, key=lambda one: (one.path, one.span, one.code))
    leveled = ((one, level_of(one, heat, confidence)) for one in ordered)
    return tuple(Reported(one, level) for one, level in leveled if level is not None)
