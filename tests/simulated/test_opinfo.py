"""A sample of PyTorch's database of operators: values on the simulated device are the CPU's, bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from simulated_opinfo import DTYPES, compare, operators

sys.path.pop(0)
_EVERY = 31


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sample_of_operators_is_bit_equal(cuda, dtype):
    chosen = [op for op in operators(_EVERY) if DTYPES[dtype] in op.dtypes]
    outcomes = {op.name: compare(op, DTYPES[dtype], 1) for op in chosen}
    assert {name: pair for name, pair in outcomes.items() if pair[0] not in ("bit-equal", "no sample")} == {}
    assert sum(outcome == "bit-equal" for outcome, _ in outcomes.values()) >= 15


@pytest.mark.parametrize("product", ["mm", "bmm"])
def test_a_product_of_another_type(cuda, product):
    a = torch.ones(2, 3, 3)[0 if product == "mm" else slice(None)].to(cuda, torch.bfloat16)
    result = getattr(torch, product)(a, a, out_dtype=torch.float32)
    assert result.dtype == torch.float32
    assert result.eq(3).all()
