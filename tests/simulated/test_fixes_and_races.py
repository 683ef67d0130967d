"""No fix of the linter leaves a race: the examples of all rules, fixed and run on the simulated device."""

from __future__ import annotations

import textwrap
from functools import cache
from typing import TYPE_CHECKING

import pytest
from gpusync_lint.catalogue import registry
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rewrite import apply
from gpusync_lint.rewrite.codemod import Codemod
from gpusync_lint.rules import all_rules
from gpusync_lint.run import engine

from pytest_gpusync import record

if TYPE_CHECKING:
    from pathlib import Path

BEFORE = f"""{registry.catalogue("torch").prelude}
import time
total = kept = 0.0
losses = []
loss_value = 1.0
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
fused = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.amp.GradScaler("cuda")
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd)
layer = torch.nn.TransformerEncoderLayer(256, 4, batch_first=True)
for step in range(3):
"""
EXAMPLES = [(rule, code) for rule in all_rules() for code in rule.INVALID]
RACES = {"GS706", "GS707", "GS708", "GS709", "GS806"}


def program(body: str) -> str:
    return f"{BEFORE}{textwrap.indent(body, '    ')}\n"


@cache
def fixed(body: str) -> str:
    """An example after `--fix --unsafe-fixes`; the names that it is given are left as they are."""
    source = program(body)
    for _ in range(10):
        found = engine.analyze([Source("train.py", source)], EngineSettings()).findings
        sure = [one for one in found if one.confidence is not Confidence.LOW and one.span.line > BEFORE.count("\n")]
        codemod = Codemod(source)
        chosen = apply.choose(sure, lambda one, codemod=codemod: codemod.edits(one.operations), unsafe=True)
        if not chosen.fixes:
            break
        source = apply.apply_edits(source, chosen.edits)
    return source


FIXED = [(rule, code) for rule, code in EXAMPLES if fixed(code) != program(code)]


def races(source: str, folder: Path) -> tuple[str, ...]:
    """The races of a program, run in a file of its own."""
    path = folder / "train.py"
    path.write_text(source, encoding="utf-8")
    with record() as seen:
        exec(compile(source, str(path), "exec"), {"__name__": "train"})
    return tuple(race.message for race in seen.races)


@pytest.mark.parametrize(("rule", "code"), FIXED, ids=[f"{rule.__name__}: {code}" for rule, code in FIXED])
def test_a_fixed_example_has_no_race(cuda, tmp_path, rule, code):
    finds_races = any(registry.all_barriers()[barrier].code in RACES for barrier in rule.barriers)
    if "dist." in code:
        pytest.skip("needs a process group")
    try:
        before = races(program(code), tmp_path)
    except (NameError, ModuleNotFoundError, NotImplementedError, RuntimeError) as stopped:
        pytest.skip(f"the example does not run here: {stopped}")
    assert bool(before) is finds_races
    assert races(fixed(code), tmp_path) == ()
