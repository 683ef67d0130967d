"""The catalogue: every barrier of a framework, as data, with its remedy and with examples that are tests."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Example:
    """A statement that can be run after the catalogue's prelude and its own set-up."""

    run: str
    setup: str = ""


@dataclass(frozen=True, slots=True)
class RuleDoc:
    """What is written about one code."""

    code: str
    name: str
    """Reads well after "allow"."""
    summary: str
    why: str
    example: str
    use_instead: str
    fix_safety: str
    ignore_when: str
    framework: str


@dataclass(frozen=True, slots=True)
class Barrier:
    """One operation, or one family of operations, that makes the host wait."""

    id: str
    code: str
    message: str
    """May hold `{call}`, the name of what is called."""
    remedy: str
    functions: tuple[str, ...] = ()
    """Dotted names that match."""
    methods: tuple[str, ...] = ()
    """Names of tensor methods that match."""
    unless_keywords: tuple[str, ...] = ()
    """With all of these keywords given it does not wait."""
    until_torch: tuple[int, int] | None = None
    """The first version of torch that does not wait."""
    waits: tuple[Example, ...] = ()
    silent: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All barriers of one framework, and the documentation of their codes."""

    framework: str
    prelude: str
    rules: dict[str, RuleDoc]
    """By code, in order."""
    barriers: dict[str, Barrier]
    """By id, in order."""
    by_function: dict[str, Barrier] = field(default_factory=dict)
    by_method: dict[str, Barrier] = field(default_factory=dict)

    def rule_doc(self, code: str) -> RuleDoc | None:
        """The documentation of a code; None for a code that this framework does not have."""
        return self.rules.get(code)


@cache
def load(framework: str = "torch") -> Catalogue:
    """Read the catalogue of a framework. Raises ValueError for a framework that has none, naming those that have."""
    path = _FOLDER / f"{framework}.toml"
    if framework not in frameworks():
        raise ValueError(f"no catalogue for {framework!r}; there is one for: {', '.join(frameworks())}")
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    rules = {entry["code"]: RuleDoc(framework=data["framework"], **entry) for entry in data["rule"]}
    barriers = {entry["id"]: _barrier(entry) for entry in data["barrier"]}
    by_function = {name: barrier for barrier in barriers.values() for name in barrier.functions}
    by_method = {name: barrier for barrier in barriers.values() for name in barrier.methods}
    return Catalogue(data["framework"], data["prelude"], rules, barriers, by_function, by_method)


@cache
def frameworks() -> tuple[str, ...]:
    """The frameworks that have a catalogue."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def rule_doc(code: str) -> RuleDoc | None:
    """The documentation of a code in whichever catalogue has it."""
    for framework in frameworks():
        doc = load(framework).rule_doc(code)
        if doc is not None:
            return doc
    return None


def all_codes() -> tuple[str, ...]:
    """Every code of every catalogue, sorted."""
    return tuple(sorted({code for framework in frameworks() for code in load(framework).rules}))


def _barrier(entry: dict[str, Any]) -> Barrier:
    until = entry.get("until_torch")
    return Barrier(
        id=entry["id"],
        code=entry["code"],
        message=entry["message"],
        remedy=entry["remedy"],
        functions=tuple(entry.get("functions", ())),
        methods=tuple(entry.get("methods", ())),
        unless_keywords=tuple(entry.get("unless_keywords", ())),
        until_torch=(until[0], until[1]) if until else None,
        waits=tuple(_example(item) for item in entry["waits"]),
        silent=tuple(_example(item) for item in entry["silent"]),
    )


def _example(item: str | dict[str, str]) -> Example:
    return Example(item) if isinstance(item, str) else Example(item["run"], item.get("setup", ""))
