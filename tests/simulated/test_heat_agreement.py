"""The linter warns of the lines that wait in most steps of a program on the simulated device, and of no rare ones."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from collections import defaultdict

import pytest
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.run import engine
from gpusync_lint.run.judge import is_wait
from heat_programs import PROGRAMS

from pytest_gpusync.simulated import simulated_cuda
from pytest_gpusync.simulated.base import sync_events

_LEAST_STEPS = 4


class Waits:
    """The steps in which each line below a folder waits."""

    def __init__(self, folder, files):
        self.folder = f"{folder}/"
        self.ends = {
            (str(folder / name), number)
            for name, text in files.items()
            for number, line in enumerate(text.splitlines(), 1)
            if line.endswith("# step")
        }
        self.steps = 0
        self.waited = defaultdict(set)

    def end_step(self, *_):
        self.steps += 1

    def trace(self, frame, event, _):
        """End a step at the lines that say so."""
        if not frame.f_code.co_filename.startswith(self.folder):
            return None
        if event == "line" and (frame.f_code.co_filename, frame.f_lineno) in self.ends:
            self.end_step()
        return self.trace

    def sink(self, sync):
        frame = sync.frame
        while frame is not None and not frame.f_code.co_filename.startswith(self.folder):
            frame = frame.f_back
        if frame is not None:
            place = frame.f_code.co_filename.removeprefix(self.folder), frame.f_lineno
            self.waited[place].add(self.steps)

    def lines(self, least):
        """The lines that wait in at least a share of the steps, without the first one."""
        inner = range(1, self.steps)
        return {place for place, steps in self.waited.items() if len(steps & set(inner)) >= least * len(inner)}


def run(folder, files, monkeypatch):
    """Run a program on the simulated device."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    waits = Waits(folder, files)
    modules = set(sys.modules)
    monkeypatch.syspath_prepend(folder)
    hook = register_optimizer_step_post_hook(waits.end_step)
    before = sys.gettrace()
    try:
        with simulated_cuda(), contextlib.redirect_stdout(io.StringIO()):
            sync_events.subscribe(waits.sink)
            if waits.ends:
                sys.settrace(waits.trace)
            runpy.run_path(str(folder / "main.py"), run_name="__main__")
    finally:
        sys.settrace(before)
        sync_events.unsubscribe(waits.sink)
        hook.remove()
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(waits.folder):
                del sys.modules[name]
    return waits


@pytest.mark.parametrize("name", PROGRAMS)
def test_warnings_are_on_the_lines_that_wait_in_most_steps(name, tmp_path, monkeypatch):
    files = PROGRAMS[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    waits = run(tmp_path, files, monkeypatch)
    assert waits.steps >= _LEAST_STEPS
    warned = {
        (finding.path, finding.span.line)
        for finding in engine.analyze([Source(*file) for file in files.items()], EngineSettings()).findings
        if finding.heat is Heat.STEP and finding.confidence is not Confidence.LOW and is_wait(finding.code)
    }
    assert waits.lines(0.5) <= warned <= waits.lines(0.3)
