"""Statements on two devices, and the device that each of them makes the host wait for.

usage: two_devices.py [--json OUT] [--device {auto,cuda,simulated}]
       two_devices.py --compare SIMULATED.json GPUS.json

Runs each statement on two GPUs or, without them, on two simulated devices, and prints its syncs by device beside those
expected. Ends with status 1 if a count differs; with --compare, if a count differs between two runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PRODUCTS: Final = 1000

STATEMENTS: Final[Mapping[str, Mapping[int, int]]] = {
    # barriers of one device
    "torch.cuda.synchronize(0)": {0: 1},
    "torch.cuda.synchronize(1)": {1: 1},
    "torch.cuda.synchronize()": {0: 1},
    "on(1, torch.cuda.synchronize)": {1: 1},
    "torch.cuda.synchronize('cuda:1')": {1: 1},
    "torch.accelerator.synchronize(1)": {1: 1},
    "torch.cuda.current_stream(1).synchronize()": {1: 1},
    "side.synchronize()": {1: 1},
    "event.synchronize()": {1: 1},
    f"[(a @ a, torch.cuda.synchronize(0)) for _ in range({PRODUCTS})]": {0: PRODUCTS},
    f"[(a @ a, torch.cuda.synchronize(1)) for _ in range({PRODUCTS})]": {1: PRODUCTS},
    # values and shapes are read from the tensor's device, whichever is the current one
    "a.sum().item()": {0: 1},
    "b.sum().item()": {1: 1},
    "on(1, a.sum().item)": {0: 1},
    "a.cpu(), b.cpu()": {0: 1, 1: 1},
    "b.nonzero()": {1: 1},
    "b[b > 0]": {1: 1},
    "b.unique()": {1: 1},
    "b[[0, 1]]": {1: 1},
    "bool((b > 0).all())": {1: 1},
    # copies between host and device
    "host.to('cuda:1')": {1: 1},
    "pinned.to('cuda:1')": {1: 1},
    "pinned.to('cuda:1', non_blocking=True)": {},
    "host.copy_(b, non_blocking=True)": {1: 1},
    "pinned.copy_(b, non_blocking=True)": {},
    "torch.tensor([1.0], device='cuda:1')": {1: 1},
    # copies between devices do not block the host: events order the two streams
    "a.to('cuda:1')": {},
    "a.to('cuda:1', non_blocking=True)": {},
    "b.to('cuda:0')": {},
    "a.copy_(b)": {},
    "b.copy_(a)": {},
    "on(1, lambda: a.cuda())": {},
    "side.wait_stream(torch.cuda.current_stream(0))": {},
    "parallel(a)": {},
    # each device has its part of the work, and one read gathers it
    "(a.sum().to('cuda:1') + b.sum()).item()": {1: 1},
    "[part.sum().item() for part in (a, b)]": {0: 1, 1: 1},
}
"""Statement: syncs by the device that is waited for."""


def namespace() -> dict[str, Any]:
    """Return the names that the statements use; `a` is a matrix of cuda:0, `b` one of cuda:1."""
    import torch

    def on(index: int, call: Any) -> Any:
        with torch.cuda.device(index):
            return call()

    host = torch.ones(64, 64)
    side = torch.cuda.Stream(1)
    event = torch.cuda.Event()
    event.record(side)
    return {
        "torch": torch,
        "on": on,
        "a": torch.ones(64, 64, device="cuda:0"),
        "b": torch.ones(64, 64, device="cuda:1"),
        "host": host,
        "pinned": host.pin_memory(),
        "side": side,
        "event": event,
        "parallel": torch.nn.DataParallel(torch.nn.Linear(64, 64).to("cuda:0"), [0, 1]),
    }


def count(statement: str, names: dict[str, Any]) -> dict[int | None, int]:
    """Return the syncs of a statement by device, of its third run: libraries are initialized in the first."""
    from pytest_gpusync import record

    code = compile(statement, "<statement>", "eval")
    for _ in range(2):
        eval(code, names)
    with record() as region:
        eval(code, names)
    return region.syncs_by_device


def run(device: str) -> dict[str, Any]:
    """Return the counts of all statements."""
    import torch

    from pytest_gpusync import simulated_cuda

    with ExitStack() as stack:
        if device == "simulated" or (device == "auto" and torch.cuda.device_count() < 2):
            stack.enter_context(simulated_cuda(devices=2))
        if torch.cuda.device_count() < 2:
            raise SystemExit("two_devices.py needs two GPUs, or --device simulated")
        names = namespace()
        rows = {statement: count(statement, names) for statement in STATEMENTS}
        return {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0), "statements": rows}


def compare(paths: list[str]) -> int:
    """Print the statements whose counts differ between two runs; return how many do."""
    one, other = (json.loads(Path(path).read_text()) for path in paths)
    different = 0
    for statement in {**one["statements"], **other["statements"]}:
        counts = [run["statements"].get(statement) for run in (one, other)]
        if counts[0] != counts[1]:
            different += 1
            print(f"{statement}: {counts[0]} and {counts[1]}")
    print(f"{len(one['statements'])} statements on {one['gpu']} and {other['gpu']}: {different} differ")
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--device", choices=("auto", "cuda", "simulated"), default="auto")
    parser.add_argument("--compare", nargs=2, metavar=("SIMULATED", "GPUS"))
    options = parser.parse_args()
    if options.compare:
        return 1 if compare(options.compare) else 0
    found = run(options.device)
    wrong = 0
    for statement, counts in found["statements"].items():
        expected = dict(STATEMENTS[statement])
        wrong += counts != expected
        mark = "" if counts == expected else f"   expected {expected}"
        print(f"{counts!s:<24} {statement}{mark}", flush=True)
    print(f"{len(STATEMENTS)} statements on two of {found['gpu']}, torch {found['torch']}: {wrong} unexpected")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
