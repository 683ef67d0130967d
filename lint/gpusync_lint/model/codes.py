"""Every code and the name of its rule, without the rest of the catalogues, which takes ten times as long to read."""

from __future__ import annotations

import re
from pathlib import Path

OWN = {
    "GS901": "allow-without-reason",
    "GS902": "expired-allow",
    "GS903": "unused-allow",
    "GS904": "malformed-allow",
    "GS905": "stale-baseline-entry",
}
"""The rules about allow comments and baselines."""
_RULE = re.compile(r'^\[\[rule\]\]\ncode = "([^"]*)"\nname = "([^"]*)"$', re.MULTILINE)


def names() -> dict[str, str]:
    """Every code and its rule name, in the order of the codes."""
    found = dict(OWN)
    for catalogue in (Path(__file__).parents[1] / "catalogue" / "frameworks").glob("*.toml"):
        found.update(_RULE.findall(catalogue.read_text(encoding="utf-8")))
    return dict(sorted(found.items()))
