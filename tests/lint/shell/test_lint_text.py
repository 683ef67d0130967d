from __future__ import annotations

import io
from dataclasses import replace

import pytest
from gpusync_lint.messages import wants_color
from gpusync_lint.model.findings import FileError, Finding, Fix
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.spans import Span
from gpusync_lint.output.base.format import Options
from gpusync_lint.output.text import Text
from gpusync_lint.run.outcome import Outcome
from gpusync_lint.settings.selection import Level, Reported


def _finding(span: Span = Span(1, 1, 1, 2), **changes: object) -> Finding:  # noqa: B008 - it is frozen
    finding = Finding(
        "GS201", "item-read", "a.py", span, "It waits", "Keep it", Heat.STEP, Confidence.HIGH, "torch", "key"
    )
    return replace(finding, **changes)  # type: ignore[arg-type]


def render(outcome: Outcome, **options: bool) -> str:
    return Text().render(outcome, Options(**options))


def _outcome(*findings: Finding, text: str = "x\n", level: Level = Level.WARNING, files: int = 1) -> Outcome:
    return Outcome(tuple(Reported(one, level) for one in findings), (), files, {"a.py": text})


def _excerpt(line: str, column: int, end_column: int, end_line: int = 1) -> list[str]:
    finding = _finding(Span(1, column, end_line, end_column))
    return render(_outcome(finding, text=f"{line}\nsecond\n")).splitlines()[1:3]


@pytest.mark.parametrize(
    ("line", "columns", "shown", "carets"),
    [
        pytest.param("x = loss.item()", (5, 16), "x = loss.item()", "    ^^^^^^^^^^^", id="plain"),
        pytest.param("    x.item()  ", (5, 13), "x.item()", "^^^^^^^^", id="indented"),
        pytest.param("\tx\t= y", (4, 5), "x    = y", "     ^", id="tabs"),
        pytest.param("名 = x.item()", (5, 13), "名 = x.item()", "     ^^^^^^^^", id="wide characters"),
        pytest.param("é = x", (5, 6), "é = x", "    ^", id="accents"),
        pytest.param("x = '\x1b[31m'", (1, 2), "x = '\ufffd[31m'", "^", id="escape sequences"),
        pytest.param("x", (9, 12), "x", " ^", id="a span beyond the line"),
    ],
)
def test_the_span_is_underlined(line: str, columns: tuple[int, int], shown: str, carets: str) -> None:
    assert _excerpt(line, *columns) == [f"    {shown}", f"    {carets}"]


def test_a_span_of_several_lines_is_underlined_in_the_first() -> None:
    assert _excerpt("x = f(  ", 5, 3, end_line=2) == ["    x = f(", "        ^^"]


def test_a_long_line_is_cut_around_the_span() -> None:
    line = f"{'a' * 300} + loss.item() + {'b' * 300}"
    shown, carets = _excerpt(line, 304, 315)
    assert len(shown) < 160
    start = carets.index("^")
    assert shown[start : start + carets.count("^")] == "loss.item()"
    assert shown.strip().startswith("...")
    assert shown.endswith("...")


def test_a_finding_shows_its_remedy_and_its_fix() -> None:
    safe = _finding(fix=Fix("Use full", (), True))
    unsafe = _finding(Span(1, 2, 1, 3), fix=Fix("Use copy", (), False, "it may race"))
    out = render(_outcome(safe, unsafe))
    assert out == (
        "a.py:1:1: GS201 [item-read] It waits\n"
        "    x\n"
        "    ^\n"
        "    remedy: Keep it\n"
        "    fix: Use full (--fix)\n"
        "a.py:1:2: GS201 [item-read] It waits\n"
        "    x\n"
        "     ^\n"
        "    remedy: Keep it\n"
        "    fix: Use copy (--fix --unsafe-fixes; it may race)\n"
        "\n"
        "Found 2 warnings (1 fixable with --fix, 1 more with --unsafe-fixes)\n"
    )


def test_files_are_set_apart() -> None:
    out = render(_outcome(_finding(), _finding(path="b.py")))
    assert "    remedy: Keep it\n\nb.py:1:1: " in out


