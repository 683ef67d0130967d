"""Hold the linter against the simulated device on the operators of torch that take Python numbers.

    python benchmarks/lint_numbers.py [--samples N] [--every N] [--json OUT]

For samples of each operator of PyTorch's own database (OpInfo), each number among the arguments is replaced by a device
tensor of the same value. The simulated device says whether the call waits for it, compared with the call as it was; the
linter judges the same call, written out. Printed are the calls on which they differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.run.engine import analyze
from simulated_opinfo import operators
from torch.utils._pytree import tree_map

from pytest_gpusync import record
from pytest_gpusync.simulated import simulated_cuda

HEAD = """import torch
from torch.nn import functional as F
net = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(100):
    net(torch.ones(4, 4, device="cuda")).sum().backward()
    optimizer.step()
    x = torch.ones(4, 4, device="cuda")
    s = x.sum()
    i = s.long()
"""
"""A step loop: the calls to be judged stand in its body, one on each line."""


class Case:
    """A call with one of its numbers on the device."""

    def __init__(self, name: str, is_method: bool, args: list[Any], kwargs: dict[str, Any], place: int | str) -> None:
        self.name = name
        self._is_method = is_method
        self._args, self._kwargs, self._place = args, kwargs, place

    def source(self) -> str:
        """The call, written out: tensors are `x`, the number is `s` or `i`."""
        args = [self._written(place, value) for place, value in enumerate(self._args)]
        args += [f"{name}={self._written(name, value)}" for name, value in self._kwargs.items()]
        if self._is_method:
            return f"{args[0]}.{self.name}({', '.join(args[1:])})"
        return f"torch.{self.name}({', '.join(args)})"

    def _written(self, place: int | str, value: Any) -> str:
        if place == self._place:
            return "s" if isinstance(value, float) else "i"
        if isinstance(value, torch.Tensor):
            return "x"
        if isinstance(value, (list, tuple)):
            inside = [self._written("", item) for item in value]
            return f"[{', '.join(inside)}]"
        return repr(value)

    def waits(self) -> bool:
        """Whether the simulated device waits oftener than with the number on the host."""
        return self._syncs(on_device=True) > self._syncs(on_device=False)

    def _syncs(self, on_device: bool) -> int:
        def place(value: Any) -> Any:
            return value.detach().clone().to("cuda") if isinstance(value, torch.Tensor) else value

        args, kwargs = tree_map(place, list(self._args)), tree_map(place, dict(self._kwargs))
        if on_device:
            owner: Any = kwargs if isinstance(self._place, str) else args
            owner[self._place] = torch.tensor(owner[self._place], device="cuda")
        if kwargs.get("device") is not None:
            kwargs["device"] = "cuda"
        called = getattr(args.pop(0) if self._is_method else torch, self.name)
        with record() as seen:
            called(*args, **kwargs)
        return seen.syncs


def cases(samples: int, every: int) -> list[Case]:
    """Every call of the database that has a number, once for each of its numbers."""
    found: dict[str, Case] = {}
    for op in operators(every):
        if op.name.startswith("_"):
            continue
        for sample in _samples(op, samples):
            args, kwargs = [sample.input, *sample.args], sample.kwargs
            numbers = [at for at, value in [*enumerate(args), *kwargs.items()] if _is_number(value)]
            for place in numbers:
                for is_method in (False, True):
                    if is_method and not isinstance(args[0], torch.Tensor):
                        continue
                    if not hasattr(torch.Tensor if is_method else torch, op.name):
                        continue
                    case = Case(op.name, is_method, args, kwargs, place)
                    found.setdefault(case.source(), case)
    return list(found.values())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _samples(op: Any, most: int) -> list[Any]:
    try:
        return [sample for sample, _ in zip(op.sample_inputs("cpu", torch.float32), range(most), strict=False)]
    except Exception:  # an operator without samples of this type
        return []


def main() -> int:
    """Print the calls on which the linter and the simulated device differ, and how many there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=6, help="samples of each operator, at most")
    parser.add_argument("--every", type=int, default=1, help="take each N-th operator")
    parser.add_argument("--json", type=Path, help="write the outcome to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    measured: list[tuple[Case, bool]] = []
    refused: Counter[str] = Counter()
    with simulated_cuda():
        for case in cases(options.samples, options.every):
            try:
                measured.append((case, case.waits()))
            except Exception as error:  # torch, or a GPU, does not take this call
                refused[type(error).__name__] += 1
    text = HEAD + "".join(f"    {case.source()}\n" for case, _ in measured)
    report = analyze([Source("numbers.py", text)], EngineSettings())
    found = {finding.span.line for finding in report.findings}
    first = HEAD.count("\n") + 1
    outcome: dict[str, list[str]] = {"both": [], "neither": [], "missed": [], "false": []}
    for line, (case, waits) in enumerate(measured, first):
        judged = line in found
        key = ("both" if waits else "false") if judged else ("missed" if waits else "neither")
        outcome[key].append(case.source())
    for key in ("missed", "false"):
        for source in outcome[key]:
            print(f"{key:7} {source}")
    counts = {key: len(sources) for key, sources in outcome.items()}
    print(f"{len(measured)} calls: {counts}; not callable with a tensor: {sum(refused.values())}")
    if options.json is not None:
        shown = {"torch": torch.__version__, "counts": counts, "missed": outcome["missed"], "false": outcome["false"]}
        options.json.write_text(json.dumps(shown, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
