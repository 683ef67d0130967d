"""Functions run again where something that they read has changed, and only there; what is made once stays apart."""

from __future__ import annotations

import ast

import pytest
from gpusync_lint.domain.environment import Environment
from gpusync_lint.domain.external_names import member
from gpusync_lint.domain.lattice import element, join
from gpusync_lint.domain.values import (
    CPU_TENSOR,
    DTYPE,
    GPU_TENSOR,
    HOST,
    UNKNOWN,
    Device,
    Gradient,
    Kind,
    any_tensor,
    dict_of,
    host_constant,
    list_of,
    tensor,
    tensor_like,
    tuple_of,
)
from gpusync_lint.inference.fixpoint import Inference
from gpusync_lint.inference.named_barriers import NamedBarriers
from gpusync_lint.project.resolution import Project
from gpusync_lint.project.symbols import read_symbols


@pytest.fixture
def inferred():
    """Runs the inference over files; gives the states of the functions by their qualified names."""

    def run(**files):
        named = NamedBarriers(())
        infos = [read_symbols(f"{name}.py", text, ast.parse(text)) for name, text in files.items()]
        project = Project(infos, named.roots)
        inference = Inference(project, named)
        inference.run()
        states = [inference.state(fn) for info in infos for fn in info.all_functions]
        return {state.fn.qualname: state for state in states}

    return run


def test_what_read_nothing_that_changed_runs_once(inferred):
    functions = inferred(a="import torch\ndef f():\n    return g(1)\ndef g(x):\n    return torch.zeros(x)\n")
    assert (functions["f"].runs, functions["g"].runs) == (1, 1)


READER = "import torch\nclass A:\n    def read(self):\n        return self.x\n"
FILLER = "    def fill(self):\n        self.x = torch.zeros(3, device='cuda')\n"


def test_an_attribute_that_comes_later_is_read_again(inferred):
    read = inferred(a=READER + FILLER)["A.read"]
    assert read.runs == 2
    assert read.summary.returns == GPU_TENSOR


def test_an_attribute_that_another_class_gets_is_not_read_again(inferred):
    assert inferred(a=READER + "class B:\n" + FILLER)["A.read"].runs == 1


def test_an_attribute_of_a_base_that_comes_later_is_read_again(inferred):
    code = "import torch\nclass B:\n    def go(self):\n        return C().x\n" + "class A:\n" + FILLER
    assert inferred(a=code + "class C(A):\n    pass\n")["B.go"].summary.returns == GPU_TENSOR


def test_a_closure_reads_what_is_bound_after_it(inferred):
    code = "import torch\ndef first():\n    def inner():\n        return later\n"
    code += "    later = torch.zeros(3, device='cuda')\n    return inner()\n"
    assert inferred(a=code)["first"].summary.returns == GPU_TENSOR


def test_a_parameter_whose_device_is_known_in_the_second_round_alone_is_read_again(inferred):
    code = (
        "import torch\ndevice = torch.device('cuda')\nclass Batches(torch.utils.data.Dataset):\n"
        "    def __getitem__(self, i):\n        return late(i)\n"
        "def late(x: torch.Tensor):\n    return x\n"
    )
    assert inferred(a=code)["late"].summary.returns.device is Device.UNKNOWN


def test_an_annotation_means_what_its_own_file_says(inferred):
    functions = inferred(
        a="import torch\nfrom torch import Tensor as T\ndef f(x: T):\n    return x\n",
        b="import torch\nfrom numpy import ndarray as T\ndef g(x: T):\n    return x\n",
    )
    assert functions["f"].summary.returns.kind is Kind.TENSOR
    assert functions["g"].summary.returns.kind is Kind.ARRAY


@pytest.mark.parametrize("const", [True, False, 1, 0, 1.0, 0.0, "1", -1])
def test_constants_that_are_equal_are_kept_apart_by_their_types(const):
    for other in (True, False, 1, 0, 1.0, 0.0):
        host_constant(other)
    assert host_constant(const).const == const
    assert type(host_constant(const).const) is type(const)


def test_what_no_value_stands_for_is_on_the_host():
    assert host_constant(b"1") is HOST
    assert host_constant(...) is HOST


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        (GPU_TENSOR, True),
        (CPU_TENSOR, False),
        (HOST, False),
        (tuple_of([HOST, GPU_TENSOR]), True),
        (list_of(tuple_of([GPU_TENSOR])), True),
        (dict_of((("a", CPU_TENSOR),), None), False),
        (dict_of((("a", HOST),), GPU_TENSOR), True),
    ],
)
def test_a_tensor_on_the_device_is_found_among_arguments(value, holds):
    assert any_tensor([HOST, value], {}) is holds
    assert any_tensor([], {"x": value}) is holds


def test_a_tensor_like_another_keeps_what_else_is_known_of_it():
    pageable = CPU_TENSOR._replace(pageable=True)
    assert tensor_like(pageable, False, True, False, False, Gradient.NONE) == pageable._replace(
        certain=False, zero_dim=True
    )
    assert tensor_like(GPU_TENSOR, True, None, True, False, Gradient.NONE) == tensor(Device.GPU, boolean=True)
    assert element(GPU_TENSOR._replace(zero_dim=True)) == GPU_TENSOR


def test_members_of_outside_names():
    assert member("torch", "float32") == DTYPE
    assert member("math", "pi") is HOST
    assert member("torch", "nn").ref == "torch.nn"


def test_a_branch_that_may_not_have_run_is_joined_with_what_was_there():
    env = Environment({"x": CPU_TENSOR})
    mark = env.mark()
    env.set("x", GPU_TENSOR)
    env.set("y", HOST)
    changed = env.rollback(mark)
    assert env.values == {"x": CPU_TENSOR}
    env.merge([changed], exhaustive=False)
    assert env.values == {"x": join(CPU_TENSOR, GPU_TENSOR), "y": HOST}


def test_a_branch_that_has_run_replaces_what_was_there():
    env = Environment({"x": CPU_TENSOR})
    env.merge([{"x": GPU_TENSOR}], exhaustive=True)
    assert env.values == {"x": GPU_TENSOR}


def test_a_name_that_is_bound_twice_is_rolled_back_to_what_it_was_first():
    env = Environment({"x": CPU_TENSOR, "x.y": HOST})
    mark = env.mark()
    env.set("x.y", GPU_TENSOR)
    env.set("x", UNKNOWN)
    env.set("x", HOST)
    assert env.rollback(mark) == {"x": HOST, "x.y": UNKNOWN}
    assert env.values == {"x": CPU_TENSOR, "x.y": HOST}
