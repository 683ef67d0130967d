"""Hold the simulated device against the CPU with PyTorch's own database of operators (OpInfo).

    python benchmarks/simulated_opinfo.py [--samples N] [--every N] [--only TEXT] [--dtype TYPE] [--json OUT]

For each operator, up to N samples of inputs (default 3): the forward pass, and the gradients where it has them, on the
CPU and on the simulated device, from the same inputs and the same seed. An operator is

    bit-equal    every result has the CPU's shape, strides aside, type and bits
    close        some differ by rounding only, as ``torch.testing.assert_close`` sees it
    differs      some differ by more
    refused      the simulated device, or a GPU, does not do it; the reason is listed
    no sample    nothing to compare in this type, or the CPU fails too

``--every N`` takes each N-th operator, for a sample of the database.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import types
import unittest
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from pytest_gpusync.simulated import simulated_cuda

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_UNDEFINED = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "empty_permuted")
"""Operators whose result is whatever the memory held."""
OUTCOMES = ("bit-equal", "close", "differs", "refused", "no sample")


def run(op: Any, sample: Any, device: str, gradients: bool) -> list[torch.Tensor]:
    """The results, and the gradients of the floating-point inputs, as CPU tensors."""
    tracked: list[torch.Tensor] = []

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.detach().clone().to(device)
            if gradients and value.is_floating_point():
                tracked.append(value.requires_grad_())
        elif isinstance(value, torch.device):
            value = torch.device(device)
        return value

    arguments, keywords = tree_map(move, (sample.input, *sample.args)), tree_map(move, sample.kwargs)
    if keywords.get("device") is not None:
        keywords["device"] = device
    torch.manual_seed(0)
    results = [value for value in tree_flatten(op(*arguments, **keywords))[0] if isinstance(value, torch.Tensor)]
    outputs = [value for value in results if value.requires_grad and value.is_floating_point()]
    if gradients and outputs:
        seeds = [torch.ones_like(value) for value in outputs]
        found = torch.autograd.grad(outputs, tracked, seeds, allow_unused=True)
        results += [value for value in found if value is not None]
    return [value.detach().cpu() for value in results]


def compare(op: Any, dtype: torch.dtype, samples: int) -> tuple[str, str]:
    """(outcome, reason) of one operator."""
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    try:
        inputs = [sample for sample, _ in zip(op.sample_inputs("cpu", dtype), range(samples), strict=False)]
    except Exception as error:
        return "no sample", _first_line(error)
    outcomes: list[tuple[str, str]] = []
    for sample in inputs:
        try:
            expected = run(op.op, sample, "cpu", gradients)
        except Exception as error:
            outcomes.append(("no sample", _first_line(error)))
            continue
        try:
            outcomes.append(_outcome(expected, run(op.op, sample, "cuda", gradients)))
        except Exception as error:
            outcomes.append(("refused", _first_line(error)))
    worst = ("differs", "refused", "close", "bit-equal", "no sample")
    return min(outcomes, key=lambda pair: worst.index(pair[0])) if outcomes else ("no sample", "")


def _outcome(expected: list[torch.Tensor], found: list[torch.Tensor]) -> tuple[str, str]:
    if len(expected) != len(found):
        return "differs", f"{len(found)} results instead of {len(expected)}"
    outcome = ("bit-equal", "")
    for here, there in zip(found, expected, strict=True):
        if here.shape != there.shape or here.dtype != there.dtype:
            return "differs", f"{here.dtype}{list(here.shape)} instead of {there.dtype}{list(there.shape)}"
        if here.layout is not torch.strided:
            here, there = here.to_dense(), there.to_dense()
        if torch.equal(_bits(here), _bits(there)):
            continue
        try:
            torch.testing.assert_close(here, there, equal_nan=True)
        except AssertionError as error:
            return "differs", next((line for line in str(error).splitlines() if "difference" in line), "")
        outcome = ("close", f"by {(here - there).abs().nan_to_num().max().item():.1e}")
    return outcome


def _bits(x: torch.Tensor) -> torch.Tensor:
    x = x.resolve_conj().resolve_neg().contiguous()
    # Every NaN is one value: which bits it has is the hardware's affair.
    if x.is_floating_point() or x.is_complex():
        x = torch.where(x.isnan(), torch.zeros_like(x) + float("nan"), x)
    return x.reshape(-1).view(torch.uint8) if x.numel() and x.dtype is not torch.bool else x.reshape(-1)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]


def operators(every: int = 1, only: str = "") -> list[Any]:
    """The database's operators, without those whose results are undefined."""
    # The database's module takes a base class for tests from this package, which need not be installed.
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    chosen = [op for op in op_db if op.name not in _UNDEFINED and only in op.name]
    return chosen[::every]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="", help="operators whose name contains this text")
    parser.add_argument("--dtype", choices=sorted(DTYPES), help="one type; otherwise both")
    parser.add_argument("--json", type=Path, help="write the outcome of each operator to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = operators(options.every, options.only)
    python = sys.version.split()[0]
    document: dict[str, Any] = {"torch": torch.__version__, "python": python, "samples": options.samples}
    print(f"torch {torch.__version__}, python {python}, {len(chosen)} operators, up to {options.samples} samples each")
    with simulated_cuda():
        for name in [options.dtype] if options.dtype else list(DTYPES):
            rows = {
                op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): compare(
                    op, DTYPES[name], options.samples
                )
                for op in chosen
                if DTYPES[name] in op.dtypes
            }
            tally = Counter(outcome for outcome, _ in rows.values())
            print(f"{name}: " + ", ".join(f"{outcome} {tally[outcome]}" for outcome in OUTCOMES))
            for operator, (outcome, reason) in rows.items():
                if outcome not in ("bit-equal", "no sample"):
                    print(f"  {outcome:9} {operator:45} {reason}")
            document[name] = {operator: [outcome, reason] for operator, (outcome, reason) in rows.items()}
    if options.json:
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
