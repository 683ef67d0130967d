"""What a test's report carries to the session: what was measured, as JSON text, and a broken budget as its sentence.

Text arrives from workers of a distributed run, whatever serializer they use.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpusync.model.budgets import BudgetExceeded, NotMeasured
from pytest_gpusync.plugin.messages import escaped
from pytest_gpusync.plugin.stash_keys import BASELINE_RESULT, LINE_COVERAGE, MEASURED_TEST
from pytest_gpusync.reporting.failure import BudgetFailure, Place
from pytest_gpusync.reporting.junit import PREFIX, properties

if TYPE_CHECKING:
    import pytest

    from pytest_gpusync.model.document import Document
    from pytest_gpusync.plugin.measured_test import MeasuredTest

_PACKAGE_FOLDER = Path(__file__).parents[1]


def attach(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, run: MeasuredTest) -> None:
    """Attach to `report` what was measured of a test in this phase of it."""
    if call.excinfo is not None and isinstance(call.excinfo.value, (BudgetExceeded, NotMeasured)):
        failure = _failure(item, call.excinfo)
        report.longrepr = failure  # type: ignore[assignment]
        report.gpusync_failure = failure.to_text()  # type: ignore[attr-defined]
    elif call.when == "call" and report.failed:
        report.sections += [("gpusync", text) for text in run.failed_verdicts()]
    if call.when == "call" or (call.when == "setup" and report.failed):
        baseline = item.stash.get(BASELINE_RESULT, None)
        document = _with_shared(item, run.document())
        if baseline is not None:
            document = document or {"environment": None, "regions": []}
            baseline.annotate(document["regions"])
        _note_properties(item, document)
        lines = item.config.stash.get(LINE_COVERAGE, None)
        if lines is not None:
            document = document or {"environment": None, "regions": []}
        if document is not None:
            document["ratchet"] = baseline.document() if baseline is not None else None
            document["lines"] = lines.take() if lines is not None else None
        report.gpusync = json.dumps(document) if document is not None else None  # type: ignore[attr-defined]
    elif call.when == "teardown":
        tear_down = run.tear_down_document()
        report.gpusync_tear_down = json.dumps(tear_down) if tear_down is not None else None  # type: ignore[attr-defined]


def _with_shared(item: pytest.Item, document: Document | None) -> Document | None:
    """Add the regions of the test's module that were not sent yet: the first test that is reported sends them."""
    for node in item.listchain()[:-1]:
        shared = node.stash.get(MEASURED_TEST, None)
        found = shared.document() if shared is not None else None
        if shared is None or found is None:
            continue
        shared.records.clear()
        document = document or {"environment": None, "regions": []}
        document["environment"] = document["environment"] or found["environment"]
        document["regions"] += found["regions"]
    return document


def _note_properties(item: pytest.Item, document: Document | None) -> None:
    """Add a test's measurements to its properties, which are sent from workers and written to JUnit files."""
    # A test that is run again keeps the properties of its last run.
    item.user_properties = [(name, value) for name, value in item.user_properties if not name.startswith(PREFIX)]
    if document is not None:
        item.user_properties += properties(document["environment"], document["regions"])


def _failure(item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException]) -> BudgetFailure:
    text = "\n".join(map(escaped, str(excinfo.value).split("\n")))
    place = _place_in_test(item, excinfo)
    path, line = place if place is not None else (item.location[0], (item.location[1] or 0) + 1)
    path = escaped(path)
    asserted_at = None if place is None else f"{path}:{line}: {excinfo.typename}"
    return BudgetFailure(text, Place(path, line, text.partition("\n")[0]), asserted_at)


def _place_in_test(item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException]) -> tuple[str, int] | None:
    """Return the innermost line of user code that led to the failure; None for a budget on the test as a whole."""
    for entry in reversed(excinfo.traceback):
        path = Path(entry.path)
        inside = path == item.path or item.config.rootpath in path.parents
        if inside and _PACKAGE_FOLDER not in path.parents and "site-packages" not in path.parts:
            return os.path.relpath(path, item.config.invocation_params.dir), entry.lineno + 1
    return None
