"""A rule is asked about every node that it declares, whatever the inference knows of it."""

from __future__ import annotations

import ast

import pytest
from gpusync_lint import rules
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.context import Report, Rule, method
from gpusync_lint.run.engine import analyze


class Contiguous(Rule):
    """As CONTRIBUTING.md describes a new rule; the barrier is borrowed from the catalogue."""

    nodes = (ast.Call,)
    barriers = ("item",)

    def check(self, node, context):
        if method(node) == "contiguous":
            yield Report("item", node, Confidence.HIGH)


class NamedContiguous(Contiguous):
    calls = ("contiguous",)


SOURCE = """\
import torch

def train(loader, model, optimizer, unknown):
    x = loader.whatever(unknown)
    for batch in loader:
        y = x.contiguous()
        if unknown(batch.contiguous()):
            z = [part.view(-1).contiguous() for part in (x, y)]
            f = lambda t: t.contiguous()
        with unknown(lambda: 1) as q:
            print(f"{q.contiguous()}")

class Layer:
    size = make().contiguous()

    def forward(self, x):
        return x.transpose(0, 1).contiguous()
"""


def lines(text):
    return [number for number, line in enumerate(text.splitlines(), 1) if "contiguous" in line]


@pytest.fixture
def with_rule(monkeypatch):
    """Runs the linter with one rule alone."""
    return lambda rule: monkeypatch.setattr(rules, "all_rules", lambda: (rule,))


@pytest.mark.parametrize("rule", [Contiguous, NamedContiguous])
def test_a_rule_is_asked_about_every_call_of_what_it_may_judge(with_rule, rule):
    with_rule(rule)
    found = analyze([Source("a.py", SOURCE)], EngineSettings()).findings
    assert sorted(finding.span.line for finding in found) == lines(SOURCE)


def test_a_rule_is_not_asked_about_other_calls_than_those_it_names(with_rule):
    asked = []

    class Counting(NamedContiguous):
        def check(self, node, context):
            asked.append(ast.unparse(node.func))
            return iter(())

    with_rule(Counting)
    analyze([Source("a.py", SOURCE)], EngineSettings())
    assert len(asked) == len(lines(SOURCE))
    assert all(text.endswith("contiguous") for text in asked)


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ("numpy.*", "np.linalg.norm(3)"),
        ("torch.cuda.synchronize", "sync()"),
        ("torch.nn.BatchNorm1d.__call__", "norm(4)"),
        ("helper", "renamed()"),
        ("synchronize", "sync()"),
    ],
)
def test_a_call_is_known_by_its_written_and_its_qualified_name(with_rule, calls, text):
    asked = []

    class Wanted(Rule):
        nodes = (ast.Call,)
        barriers = ("item",)

        def check(self, node, context):
            asked.append(ast.unparse(node))
            return iter(())

    Wanted.calls = (calls,)
    with_rule(Wanted)
    source = f"""\
import numpy as np
import torch
from torch.cuda import synchronize as sync

def helper():
    pass

renamed = helper
norm = torch.nn.BatchNorm1d(4)
other()
{text}
"""
    analyze([Source("a.py", source)], EngineSettings())
    assert text in asked
    assert "other()" not in asked


def test_statements_that_run_only_without_a_gpu_are_not_judged(with_rule):
    with_rule(Contiguous)
    source = "import torch\nif not torch.cuda.is_available():\n    if x:\n        y.contiguous()\nz.contiguous()\n"
    found = analyze([Source("a.py", source)], EngineSettings()).findings
    assert [finding.span.line for finding in found] == [5]
