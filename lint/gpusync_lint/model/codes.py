"""All codes and rule names, found without parsing the catalogues, which takes ten times as long."""

from __future__ import annotations

import re
from pathlib import Path

from gpusync_lint._address import DOCUMENTATION

OWN = {
    "GS901": "allow-without-reason",
    "GS902": "expired-allow",
    "GS903": "unused-allow",
    "GS904": "malformed-allow",
    "GS905": "stale-baseline-entry",
}
"""The codes about allow comments and baselines, which are in no catalogue."""
_RULE = re.compile(r'^\[\[rule\]\]\ncode = "([^"]*)"\nname = "([^"]*)"$', re.MULTILINE)


def names() -> dict[str, str]:
    """The rule name of every code, sorted by code."""
    found = dict(OWN)
    for catalogue in (Path(__file__).parents[1] / "catalogue" / "frameworks").glob("*.toml"):
        found.update(_RULE.findall(catalogue.read_text(encoding="utf-8")))
    return dict(sorted(found.items()))


def page_of(code: str) -> str:
    """The address of the page of a rule on the documentation site."""
    return f"{DOCUMENTATION}rules/{code}/"
