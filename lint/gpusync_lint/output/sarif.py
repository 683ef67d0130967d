"""SARIF 2.1.0 (OASIS), for code scanning services and editors.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gpusync_lint import rule_pages
from gpusync_lint._address import SOURCE
from gpusync_lint._version import __version__
from gpusync_lint.escaping import escaped_json
from gpusync_lint.model.codes import page_of
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.unit_messages import unit_name
from gpusync_lint.output.base.format import MergeableFormat, Shows
from gpusync_lint.output.base.merging import MergeError, distinct, once
from gpusync_lint.output.json_ import compiler, observation
from gpusync_lint.settings.selection import Level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusync_lint.catalogue.schema import RuleDoc
    from gpusync_lint.model.findings import FileError, Finding, Fix
    from gpusync_lint.model.spans import Edit, Span
    from gpusync_lint.output.base.format import Document, Options
    from gpusync_lint.run.outcome import Outcome
    from gpusync_lint.settings.selection import Reported

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

ROOT = "%SRCROOT%"
"""The base of relative paths. The document does not give its location, so that it is the same on every machine."""

FINGERPRINT = "gpusyncKey/v1"


class Sarif(MergeableFormat):
    """A log with one run.

    Columns count UTF-16 code units from 1, as ``columnKind`` says; ends are exclusive.
    """

    audience = "code scanning services and editors: SARIF 2.1.0"
    shows = Shows(
        "results",
        notes="results of level note",
        suppressed="results with `suppressions`",
        errors="notifications of the invocation",
        statistics="properties of the run",
        observed="properties of results",
    )
    shows_edits = True
    kind = "findings as SARIF"

    def render(self, outcome: Outcome, options: Options) -> str:
        """The log. Statistics and the number of fixes are properties of the run."""
        return escaped_json(json.dumps(_Log(outcome).document(options), indent=2)) + "\n"

    def recognizes(self, document: Document) -> bool:
        """Whether this is a log of the version."""
        return isinstance(document, dict) and "runs" in document and document.get("version") == "2.1.0"

    def merge(self, documents: Sequence[tuple[str, Document]]) -> Document:
        """One log with a single run; its shards must have been linted by one version."""
        runs = [_run(name, document) for name, document in documents]
        drivers = [run["tool"]["driver"] for run in runs]
        for (name, _), driver in zip(documents, drivers, strict=True):
            if driver["version"] != drivers[0]["version"]:
                first, version = documents[0][0], drivers[0]["version"]
                raise MergeError(
                    f"{first} was written by gpusync {version} and {name} by {driver['version']}; "
                    "lint every shard with the same version"
                )
        results = [result for run in runs for result in run["results"]]
        results = once(
            results,
            key=lambda result: result["partialFingerprints"][FINGERPRINT],
            heat=lambda r: r["properties"]["heat"],
        )
        invocations = [invocation for run in runs for invocation in run["invocations"]]
        notes = distinct(note for one in invocations for note in one["toolExecutionNotifications"])
        properties = [run.get("properties", {}) for run in runs]
        merged = {
            **runs[0],
            "invocations": [
                {
                    "executionSuccessful": all(one["executionSuccessful"] for one in invocations),
                    "toolExecutionNotifications": sorted(notes, key=repr),
                }
            ],
            "results": sorted(results, key=_order),
            "properties": {"files": sum(one["files"] for one in properties)},
        }
        return {**documents[0][1], "runs": [merged]}


class _Log:
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.docs = rule_pages.docs()
        self.index = {code: number for number, code in enumerate(self.docs)}
        self.lines: dict[str, list[str]] = {}
        """The lines of each file, to compute columns."""

    def document(self, options: Options) -> dict[str, Any]:
        outcome = self.outcome
        shown = [one for one in outcome.reported if options.show_suppressed or one.accepted is None]
        run: dict[str, Any] = {
            "tool": {
                "driver": {
                    "name": "gpusync",
                    "version": __version__,
                    "informationUri": SOURCE,
                    "rules": [_rule(doc) for doc in self.docs.values()],
                }
            },
            "columnKind": "utf16CodeUnits",
            "originalUriBaseIds": {ROOT: {"description": {"text": "The folder that gpusync lint ran in."}}},
            "invocations": [
                {
                    "executionSuccessful": not outcome.errors,
                    "toolExecutionNotifications": [self._notification(error) for error in outcome.errors],
                }
            ],
            "results": [self._result(one) for one in shown],
        }
        properties: dict[str, Any] = {"files": outcome.files}
        if options.statistics:
            properties["statistics"] = {one.code: one.count for one in outcome.statistics}
        if options.fixed:
            properties["fixed"] = outcome.fixed
        return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{**run, "properties": properties}]}

    def _result(self, reported: Reported) -> dict[str, Any]:
        finding = reported.finding
        cell, span = self.outcome.in_cell(finding.path, finding.span)
        where = "" if cell is None else f" (cell {cell}, line {span.line})"
        result: dict[str, Any] = {
            "ruleId": finding.code,
            "ruleIndex": self.index[finding.code],
            "level": "warning" if reported.level is Level.WARNING else "note",
            "message": {"text": f"{finding.message}{where}; remedy: {finding.advice}"},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": _artifact(finding.path),
                        "region": self._region(finding.path, finding.span),
                    }
                }
            ],
            "partialFingerprints": {FINGERPRINT: finding.key},
            # The list is always present, because without it a result counts as neither suppressed nor unsuppressed.
            "suppressions": [],
            "properties": {
                "heat": finding.heat.value,
                "unit": unit_name(finding),
                "confidence": finding.confidence.value,
                "framework": finding.framework,
                **compiler(finding),
            },
        }
        seen = None if self.outcome.observed is None else self.outcome.observed.observations.get(finding.key)
        if seen is not None:
            result["properties"]["observed"] = observation(seen)
        if finding.suppressed is not None:
            result["suppressions"] = [
                {"kind": "inSource", "status": "accepted", "justification": finding.suppressed},
            ]
        elif reported.baselined:
            result["suppressions"] = [
                {"kind": "external", "status": "accepted", "justification": "It is in the baseline."},
            ]
        if self.outcome.accepting is not None:
            result["baselineState"] = "unchanged" if reported.baselined else "new"
        if finding.fix is not None:
            result["fixes"] = [self._fix(finding, finding.fix)]
        return result

    def _notification(self, error: FileError) -> dict[str, Any]:
        physical: dict[str, Any] = {"artifactLocation": _artifact(error.path)}
        line = self.outcome.error_line(error)
        if line is not None:
            physical["region"] = {"startLine": line}
        return {
            "level": "error",
            "message": {"text": error.message_with_cell},
            "locations": [{"physicalLocation": physical}],
        }

    def _fix(self, finding: Finding, fix: Fix) -> dict[str, Any]:
        hazard = "" if fix.hazard is None else f"; {fix.hazard}"
        replacements = [self._replacement(finding.path, edit) for edit in self.outcome.edits_of(finding)]
        return {
            "description": {"text": f"{fix.title}{hazard}"},
            "artifactChanges": [{"artifactLocation": _artifact(finding.path), "replacements": replacements}],
            "properties": {"safe": fix.safe},
        }

    def _replacement(self, path: str, edit: Edit) -> dict[str, Any]:
        edit = self.outcome.edit_in_file(path, edit)
        replacement: dict[str, Any] = {"deletedRegion": self._columns(path, edit.span)}
        if edit.replacement:
            replacement["insertedContent"] = {"text": edit.replacement}
        return replacement

    def _region(self, path: str, span: Span) -> dict[str, int]:
        return self._columns(path, self.outcome.in_file(path, span))

    def _columns(self, path: str, span: Span) -> dict[str, int]:
        """The region for a range of the file."""
        return {
            "startLine": span.line,
            "startColumn": self._column(path, span.line, span.column),
            "endLine": span.end_line,
            "endColumn": self._column(path, span.end_line, span.end_column),
        }

    def _column(self, path: str, line: int, column: int) -> int:
        """The column in UTF-16 code units for a column in characters."""
        lines = self.lines.get(path)
        if lines is None:
            lines = self.lines[path] = self.outcome.file_text(path).split("\n")
        before = lines[line - 1][: column - 1] if line <= len(lines) else ""
        return column + sum(char > "\uffff" for char in before)


def _rule(doc: RuleDoc) -> dict[str, Any]:
    return {
        "id": doc.code,
        "name": doc.name,
        "shortDescription": {"text": _first_sentence(doc.summary)},
        "fullDescription": {"text": " ".join(f"{doc.summary} {doc.why}".split())},
        "help": {"text": rule_pages.render(doc), "markdown": rule_pages.markdown(doc)},
        "helpUri": page_of(doc.code),
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["performance", doc.framework]},
    }


def _first_sentence(text: str) -> str:
    text = " ".join(text.split())
    sentence, stop, _ = text.partition(". ")
    return sentence + "." if stop else text


def _artifact(path: str) -> dict[str, str]:
    if os.path.isabs(path):
        return {"uri": Path(path).as_uri()}
    return {"uri": quote(os.fsencode(path)), "uriBaseId": ROOT}


def _run(name: str, document: Document) -> dict[str, Any]:
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
            _order(result)
        for invocation in run["invocations"]:
            invocation["executionSuccessful"], invocation["toolExecutionNotifications"]
    except MergeError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise MergeError(f"{name}: not SARIF as gpusync lint writes it; write the file again") from None
    checked: dict[str, Any] = run
    return checked


def _order(result: dict[str, Any]) -> tuple[Any, ...]:
    place = result["locations"][0]["physicalLocation"]
    region = place["region"]
    return place["artifactLocation"]["uri"], region["startLine"], region["startColumn"], result["ruleId"]
