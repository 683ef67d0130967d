"""The measurements of a test as properties of its test case in a JUnit file (``pytest --junitxml``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpusync_lint.escaping import escaped

from pytest_gpusync.reporting.page_model import failed_sentences, format_number, limit, severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.model.document import Document

PREFIX: Final = "gpusync."


def properties(environment: Document | None, regions: Sequence[Document]) -> list[tuple[str, str]]:
    """Return the properties of a test: those of its worst region, as in the summary.

    What was not measured has no property. Every broken budget and every race is a property of its own, of all regions.
    """
    if not regions:
        return []
    worst = min(regions, key=severity)
    found: dict[str, object] = {"outcome": worst["outcome"], "steps": worst["steps"]}
    if worst["syncs_per_step"] is not None:
        found["syncs_per_step.max"] = worst["syncs_per_step"]["max"]
        found["syncs_per_step.median"] = format_number(worst["syncs_per_step"]["median"])
    found["budget"] = limit(worst)
    found["problem"] = worst["problem"]
    for key in ("device", "gpu", "recorder", "coverage"):
        found[key] = environment[key] if environment is not None else None
    races = [race["message"] for region in regions for race in region.get("races") or ()]
    named = [(key, str(value)) for key, value in found.items() if value is not None]
    named += [("race", message) for message in dict.fromkeys(races)]
    named += [("broken", sentence) for region in regions for sentence in failed_sentences(region)]
    return [(PREFIX + key, escaped(value)) for key, value in named]
