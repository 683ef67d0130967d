"""The catalogue: every barrier of a framework, as data, with its remedy and with examples that are tests."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from gpusync_lint.catalogue.schema import Barrier, Catalogue, Example, Maker, RuleDoc, Sort

_FOLDER = Path(__file__).parent / "frameworks"


@cache
def catalogue(framework: str = "torch") -> Catalogue:
    """Read the catalogue of a framework. Raises ValueError for a framework that has none, naming those that have."""
    path = _FOLDER / f"{framework}.toml"
    if framework not in frameworks():
        raise ValueError(f"no catalogue for {framework!r}; there is one for: {', '.join(frameworks())}")
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    rules = {entry["code"]: RuleDoc(framework=framework, **entry) for entry in data.get("rule", ())}
    barriers = {barrier.id: barrier for barrier in (_barrier(entry, framework) for entry in data["barrier"])}
    by_function = {name: barrier for barrier in barriers.values() for name in barrier.functions}
    by_method = {name: barrier for barrier in barriers.values() for name in barrier.methods}
    return Catalogue(
        framework,
        data["prelude"],
        rules,
        barriers,
        by_function,
        by_method,
        tuple(data.get("modules", ())),
        tuple(_sort(entry, framework) for entry in data.get("sort", ())),
        {label: f"{framework}.{wrap['gives']}" for wrap in data.get("wrapper", ()) for label in wrap["names"]},
        tuple(data.get("traced_bases", ())),
        tuple(data.get("modules_from", ())),
        data.get("step", ""),
        data.get("on", ""),
        tuple(data.get("tensors", ())),
        tuple(
            Maker(entry["name"], tuple(entry["gives"]), entry.get("module", False)) for entry in data.get("maker", ())
        ),
        data.get("bounding", False),
        data.get("runs", True),
    )


@cache
def frameworks() -> tuple[str, ...]:
    """The frameworks that have a catalogue."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def rule_doc(code: str) -> RuleDoc | None:
    """The documentation of a code in whichever catalogue has it."""
    for framework in frameworks():
        doc = catalogue(framework).rule_doc(code)
        if doc is not None:
            return doc
    return None


@cache
def all_barriers() -> dict[str, Barrier]:
    """The barriers of every framework by id."""
    return {key: barrier for framework in frameworks() for key, barrier in catalogue(framework).barriers.items()}


def _sort(entry: dict[str, Any], framework: str) -> Sort:
    given = dict(entry)
    for key in ("attribute", "item", "call", "result"):
        if given.get(key):
            given[key] = f"{framework}.{given[key]}"
    for key in ("made_by", "not_by", "types"):
        given[key] = tuple(given.get(key, ()))
    for key in ("host_attributes", "host_methods", "elementwise"):
        given[key] = frozenset(given.get(key, ()))
    given["methods"] = {label: f"{framework}.{gives}" for label, gives in given.get("methods", {}).items()}
    given["name"] = f"{framework}.{given['name']}"
    return Sort(**given)


def _barrier(entry: dict[str, Any], framework: str) -> Barrier:
    until = entry.get("until_torch")
    of = entry.get("of", "")
    return Barrier(
        id=entry["id"] if framework == "torch" else f"{framework}.{entry['id']}",
        code=entry["code"],
        message=entry["message"],
        remedy=entry["remedy"],
        functions=tuple(entry.get("functions", ())),
        methods=tuple(entry.get("methods", ())),
        operators=tuple(entry.get("operators", ())),
        unless_keywords=tuple(entry.get("unless_keywords", ())),
        until_torch=(until[0], until[1]) if until else None,
        of=f"{framework}.{of}" if of else "",
        builtins=tuple(entry.get("builtins", ())),
        conditions=entry.get("conditions", False),
        masks=entry.get("masks", False),
        not_functions=tuple(entry.get("not_functions", ())),
        shaped=entry.get("shaped", False),
        calls=tuple(entry.get("calls", ())),
        takes=entry.get("takes", ""),
        given=tuple(entry.get("given", {}).items()),
        unless_given=tuple(entry.get("unless_given", {}).items()),
        unless_made=tuple(entry.get("unless_made", {}).items()),
        within=tuple(entry.get("within", ())),
        among_processes=entry.get("among_processes", False),
        at_most=entry.get("at_most"),
        framework=framework,
        waits=tuple(_example(item) for item in entry["waits"]),
        silent=tuple(_example(item) for item in entry["silent"]),
    )


def _example(item: str | dict[str, Any]) -> Example:
    return Example(item) if isinstance(item, str) else Example(**item)
