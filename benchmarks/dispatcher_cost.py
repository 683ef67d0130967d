"""What the recorder of torch's dispatcher adds to an operator, on a GPU.

usage: dispatcher_cost.py [--operators 2000] [--rounds 30] [--json OUT]

Rounds of small operators, which the host issues faster than it can be made to wait for, with the recorder and without
it, in turn. The cost is the median of the differences between the rounds of a pair.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from pytest_gpusync import record


def issue(x: torch.Tensor, operators: int) -> float:
    """Return the time to issue so many operators, in us for each."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(operators):
        x = x + 1
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    return took / operators * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json")
    options = parser.parse_args()
    x = torch.ones(16, device="cuda")
    issue(x, options.operators)
    found: dict[str, list[float]] = {"none": [], "dispatcher": [], "cupti": []}
    for _ in range(options.rounds):
        found["none"].append(issue(x, options.operators))
        for recorder in ("dispatcher", "cupti"):
            with record(recorder=recorder):
                found[recorder].append(issue(x, options.operators))
    result = {name: statistics.median(values) for name, values in found.items()}
    for recorder in ("dispatcher", "cupti"):
        differences = [a - b for a, b in zip(found[recorder], found["none"], strict=True)]
        result[f"{recorder} adds"] = statistics.median(differences)
    for name, us in result.items():
        print(f"{name:<18}{us:7.2f} us per operator")
    if options.json:
        document = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "us": result}
        Path(options.json).write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
