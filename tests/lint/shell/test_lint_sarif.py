from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sarif_shape
from gpusync_lint._address import DOCUMENTATION, SOURCE
from gpusync_lint.cli import main

Project = Callable[..., Path]
Captured = pytest.CaptureFixture[str]

EVERYTHING = {
    "a.py": "item()\nitem_epoch()\ncopy_safe(); copy_unsafe()\nitem()  # gpusync: allow[GS201] why\n",
    "ü b/č.py": "'😀'; copy_safe()\n",
    "bad.py": "syntax_error()\n",
    "worse.py": b"x = '\xff'\n",
    "n.ipynb": '{"cells": [{"cell_type": "code", "source": ["%cd\\n", "copy_safe()"]}, '
    '{"cell_type": "code", "source": "f("}], "nbformat": 4}',
}
"""Every kind of thing that a document can hold."""


def _run(capsys: Captured, *arguments: str) -> dict[str, Any]:
    main([*arguments, "--output-format", "sarif"])
    document = json.loads(capsys.readouterr().out)
    sarif_shape.check(document)
    run: dict[str, Any] = document["runs"][0]
    return run


def _results(capsys: Captured, *arguments: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = _run(capsys, *arguments)["results"]
    return results


def _region(result: dict[str, Any]) -> tuple[int, int, int, int]:
    region = result["locations"][0]["physicalLocation"]["region"]
    return region["startLine"], region["startColumn"], region["endLine"], region["endColumn"]


def test_a_document_with_everything_has_the_shape_of_the_specification(project: Project, capsys: Captured) -> None:
    project(EVERYTHING)
    assert len(_results(capsys, "--show-suppressed", "--statistics")) == 7


@pytest.mark.skipif("GPUSYNC_SARIF_SCHEMA" not in os.environ, reason="GPUSYNC_SARIF_SCHEMA names no copy of the schema")
def test_a_document_with_everything_obeys_the_published_schema(project: Project, capsys: Captured) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(Path(os.environ["GPUSYNC_SARIF_SCHEMA"]).read_text(encoding="utf-8"))
    project(EVERYTHING)
    main(["--select", "GS201", "--write-baseline"])
    capsys.readouterr()
    baseline = ["--baseline", "gpusync-lint-baseline.json"]
    for arguments in ([], ["--show-suppressed", "--statistics"], baseline, [*baseline, "--show-suppressed"]):
        main([*arguments, "--output-format", "sarif"])
        jsonschema.validate(json.loads(capsys.readouterr().out), schema)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), "2.0.0"),
        (("runs", 0, "results", 0, "level"), "warn"),
        (("runs", 0, "results", 0, "ruleIndex"), 0),
        (("runs", 0, "results", 0, "ruleID"), "GS201"),
        (("runs", 0, "results", 0, "message"), "text"),
        (("runs", 0, "results", 0, "locations", 0, "physicalLocation", "region", "startLine"), 0),
        (("runs", 0, "results", 0, "locations", 0, "physicalLocation", "region", "endLine"), 1),
        (("runs", 0, "results", 0, "locations", 0, "physicalLocation", "artifactLocation", "uri"), "a b"),
    ],
)
def test_the_check_of_the_shape_can_fail(
    project: Project, capsys: Captured, path: tuple[str | int, ...], value: object
) -> None:
    project({"a.py": "\n\nitem()\n"})
    main(["--output-format", "sarif"])
    document = json.loads(capsys.readouterr().out)
    sarif_shape.check(document)
    broken = copy.deepcopy(document)
    place: Any = broken
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(AssertionError):
        sarif_shape.check(broken)


