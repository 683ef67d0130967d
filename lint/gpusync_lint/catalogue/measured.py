"""How often findings of each sort were right, from `measured.json`."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources


@cache
def counts() -> dict[str, tuple[int, int]]:
    """By sort, how many findings lay on statements that ran, and on how many of these the host waited."""
    written = resources.files("gpusync_lint.catalogue").joinpath("measured.json").read_text("utf-8")
    return {sort: (ran, waited) for sort, (ran, waited) in json.loads(written)["sorts"].items()}
