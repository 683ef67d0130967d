"""The ways in which an outcome is shown. Each module draws the same `Outcome` and decides nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusync_lint.run.runner import Outcome

MACHINE_FORMATS = {
    "json": "json_",
    "sarif": "sarif",
    "github": "github",
    "gitlab": "gitlab",
    "junit": "junit",
}
"""The formats that programs read, and their modules here."""

FORMATS = ("text", *MACHINE_FORMATS)

WITH_EDITS = frozenset({"json", "sarif"})
"""The formats that show the edits of fixes."""


def render(
    output_format: str,
    outcome: Outcome,
    *,
    show_suppressed: bool = False,
    statistics: bool = False,
    fixed: bool = False,
) -> str:
    """The outcome in one of `MACHINE_FORMATS`. `fixed` says that fixes were applied."""
    module = import_module(f"{__name__}.{MACHINE_FORMATS[output_format]}")
    text: str = module.render(outcome, show_suppressed=show_suppressed, statistics=statistics, fixed=fixed)
    return text
