"""The outputs of several runs of the linter as one: of a project that was linted in shards.

A finding that two shards report, because both were given its file, is reported once, at the hotter of its two heats:
what a shard does not see cannot make a line cooler. The result does not depend on the order of the shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpusync_lint.model.levels import Heat
from gpusync_lint.output.sarif import FINGERPRINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Document = dict[str, Any]

_EVIDENCE: Final = ("waited", None, "not_recorded", "not_run", "did_not_wait")
"""In the order in which findings beside a run are shown."""


class MergeError(ValueError):
    """Documents that cannot be merged, in one line."""


def merge_findings(documents: Sequence[tuple[str, Document]]) -> Document:
    """Return documents of ``--output-format json`` as one.

    `files` is the sum of what the shards read. What only some of them hold (``observed``, ``statistics``, ``fixed``) is
    left out.

    Raises:
        MergeError: a document does not obey its schema; the message names its file.
    """
    found: list[Document] = []
    errors: list[Document] = []
    for name, document in documents:
        try:
            found += [_checked(finding) for finding in document["findings"]]
            errors += [_checked_error(error) for error in document["errors"]]
            int(document["files"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise MergeError(
                f"{name}: not findings as {document['schema']} describes them; write the file anew"
            ) from None
    shards = [document for _, document in documents]
    merged: Document = {
        "schema": shards[0]["schema"],
        "findings": _once(found, key=lambda finding: finding["key"], heat=lambda finding: finding["heat"]),
        "errors": sorted(_distinct(errors), key=lambda error: (error["path"], error["line"] or 0, error["message"])),
        "files": sum(shard["files"] for shard in shards),
    }
    merged["findings"].sort(key=_place)
    observed = _shared("observed", shards)
    if observed is not None:
        merged["findings"].sort(key=_observed_rank)
        merged["observed"] = {
            "runs": sorted({run for one in observed for run in one["runs"]}),
            "gaps": sorted(_distinct(gap for one in observed for gap in one["gaps"]), key=_gap_rank),
        }
    statistics = _shared("statistics", shards)
    if statistics is not None:
        # Counted anew: a finding of two shards is one.
        codes = [finding["code"] for finding in merged["findings"] if _is_warning(finding)]
        merged["statistics"] = {code: codes.count(code) for code in sorted(set(codes))}
    fixed = _shared("fixed", shards)
    if fixed is not None:
        merged["fixed"] = sum(fixed)
    return merged


def merge_sarif(documents: Sequence[tuple[str, Document]]) -> Document:
    """Return documents of ``--output-format sarif`` as one with a single run.

    Raises:
        MergeError: a document is not one of this linter's, or two versions of it wrote them.
    """
    runs = [_sarif_run(name, document) for name, document in documents]
    drivers = [run["tool"]["driver"] for run in runs]
    for (name, _), driver in zip(documents, drivers, strict=True):
        if driver["version"] != drivers[0]["version"]:
            raise MergeError(
                f"{documents[0][0]} was written by gpusync {drivers[0]['version']} and {name} by {driver['version']}; "
                "lint every shard with the same version"
            )
    results = [result for run in runs for result in run["results"]]
    results = _once(
        results, key=lambda result: result["partialFingerprints"][FINGERPRINT], heat=lambda r: r["properties"]["heat"]
    )
    invocations = [invocation for run in runs for invocation in run["invocations"]]
    notes = _distinct(note for one in invocations for note in one["toolExecutionNotifications"])
    properties = [run.get("properties", {}) for run in runs]
    merged = {
        **runs[0],
        "invocations": [
            {
                "executionSuccessful": all(one["executionSuccessful"] for one in invocations),
                "toolExecutionNotifications": sorted(notes, key=repr),
            }
        ],
        "results": sorted(results, key=_sarif_place),
        "properties": {"files": sum(one["files"] for one in properties)},
    }
    return {**documents[0][1], "runs": [merged]}


def _checked(finding: Document) -> Document:
    for key in ("code", "path", "line", "column", "level", "key"):
        finding[key]
    Heat(finding["heat"])
    return finding


def _checked_error(error: Document) -> Document:
    if not isinstance(error["path"], str) or not isinstance(error["message"], str):
        raise TypeError
    return {"path": error["path"], "cell": error["cell"], "line": error["line"], "message": error["message"]}


def _sarif_run(name: str, document: Document) -> Document:
    try:
        (run,) = document["runs"]
        driver = run["tool"]["driver"]
        if driver["name"] != "gpusync":
            raise MergeError(f"{name}: written by {driver['name']}, not by gpusync lint")
        str(driver["version"])
        int(run["properties"]["files"])
        for result in run["results"]:
            result["partialFingerprints"][FINGERPRINT]
            Heat(result["properties"]["heat"])
            _sarif_place(result)
        for invocation in run["invocations"]:
            invocation["executionSuccessful"], invocation["toolExecutionNotifications"]
    except MergeError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise MergeError(f"{name}: not SARIF as gpusync lint writes it; write the file anew") from None
    checked: Document = run
    return checked


def _once(
    found: Iterable[Document], *, key: Callable[[Document], str], heat: Callable[[Document], str]
) -> list[Document]:
    """Return each finding once, the hottest where shards differ; of equally hot ones always the same."""
    kept: dict[str, Document] = {}
    for finding in sorted(found, key=lambda one: (Heat(heat(one)).rank, repr(one))):
        kept.setdefault(key(finding), finding)
    return list(kept.values())


def _distinct(documents: Iterable[Document]) -> list[Document]:
    kept: list[Document] = []
    for document in documents:
        if document not in kept:
            kept.append(document)
    return kept


def _shared(key: str, shards: Sequence[Document]) -> list[Any] | None:
    """Return the values of a key that every shard has; None where one has not."""
    values = [shard.get(key) for shard in shards]
    return None if any(value is None for value in values) else values


def _is_warning(finding: Document) -> bool:
    return finding["level"] == "warning" and finding["suppressed"] is None and not finding["baselined"]


def _place(finding: Document) -> tuple[Any, ...]:
    return finding["path"], finding.get("cell") or 0, finding["line"], finding["column"], finding["code"]


def _observed_rank(finding: Document) -> tuple[int, float, int]:
    seen = finding["observed"] or {"evidence": None, "blocked_ms": None, "syncs": None}
    return _EVIDENCE.index(seen["evidence"]), -(seen["blocked_ms"] or 0.0), -(seen["syncs"] or 0)


def _gap_rank(gap: Document) -> tuple[Any, ...]:
    return -(gap["blocked_ms"] or 0.0), -gap["syncs"], gap["path"], gap["line"]


def _sarif_place(result: Document) -> tuple[Any, ...]:
    place = result["locations"][0]["physicalLocation"]
    region = place["region"]
    return place["artifactLocation"]["uri"], region["startLine"], region["startColumn"], result["ruleId"]
