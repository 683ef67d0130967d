"""How often lines that waited were executed."""

from __future__ import annotations

import sys

import pytest

from pytest_gpusync.model.measurement import Site
from pytest_gpusync.source.attribution import display_path
from pytest_gpusync.source.line_executions import LineExecutions

needs_monitoring = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has sys.monitoring")


@pytest.fixture
def counted():
    """`counted(program)` runs a program, which is given a function that waits, and returns executions by line of it."""

    def run(program):
        executions = LineExecutions()

        def wait():
            frame = sys._getframe(1)
            path = display_path(frame.f_code.co_filename)
            executions.waited(frame, Site(path, frame.f_lineno, program.__name__))

        with executions.counting():
            program(wait)
        found = executions.counts()
        first = program.__code__.co_firstlineno
        return found if found is None else {line - first: times for (_, line), times in found.items()}

    return run


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 has sys.monitoring")
def test_without_monitoring_nothing_is_counted(counted):
    assert counted(lambda wait: wait()) is None


@needs_monitoring
def test_executions_are_counted_from_the_first_wait_on(counted):
    def program(wait):
        for step in range(10):
            step % 3 == 2 and wait()  # waits at 2, 5 and 8

    assert counted(program) == {2: 8}


@needs_monitoring
def test_lines_of_the_same_code_that_wait_later_are_counted_too(counted):
    def program(wait):
        for step in range(10):
            wait()
            step + 1
            if step >= 4:
                wait()

    assert counted(program) == {2: 10, 5: 6}


@needs_monitoring
def test_a_function_called_from_several_places_is_counted_in_all(counted):
    def program(wait):
        def read():
            wait()

        read()
        for _ in range(4):
            read()

    assert counted(program) == {2: 5}


@needs_monitoring
def test_the_place_at_the_interpreter_is_given_back(counted):
    counted(lambda wait: wait())
    assert all(sys.monitoring.get_tool(number) is None for number in range(6))


@needs_monitoring
def test_where_other_tools_have_taken_all_places_nothing_is_counted(counted):
    taken = [number for number in range(6) if sys.monitoring.get_tool(number) is None]
    for number in taken:
        sys.monitoring.use_tool_id(number, "another")
    try:
        assert counted(lambda wait: wait()) is None
    finally:
        for number in taken:
            sys.monitoring.free_tool_id(number)
