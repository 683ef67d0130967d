"""GitHub, GitLab, JUnit, Azure, reviewdog, and one line for each warning."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from gpusync_lint import output as formats
from gpusync_lint._address import DOCUMENTATION, SOURCE
from gpusync_lint.cli import main
from gpusync_lint.escaping import escaped_lines
from gpusync_lint.model.findings import FileError, Finding
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.spans import Span
from gpusync_lint.output.base.format import Format, Options
from gpusync_lint.run.outcome import Outcome
from gpusync_lint.settings.selection import Level, Reported

Project = Callable[..., Path]
Captured = pytest.CaptureFixture[str]

FINDING = Finding(
    code="GS201",
    name="item-read",
    path="a.py",
    span=Span(1, 5, 1, 11),
    message="`item()` waits for the GPU",
    remedy="keep it on the device",
    heat=Heat.STEP,
    confidence=Confidence.HIGH,
    framework="torch",
    key="a.py::f::GS201::item()::1",
)


def _outcome(*findings: Finding, errors: tuple[FileError, ...] = ()) -> Outcome:
    return Outcome(tuple(Reported(one, Level.WARNING) for one in findings), errors, 1, {"a.py": "x = item()\n"})


def render(name: str, outcome: Outcome, **options: bool) -> str:
    return formats.named(name).render(outcome, Options(**options))


def _out(capsys: Captured, output: str, *arguments: str) -> str:
    main([*arguments, "--output-format", output])
    return capsys.readouterr().out


# ---------------------------------------------------------------- GitHub


def test_github_annotates_what_is_marked(project: Project, capsys: Captured) -> None:
    project({"a.py": "x = item()\n"})
    assert _out(capsys, "github") == (
        "::warning file=a.py,line=1,col=5,endLine=1,endColumn=10,title=GS201 item-read"
        "::`item()` waits for the GPU%0Aremedy: keep it on the device\n"
    )


def test_github_escapes_properties_and_messages() -> None:
    finding = replace(FINDING, path="a:b,c%.py", message="50%, a: b\r\nc")
    line = render("github", _outcome(finding))
    assert line.startswith("::warning file=a%3Ab%2Cc%25.py,line=1,")
    assert line.endswith("::50%25, a: b\\r%0Ac%0Aremedy: keep it on the device\n")
    assert line.count("\n") == 1


def test_github_gets_no_columns_for_what_spans_lines() -> None:
    line = render("github", _outcome(replace(FINDING, span=Span(1, 5, 3, 2))))
    assert line.startswith("::warning file=a.py,line=1,endLine=3,title=")


def test_github_columns_never_end_before_they_start() -> None:
    assert ",col=5,endLine=1,endColumn=5," in render("github", _outcome(replace(FINDING, span=Span(1, 5, 1, 5))))


def test_github_is_told_of_files_that_could_not_be_linted(project: Project, capsys: Captured) -> None:
    project({"a.py": "syntax_error()\n"})
    assert _out(capsys, "github", "a.py", "gone.py").splitlines() == [
        "::error file=gone.py,title=gpusync lint::no such file or folder",
        "::error file=a.py,line=3,title=gpusync lint::invalid syntax",
    ]


def test_github_gets_no_notes(project: Project, capsys: Captured) -> None:
    project({"a.py": "item_epoch()\n"})
    assert _out(capsys, "github") == ""


def test_github_shows_what_is_allowed_as_notices_on_request(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()  # gpusync: allow[GS201] why\n"})
    assert _out(capsys, "github") == ""
    line = _out(capsys, "github", "--show-suppressed")
    assert line.startswith("::notice file=a.py,line=1,")
    assert line.endswith("%0Aallowed: why\n")


def test_github_gets_the_counts_in_one_notice(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\ntolist()\nitem()\n"})
    assert _out(capsys, "github", "--statistics").splitlines()[3:] == [
        "::notice title=gpusync lint::2 GS201 item-read%0A1 GS202 tolist-read"
    ]


# ---------------------------------------------------------------- GitLab


def _issues(capsys: Captured, *arguments: str) -> list[dict[str, Any]]:
    issues: list[dict[str, Any]] = json.loads(_out(capsys, "gitlab", *arguments))
    return issues


def test_gitlab_gets_an_issue_per_warning(project: Project, capsys: Captured) -> None:
    project({"pkg/a.py": "\nx = item()\nitem_epoch()\n"})
    (issue,) = _issues(capsys)
    assert len(issue.pop("fingerprint")) == 64
    assert issue == {
        "description": "`item()` waits for the GPU; remedy: keep it on the device",
        "check_name": "GS201 item-read",
        "severity": "minor",
        "location": {"path": "pkg/a.py", "lines": {"begin": 2, "end": 2}},
    }


def test_a_gitlab_fingerprint_outlives_a_move(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\n"})
    before = _issues(capsys)
    project({"a.py": "\n\nitem()\n"})
    assert [one["fingerprint"] for one in _issues(capsys)] == [one["fingerprint"] for one in before]


def test_gitlab_fingerprints_differ_even_where_keys_do_not() -> None:
    issues = json.loads(render("gitlab", _outcome(FINDING, FINDING, FINDING)))
    assert len(issues) == 3
    assert len({one["fingerprint"] for one in issues}) == 3


def test_gitlab_is_told_of_files_that_could_not_be_linted(project: Project, capsys: Captured) -> None:
    project({"a.py": "syntax_error()\n"})
    (issue,) = _issues(capsys)
    assert (issue["severity"], issue["description"]) == ("critical", "invalid syntax")
    assert issue["location"] == {"path": "a.py", "lines": {"begin": 3}}


def test_gitlab_shows_what_is_allowed_on_request(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()  # gpusync: allow[GS201] why\n"})
    assert _issues(capsys) == []
    (issue,) = _issues(capsys, "--show-suppressed")
    assert (issue["severity"], issue["description"]) == ("info", "`item()` waits for the GPU; allowed: why")


# ---------------------------------------------------------------- JUnit


def _suite(text: str) -> ElementTree.Element:
    suites = ElementTree.fromstring(text)
    assert suites.tag == "testsuites"
    (suite,) = suites
    return suite


def test_junit_has_a_failed_test_per_warning_and_a_passed_one_per_clean_file(
    project: Project, capsys: Captured
) -> None:
    project({"a.py": "item()\n tolist()\n", "b.py": "item_epoch()\n", "c.py": "syntax_error()\n"})
    suite = _suite(_out(capsys, "junit"))
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "2",
        "errors": "1",
        "skipped": "0",
    }
    cases = [(case.get("classname"), case.get("name"), [child.tag for child in case]) for case in suite]
    assert cases == [
        ("c.py", "could not be linted", ["error"]),
        ("a.py", "GS201 item-read at 1:1", ["failure"]),
        ("a.py", "GS202 tolist-read at 2:2", ["failure"]),
        ("b.py", "no warnings", []),
    ]


def test_a_junit_failure_says_where_what_and_how_to_mend_it(project: Project, capsys: Captured) -> None:
    project({"a.py": "\nx = item()\n"})
    failure = _suite(_out(capsys, "junit")).find(".//failure")
    assert failure is not None
    assert failure.get("message") == "`item()` waits for the GPU"
    assert (failure.text or "").split("\n") == [
        "a.py:2:5: `item()` waits for the GPU",
        "x = item()",
        "remedy: keep it on the device",
    ]


@pytest.mark.parametrize("message", ["a & <b> \"c\" 'd'", "]]>", "\x00\x1b[31m", "\ud800 \uffff", "ü 😀", "a\nb\tc"])
def test_junit_is_valid_xml_for_any_message(message: str) -> None:
    errors = (FileError("a\x01.py", None, message),)
    text = render("junit", _outcome(replace(FINDING, message=message, suppressed=None), errors=errors))
    failure = _suite(text.encode("ascii").decode()).find(".//failure")
    assert failure is not None
    assert failure.get("message") == escaped_lines(message)


JUNIT = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname", "id", "file"},
    "testcase": {"name", "classname", "time", "group"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
    "properties": set(),
    "property": {"name", "value"},
}
"""The elements and attributes of the schema that Jenkins holds JUnit reports to (junit-10.xsd)."""


def test_junit_has_only_what_jenkins_knows(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()\ncopy_safe()  # gpusync: allow[GS501] why\n", "b.py": "", "c.py": "syntax_error()\n"})
    suites = ElementTree.fromstring(_out(capsys, "junit", "--show-suppressed", "--statistics"))
    assert {element.tag for element in suites.iter()} == set(JUNIT)
    assert [element.attrib for element in suites.iter() if not set(element.attrib) <= JUNIT[element.tag]] == []


def test_a_junit_error_says_where(project: Project, capsys: Captured) -> None:
    project({"c.py": "syntax_error()\n"})
    error = _suite(_out(capsys, "junit")).find(".//error")
    assert error is not None
    assert error.text == "c.py:3: invalid syntax"


def test_junit_skips_what_is_allowed_on_request(project: Project, capsys: Captured) -> None:
    project({"a.py": "item()  # gpusync: allow[GS201] why\n"})
    assert [case.get("name") for case in _suite(_out(capsys, "junit"))] == ["no warnings"]
    skipped = _suite(_out(capsys, "junit", "--show-suppressed")).find(".//skipped")
    assert skipped is not None
    assert skipped.get("message") == "allowed: why"


def test_junit_gets_the_counts_as_properties(project: Project, capsys: Captured) -> None:
    project({"a.py": "item(); item(); copy_safe()\n"})
    suite = _suite(_out(capsys, "junit", "--statistics", "--fix"))
    assert [(one.get("name"), one.get("value")) for one in suite.iter("property")] == [
        ("gpusync.GS201", "2"),
        ("gpusync.fixed", "1"),
    ]


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("output", formats.names())
def test_a_format_ends_in_a_newline(output: str) -> None:
    assert render(output, _outcome(FINDING), show_suppressed=True).endswith("\n")


@pytest.mark.parametrize("output", ["json", "sarif", "gitlab", "junit"])
def test_a_document_is_ascii_so_that_no_encoding_can_spoil_it(output: str) -> None:
    assert render(output, _outcome(replace(FINDING, message="ü 😀", path="ü.py"))).isascii()


@pytest.mark.parametrize("output", ["json", "sarif", "gitlab", "junit"])
def test_a_document_is_complete_although_nothing_was_linted(project: Project, capsys: Captured, output: str) -> None:
    project({})
    text = _out(capsys, output)
    assert text
    if output == "junit":
        assert _suite(text).get("tests") == "0"
    else:
        json.loads(text)


@pytest.mark.parametrize("output", formats.names())
def test_fixes_are_applied_whatever_the_format(project: Project, capsys: Captured, output: str) -> None:
    root = project({"a.py": "copy_safe()\n"})
    assert main(["--fix", "--output-format", output]) == 0
    assert (root / "a.py").read_text() == "fixed()\n"


def test_the_formats_are_the_modules_of_the_folder() -> None:
    assert formats.names()[0] == "text"
    assert {"github", "gitlab", "json", "junit", "sarif"} < set(formats.names())
    assert all(isinstance(formats.named(name), Format) for name in formats.names())


def test_the_help_describes_every_format(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    words = " ".join(capsys.readouterr().out.split())
    for name in formats.names():
        assert f"{name} ({formats.named(name).audience})" in words


@pytest.mark.parametrize("name", formats.names())
def test_what_a_format_has_no_place_for_is_refused(project: Project, capsys: Captured, name: str) -> None:
    root = project({"a.py": "item()\n"})
    nothing = ("torch", "device", "gpu", "driver", "recorder", "coverage", "note")
    environment = {"python": "3.12.1", **dict.fromkeys(nothing)}
    document = {"schema": "gpusync.run/1", "environment": environment, "regions": []}
    (root / "run.json").write_text(json.dumps(document))
    shows = formats.named(name).shows
    for option, shown in ((["--statistics"], shows.statistics), (["--observed", "run.json"], shows.observed)):
        assert main(["--exit-zero", "--output-format", name, *option]) == (0 if shown else 2)
        error = f"gpusync lint: error: {option[0]}: the format {name} cannot contain "
        assert capsys.readouterr().err.startswith("" if shown else error)


# ---------------------------------------------------------------- Azure


def test_azure_gets_an_issue_per_warning_and_error(project: Project, capsys: Captured) -> None:
    project({"a.py": "x = item()\nitem_epoch()\n", "b.py": "syntax_error()\n"})
    assert _out(capsys, "azure").splitlines() == [
        "##vso[task.logissue type=error;sourcepath=b.py;linenumber=3;]invalid syntax",
        (
            "##vso[task.logissue type=warning;sourcepath=a.py;linenumber=1;columnnumber=5;code=GS201;]"
            "`item()` waits for the GPU; remedy: keep it on the device"
        ),
    ]


def test_azure_escapes_properties_and_messages() -> None:
    line = render("azure", _outcome(replace(FINDING, path="a;b]%.py", message="50%;\r\n##vso[task.complete]")))
    assert line.startswith("##vso[task.logissue type=warning;sourcepath=a%3Bb%5D%AZP25.py;linenumber=1;")
    assert r"]50%AZP25;\r\n#\x23vso[task.complete]; remedy" in line
    assert line.count("\n") == 1


# ---------------------------------------------------------------- reviewdog


def test_reviewdog_gets_a_diagnostic_per_finding_and_error(project: Project, capsys: Captured) -> None:
    project({"a.py": "x = item()\nitem_epoch()\n", "b.py": "syntax_error()\n"})
    document = json.loads(_out(capsys, "rdjson"))
    error, warning, note = document["diagnostics"]
    assert document["source"] == {"name": "gpusync", "url": SOURCE}
    assert error == {
        "message": "invalid syntax",
        "location": {"path": "b.py", "range": {"start": {"line": 3}}},
        "severity": "ERROR",
    }
    assert warning == {
        "message": "`item()` waits for the GPU; remedy: keep it on the device",
        "location": {
            "path": "a.py",
            "range": {"start": {"line": 1, "column": 5}, "end": {"line": 1, "column": 11}},
        },
        "severity": "WARNING",
        "code": {"value": "GS201", "url": f"{DOCUMENTATION}rules/GS201/"},
    }
    assert note["severity"] == "INFO"


def test_reviewdog_columns_count_bytes() -> None:
    outcome = replace(
        _outcome(replace(FINDING, span=Span(1, 7, 1, 13))), texts={"a.py": "'\u00e9\U0001f600', item()\n"}
    )
    (found,) = json.loads(render("rdjson", outcome))["diagnostics"]
    assert found["location"]["range"] == {"start": {"line": 1, "column": 11}, "end": {"line": 1, "column": 17}}


def test_reviewdog_gets_the_fix_as_a_suggestion(project: Project, capsys: Captured) -> None:
    project({"a.py": "copy_safe()\n"})
    (found,) = json.loads(_out(capsys, "rdjson"))["diagnostics"]
    (suggestion,) = found["suggestions"]
    start, end = suggestion["range"]["start"]["column"] - 1, suggestion["range"]["end"]["column"] - 1
    assert "copy_safe()"[:start] + suggestion["text"] + "copy_safe()"[end:] == "fixed()"


# ---------------------------------------------------------------- one line


def test_concise_is_one_line_per_warning_and_the_closing_line(project: Project, capsys: Captured) -> None:
    project({"a.py": "x = item()\nitem_epoch()\n", "b.py": "tolist()  # gpusync: allow[GS202] why\n"})
    lines = ["a.py:1:5: GS201 [item-read] `item()` waits for the GPU"]
    closing = ["Found 1 warning, 1 allowed", "(+1 note: once per epoch; --heat epoch shows them)"]
    assert _out(capsys, "concise").splitlines() == lines + closing
    allowed = "b.py:1:1: GS202 [tolist-read] `tolist()` waits for the GPU (allowed: why)"
    assert _out(capsys, "concise", "--show-suppressed").splitlines() == [*lines, allowed, *closing]
    assert "1 GS201 [item-read]" in _out(capsys, "concise", "--statistics").splitlines()


def test_concise_writes_nothing_that_a_terminal_obeys() -> None:
    finding = replace(FINDING, path="a\x1b[31m.py", message="waits\n::error::")
    assert render("concise", _outcome(finding)).splitlines()[0] == (
        r"a\x1b[31m.py:1:5: GS201 [item-read] waits\n::error::"
    )


def test_concise_is_colored_where_that_is_asked_for() -> None:
    assert "\x1b[" in render("concise", _outcome(FINDING), color=True)
    assert "\x1b[" not in render("concise", _outcome(FINDING))
