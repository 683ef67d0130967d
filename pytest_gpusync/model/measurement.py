"""What a measurement is made of: plain data, no torch, no pytest.

Recorders produce :class:`RawSync` values while a region is open. The package ``measure`` attributes each to a
:class:`Site` and a step, and closes the region as one :class:`Measurement`, which budgets and reports only read. A
quantity that was not measured is ``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from types import FrameType


Kind = Literal["stream", "device", "event", "copy", "pageable", "free"]
"""What the host called: a stream, device or event synchronize; a copy call that blocks by itself; a ``non_blocking``
copy of pageable memory that waits all the same; freeing device memory. A blocking torch copy is an asynchronous copy
and a stream synchronize: its kind is ``stream`` and its direction is set."""

Direction = Literal["H2D", "D2H", "D2D"]

Coverage = Literal["driver", "torch", "simulated"]
"""What a recorder can see: every sync call of the process, only torch's own, or those of the simulated device."""


PAGEABLE_H2D_WAITS_ABOVE: Final = 2 << 20
"""Bytes up to which a ``non_blocking`` host-to-device copy of pageable memory returns at once. Measured on an H200
with driver 580: 2 MiB returned behind a busy queue, 2.06 MiB waited. From device to host it waits at any size."""


class RawSync(NamedTuple):
    """One sync as a recorder saw it, on the thread that made the call."""

    kind: Kind
    frame: FrameType | None
    """Innermost Python frame of the calling thread; None where the thread runs no Python (autograd's threads)."""
    thread: int
    """``threading.get_ident()`` of the calling thread."""
    direction: Direction | None = None
    nbytes: int | None = None
    """Bytes of the copy that the sync completes; None where there is none."""
    blocked_ns: int | None = None
    """Time the host spent in the call, a blocking copy's from its first half on; None where no clock was read, always
    None on the simulated device."""
    device: int | None = None
    charged: Charge | None = None
    """Where it belongs, when the recorder had to settle that before it handed the sync over."""
    began_ns: int | None = None
    """When the call was entered, by the clock of ``time.perf_counter_ns()``; None where no clock was read."""
    sequence: int | None = None
    """How many calls the recorder had noted before this one, where it is delivered later than it was made; None where
    it is handed over at once."""
    stream: int | None = None
    """Handle of the stream that was waited for, as ``torch.cuda.Stream.cuda_stream`` gives it, 0 for the default one;
    None where more than a stream was waited for, or nobody told."""


SyncSink = Callable[[RawSync], None]
"""Receives each sync on the thread that made it, before the call returns to the user's code."""


class MeasurementError(RuntimeError):
    """Nothing can be measured; the message is one sentence that says why and what would help."""


@dataclass(frozen=True, slots=True)
class Site:
    """The line charged with a sync: the innermost frame of the user's project."""

    path: str
    """Relative to the working directory where it lies below it, with forward slashes."""
    line: int
    function: str
    via: str | None = None
    """The library frame between the site and the call, as ``package/file.py:line function``; None for a direct call."""


class Charge(NamedTuple):
    """Whom a sync is charged to."""

    site: Site
    thread: int
    """Thread whose line is charged: the caller's own, or the one inside ``backward()`` for an autograd thread."""


@dataclass(frozen=True, slots=True)
class Sync:
    """One counted sync."""

    kind: Kind
    site: Site
    step: int | None
    """Index of the step it belongs to, from 0; None after the last step of a region that has steps."""
    direction: Direction | None = None
    nbytes: int | None = None
    blocked_ns: int | None = None
    phase: str | None = None
    thread: str = "MainThread"
    device: int | None = None
    allowed: str | None = None
    """The reason given by the author of the allow region it fell into; such a sync is reported, not counted."""
    background: bool = False
    """True for a thread other than the one that opened the region and its autograd threads: reported, not budgeted."""
    began_ns: int | None = None
    """When the host entered the call, after the region opened; None where no clock was read."""
    stream: int | None = None
    """As :attr:`RawSync.stream` is."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a measurement was made; part of every report."""

    torch: str | None
    python: str
    device: Literal["cuda", "simulated", "none"]
    gpu: str | None
    """Marketing name of the GPU, or None on the simulated device."""
    driver: str | None
    recorder: str
    coverage: Coverage
    note: str | None = None
    """Why this recorder and not a better one, and what it cannot see; one sentence, or None."""


