"""A run object of what a trace says about waits."""

from __future__ import annotations

import itertools
import os
import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from pytest_gpusync.imported.calls import Stack, waits
from pytest_gpusync.imported.sites import NO_STACK, site_of
from pytest_gpusync.imported.trace_file import fail
from pytest_gpusync.model.budgets import WHOLE_REGION
from pytest_gpusync.model.measurement import Environment, Measurement, RegionTimes, Sync
from pytest_gpusync.reporting.run_file import region_document, run_document

if TYPE_CHECKING:
    from pytest_gpusync.imported.calls import Call, Trace, Wait
    from pytest_gpusync.model.document import Document

STEP_SOURCE: Final = "ProfilerStep#"
_PROFILER: Final = ("torch/profiler/profiler.py", "torch/autograd/profiler.py")
_TORCH: Final = re.compile(r"(?:^|/)torch/")
_OWN: Final = "made by torch.profiler"


def run_of(trace: Trace, name: str) -> Document:
    """Return the run object of a trace.

    Args:
        trace: what was read.
        name: the path of its file.

    Raises:
        TraceError: it has no calls of CUDA, so nothing is known about waits.
    """
    if not trace.calls:
        fail(name, f"it has no calls of CUDA, so nothing is known about waits; {_REMEDIES[trace.tool]}")
    by_thread: dict[int, list[Call]] = {}
    for call in trace.calls:
        by_thread.setdefault(call.thread, []).append(call)
    found = [wait for calls in by_thread.values() for wait in waits(calls, trace.copies)]
    found.sort(key=lambda wait: wait.began)
    began = trace.began or 0
    _drop_overlapping_steps(trace)
    starts = [start for start, _ in trace.steps]
    syncs = tuple(_sync(wait, trace, starts, began) for wait in found)
    closed = max(call.end for call in trace.calls)
    ends = tuple(end - began for _, end in trace.steps) or (closed - began,)
    measurement = Measurement(
        name=os.path.basename(name),
        environment=_environment(trace, syncs, name),
        all_syncs=syncs,
        steps=len(trace.steps) or 1,
        warmup=0,
        step_source=STEP_SOURCE if trace.steps else WHOLE_REGION,
        times=RegionTimes(ends, max(closed - began, *ends)),
    )
    document = run_document(measurement.environment, [region_document(measurement)])
    document["rank"] = trace.rank
    # The commit that is checked out now need not be the one that was profiled.
    document["origin"] = {**document["origin"], "commit": None, "date": None, "source_url": None}
    document["imported"] = {"tool": trace.tool, "file": name, "version": trace.version}
    return document


_REMEDIES: Final = {
    "torch.profiler": "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] on a GPU",
    "nsys": "profile with --trace=cuda,nvtx",
}


def _drop_overlapping_steps(trace: Trace) -> None:
    """Leave out marks that begin before the step before them ends: those of another process or thread."""
    kept: list[tuple[int, int]] = []
    for start, end in trace.steps:
        if start <= end and (not kept or start >= kept[-1][1]):
            kept.append((start, end))
    if len(kept) < len(trace.steps):
        trace.notes.append(
            f"{len(trace.steps) - len(kept)} of {len(trace.steps)} step marks overlap others and were left out"
        )
    trace.steps = kept


def _is_the_profilers(stack: Stack) -> bool:
    """Return whether the profiler made the call, also through other functions of torch, but not through a callback."""
    paths = itertools.takewhile(_TORCH.search, (frame.path for frame in reversed(stack.frames)))
    return any(path.endswith(_PROFILER) for path in paths)


def _sync(wait: Wait, trace: Trace, starts: list[int], began: int) -> Sync:
    stack = trace.stacks.get(wait.call.key, Stack())
    copy = wait.copy
    direction = None if copy is None else copy.direction
    step: int | None = 0
    if trace.steps:
        step = bisect_right(starts, wait.began) - 1
        if step < 0 or wait.began > trace.steps[step][1]:
            step = None
    thread = wait.call.thread
    return Sync(
        kind=wait.kind,
        site=site_of(stack, direction),
        step=step,
        direction=direction,
        nbytes=None if copy is None else copy.nbytes,
        blocked_ns=max(wait.call.end - wait.began, 0),
        thread=trace.threads.get(thread, f"thread {thread}"),
        device=None if copy is None else copy.device,
        allowed=_OWN if _is_the_profilers(stack) else None,
        # As at run time: threads of the program, such as the one that pins memory, are reported and not counted.
        background=bool(trace.step_threads and stack.frames and not stack.of_backward)
        and thread not in trace.step_threads,
        began_ns=max(wait.began - began, 0),
        stream=None if copy is None else copy.stream,
    )


def _environment(trace: Trace, syncs: tuple[Sync, ...], name: str) -> Environment:
    unknown = sum(1 for sync in syncs if sync.site.path == NO_STACK)
    notes = [f"imported from {name}", *trace.notes]
    if unknown:
        notes.append(f"{unknown} of {len(syncs)} waits have no Python stack")
    notes.append("waits without a call of CUDA, such as those of JAX, are not in it")
    return Environment(
        torch=None,
        python="unknown",
        device="cuda",
        gpu=trace.gpu,
        driver=None,
        recorder=trace.tool,
        coverage="driver",
        note="; ".join(notes),
    )
