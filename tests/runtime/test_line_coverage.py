"""Which lines ran: on this interpreter's own means, and on the older one where both are there."""

from __future__ import annotations

import sys
import threading

import pytest

from pytest_gpusync.source.line_coverage import CoverageUnavailable, LineCoverage, merged, ranges

SOURCE = """\
def even(n):
    if n % 2:
        return False
    return True

def never():
    return None

even(2)
"""


def of_scripts(lines):
    """Return what was recorded, without the lines of this file."""
    return {path: ran for path, ran in lines.take().items() if not path.endswith("test_line_coverage.py")}


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return a function that runs the source as a file of the working directory, with a name of its own each time."""
    monkeypatch.chdir(tmp_path)

    def run(name="a.py", source=SOURCE):
        path = tmp_path / name
        path.write_text(source)
        exec(compile(source, str(path), "exec"), {})

    return run


@pytest.fixture(autouse=True)
def untraced():
    """Set aside a tracer of this test process: coverage, or a debugger."""
    before = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(before)


def test_lines_that_ran_are_told_from_those_that_did_not(script):
    lines = LineCoverage()
    with lines.recording():
        script()
    assert of_scripts(lines) == {"a.py": [(1, 2), (4, 4), (6, 6), (9, 9)]}


def test_what_was_taken_is_not_given_again(script):
    lines = LineCoverage()
    with lines.recording():
        script()
        lines.take()
        script("b.py", "x = 1\n")
    assert of_scripts(lines) == {"b.py": [(1, 1)]}


def test_installed_packages_are_not_the_projects(script):
    lines = LineCoverage()
    with lines.recording():
        script(source="import json\njson.dumps([1])\n")
    assert list(of_scripts(lines)) == ["a.py"]


def test_threads_are_recorded(script):
    lines = LineCoverage()
    with lines.recording():
        thread = threading.Thread(target=script)
        thread.start()
        thread.join()
    assert lines.take()["a.py"]


def test_nothing_is_recorded_afterwards_also_when_the_block_failed(script):
    lines = LineCoverage()
    with pytest.raises(KeyError), lines.recording():
        raise KeyError
    script()
    assert of_scripts(lines) == {}
    assert sys.gettrace() is None


def test_recording_twice_hears_of_the_same_lines_again(script):
    for _ in range(2):
        lines = LineCoverage()
        with lines.recording():
            script()
        assert of_scripts(lines)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring leaves a debugger alone")
def test_a_debugger_is_left_alone(script):
    def debugger(*_arguments):
        return None

    sys.settrace(debugger)
    with pytest.raises(CoverageUnavailable, match="a debugger or a coverage tool"), LineCoverage().recording():
        pass
    assert sys.gettrace() is debugger


@pytest.mark.parametrize(
    ("lines", "expected"),
    [(set(), []), ({3}, [(3, 3)]), ({1, 2, 3, 7}, [(1, 3), (7, 7)])],
)
def test_line_numbers_become_ranges(lines, expected):
    assert ranges(lines) == expected


def test_two_recordings_become_one():
    assert merged({"a.py": [[1, 3]]}, {"a.py": [[4, 4]], "b.py": [[2, 2]]}) == {"a.py": [(1, 4)], "b.py": [(2, 2)]}
