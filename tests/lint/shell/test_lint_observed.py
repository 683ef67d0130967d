"""``gpusync lint --observed``: what a run saw, beside what the linter says."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from gpusync_lint.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _site(line: int, path: str = "a.py", **changes: Any) -> dict[str, Any]:
    site = {"path": path, "line": line, "function": "train", "code": None, "kind": "stream", "direction": None}
    site |= {"syncs": 4, "steps": 3, "per_step_max": 1, "blocked_ms": None, "bytes": None, "via": None, "phase": None}
    return {**site, "thread": "MainThread", "allowed": None, "background": False, **changes}


def _run(*sites: dict[str, Any], lines: dict[str, Any] | None = None) -> str:
    nothing = ("torch", "device", "gpu", "driver", "recorder", "coverage", "note")
    environment = {"python": "3.12.1", **dict.fromkeys(nothing)}
    absent = ("problem", "steps", "warmup", "step_source", "device_used", "syncs", "syncs_per_step", "memory", "timing")
    region = {"name": "train.py", "outcome": "measured", "sites": list(sites), "verdicts": [], **dict.fromkeys(absent)}
    document = {"schema": "gpusync.run/1", "environment": environment, "regions": [region], "lines": lines}
    return json.dumps(document)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main(["--output-format", "json", *arguments, "a.py"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def _evidence(document: dict[str, Any]) -> dict[int, str | None]:
    return {one["line"]: one["observed"] and one["observed"]["evidence"] for one in document["findings"]}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param({"a.py": [[1, 1], [3, 3]]}, {1: "waited", 2: "not_run", 3: "did_not_wait"}, id="recorded"),
        pytest.param({"b.py": [[1, 9]]}, {1: "waited", 2: "not_run", 3: "not_run"}, id="another file ran"),
        pytest.param(None, {1: "waited", 2: "not_recorded", 3: "not_recorded"}, id="not recorded"),
    ],
)
def test_each_finding_gets_what_the_run_saw_of_its_line(
    project: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    lines: dict[str, Any] | None,
    expected: dict[int, str],
) -> None:
    project({"a.py": "item()\nitem()\nitem()\n", "run.json": _run(_site(1), lines=lines)})
    assert _evidence(_json(capsys, "--observed", "run.json")) == expected


def test_findings_are_ranked_by_what_they_cost_and_those_that_did_not_wait_come_last(
    project: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    sites = [_site(2, blocked_ms=1.5), _site(3, blocked_ms=20.0), _site(4, syncs=900)]
    ran = {"a.py": [[1, 4]]}
    project({"a.py": "item()\n" * 5, "run.json": _run(*sites, lines=ran)})
    document = _json(capsys, "--observed", "run.json")
    assert [one["line"] for one in document["findings"]] == [3, 2, 4, 5, 1]


def test_a_copy_is_told_from_a_read_on_the_same_line(
    project: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    sites = [_site(1, direction="H2D", syncs=7), _site(1, direction="D2H", syncs=2)]
    project({"a.py": "copy_safe(); item()\n", "run.json": _run(*sites)})
    document = _json(capsys, "--observed", "run.json")
    assert {one["code"]: one["observed"]["syncs"] for one in document["findings"]} == {"GS501": 7, "GS201": 2}


def test_several_runs_add_up(project: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    project({"a.py": "item()\n", "1.json": _run(_site(1, blocked_ms=1.0)), "2.json": _run(_site(1, blocked_ms=2.0))})
    (finding,) = _json(capsys, "--observed", "1.json", "--observed", "2.json")["findings"]
    assert finding["observed"] == {"evidence": "waited", "syncs": 8, "per_step_max": 1, "blocked_ms": 3.0}


@pytest.mark.parametrize(
    ("site", "gaps"),
    [
        pytest.param(_site(2), [2], id="a line without finding"),
        pytest.param(_site(1), [], id="a line with one"),
        pytest.param(_site(2, steps=0, per_step_max=0), [], id="outside the measured steps"),
        pytest.param(_site(2, path="lib/b.py"), [], id="a file that was not linted"),
    ],
)
def test_a_line_that_waited_in_steps_without_a_finding_is_a_gap(
    project: Callable[..., Path], capsys: pytest.CaptureFixture[str], site: dict[str, Any], gaps: list[int]
) -> None:
    project({"a.py": "item()\nx = 1\n", "run.json": _run(site)})
    document = _json(capsys, "--observed", "run.json")
    assert [gap["line"] for gap in document["observed"]["gaps"]] == gaps


def test_the_text_names_what_was_seen_and_the_gaps(
    project: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    sites = [_site(1, blocked_ms=12.25), _site(2, code="GS301")]
    project({"a.py": "item()\nx = 1\nitem()\n", "run.json": _run(*sites, lines={"a.py": [[1, 2]]})})
    assert main(["--observed", "run.json", "a.py"]) == 1
    out = capsys.readouterr().out
    assert "    observed: 4 syncs, at most 1 per step, the host waited 12.2 ms\n" in out
    assert "    observed: the line did not run\n" in out
    assert out.endswith(
        "Observed in run.json: 1 waited, 1 did not run\n"
        "1 line waited without a finding:\n"
        "  a.py:2 train: 4 syncs, at most 1 per step (GS301 at a lower heat or confidence)\n"
    )


def test_without_a_run_nothing_is_said_of_one(project: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    project({"a.py": "item()\n"})
    document = _json(capsys)
    assert "observed" not in document
    assert document["findings"][0]["observed"] is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "run.json: cannot be read (No such file or directory)", id="missing"),
        pytest.param("{", "run.json: not JSON (", id="not JSON"),
        pytest.param('{"schema": "other"}', "run.json: not a run file; gpusync trace --json", id="another schema"),
        pytest.param(
            '{"schema": "gpusync.run/1", "regions": [{"sites": [{}]}]}',
            "run.json: not a valid gpusync.run/1 file: object missing required field `path`, at regions[0].sites[0];",
            id="broken",
        ),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(
    project: Callable[..., Path], capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    project({"a.py": "item()\n", **({} if content is None else {"run.json": content})})
    assert main(["--observed", "run.json", "a.py"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"gpusync lint: error: {message}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_range_of_lines_takes_no_more_time_or_memory_than_it_has_digits(
    project: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    project({"a.py": "item()\n", "run.json": _run(lines={"a.py": [[0, 2**31 - 1]]})})
    began = time.process_time()
    tracemalloc.start()
    document = _json(capsys, "--observed", "run.json")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert _evidence(document) == {1: "did_not_wait"}
    assert peak < 50e6
    assert time.process_time() - began < 60  # two thousand million steps would take several times as long


def test_every_bad_run_is_named(project: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    project({"a.py": "item()\n", "1.json": "{", "2.json": _run(_site(1)), "3.json": "[]"})
    assert main(["--observed", "1.json", "--observed", "2.json", "--observed", "3.json", "a.py"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "1.json: not JSON" in line
    assert "3.json: not a run file" in line


def test_a_format_without_room_for_it_is_refused(
    project: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    project({"a.py": "item()\n", "run.json": _run()})
    assert main(["--observed", "run.json", "--output-format", "github", "a.py"]) == 2
    assert "--observed: the format github cannot contain" in capsys.readouterr().err