@dataclass(frozen=True, slots=True)
class SiteCount:
    """All syncs of one site, kind and thread in a region, as the run file and the terminal show them."""

    site: Site
    kind: Kind
    direction: Direction | None
    syncs: int
    """Syncs in the whole region, warm-up included."""
    steps: int
    """Number of measured steps (after warm-up) in which the site made at least one sync."""
    per_step_max: int
    """Most syncs of the site in one measured step."""
    blocked_ms: float | None
    nbytes: int | None
    phase: str | None
    thread: str
    allowed: str | None
    background: bool


class MemorySample(NamedTuple):
    """Memory in use at the end of a step, in bytes."""

    allocated: int | None
    """Bytes of tensors on all GPUs, as torch's caching allocator accounts for them; None before CUDA is initialised."""
    reserved: int | None
    """Bytes the allocator holds, its cache included."""
    host: int | None
    """Resident set of the process; None where the system does not tell."""
    device_mallocs: int | None
    """Calls of ``cudaMalloc`` and its like since the process began; None where the allocator does not count them."""
    device_frees: int | None = None
    """Calls of ``cudaFree`` and its like, likewise."""
    process: int | None = None
    """Memory of the process on all GPUs as the driver sees it; None where it was not asked, or does not tell."""


class StepTime(NamedTuple):
    """Time of one step of gpu_train, in nanoseconds."""

    issue: int
    """Host time from the call of the step to its return."""
    complete: int | None
    """Device time from the beginning of the step to the end of its work, by events on the current stream; None for a
    step that began before CUDA was initialised."""
    ahead: int | None
    """How much longer than the host the device was at it: from the step's return to the end of its work."""
    in_flight: int | None = None
    """Steps that the device had not done when this one returned, itself included; None where that was not asked."""


class GrownLine(NamedTuple):
    """A line whose allocations outlived their steps."""

    path: str
    """Relative to the working directory where it lies below it, with forward slashes."""
    line: int
    function: str
    bytes_per_step: float


class RegionTimes(NamedTuple):
    """When a region's steps ended and the region closed, in nanoseconds after it opened."""

    step_ends: tuple[int, ...]
    closed: int


class Disturbance(NamedTuple):
    """What NVML saw."""

    note: str | None
    """One clause for each thing seen; None if there is nothing to tell."""
    spoils: bool
    """True if times taken meanwhile are not to be trusted."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one region did; :mod:`pytest_gpusync.measure.region` has the sums over it."""

    name: str
    environment: Environment
    all_syncs: tuple[Sync, ...]
    """Every sync of the region, warm-up included, in order."""
    steps: int
    """Number of steps seen, warm-up included; 1 for a region without any."""
    warmup: int
    """Steps left out of budgets; 0 for a region without steps."""
    step_source: str
    """How steps were told apart, as a report says it: "optimizer.step()", "gpu_train", "whole region"."""
    complete: bool = True
    """False when the recorder stopped before the region ended; such a measurement satisfies no budget."""
    problem: str | None = None
    """Why nothing, or not everything, was measured; None when all is well."""
    device_used: bool = True
    """False when the process had not initialised CUDA by the end of the region: nothing ran on the device."""
    memory: tuple[MemorySample, ...] | None = None
    """Memory at the end of each step, warm-up included; None unless it was asked for."""
    grown: tuple[GrownLine, ...] | None = None
    """The lines that allocated what grew, most first; None where memory was not seen to grow, or nothing kept them."""
    timing: tuple[StepTime, ...] | None = None
    """Time of each step, warm-up included; None unless it was asked for and steps ran on a real GPU."""
    disturbance: Disturbance | None = None
    """What NVML saw of throttling and other processes while the steps were timed; None where it was not asked."""
    times: RegionTimes | None = None
    """None where the recorder reads no clock, as on the simulated device: times of the host would say nothing there."""
