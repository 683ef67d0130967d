"""Whether measuring wears out or hangs: regions without end, and threads that press the allocator.

usage: gpu_endurance.py [--regions N] [--minutes M] [--json OUT]

Regions: N regions are opened and closed, each around one sync. Resident memory, open files and the time per region must
not grow.

Threads: for M minutes, while regions open and close, threads allocate to exhaustion and free, synchronize, read values
and run backward. A callback that took the GIL under the allocator's lock would hang the process within minutes; a
watchdog ends it with the stacks of all threads when none has moved for 60 seconds.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from pytest_gpusync import record

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = 10
PATIENCE_S = 60
REGION_S = 0.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regions", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_endurance.py needs a GPU, and there is none", file=sys.stderr)
        return 2
    result: dict[str, Any] = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
    failures = []
    if options.regions:
        result["regions"] = regions(options.regions, failures)
    if options.minutes:
        result["threads"] = press(options.minutes * 60, failures)
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def regions(count: int, failures: list[str]) -> dict[str, Any]:
    """Open and close regions, and compare the first part of them with the last."""
    x = torch.zeros(4, device="cuda")
    one_part(x, 1000)
    before = {"rss_kib": resident_kib(), "open_files": open_files()}
    us = [one_part(x, count // PARTS) for _ in range(PARTS)]
    after = {"rss_kib": resident_kib(), "open_files": open_files()}
    early, late = median(us[:3]), median(us[-3:])
    print(f"{count} regions: {early:.1f} us each at first, {late:.1f} at last; {before} before, {after} after")
    if after["open_files"] > before["open_files"]:
        failures.append("open files grew")
    if after["rss_kib"] - before["rss_kib"] > 4096:
        failures.append("resident memory grew by more than 4 MiB")
    if late > 1.2 * early:
        failures.append("a region takes longer than at first")
    return {"count": count, "us_by_part": us, "before": before, "after": after}


def one_part(x: torch.Tensor, count: int) -> float:
    """Return microseconds per region."""
    began = time.perf_counter()
    for _ in range(count):
        with record(recorder="cupti") as region:
            x.cpu()
        if region.syncs != 1:
            raise RuntimeError(f"a region counted {region.syncs} of 1 sync")
    return (time.perf_counter() - began) / count * 1e6


def resident_kib() -> int:
    """Return the resident set of the process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def open_files() -> int:
    """Return how many files the process holds open."""
    return len(os.listdir("/proc/self/fd"))


def press(seconds: float, failures: list[str]) -> dict[str, Any]:
    """Run the threads until the time is up."""
    torch.cuda.set_per_process_memory_fraction(0.02)
    moved: dict[str, int] = {}
    errors: list[BaseException] = []
    until = time.monotonic() + seconds
    works = [allocate_to_exhaustion] * 4 + [backward] * 2 + [wait_for_events] * 2 + [read_values] * 2
    threads = [
        threading.Thread(target=_repeat, args=(work, number, until, moved, errors), name=f"{work.__name__}-{number}")
        for number, work in enumerate(works)
    ]
    kinds: Counter[str] = Counter()
    number = 0
    began = time.monotonic()
    for thread in threads:
        thread.daemon = True
        thread.start()
    while any(thread.is_alive() for thread in threads):
        # A region for every few seconds: opening and closing one beside busy threads must not hang either.
        with record("press", recorder="cupti") as region:
            _watch(threads, moved)
        measurement = region.result()
        number += 1
        kinds.update(sync.kind for sync in measurement.all_syncs)
        if measurement.problem and measurement.problem not in failures:
            failures.append(measurement.problem)
    took = time.monotonic() - began
    statistics = torch.cuda.memory_stats()
    result = {
        "seconds": took,
        "regions": number,
        "rounds": moved,
        "syncs": dict(kinds),
        "allocator_retries": statistics["num_alloc_retries"],
        "device_frees": statistics["num_device_free"],
    }
    print(json.dumps(result))
    failures += [f"{type(error).__name__}: {error}" for error in errors]
    return result


def _repeat(
    work: Callable[[int], None], number: int, until: float, moved: dict[str, int], errors: list[BaseException]
) -> None:
    name = threading.current_thread().name
    rounds = 0
    try:
        while time.monotonic() < until:
            work(number)
            rounds += 1
            moved[name] = rounds
    except BaseException as error:
        errors.append(error)


def _watch(threads: list[threading.Thread], moved: dict[str, int]) -> None:
    """Return after some seconds, or when all threads have ended; end the process when they stand still."""
    before = dict(moved)
    # The watchdog is a thread of C: it needs no GIL, which is what a hang would hold.
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    began = time.monotonic()
    while any(thread.is_alive() for thread in threads):
        time.sleep(REGION_S)
        if moved != before and time.monotonic() - began > REGION_S:
            break
    faulthandler.cancel_dump_traceback_later()


def allocate_to_exhaustion(number: int) -> None:
    """Fill the memory this process may have, wait once, and free; the allocator retries and frees under its lock."""
    try:
        kept = [torch.empty((48 + 16 * number + size) << 20, dtype=torch.uint8, device="cuda") for size in range(40)]
        kept[0].sum().item()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()


def backward(_number: int) -> None:
    """Run backward, whose kernels are issued from autograd's thread; memory may be exhausted by others."""
    try:
        weight = torch.randn(512, 512, device="cuda", requires_grad=True)
        loss = (weight @ weight).relu().sum()
        loss.backward()
        loss.item()
    except torch.cuda.OutOfMemoryError:
        pass


def wait_for_events(_number: int) -> None:
    """Wait in each explicit way."""
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        event.record()
    event.synchronize()
    stream.synchronize()
    torch.cuda.synchronize()


def read_values(_number: int) -> None:
    """Copy both ways, blocking and not."""
    try:
        x = torch.ones(1 << 16).to("cuda")
        x.cpu()
        torch.empty(1 << 16).copy_(x, non_blocking=True)
        (x > 0).nonzero()
    except torch.cuda.OutOfMemoryError:
        pass


if __name__ == "__main__":
    sys.exit(main())
