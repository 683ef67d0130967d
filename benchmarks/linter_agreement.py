"""Hold what the linter says of a line against what the simulated device does on it, for many small programs.

A program is a few statements of set-up and one statement, or a few, that a loop repeats. The linter is asked whether a
line of the loop waits; the simulated device runs the set-up once and the loop's statements three times, and the third
turn is counted. `number_operators.py` makes programs from torch's schemas; tests/simulated/agreement_programs.py has
those written by hand.
"""

from __future__ import annotations

import contextlib
import io
import textwrap
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.run import engine
from gpusync_lint.run.judge import is_wait

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType

    from pytest_gpusync.model.measurement import RawSync

PRELUDE = """\
import collections, copy, functools, heapq, io, itertools, json, logging, math, operator, random, statistics, time
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

dev = "cuda"
model = nn.Linear(4, 4).to(dev)
model(torch.ones(1, 4, device=dev)).sum().backward()
sgd = torch.optim.SGD(model.parameters(), lr=1e-6)
log = logging.getLogger("programs")
log.propagate = False
log.setLevel(logging.INFO)
log.handlers[:] = [logging.StreamHandler(io.StringIO())]
"""
"""Names of all programs."""
OUTCOMES = ("agree", "missed", "false", "refused")
_TURNS = 3
_PER_FILE = 400
"""Programs that the linter is given in one file."""


class Program(NamedTuple):
    """Statements that a loop repeats, and what runs before the loop."""

    statement: str
    setup: str = ""


class Outcome(NamedTuple):
    """What became of one program."""

    program: Program
    verdict: str
    """One of `OUTCOMES`: the linter missed a wait, reported a false one, or the program raises on the device."""
    reason: str = ""
    """The error of a program that raises, the codes of a false finding, or the kinds of the missed syncs."""


def compare(programs: Sequence[Program], *, whole: bool = False) -> list[Outcome]:
    """What the linter and the simulated device, which has to be switched on, say of each program.

    With `whole`, each program is a file of its own, and the linter may warn about any line of it.
    """
    prelude = compile(PRELUDE, "<prelude>", "exec")
    ran = [_run(program, prelude) for program in programs]
    if whole:
        return [_outcome(program, one, _linted_alone(program)) for program, one in zip(programs, ran, strict=True)]
    found: list[list[str]] = []
    for start in range(0, len(programs), _PER_FILE):
        found += _linted(programs[start : start + _PER_FILE])
    return [_outcome(*each) for each in zip(programs, ran, found, strict=True)]


def _outcome(program: Program, ran: list[str] | Exception, codes: list[str]) -> Outcome:
    if isinstance(ran, Exception):
        return Outcome(program, "refused", " ".join(f"{type(ran).__name__}: {ran}".split())[:160])
    if bool(ran) == bool(codes):
        return Outcome(program, "agree")
    return Outcome(program, "missed", " ".join(ran)) if ran else Outcome(program, "false", " ".join(codes))


def _run(program: Program, prelude: CodeType) -> list[str] | Exception:
    """The kinds of the syncs that the statement makes once it is warm, or what it raises."""
    from pytest_gpusync.simulated.base import sync_events

    syncs: list[RawSync] = []
    scope: dict[str, Any] = {}
    code = compile(f"for step in range(1):\n{textwrap.indent(program.statement, '    ')}", "<program>", "exec")
    sync_events.subscribe(syncs.append)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            exec(prelude, scope)
            exec(program.setup, scope)
            for _ in range(_TURNS):
                syncs.clear()
                exec(code, scope)
            return [sync.kind for sync in syncs]
    except Exception as raised:
        return raised
    finally:
        sync_events.unsubscribe(syncs.append)


def _linted_alone(program: Program) -> list[str]:
    """The codes of the warnings about waits in a program."""
    loop = ["for step in range(100):", "    sgd.step()", textwrap.indent(program.statement, " " * 4)]
    text = "\n".join([PRELUDE, program.setup, *loop])
    return [
        finding.code
        for finding in engine.analyze([Source("program.py", text)], EngineSettings()).findings
        if finding.confidence is not Confidence.LOW and finding.heat is Heat.STEP and is_wait(finding.code)
    ]


def _linted(programs: Sequence[Program]) -> list[list[str]]:
    """The codes of the warnings about each program's statement."""
    lines = PRELUDE.splitlines()
    places = []
    for number, program in enumerate(programs):
        lines += [f"def program_{number}():", *textwrap.indent(program.setup, " " * 4).splitlines()]
        lines += ["    for step in range(100):", "        sgd.step()"]
        body = textwrap.indent(program.statement, " " * 8).splitlines()
        places.append(range(len(lines) + 1, len(lines) + len(body) + 1))
        lines += body
    analysis = engine.analyze([Source("programs.py", "\n".join(lines))], EngineSettings())
    if analysis.errors:
        raise ValueError(f"the linter cannot read the programs: {analysis.errors[0].message}")
    by_line: dict[int, list[str]] = {}
    for finding in analysis.findings:
        if finding.confidence is not Confidence.LOW and finding.heat is Heat.STEP:
            by_line.setdefault(finding.span.line, []).append(finding.code)
    return [[code for line in place for code in by_line.get(line, ())] for place in places]
