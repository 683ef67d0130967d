"""Broken budgets as annotations of a GitHub job, each at the line with most syncs, where a pull request shows it.

https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpusync_lint.escaping import escaped

from pytest_gpusync.reporting.rule_names import rules_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pytest_gpusync.model.document import Document

MAX_LINES_NAMED: Final = 5
"""Most lines named in a message; the log of the job has all of them."""


class FailedTest(NamedTuple):
    """A test that failed, and where it is defined."""

    nodeid: str
    path: str
    """Relative to where pytest was started."""
    line: int


class _Place(NamedTuple):
    path: str
    line: int


def runs_in_github(environ: Mapping[str, str]) -> bool:
    """Return whether the output is the log of a GitHub job."""
    return environ.get("GITHUB_ACTIONS") == "true"


def commands(
    failed: Iterable[FailedTest], tests: Mapping[str, list[Document]], *, base: Path, workspace: Path | None
) -> list[str]:
    """Return a workflow command for each budget that a failed test broke, without duplicates.

    Args:
        failed: the failed tests, without those that were expected to fail.
        tests: the region objects of each test, by node id.
        base: the folder that paths are relative to.
        workspace: the checkout, which GitHub's paths are relative to; None for `base`.
    """
    found: dict[str, None] = {}
    for test in failed:
        for region in tests.get(test.nodeid, ()):
            for verdict in region["verdicts"]:
                if verdict["outcome"] in ("failed", "not_measured"):
                    found[_annotation(test, region, verdict, base, workspace or base)] = None
    return list(found)


def _annotation(test: FailedTest, region: Document, verdict: Document, base: Path, workspace: Path) -> str:
    places = _places(region, verdict)
    place = next(
        (place for place in places if _relative_to_workspace(place.path, base, workspace)), _Place(test.path, test.line)
    )
    rules = rules_for(place.path, place.line) if places and verdict["quantity"] != "races" else ()
    message = [verdict["sentence"]]
    message += [f"{rules[0].code}: {rules[0].remedy}"] if rules else []
    others = [f"{other.path}:{other.line}" for other in places if other != place]
    if others:
        more = f" and {len(others) - MAX_LINES_NAMED} more" if len(others) > MAX_LINES_NAMED else ""
        message.append(f"also {', '.join(others[:MAX_LINES_NAMED])}{more}")
    properties = {
        "file": _relative_to_workspace(place.path, base, workspace) or place.path,
        "line": str(place.line),
        "title": test.nodeid,
    }
    listed = ",".join(f"{name}={_escaped(value, in_property=True)}" for name, value in properties.items())
    return f"::error {listed}::{_escaped(chr(10).join(message))}"


def _places(region: Document, verdict: Document) -> list[_Place]:
    """Return the lines that a verdict is about, the one with most syncs first; none if it is not about lines."""
    if verdict["outcome"] != "failed":
        return []
    sites: list[dict[str, Any]] = []
    if verdict["quantity"] == "races":
        sites = [place for race in region.get("races") or () for place in (race, race["other"])]
    if verdict["quantity"] == "syncs":
        sites = [s for s in region["sites"] if s["allowed"] is None and not s["background"] and s["per_step_max"]]
    elif verdict["quantity"] == "baseline":
        sites = verdict["lines"]
    return list(dict.fromkeys(_Place(site["path"], site["line"]) for site in sites))


def _relative_to_workspace(path: str, base: Path, workspace: Path) -> str | None:
    """Return a path relative to the workspace; None for a file outside it."""
    absolute = (base / path).resolve()
    folder = workspace.resolve()
    return absolute.relative_to(folder).as_posix() if absolute.is_relative_to(folder) else None


def _escaped(text: str, *, in_property: bool = False) -> str:
    lines = (escaped(line) for line in text.replace("\r\n", "\n").split("\n"))
    text = "\n".join(lines).replace("%", "%25").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text