def test_a_rule_has_its_page(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\n"})
    run = _run(capsys)
    assert run["tool"]["driver"]["informationUri"] == SOURCE
    rule = run["tool"]["driver"]["rules"][run["results"][0]["ruleIndex"]]
    assert (rule["id"], rule["name"]) == ("GS201", "item-read")
    assert rule["helpUri"] == f"{DOCUMENTATION}rules/GS201/"
    assert rule["shortDescription"]["text"] == "About item-read."
    assert rule["fullDescription"]["text"] == "About item-read. More of it. It waits."
    assert rule["help"]["text"].startswith("GS201 item-read\n\nWhat it does\n")
    assert "## Example\n\n```python\nx.item()\n```" in rule["help"]["markdown"]


def test_warnings_and_notes_have_their_level(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\nitem_guarded()\n"})
    assert [one["level"] for one in _results(capsys)] == ["warning", "note"]


@pytest.mark.parametrize(
    ("text", "region"),
    [
        ("x = item()\n", (1, 5, 1, 11)),
        ("x = 'ü' + item()\n", (1, 11, 1, 17)),
        ("x = '😀' + item()\n", (1, 12, 1, 18)),
        ("\r\n'😀😀'; item()\r\n", (2, 9, 2, 15)),
    ],
)
def test_columns_are_utf16_code_units(
    project: Project, capsys: Captured, text: str, region: tuple[int, int, int, int]
) -> None:
    project({"a.py": text})
    run = _run(capsys)
    assert run["columnKind"] == "utf16CodeUnits"
    assert _region(run["results"][0]) == region


def test_a_fix_can_be_applied_by_its_regions(project: Project, capsys: Captured) -> None:
    text = "x = '😀', copy_safe()\n"
    project({"a.py": text})
    (fix,) = _results(capsys)[0]["fixes"]
    (change,) = fix["artifactChanges"]
    (replacement,) = change["replacements"]
    region = replacement["deletedRegion"]
    units = text.encode("utf-16-le")
    before, after = units[: 2 * region["startColumn"] - 2], units[2 * region["endColumn"] - 2 :]
    fixed = before + replacement["insertedContent"]["text"].encode("utf-16-le") + after
    assert (change["artifactLocation"]["uri"], region["startLine"]) == ("a.py", 1)
    assert fixed.decode("utf-16-le") == "x = '😀', fixed()\n"


def test_an_unsafe_fix_names_its_hazard(project: Project, capsys: Captured) -> None:
    project({"a.py": "copy_unsafe()\n"})
    (fix,) = _results(capsys)[0]["fixes"]
    assert fix["description"]["text"] == "Use fixed; the copy may race"
    assert fix["properties"] == {"safe": False}


def test_what_a_comment_allows_is_a_suppressed_result_on_request(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()  # gpusync: allow[GS201] why\ntolist()\n"})
    assert [one["suppressions"] for one in _results(capsys)] == [[]]
    allowed, live = _results(capsys, "--show-suppressed")
    assert allowed["suppressions"] == [{"kind": "inSource", "status": "accepted", "justification": "why"}]
    assert live["suppressions"] == []


def test_the_fingerprint_is_the_key(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\n"})
    (result,) = _results(capsys)
    assert result["partialFingerprints"] == {"gpusyncKey/v1": "a.py::<module>::GS201::item()::1"}


def test_paths_start_from_the_working_directory_and_are_quoted(project: Project, capsys: Captured) -> None:
    project({"ü b/č%.py": "item()\n"})
    (result,) = _results(capsys)
    artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "%C3%BC%20b/%C4%8D%25.py", "uriBaseId": "%SRCROOT%"}


def test_paths_outside_the_working_directory_are_whole(
    project: Project, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = project({"a.py": "item()\n", "sub/b.py": ""})
    monkeypatch.chdir(root / "sub")
    (result,) = _results(capsys, "../a.py")
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": (root / "a.py").as_uri()}


def test_what_could_not_be_linted_is_a_notification(project: Project, capsys: Captured) -> None:
    project({"bad.py": "syntax_error()\n"})
    (invocation,) = _run(capsys, ".", "gone.py")["invocations"]
    assert invocation["executionSuccessful"] is False
    gone, bad = invocation["toolExecutionNotifications"]
    assert (gone["level"], gone["message"]["text"]) == ("error", "no such file or folder")
    assert bad["locations"][0]["physicalLocation"]["region"] == {"startLine": 3}


def test_a_run_without_errors_was_successful(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\n"})
    assert _run(capsys)["invocations"] == [{"executionSuccessful": True, "toolExecutionNotifications": []}]


def test_the_counts_are_properties_of_the_run(project: Project, capsys: Captured) -> None:
    project({"a.py": "item(); item(); tolist()\n"})
    assert _run(capsys)["properties"] == {"files": 1}
    assert _run(capsys, "--statistics")["properties"]["statistics"] == {"GS201": 2, "GS202": 1}
