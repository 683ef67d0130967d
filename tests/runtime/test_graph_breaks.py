"""Graph breaks and recompilations of torch.compile, by line, on a CPU."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from pytest_gpusync import GraphBreaksExceeded, NotMeasured, assert_graph_breaks
from pytest_gpusync.measure.region import record
from pytest_gpusync.model.compilation import events_per_step
from pytest_gpusync.recorders import compiler_events
from pytest_gpusync.reporting.run_file import region_document, run_document
from pytest_gpusync.reporting.terminal import render_measurement

torch = pytest.importorskip("torch")

PROGRAM = """\
import torch


def scalar(x):
    y = x.cuda() if x.is_cuda else x + 1
    value = y.sum().item()
    return y * value


def helper(x):
    print("in the helper")
    return x + 1


def nested(x):
    return helper(x * 2) * 3


def looped(x):
    for _ in range(3):
        x = x + 1
        print("in the loop")
    return x


def guarded(x):
    try:
        print("in the try block")
    except ValueError:
        pass
    return x + 1


def whole(x):
    return (x * 2).cpu().clamp(min=0.0)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The module `program`, in the working directory."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    import program as module

    yield module
    torch.compiler.reset()
    del sys.modules["program"]


def run(function, rows=4):
    return torch.compile(function, backend="eager")(torch.ones(rows))


@pytest.mark.parametrize(
    ("name", "line", "effect"),
    [
        ("scalar", "value = y.sum().item()", "resumed"),
        ("nested", 'print("in the helper")', "resumed"),
        ("looped", 'print("in the loop")', "function_eager"),
        ("guarded", 'print("in the try block")', "function_eager"),
    ],
)
def test_a_graph_break_is_reported_at_its_line(program, name, line, effect):
    with pytest.raises(GraphBreaksExceeded) as failure, assert_graph_breaks():
        run(getattr(program, name))
    (found,) = failure.value.lines
    assert (found.site.path, PROGRAM.splitlines()[found.site.line - 1].strip()) == ("program.py", line)
    assert found.effect == effect


def test_the_failure_has_dynamos_reason_and_our_rule(program):
    with pytest.raises(GraphBreaksExceeded) as failure, assert_graph_breaks():
        run(program.scalar)
    head, place, reason, remedy = str(failure.value).splitlines()
    assert head == "torch.compile broke its graphs at 1 line, budget 0"
    assert place.split() == ["program.py:6", "value", "=", "y.sum().item()", "GS201"]
    assert reason.strip().startswith("Unsupported Tensor.item() call with capture_scalar_outputs=False")
    assert remedy.strip().startswith("GS201: ")


def test_a_function_of_one_graph_passes(program):
    with assert_graph_breaks() as seen:
        run(program.whole)
    assert seen.lines == ()


def test_as_many_lines_as_the_budget_pass(program):
    with assert_graph_breaks(max=1) as seen:
        run(program.nested)
    assert [line.times for line in seen.lines] == [2]  # in the frame that calls the helper, and in the helper's own


def test_a_function_that_was_compiled_before_is_traced_again(program):
    run(program.scalar)
    with pytest.raises(GraphBreaksExceeded), assert_graph_breaks():
        run(program.scalar)


def test_a_block_that_compiles_nothing_is_not_measured(program):
    with pytest.raises(NotMeasured, match="compiled nothing in the block"), assert_graph_breaks():
        program.scalar(torch.ones(4))


def test_the_simulated_device_is_not_measured(monkeypatch):
    monkeypatch.setattr("pytest_gpusync.graph_breaks.simulation_is_on", lambda: True)
    with pytest.raises(NotMeasured, match="without GPU budgets"), assert_graph_breaks():
        raise AssertionError("not reached")


def test_it_decorates_a_test(program):
    @assert_graph_breaks(max=1)
    def checked():
        run(program.scalar)

    checked()


def test_an_exception_of_the_block_is_the_failure(program):
    with pytest.raises(ZeroDivisionError), assert_graph_breaks():
        run(program.scalar)
        raise ZeroDivisionError


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "0"])
def test_a_budget_is_a_number_of_lines(wrong):
    with pytest.raises(ValueError, match="integer of at least 0"):
        assert_graph_breaks(max=wrong)


def test_dynamo_is_restored(program):
    from torch._dynamo import convert_frame, symbolic_convert

    def wrapped():
        return (
            symbolic_convert.InstructionTranslatorBase.log_graph_break,
            convert_frame.get_and_maybe_log_recompilation_reasons,
        )

    before = wrapped()
    with pytest.raises(KeyboardInterrupt), assert_graph_breaks():
        assert wrapped() != before
        raise KeyboardInterrupt
    assert wrapped() == before
    assert not compiler_events.is_attached()


def test_counters_of_dynamo_are_as_without_us(program):
    from torch._dynamo.utils import counters

    def counted(block):
        torch.compiler.reset()
        counters.clear()
        with block:
            run(program.nested)
        return {key: dict(values) for key, values in counters.items()}

    assert counted(assert_graph_breaks(max=9)) == counted(nullcontext())


def test_a_region_counts_breaks_and_recompilations_per_step(program, scripted):
    torch.compiler.reset()  # loads Dynamo
    with record(warmup=1) as seen:
        compiled = torch.compile(program.scalar, backend="eager", dynamic=False)
        for rows in (4, 4, 5, 6):
            compiled(torch.ones(rows))
            scripted.sync()
            seen.mark_step()
    measurement = seen.result()
    assert (seen.graph_breaks, seen.recompilations) == (3, 4)
    assert events_per_step(measurement, "graph_break") == [0, 1, 1]
    # The function and what remains of it after the break, each for a new size.
    assert events_per_step(measurement, "recompilation") == [0, 2, 2]
    document = run_document(None, [region_document(measurement)])["regions"][0]["compilation"]
    assert (document["graph_breaks"], document["recompilations"]) == (3, 4)
    (line,) = [line for line in document["lines"] if line["kind"] == "graph_break"]
    assert (line["path"], line["line"], line["code"], line["times"], line["in_steps"]) == (
        "program.py",
        6,
        "GS201",
        3,
        2,
    )
    shown = "\n".join(render_measurement(measurement, verbose=True))
    assert "torch.compile: 3 graph breaks, 2 after warm-up; 4 recompilations, 4 after warm-up" in shown
    assert "tensor 'x' size mismatch at index 0. expected 4, actual 5" in shown


def test_a_region_does_not_load_the_compiler(scripted, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    with record() as seen:
        scripted.sync()
    assert "torch._dynamo" not in sys.modules
    assert (seen.result().compilation, seen.graph_breaks) == (None, None)
    assert not any(type(finder).__name__ == "AfterImport" for finder in sys.meta_path)


@pytest.mark.long
def test_thirty_functions_break_where_explain_and_fullgraph_say(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import beside_explain

    rows = beside_explain.measure()
    assert len(rows) == 30
    assert [row.name for row in rows if not row.agrees] == []
