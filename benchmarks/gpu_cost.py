"""What measuring costs on a GPU.

usage: gpu_cost.py [--pairs N] [--json OUT]

Three tables:

1. Steps: the time of a training step while it is measured by the time of the same step unmeasured. Samples of several
   steps are taken in turn, the order changing from pair to pair; the median of the ratios is given with its 95 %
   interval. "counted" is `record()` around the steps; "gpu_train" adds what the fixture of that name does: events
   around each step, and memory read at its end.
   The small step is measured under torch.profiler and set_sync_debug_mode as well.
2. Calls: microseconds of a launch, `.item()`, `.cpu()` and `Event.synchronize()` in a tight loop, beside
   torch.profiler's and set_sync_debug_mode's cost in the same rounds; and what each adds to a sync.
3. Regions: microseconds to open and close one.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from training_steps import gpt_step, mlp_step

from pytest_gpusync import record
from pytest_gpusync.elapsed.step_clock import StepClock
from pytest_gpusync.model.estimates import median_estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONFIDENCE = 0.95
CALLS = 3000
SETTLING = 3
"""Steps before each sample: the first ones of a region meet a driver that CUPTI was attached to just now."""
ROUNDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_cost.py measures a GPU, and there is none", file=sys.stderr)
        return 2
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}")
    result = {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "steps": step_ratios(options.pairs),
        "calls_us": calls(),
        "region_us": region_cost(),
    }
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0


def step_ratios(least_pairs: int) -> list[dict[str, Any]]:
    """Measure the first table."""
    print(f"\n{'step':<34}{'measured as':<12}{'ms':>8}{'ratio':>9}  95 % interval")
    rows = []
    # The host is the bottleneck of the small step, and shared: it takes many more pairs to see a hundredth of it.
    for name, make, steps, pairs in (
        ("GPT 124 M, bf16, one item", gpt_step, 4, least_pairs),
        ("MLP 512-2048-512, one item", mlp_step, 20, 13 * least_pairs),
    ):
        step = make()
        for _ in range(2 * steps):
            step()
        gc.collect()
        ways = [("nothing", unmeasured), ("counted", counted), ("gpu_train", trained)]
        if make is mlp_step:
            ways += [("debug mode", warned), ("profiler", profiled)]
        for way, measured in ways:
            ratios, times = [], []
            taken = least_pairs if way in ("debug mode", "profiler") else pairs
            for number in range(taken):
                order = (measured, unmeasured) if number % 2 else (unmeasured, measured)
                took = {}
                for position, side in enumerate(order):
                    took[position] = side(step, steps)
                with_it, without = (took[0], took[1]) if number % 2 else (took[1], took[0])
                ratios.append(with_it / without)
                times.append(without / steps * 1e3)
            found = median_estimate(ratios, CONFIDENCE)
            rows.append(
                {
                    "step": name,
                    "measured_as": way,
                    "pairs": taken,
                    "steps_per_sample": steps,
                    "step_ms": median(times),
                    "ratio": found.value,
                    "low": found.low,
                    "high": found.high,
                }
            )
            interval = f"{found.low:.4f} to {found.high:.4f}"
            print(f"{name:<34}{way:<12}{median(times):>8.3f}{found.value:>9.4f}  {interval}", flush=True)
    return rows


def unmeasured(step: Callable[[], object], steps: int) -> float:
    """Return the seconds that `steps` steps take, from an idle device to an idle device."""
    for _ in range(SETTLING):
        step()
    with quiet():
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return time.perf_counter() - began


def counted(step: Callable[[], object], steps: int) -> float:
    """Return the same while the syncs are counted."""
    with record(recorder="cupti") as region:
        took = unmeasured(step, steps)
    _check(region)
    return took


def trained(step: Callable[[], object], steps: int) -> float:
    """Return the same while each step is counted and timed and memory is read at its end."""
    clock = StepClock()
    with record(recorder="cupti", memory=True) as region, quiet():
        for _ in range(SETTLING):
            step()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            clock.begin()
            step()
            clock.end()
            region.mark_step()
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        region.set_step_times(clock.collect())
    _check(region)
    return took


def warned(step: Callable[[], object], steps: int) -> float:
    """Return the same while torch warns of each sync and the warnings are kept."""
    with debug_mode():
        return unmeasured(step, steps)


def profiled(step: Callable[[], object], steps: int) -> float:
    """Return the same while torch.profiler records CPU and CUDA."""
    with torch.profiler.profile():
        return unmeasured(step, steps)


def _check(region: Any) -> None:
    problem = region.result().problem
    if problem is not None:
        raise RuntimeError(problem)


@contextmanager
def quiet() -> Iterator[None]:
    """Wait for the device, and keep the garbage collector out; to let it run before each sample would take longer."""
    gc.disable()
    torch.cuda.synchronize()
    try:
        yield
    finally:
        gc.enable()


def calls() -> dict[str, dict[str, float]]:
    """Measure the second table."""
    x = torch.zeros(16, device="cuda")
    event = torch.cuda.Event()
    event.record()
    loops: dict[str, Callable[[], object]] = {
        "launch": lambda: x.add_(1.0),
        "item": lambda: x[0].item(),
        "cpu": x.cpu,
        "event": event.synchronize,
    }
    activities = torch.profiler.ProfilerActivity
    ways: dict[str, Callable[[], Any]] = {
        "nothing": nullcontext,
        "counted": lambda: record(recorder="cupti"),
        "sync_debug_mode warn": debug_mode,
        "profiler CUDA": lambda: torch.profiler.profile(activities=[activities.CUDA]),
        "profiler CPU+CUDA": lambda: torch.profiler.profile(activities=[activities.CPU, activities.CUDA]),
        "profiler with stacks": lambda: torch.profiler.profile(
            activities=[activities.CPU, activities.CUDA], with_stack=True
        ),
    }
    taken: dict[str, dict[str, list[float]]] = {way: {name: [] for name in loops} for way in ways}
    for _ in range(ROUNDS):
        for way, instrument in ways.items():
            for name, call in loops.items():
                with instrument():
                    taken[way][name].append(_microseconds(call))
    print(f"\n{'microseconds per call':<24}" + "".join(f"{name:>10}" for name in loops))
    for way, by_name in taken.items():
        print(f"{way:<24}" + "".join(f"{median(by_name[name]):>10.1f}" for name in loops))
    found = {way: {name: median(times) for name, times in by_name.items()} for way, by_name in taken.items()}
    for way, by_name in taken.items():
        # Of the same rounds, so that what both share falls out.
        found[way]["added_to_item"] = median(
            [with_it - without for with_it, without in zip(by_name["item"], taken["nothing"]["item"], strict=True)]
        )
        if way != "nothing":
            print(f"{way} adds {found[way]['added_to_item']:.1f} us to a sync")
    return found


def _microseconds(call: Callable[[], object]) -> float:
    for _ in range(100):
        call()
    gc.collect()  # of what the profiler left, which would fall to whoever allocates next
    with quiet():
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        took = time.perf_counter() - began
        torch.cuda.synchronize()
    return took / CALLS * 1e6


@contextmanager
def debug_mode() -> Iterator[None]:
    """Have torch warn of each sync, and keep the warnings, as a guard made by hand does."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def region_cost() -> float:
    """Measure the third figure: the median over rounds of 200 regions."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(200):
            with record(recorder="cupti"):
                pass
        rounds.append((time.perf_counter() - began) / 200 * 1e6)
    print(f"\na region is opened and closed in {median(rounds):.0f} us")
    return median(rounds)


if __name__ == "__main__":
    sys.exit(main())
