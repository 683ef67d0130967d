"""Hold what the plugin says of time and memory to what is known.

usage: gpu_budgets.py [PART...] [--json OUT] [--quick]

Parts, all by default; those of memory run on the simulated device too, where there is no GPU:

ratio   Two steps that differ by a `torch.cuda._sleep` of 5, 10, 20 and 50 %, twenty runs each: does the interval of
        `gpu_elapsed.ratio` hold the truth? Two equal steps, forty runs: are they ever called different?
stalls  Six training steps with two or three waits each (stall_workloads.py): what `gpu_elapsed.stalls` predicts that a
        step gains without one of them, beside what it gains when that is left out.
leaks   Steps that keep 1 KiB to 10 MiB each, in three workloads: found within 30 steps? And 200 steps of twenty
        workloads that keep nothing (clean_workloads.py): is growth ever reported?
cost    What `gpu_train` adds to a step, in pairs: counting, events around the step, and memory read at its end.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from pytest_gpusync import record, simulated_cuda
from pytest_gpusync.elapsed.paired import measure_ratio, wait_until_idle
from pytest_gpusync.model.budgets import GrowthBudget, judge_growth
from pytest_gpusync.model.estimates import median_estimate

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.model.measurement import Measurement

Rows = list[dict[str, Any]]

SLEEP_MS = 2.0
MEMORIES = ("allocated", "reserved")
LEAKS = (1 << 10, 16 << 10, 256 << 10, 1 << 20, 10 << 20)


def ratios(quick: bool) -> Rows:
    """Measure ratios whose truth is known."""
    base = int(SLEEP_MS * cycles_per_ms())
    rows: Rows = []
    for part in (0.0, 0.05, 0.1, 0.2, 0.5):
        longer, runs = int(base * (1 + part)), (4 if quick else 20) * (1 if part else 2)
        found = [
            measure_ratio(lambda longer=longer: torch.cuda._sleep(longer), lambda: torch.cuda._sleep(base))
            for _ in range(runs)
        ]
        truth = longer / base
        row = {
            "truth": truth,
            "runs": runs,
            "covered": sum(one.low <= truth <= one.high for one in found),
            "called_different": sum(not one.low <= 1.0 <= one.high for one in found),
            "too_noisy": sum(one.outcome != "measured" for one in found),
            "worst_error": max(abs(one.value / truth - 1) for one in found),
            "median_width": median(one.high - one.low for one in found),
            "notes": sorted({one.note for one in found if one.note}),
        }
        rows.append(row)
        print(
            f"truth {truth:.2f}: {row['covered']} of {runs} hold it, {row['called_different']} leave out 1; "
            f"worst error {row['worst_error']:.2%}, width {row['median_width']:.2%}",
            flush=True,
        )
    return rows


def cycles_per_ms() -> float:
    """Return the cycles for which `_sleep` keeps the GPU busy for a millisecond."""
    tries = []
    for _ in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(20_000_000)
        end.record()
        end.synchronize()
        tries.append(20_000_000 / start.elapsed_time(end))
    return median(tries)


def stalls(quick: bool) -> Rows:
    """Predict what each wait of six steps costs, and measure it."""
    from stall_workloads import WORKLOADS

    from pytest_gpusync.elapsed.stalls import measure_stalls

    rows: Rows = []
    for name, (make, waits) in WORKLOADS.items():
        step = make()

        def whole(step: Callable[..., None] = step, waits: tuple[str, ...] = waits) -> None:
            step(waits)

        began = time.perf_counter()
        found = measure_stalls(whole, rounds=16, warmup=5, steps=None)
        took = time.perf_counter() - began
        print(f"{name}: {found} [{took:.0f} s]", flush=True)
        lines = lines_of(make)
        for wait in waits:
            line = lines[wait]
            [stall] = [one for one in found.sites if one.site.line == line]

            def without(step: Callable[..., None] = step, waits: tuple[str, ...] = waits, left: str = wait) -> None:
                step([one for one in waits if one != left])

            # Short samples, for the machine's pace to be the same in both of a pair, but not so short that what a
            # sample begins with matters.
            calls = max(8, int(120 / found.step_ms))
            measured = measure_ratio(whole, without, warmup=2, calls=calls, rounds=12 if quick else 36, tolerance=0.004)
            gain = 1 - 1 / measured.value
            row = {
                "workload": name,
                "wait": wait,
                "step_ms": found.step_ms,
                "replayed_ms": found.replayed_ms,
                "busy_ms": found.busy_ms,
                "idle_ms": stall.idle_ms,
                "predicted": stall.gain_ms / found.step_ms,
                "predicted_low": stall.low_ms / found.step_ms,
                "predicted_high": stall.high_ms / found.step_ms,
                "outcome": stall.outcome,
                "measured": gain,
                "measured_low": 1 - 1 / measured.low,
                "measured_high": 1 - 1 / measured.high,
                "measured_rounds": measured.rounds,
                "note": found.note or measured.note,
            }
            rows.append(row)
            print(
                f"  {wait}: predicted {span(row, 'predicted')}, measured {span(row, 'measured')} "
                f"in {measured.rounds} rounds",
                flush=True,
            )
        del step, whole, without
        gc.collect()
        torch.cuda.empty_cache()
    errors = [abs(row["predicted"] - row["measured"]) for row in rows]
    told = [abs(row["predicted"] - row["measured"]) for row in rows if row["outcome"] == "measured"]
    print(f"median error {median(errors):.2%} of the step ({median(told):.2%} where told), worst {max(errors):.2%}")
    return rows


def span(row: dict[str, Any], name: str) -> str:
    """Return a gain with its interval."""
    return f"{row[name]:.2%} ({row[f'{name}_low']:.2%} to {row[f'{name}_high']:.2%})"


def lines_of(make: Callable[[], object]) -> dict[str, int]:
    """Return the line of each wait: the one below the line that asks for it, or that line where it is read there."""
    import inspect

    source, first = inspect.getsourcelines(make)
    lines = {}
    for number, text in enumerate(source):
        if '" in waits' in text:
            name = text.split('"')[1]
            lines[name] = first + number + (0 if " and " in text else 1)
    return lines


def leaks(quick: bool) -> dict[str, Rows]:
    """Look for growth where it was planted, and where there is none."""
    from clean_workloads import WORKLOADS, batch_sizes, convolutions

    def nothing() -> Callable[[], object]:
        return lambda: torch.ones(1000, device="cuda") * 2

    planted: Rows = []
    for make in (nothing, batch_sizes, convolutions):
        for nbytes in LEAKS:
            torch.manual_seed(0)
            step, kept = make(), []

            def leaking(step: Callable[[], object] = step, kept: list[Any] = kept, nbytes: int = nbytes) -> None:
                step()
                kept.append(torch.empty(nbytes, dtype=torch.uint8, device="cuda"))

            measurement = stepped(leaking, steps=30)
            verdict = judge_growth(measurement, GrowthBudget(0))
            value = None if verdict.estimate is None else verdict.estimate.value
            planted.append({"workload": make.__name__, "bytes": nbytes, "outcome": verdict.outcome, "growth": value})
            kept.clear()
            gc.collect()
    found = sum(row["outcome"] == "failed" for row in planted)
    print(f"{found} of {len(planted)} planted leaks found within 30 steps", flush=True)
    clean: Rows = []
    for make in WORKLOADS[:4] if quick else WORKLOADS:
        torch.manual_seed(0)
        began = time.perf_counter()
        measurement = stepped(make(), steps=200)
        row: dict[str, Any] = {"workload": make.__name__, "seconds": time.perf_counter() - began}
        for of in MEMORIES:
            verdict = judge_growth(measurement, GrowthBudget(0, of))
            row[of] = {"outcome": verdict.outcome, "sentence": verdict.sentence}
            if verdict.outcome == "failed":
                print(f"{make.__name__}: {verdict.sentence}", flush=True)
        clean.append(row)
        gc.collect()
    wrong = sum(row[of]["outcome"] == "failed" for row in clean for of in MEMORIES)
    print(f"{wrong} reports of growth in {len(clean)} clean workloads of 200 steps", flush=True)
    return {"planted": planted, "clean": clean}


def stepped(step: Callable[[], object], steps: int) -> Measurement:
    """Run steps as gpu_train does, three of them to warm up."""
    with record(warmup=3, memory=True) as region:
        for _ in range(steps):
            step()
            region.mark_step()
    measurement = region.result()
    if measurement.problem is not None:
        raise RuntimeError(measurement.problem)
    return measurement


def cost(quick: bool) -> Rows:
    """Measure what gpu_train adds to a step."""
    from gpu_cost import trained, unmeasured
    from training_steps import gpt_step, mlp_step

    rows: Rows = []
    for name, make, steps, pairs in (
        ("GPT 124 M, bf16, one item", gpt_step, 4, 30),
        ("MLP 512-2048-512, one item", mlp_step, 60, 60),
    ):
        step = make()
        for _ in range(2 * steps):
            step()
        gc.collect()
        ratios, times = [], []
        for number in range(12 if quick else pairs):
            if number % 2:
                with_it, without = trained(step, steps), unmeasured(step, steps)
            else:
                without, with_it = unmeasured(step, steps), trained(step, steps)
            ratios.append(with_it / without)
            times.append(without / steps * 1e3)
        found = median_estimate(ratios)
        added = (found.value - 1) * median(times) * 1e3
        rows.append(
            {
                "step": name,
                "pairs": len(ratios),
                "steps_per_sample": steps,
                "step_ms": median(times),
                "ratio": found.value,
                "low": found.low,
                "high": found.high,
                "added_us": added,
            }
        )
        print(
            f"{name}: {median(times):.3f} ms, {found.value:.4f} times as long under gpu_train "
            f"({found.low:.4f} to {found.high:.4f}), {added:.0f} us more",
            flush=True,
        )
        wait_until_idle()
    return rows


PARTS: dict[str, Callable[[bool], Any]] = {"ratio": ratios, "stalls": stalls, "leaks": leaks, "cost": cost}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="fewer runs: does everything work?")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    has_gpu = torch.cuda.is_available()
    parts = options.parts or (list(PARTS) if has_gpu else ["leaks"])
    if not has_gpu and parts != ["leaks"]:
        print("gpu_budgets.py measures times on a GPU, and there is none; `leaks` runs without", file=sys.stderr)
        return 2
    gpu = torch.cuda.get_device_name() if has_gpu else "simulated"
    print(f"torch {torch.__version__} on {gpu}", flush=True)
    result: dict[str, Any] = {"torch": torch.__version__, "gpu": gpu}
    with nullcontext() if has_gpu else simulated_cuda():
        for part in parts:
            result[part] = PARTS[part](options.quick)
            if options.json:
                Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
