"""The examples of the linter's catalogues, for torch and installed libraries on top of it, on the simulated device."""

from __future__ import annotations

import importlib.util
import warnings
from typing import TYPE_CHECKING

import pytest
import torch
from gpusync_lint.catalogue import registry

from pytest_gpusync import record
from pytest_gpusync.simulated import simulated_cuda

if TYPE_CHECKING:
    from gpusync_lint.catalogue.schema import Catalogue

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def runnable():
    for name in registry.frameworks():
        each = registry.catalogue(name)
        on_torch = each.framework == "torch" or each.on == "torch"
        if (
            on_torch
            and each.runnable
            and any(importlib.util.find_spec(module) for module in each.modules or ("torch",))
        ):
            yield each


CASES = [
    pytest.param(
        each,
        example,
        (said or example.meant) and not (barrier.until_torch and barrier.until_torch <= VERSION),
        id=f"{barrier.id}: {example.run}",
    )
    for each in runnable()
    for barrier in each.barriers.values()
    for examples, said in ((barrier.waits, True), (barrier.silent, False))
    for example in examples
]
NOT_SIMULATED = "does not simulate torch.sparse"


@pytest.fixture(scope="module")
def names():
    """What the examples of a catalogue begin with, made once."""
    known: dict[str, dict[str, object]] = {}

    def of(each: Catalogue) -> dict[str, object]:
        if each.framework not in known:
            known[each.framework] = {}
            exec(each.prelude, known[each.framework])
        return dict(known[each.framework])

    with simulated_cuda(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield of


def syncs(code, scope):
    with record() as seen:
        exec(code, scope)
    return seen.syncs


@pytest.mark.parametrize(("each", "example", "said"), CASES)
def test_an_example_waits_where_its_catalogue_says_so(names, each, example, said):
    scope = names(each)
    code = compile(example.run, "<example>", "exec")
    try:
        exec(example.setup, scope)
        exec(code, scope)
        again = syncs(code, scope)
        exec(example.setup, scope)
        afresh = syncs(code, scope)
    except NotImplementedError as refused:
        if NOT_SIMULATED in str(refused):
            pytest.skip(str(refused))
        raise
    assert (again + afresh > 0) is said
