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


@pytest.fixture
def group(cuda):
    """A process group of one process."""
    import torch.distributed as dist

    dist.init_process_group("nccl", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def names(cases):
    return [f"{rule.__name__}: {code}" for rule, code in cases]


@pytest.mark.parametrize(("rule", "code"), FIXED, ids=names(FIXED))
def test_a_fixed_example_has_no_race(group, tmp_path, rule, code):
    if "irecv" in code or "d2l" in code:
        pytest.skip("needs a second process, or a package that is not installed")
    assert races(fixed(code), tmp_path) == ()


OF_RACES = [rule for rule in all_rules() if any(registry.all_barriers()[one].code in RACES for one in rule.barriers)]
RACED = [(rule, code) for rule in OF_RACES for code in rule.INVALID]
ORDERED = [(rule, code) for rule in OF_RACES for code in rule.VALID]


@pytest.mark.parametrize(("rule", "code"), RACED, ids=names(RACED))
def test_what_a_rule_reports_is_a_race_on_the_simulated_device(group, tmp_path, rule, code):
    if "irecv" in code:
        pytest.skip("needs a second process")
    assert races(program(code), tmp_path)


@pytest.mark.parametrize(("rule", "code"), ORDERED, ids=names(ORDERED))
def test_what_a_rule_leaves_alone_is_no_race_on_the_simulated_device(group, tmp_path, rule, code):
    assert races(program(code), tmp_path) == ()
