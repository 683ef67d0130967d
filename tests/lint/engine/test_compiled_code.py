"""Findings that break a graph of torch.compile: which functions are compiled, and what Dynamo does with a wait."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from gpusync_lint.catalogue import graph_breaks
from gpusync_lint.catalogue.registry import catalogue
from gpusync_lint.model.findings import EngineSettings

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "graph_breaks.py"

STEPS = """
import functools, torch
from torch import nn
def wait(x):
    return x.sum().item()
{definitions}
optimizer = torch.optim.SGD([torch.zeros(1, device="cuda")], lr=0.1)
for number in range(100):
    x = torch.randn(4, device="cuda")
    {call}
    optimizer.step()
"""


def breaks(lint, definitions, call, **settings):
    """The findings of .item() with what they break."""
    source = STEPS.format(definitions=definitions, call=call)
    found = [finding for finding in lint(source, EngineSettings(**settings)) if finding.code == "GS201"]
    assert found
    return [finding.graph_break for finding in found]


MODEL = "class Model(nn.Module):\n    def forward(self, x):\n        return wait(x)\nmodel = Model().cuda()\n"


@pytest.mark.parametrize(
    ("definitions", "call"),
    [
        ("compiled = torch.compile(wait)", "compiled(x)"),
        ("@torch.compile\ndef step(x):\n    return wait(x)", "step(x)"),
        ("@torch.compile(mode='default')\ndef step(x):\n    return wait(x)", "step(x)"),
        ("@functools.partial(torch.compile, dynamic=True)\ndef step(x):\n    return wait(x)", "step(x)"),
        (f"{MODEL}compiled = torch.compile(model)", "compiled(x)"),
        (f"{MODEL}model.compile()", "model(x)"),
        ("def inner(x):\n    return wait(x)\n@torch.compile\ndef step(x):\n    return inner(x)", "step(x)"),
    ],
)
def test_what_a_compiled_function_reaches_breaks_its_graph(lint, definitions, call):
    assert all(breaks(lint, definitions, call))


@pytest.mark.parametrize(
    ("definitions", "call"),
    [
        ("", "wait(x)"),
        ("@torch.compile\ndef other(x):\n    return x + 1", "wait(other(x))"),
        ("@torch.compiler.disable\ndef read(x):\n    return wait(x)\n@torch.compile\ndef f(x):\n    read(x)", "f(x)"),
        ("import re\npattern = re.compile('a')", "wait(x)"),
    ],
)
def test_what_is_not_compiled_breaks_no_graph(lint, definitions, call):
    assert not any(breaks(lint, definitions, call))


def test_a_break_names_where_the_function_is_compiled_and_the_setting(lint):
    (found,) = breaks(lint, "compiled = torch.compile(wait)", "compiled(x)")
    assert (found.path, found.line, found.settings, found.fullgraph) == ("train.py", 6, "capture_scalar_outputs", False)
    assert found.sentence == (
        "breaks the graph (train.py:6 compiles it), unless `torch._dynamo.config` sets capture_scalar_outputs"
    )


def test_a_full_graph_captures_values_and_fails_at_branches(lint):
    assert breaks(lint, "compiled = torch.compile(wait, fullgraph=True)", "compiled(x)") == [None]
    branch = "@torch.compile(fullgraph=True)\ndef step(x):\n    if x.sum() > 0: pass\n    return x"
    found = lint(STEPS.format(definitions=branch, call="step(x)"))
    assert [finding.graph_break.sentence for finding in found if finding.code == "GS301"] == [
        "is an error with `fullgraph=True` (train.py:6 compiles it)"
    ]


@pytest.mark.parametrize(
    "setting",
    ["torch._dynamo.config.capture_scalar_outputs = True", "patch = dict(capture_scalar_outputs=True)"],
)
def test_a_setting_that_captures_the_value_is_no_break(lint, setting):
    assert breaks(lint, f"compiled = torch.compile(wait)\n{setting}", "compiled(x)") == [None]


@pytest.mark.parametrize(
    ("statement", "code", "effect"),
    [
        ("y = x.cpu()", "GS202", None),
        ("y = x[x > 0]", "GS402", "capture_dynamic_output_shape_ops"),
        ("if x.sum() > 0: pass", "GS301", "always"),
        ("print(x)", "GS206", "always"),
    ],
)
def test_a_wait_that_dynamo_captures_is_no_break(lint, statement, code, effect):
    source = STEPS.format(definitions=f"@torch.compile\ndef f(x):\n    {statement}\n    return x", call="f(x)")
    (found,) = [finding.graph_break for finding in lint(source) if finding.code == code]
    assert (found and (found.settings or "always")) == effect


def test_the_text_says_what_breaks(tmp_path, monkeypatch, capsys):
    from gpusync_lint.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(STEPS.format(definitions="f = torch.compile(wait)", call="f(x)"))
    for _ in range(2):  # the second time from the cache
        assert main(["train.py"]) == 1
        assert "    torch.compile: breaks the graph (train.py:6 compiles it), unless " in capsys.readouterr().out
        assert main(["train.py", "--output-format", "json"]) == 1
        (found,) = json.loads(capsys.readouterr().out)["findings"]
        assert found["graph_break"] == {
            "path": "train.py",
            "line": 6,
            "settings": "capture_scalar_outputs",
            "fullgraph": False,
        }


@pytest.mark.parametrize("output", ["sarif", "gitlab", "github", "junit", "azure", "rdjson"])
def test_every_other_format_says_what_breaks(tmp_path, monkeypatch, capsys, output):
    from gpusync_lint.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(STEPS.format(definitions="f = torch.compile(wait)", call="f(x)"))
    main(["train.py", "--output-format", output])
    shown = capsys.readouterr().out
    assert "torch.compile: breaks the graph (train.py:6 compiles it), unless " in shown
    if output == "sarif":
        (result,) = json.loads(shown)["runs"][0]["results"]
        assert result["properties"]["graph_break"]["settings"] == "capture_scalar_outputs"
        assert result["properties"]["capture"] is None


def test_every_effect_belongs_to_a_barrier_and_is_one_of_those_known():
    known = {graph_breaks.CAPTURED, graph_breaks.BREAKS, graph_breaks.DEPENDS, *graph_breaks.SETTINGS.values()}
    for entry in json.loads(graph_breaks.FILE.read_text()).values():
        assert set(entry["effects"]) <= set(catalogue("torch").barriers)
        assert {effect for effects in entry["effects"].values() for effect in effects.values()} <= known


@pytest.fixture(scope="module")
def measured():
    """The benchmark that measures the installed torch, and what the file has for its release."""
    torch = pytest.importorskip("torch")
    release = ".".join(torch.__version__.split(".")[:2])
    entry = json.loads(graph_breaks.FILE.read_text()).get(release)
    if entry is None:
        pytest.skip(f"torch {release} has not been measured: run benchmarks/graph_breaks.py --write")
    spec = importlib.util.spec_from_file_location("graph_breaks_benchmark", BENCHMARK)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    if entry["device"] != benchmark.DEVICE:
        pytest.skip(f"measured on {entry['device']}, and this is {benchmark.DEVICE}")
    return benchmark, entry["effects"]


@pytest.mark.parametrize(
    ("barrier", "statement"),
    [
        ("item", "s.item()"),
        ("copy-to-host", "x.cpu()"),
        ("branch-on-tensor", "if s > 0: pass"),
        ("nonzero", "m.nonzero()"),
    ],
)
def test_the_installed_torch_does_with_a_statement_what_the_file_says(measured, barrier, statement):
    benchmark, effects = measured
    assert benchmark.effect_of(statement) == effects[barrier]["*"]


@pytest.mark.long
def test_the_installed_torch_does_what_the_file_says(measured):
    benchmark, effects = measured
    which = benchmark.barriers()
    found = {barrier.id: benchmark.merged(results) for barrier, results in benchmark.measure(which)}
    assert found == {barrier.id: effects.get(barrier.id, {}) for barrier in which}
