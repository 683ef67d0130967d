"""The catalogues: the barriers of every framework, as data, with their remedies and with examples that are tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpusync_lint.catalogue.loading import CatalogueError, load
from gpusync_lint.messages import did_you_mean

if TYPE_CHECKING:
    from gpusync_lint.catalogue.schema import Barrier, Catalogue, RuleDoc

FOLDER = Path(__file__).parent / "frameworks"
"""One file for each framework."""


@cache
def catalogue(framework: str = "torch") -> Catalogue:
    """Read the catalogue of a framework.

    Raises:
        ValueError: the framework has none; the message names those that have.
        CatalogueError: the file does not obey the schema.
    """
    if framework not in frameworks():
        raise ValueError(f"no catalogue for {framework!r}; there is one for: {', '.join(frameworks())}")
    return load(FOLDER / f"{framework}.toml")


@cache
def frameworks() -> tuple[str, ...]:
    """The frameworks that have a catalogue."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@cache
def rule_docs() -> dict[str, RuleDoc]:
    """The pages of all codes that some catalogue documents.

    Raises:
        CatalogueError: two catalogues document the same code.
    """
    found: dict[str, RuleDoc] = {}
    for framework in frameworks():
        for code, doc in catalogue(framework).rules.items():
            if code in found:
                raise CatalogueError(f"{framework}.toml: rule {code!r}: {found[code].framework}.toml documents it too")
            found[code] = doc
    return found


def rule_doc(code: str) -> RuleDoc | None:
    """The page of a code in whichever catalogue has it."""
    return rule_docs().get(code)


@cache
def all_barriers() -> dict[str, Barrier]:
    """The barriers of every framework by id.

    Raises:
        CatalogueError: the code of a barrier is documented nowhere.
    """
    found = {key: barrier for framework in frameworks() for key, barrier in catalogue(framework).barriers.items()}
    for key, barrier in found.items():
        if barrier.code not in rule_docs():
            hint = did_you_mean(barrier.code, rule_docs(), "add a [[rule]] entry for it")
            raise CatalogueError(
                f"{barrier.framework}.toml: barrier {key!r}: no rule has the code {barrier.code}; {hint}"
            )
    return found
