"""Ways to ask the engine about a few lines of source."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest
from gpusync_lint.catalogue import registry
from gpusync_lint.model.findings import EngineSettings, Finding, Fix, Source
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.rewrite import apply
from gpusync_lint.rewrite.codemod import Codemod
from gpusync_lint.run import engine

if TYPE_CHECKING:
    from collections.abc import Callable

EXTRA = """
import time, wandb
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter()
total = 0.0
kept = 0.0
losses = []
loss_value = 1.0
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
fused = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.amp.GradScaler("cuda")
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd)
layer = torch.nn.TransformerEncoderLayer(256, 4, batch_first=True)
"""


def _path(name: str) -> str:
    """`a/b` for `a__b`, and `a/__init__` for `a____init__`."""
    folder = name.removesuffix("____init__")
    return folder.replace("__", "/") + ("/__init__" if folder != name else "")


@pytest.fixture
def lint() -> Callable[..., list[Finding]]:
    """Analyze files given by name, or one anonymous file.

    Findings of low confidence are left out, and so are moves of modules, with which almost every example begins.
    """

    def run(source: str = "", settings: EngineSettings | None = None, **files: str) -> list[Finding]:
        texts = {f"{_path(name)}.py": text for name, text in files.items()}
        if source:
            texts["train.py"] = source
        sources = [Source(path, textwrap.dedent(text)) for path, text in texts.items()]
        analysis = engine.analyze(sources, settings or EngineSettings())
        assert not analysis.errors, analysis.errors
        return [
            finding
            for finding in analysis.findings
            if finding.confidence is not Confidence.LOW
            and not (finding.heat is Heat.ONCE and "parameters and buffers of the module" in finding.message)
        ]

    return run


@pytest.fixture
def lint_step(lint: Callable[..., list[Finding]]) -> Callable[..., list[Finding]]:
    """Analyze statements as the body of a training loop, with the catalogue's names defined before it."""

    def run(statements: str, setup: str = "", settings: EngineSettings | None = None) -> list[Finding]:
        before = _before_step(setup)
        start = before.count("\n")
        return [
            finding
            for finding in lint(f"{before}{textwrap.indent(statements, '    ')}\n", settings=settings)
            if finding.span.line > start
        ]

    return run


def _before_step(setup: str = "") -> str:
    return f"{registry.catalogue('torch').prelude}{EXTRA}{setup}\nfor step in range(100):\n    sgd.step()\n"


@pytest.fixture
def with_fix() -> Callable[[str, Fix], str]:
    """A source with one fix applied."""

    def run(source: str, fix: Fix) -> str:
        return apply.apply_edits(source, Codemod(source).edits(fix.operations))

    return run


@pytest.fixture
def with_step_fix(with_fix: Callable[[str, Fix], str]) -> Callable[[str, Finding], str]:
    """Statements that `lint_step` was given, with the fix of one finding applied."""

    def run(statements: str, finding: Finding) -> str:
        before = _before_step()
        after = with_fix(f"{before}{textwrap.indent(statements, '    ')}\n", finding.fix)
        assert after.startswith(before)
        return textwrap.dedent(after[len(before) :]).rstrip("\n")

    return run


@pytest.fixture
def fixed() -> Callable[..., str]:
    """A source with its safe fixes (with `unsafe=True` all fixes) applied until none is left."""

    def fix(source: str, *, unsafe: bool = False) -> str:
        for _ in range(10):
            found = engine.analyze([Source("train.py", source)], EngineSettings()).findings
            hot = [one for one in found if one.heat is Heat.STEP and one.confidence is not Confidence.LOW]
            codemod = Codemod(source)
            chosen = apply.choose(hot, lambda one, codemod=codemod: codemod.edits(one.operations), unsafe=unsafe)
            if not chosen.fixes:
                return source
            source = apply.apply_edits(source, chosen.edits)
        raise AssertionError("the fixes do not converge")

    return fix