@pytest.mark.parametrize(
    ("outcome", "closing"),
    [
        (_outcome(), "No warnings in 1 file\n"),
        (_outcome(files=1234), "No warnings in 1,234 files\n"),
        (_outcome(files=0), ""),
        (_outcome(_finding()), "Found 1 warning\n"),
        (_outcome(_finding(fix=Fix("", (), True))), "Found 1 warning (1 fixable with --fix)\n"),
        (_outcome(_finding(fix=Fix("", (), False))), "Found 1 warning (1 fixable with --fix --unsafe-fixes)\n"),
        (_outcome(_finding(), _finding(suppressed="why")), "Found 1 warning, 1 allowed\n"),
        (_outcome(_finding(suppressed="why")), "No warnings in 1 file, 1 allowed\n"),
        (
            _outcome(_finding(heat=Heat.GUARDED), level=Level.NOTE),
            "No warnings in 1 file\n(+1 note: guarded; --heat guarded shows them)\n",
        ),
        (
            _outcome(_finding(heat=Heat.EPOCH), level=Level.NOTE),
            "No warnings in 1 file\n(+1 note: once per epoch; --heat epoch shows them)\n",
        ),
        (
            _outcome(_finding(heat=Heat.EPOCH), _finding(heat=Heat.GUARDED), level=Level.NOTE),
            "No warnings in 1 file\n(+2 notes: guarded or once per epoch; --heat epoch shows them)\n",
        ),
    ],
)
def test_the_closing_lines(outcome: Outcome, closing: str) -> None:
    out = render(outcome)
    assert out == closing or out.endswith(f"\n\n{closing}")


@pytest.mark.parametrize(
    ("texts", "findings", "closing"),
    [
        ({"a.py": "x"}, (), "1 error\n"),
        ({"a.py": "x", "b.py": "x"}, (), "No warnings in 1 file, 1 error\n"),
        ({"b.py": "x"}, (), "No warnings in 1 file, 1 error\n"),
        ({"a.py": "x", "b.py": "x"}, (_finding(path="b.py"),), "Found 1 warning, 1 error\n"),
    ],
)
def test_a_file_with_an_error_is_not_counted_among_those_without_warnings(
    texts: dict[str, str], findings: tuple[Finding, ...], closing: str
) -> None:
    error = FileError("a.py", 1, "invalid syntax")
    out = render(replace(_outcome(*findings), errors=(error,), texts=texts, files=len(texts)))
    assert out == closing or out.endswith(f"\n\n{closing}")


def test_the_closing_line_after_fixes() -> None:
    outcome = replace(_outcome(), fixed=3, fixed_files=2)
    assert render(outcome, fixed=True) == "Fixed 3 warnings in 2 files.\nNo warnings in 1 file\n"


def test_notes_are_not_listed() -> None:
    assert "a.py" not in render(_outcome(_finding(heat=Heat.EPOCH), level=Level.NOTE))


def test_allowed_findings_are_listed_on_request_with_their_reason() -> None:
    outcome = _outcome(_finding(suppressed="the stop needs it"))
    assert "a.py" not in render(outcome)
    assert "a.py:1:1: GS201 [item-read] It waits\n" in render(outcome, show_suppressed=True)
    assert "    allowed: the stop needs it\n" in render(outcome, show_suppressed=True)


def test_statistics_count_the_warnings_of_each_code() -> None:
    findings = [_finding(code=f"GS{code}", name=f"name-{code}") for code in (501, *[201] * 10, 301)]
    findings[0] = replace(findings[0], fix=Fix("", (), True))
    assert render(_outcome(*findings), statistics=True) == (
        "10  GS201  name-201\n"
        " 1  GS301  name-301\n"
        " 1  GS501  name-501  (1 with a fix)\n"
        "Found 12 warnings (1 fixable with --fix)\n"
    )


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "color"),
    [
        (_Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (_Terminal(), {"TERM": "dumb"}, False),
        (_Terminal(), {"NO_COLOR": "1"}, False),
        (_Terminal(), {"NO_COLOR": ""}, True),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (_Terminal(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_when_to_color(stream: io.StringIO, environ: dict[str, str], color: bool) -> None:
    assert wants_color(stream, environ) is color


def test_color_changes_nothing_but_color() -> None:
    import re

    outcome = _outcome(_finding())
    assert re.sub(r"\x1b\[[0-9;]*m", "", render(outcome, color=True)) == render(outcome)
    assert "\x1b[" in render(outcome, color=True)
