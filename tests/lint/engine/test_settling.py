"""What the inference ends with does not depend on the order in which it learns things."""

from __future__ import annotations

import ast
import itertools
import textwrap

import pytest
from gpusync_lint.domain.lattice import widened
from gpusync_lint.domain.values import CPU_TENSOR, GPU_TENSOR, HOST, MOVED, NONE, UNKNOWN, Kind, Value, dict_of, list_of
from gpusync_lint.inference.loop_carried import read_first
from gpusync_lint.model.levels import Confidence
from gpusync_lint.project.symbols import mentions_device

OTHER = Value(Kind.INSTANCE, ref="another")
INSTANCE = Value(Kind.INSTANCE, ref="one")


def _loop(source: str) -> ast.For | ast.While:
    loop = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(loop, (ast.For, ast.While))
    return loop


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("for x in data:\n    y = x\n    print(y)", {"print"}, id="bound before it is read"),
        pytest.param("for x in data:\n    total = total + x", {"total"}, id="read in its own assignment"),
        pytest.param("for x in data:\n    total += x", {"total"}, id="augmented"),
        pytest.param("for x in data:\n    f(y)\n    y = x", {"f", "y"}, id="read, then bound"),
        pytest.param("while go(y):\n    y = 1", {"go", "y"}, id="the test of a while"),
        pytest.param("for x in data:\n    if a:\n        y = 1\n    f(y)", {"a", "f", "y"}, id="bound in one branch"),
        pytest.param("for x in data:\n    if a:\n        y = 1\n    else:\n        y = 2\n    f(y)", {"a", "f"},
                     id="bound in both branches"),
        pytest.param("for x in data:\n    if a:\n        continue\n    else:\n        y = 2\n    f(y)", {"a", "f"},
                     id="the other branch leaves"),
        pytest.param("for x in data:\n    for z in x:\n        y = z\n    f(y)", {"f", "y"},
                     id="an inner loop may not run"),
        pytest.param("for x in data:\n    try:\n        y = f()\n    except E:\n        pass\n    g(y)",
                     {"f", "g", "y"}, id="what is tried may fail"),
        pytest.param("for x in data:\n    with f() as y:\n        z = y\n    g(z)", {"f", "g"}, id="with"),
        pytest.param("for x in data:\n    a, (b, *c) = x\n    f(a, b, c)", {"f"}, id="unpacked"),
        pytest.param("for x in data:\n    y[i] = x", {"y", "i"}, id="a store into what is there"),
        pytest.param("for x in data:\n    def g():\n        return y\n    y = g()", {"y"}, id="a closure"),
    ],
)  # fmt: skip
def test_what_a_turn_of_a_loop_reads_of_an_earlier_one(source: str, expected: set[str]) -> None:
    assert read_first(_loop(source)) == expected


@pytest.mark.parametrize(
    "values",
    [
        pytest.param((CPU_TENSOR, INSTANCE, GPU_TENSOR), id="tensors and an object"),
        pytest.param((HOST, INSTANCE, HOST), id="numbers and an object"),
        pytest.param((list_of(HOST), GPU_TENSOR, dict_of((), HOST)), id="containers and a tensor"),
        pytest.param((NONE, UNKNOWN, MOVED), id="a batch that was moved"),
    ],
)
def test_values_widen_to_the_same_in_any_order(values: tuple[Value, ...]) -> None:
    ends = set()
    for order in itertools.permutations(values):
        held = order[0]
        for value in order[1:]:
            held = widened(held, value)
        again = widened(held, order[0])
        assert again._replace(elem=held.elem) == held, "once it is known, nothing undoes it"
        ends.add(held._replace(certain=True, elem=None))
    assert len(ends) == 1


def test_an_object_may_be_of_two_classes() -> None:
    either = Value(Kind.UNION, items=(OTHER, INSTANCE))
    assert widened(INSTANCE, OTHER) == either
    assert widened(widened(OTHER, INSTANCE), OTHER) == either


@pytest.mark.parametrize("calls", list(itertools.permutations(["f(x)", "f(Box())", "f(torch.ones(3, device=d))"])))
def test_a_print_is_found_whatever_the_order_of_the_calls(lint, calls: tuple[str, ...]) -> None:
    body = "\n".join(f"            {call}" for call in calls)
    found = lint(f"""
        import torch
        d = torch.device("cuda")
        class Box:
            pass
        def f(value):
            for _ in range(2):
                print(value[0].exp() > 1)
        def train(x, sgd):
            for step in range(100):
                sgd.step()
{textwrap.indent(body, "    ")}
    """)
    assert [finding.code for finding in found] == ["GS206"]


def test_a_body_learns_what_its_functions_read_later(lint) -> None:
    """`batchify` is called before `device` is known to it: names of a module are there once its body has run."""
    found = lint("""
        import torch
        def batchify(data):
            return data.to(device)
        device = torch.device("cuda")
        kept = batchify(torch.ones(3))
        def train(sgd):
            for step in range(100):
                sgd.step()
                print(kept.sum().item())
    """)
    assert [(one.code, one.confidence) for one in found if one.code == "GS201"] == [("GS201", Confidence.HIGH)]


@pytest.mark.parametrize(
    ("text", "speaks"),
    [
        ("x.cuda()", True),
        ("use_accelerator = 1", True),
        ("the GPUs", False),
        ("two gpus", True),
        ("a device", True),
        ("devices", False),
        ("mpsx", False),
        ("", False),
    ],
)
def test_a_text_speaks_of_a_device_by_whole_words(text: str, speaks: bool) -> None:
    assert mentions_device(text) is speaks
