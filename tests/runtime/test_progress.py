"""The progress of a long run, on a terminal that is made up."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from pytest_gpusync.plugin import progress
from pytest_gpusync.plugin.progress import Progress


class Terminal:
    def __init__(self, hasmarkup=True):
        self.hasmarkup, self.written = hasmarkup, []

    def write(self, text, *, flush=False):
        self.written.append(text)


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_short_run_shows_nothing(clock):
    terminal = Terminal()
    shown = Progress(terminal, 20)
    for step in range(20):
        clock[0] += 0.09
        shown.show(step + 1)
    shown.close()
    assert terminal.written == []


def test_a_long_run_shows_how_far_it_is_and_takes_it_away(clock):
    terminal = Terminal()
    shown = Progress(terminal, 20)
    clock[0] += 2.0
    shown.show(5)
    clock[0] += 0.1
    shown.show(6)
    clock[0] += 0.2
    shown.show(7)
    shown.close()
    first, second, last = terminal.written
    assert ("step 5 of 20" in first, "step 7 of 20" in second, last) == (True, True, "\x1b[K")
    # The cursor is where it was: the line that pytest writes goes on there.
    assert first.startswith("\x1b7")
    assert first.endswith("\x1b8")


def test_a_run_of_unknown_length_shows_its_steps(clock):
    terminal = Terminal()
    shown = Progress(terminal, None)
    clock[0] += 3.0
    shown.show(5)
    assert "step 5\x1b" in terminal.written[0]


@pytest.mark.parametrize("writer", [None, Terminal(hasmarkup=False)])
def test_what_is_no_terminal_is_left_alone(clock, writer):
    shown = Progress(writer, 20)
    clock[0] += 3.0
    shown.show(5)
    shown.close()
    assert writer is None or writer.written == []


def test_what_is_shown_is_written_past_the_capture(clock):
    terminal, entered = Terminal(), []

    @contextmanager
    def uncaptured():
        entered.append(len(terminal.written))
        yield

    shown = Progress(terminal, 20, uncaptured)
    clock[0] += 3.0
    shown.show(5)
    shown.close()
    assert entered == [0, 1]
