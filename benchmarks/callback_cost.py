"""What the recorder's own code costs at a sync, without a GPU: CUPTI's callbacks are made by hand, the gate is real.

usage: callback_cost.py [--pairs N] [--json OUT]

A sync is what `.item()` makes: an asynchronous copy and a stream synchronize, each entered and left.

1. In a loop: microseconds of a sync that the gate notes, of reading the note later, and of a sync that enters Python.
2. In a training step on the CPU, whose code and data leave none of the recorder's in the processor's caches: what
   counting adds to a step with one sync, by part; pairs in turn, the median and its 95 % interval. "in Python" is the
   same where the interpreter's frames cannot be read, so that every call enters Python. The calls themselves are made
   on both sides: without a region the gate ignores them.

Times are those of the thread, so that others on the machine add little.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from pytest_gpusync import record
from pytest_gpusync.machine import devices
from pytest_gpusync.measure import phases, recording
from pytest_gpusync.model.estimates import median_estimate
from pytest_gpusync.recorders import gate as gates
from pytest_gpusync.recorders.cupti import CuptiRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COPY, SYNCHRONIZE = 41, 131
NAMES = {COPY: "cudaMemcpyAsync_v3020", SYNCHRONIZE: "cudaStreamSynchronize_v3020"}
DEVICE_TO_HOST = 2
CONFIDENCE = 0.95
STEPS = 20
SYNCS = 1000
ROUNDS = 15


class Cupti:
    """Stands in for libcupti: knows the two names, and delivers nothing by itself."""

    path = "libcupti.so"

    def names(self, domain: int) -> list[tuple[int, str]]:
        return list(NAMES.items()) if domain == gates.RUNTIME else []

    def device_of(self, context: int) -> int:
        return 0

    def is_pageable(self, pointer: int) -> bool:
        return False

    def subscribe(self, function: object, user_data: int) -> None: ...

    def enable(self, domain: int, callback_id: int) -> None: ...

    def unsubscribe(self) -> None: ...


class Bench:
    """A recorder, and what calls it."""

    def __init__(self, reads_frames: bool) -> None:
        self.recorder = CuptiRecorder(Cupti())  # type: ignore[arg-type]
        _, self.gate, _ = self.recorder._prepare()
        if not reads_frames:
            self.gate._layout = None
        self._kept = (ctypes.c_uint64 * 4)(1, 2, 4, DEVICE_TO_HOST)
        self._data = [(ctypes.c_uint64 * 6)(site, 0, ctypes.addressof(self._kept), 0, 0, 7) for site in (0, 1)]
        entry, left = (ctypes.addressof(data) for data in self._data)
        self._calls = ((COPY, entry), (COPY, left), (SYNCHRONIZE, entry), (SYNCHRONIZE, left))
        self.gate.close()

    def sync(self) -> None:
        """Make one."""
        function, context = self.gate.function, self.gate.user_data
        for number, address in self._calls:
            function(context, gates.RUNTIME, number, address)

    def record(self) -> Any:
        """Open a region that this recorder counts."""
        recording.create = lambda name: self.recorder  # type: ignore[attr-defined]
        return record(recorder="cupti")

    @contextmanager
    def recorder_alone(self) -> Iterator[None]:
        """Count without a region around."""
        self.recorder.start(lambda raw: None)
        try:
            yield
        finally:
            self.recorder.flush()
            self.recorder.stop()


@contextmanager
def ranges_followed() -> Iterator[None]:
    """Follow NVTX and record_function ranges, of which torch's optimizers open two in a step."""
    phases.follow()
    try:
        yield
    finally:
        phases.unfollow()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--json")
    options = parser.parse_args()
    if not gates.is_available():
        print("callback_cost.py needs the native gate; see gpusync doctor", file=sys.stderr)
        return 2
    devices.detect = lambda: devices.Device("cuda", "none", "0")
    devices.cuda_is_initialized = lambda: False
    torch.set_num_threads(1)
    gc.disable()
    result = {"torch": torch.__version__, "python": sys.version.split()[0], "loop_us": in_a_loop()}
    result["step"] = in_a_step(options.pairs)
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0


def in_a_loop() -> dict[str, float]:
    """Measure the first part."""
    found = {}
    for reads_frames in (True, False):
        bench = Bench(reads_frames)
        ignored, made, read = [], [], []
        for _ in range(ROUNDS):
            ignored.append(_microseconds(bench.sync))
            with bench.record():
                made.append(_microseconds(bench.sync))
                began = time.thread_time()
                bench.recorder.flush()
                read.append((time.thread_time() - began) / SYNCS * 1e6)
        added = median(made) - median(ignored)
        if reads_frames:
            found.update({"a note": added, "reading it": median(read)})
        else:
            found["in Python"] = added
    for name, microseconds in found.items():
        print(f"{name:<16}{microseconds:>8.2f} us a sync, in a loop")
    return found


def _microseconds(call: Callable[[], object]) -> float:
    began = time.thread_time()
    for _ in range(SYNCS):
        call()
    return (time.thread_time() - began) / SYNCS * 1e6


def in_a_step(pairs: int) -> list[dict[str, Any]]:
    """Measure the second part."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batch, target = torch.randn(128, 64), torch.randn(128, 64)
    noted, in_python = Bench(reads_frames=True), Bench(reads_frames=False)
    rows = []
    for name, bench, around in (
        ("nothing", noted, nullcontext),
        ("the recorder", noted, noted.recorder_alone),
        ("ranges", noted, ranges_followed),
        ("a region", noted, noted.record),
        ("the recorder, in Python", in_python, in_python.recorder_alone),
        ("a region, in Python", in_python, in_python.record),
    ):

        def steps(around: Callable[[], Any], bench: Bench = bench) -> float:
            with around():
                for number in range(STEPS + 1):
                    if number == 1:
                        began = time.thread_time()
                    functional.mse_loss(model(batch), target).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    bench.sync()
                return (time.thread_time() - began) / STEPS * 1e6

        added, times = [], []
        for number in range(pairs):
            sides = (around, nullcontext) if number % 2 else (nullcontext, around)
            took = [steps(side) for side in sides]
            with_it, without = took if number % 2 else took[::-1]
            added.append(with_it - without)
            times.append(without)
        estimate = median_estimate(added, CONFIDENCE)
        rows.append({"part": name, "added_us": estimate.value, "low": estimate.low, "high": estimate.high})
        print(
            f"{name:<24} adds {estimate.value:>6.1f} us ({estimate.low:.1f} to {estimate.high:.1f}) "
            f"to a step of {median(times):.0f} us",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
