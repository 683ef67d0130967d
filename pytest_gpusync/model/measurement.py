"""What a measurement is made of: plain data, without torch and pytest.

Recorders produce :class:`RawSync` values while a region is open. The package ``measure`` attributes each of them to a
:class:`Site` and a step, and closes the region as one :class:`Measurement`. Budgets and reports only read it. A
quantity that was not measured is ``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from types import FrameType


Kind = Literal["stream", "device", "event", "copy", "pageable", "free"]
"""The call the host blocked in: a stream, device or event synchronize; a copy call that blocks by itself; a
``non_blocking`` copy of pageable memory that blocks anyway; freeing device memory. A blocking torch copy is an
asynchronous copy followed by a stream synchronize: its kind is ``stream``, and its direction is set."""

Direction = Literal["H2D", "D2H", "D2D"]

Coverage = Literal["driver", "torch", "dispatcher", "simulated"]
"""What a recorder can see: every sync call of the process, only torch's own, only the operators that reach torch's
dispatcher, or those of the simulated device."""

COVERAGES: Final[tuple[Coverage, ...]] = ("simulated", "dispatcher", "torch", "driver")
"""From least to most."""


RaceKind = Literal["host-read", "host-write", "stream", "allocator", "graph", "distributed"]
"""What is missing: the host reads memory that a copy has yet to fill; the host overwrites memory that a copy has yet to
read; two streams use the same memory without a wait; memory was freed while another stream used it; the same with a
replay of a CUDA graph; the same with a collective."""

RETURN_OF: Final = "a return of "
"""The beginning of `Measurement.step_source` where a function of a name ends the steps, before its name."""
PER_REQUEST: Final = "gpu_infer"
"""`Measurement.step_source` where a step is a request."""
PER_TOKEN: Final = "gpu_infer, a value that the model yields"
"""`Measurement.step_source` where a step is a token."""
EventKind = Literal["graph_break", "recompilation"]

Effect = Literal["resumed", "rest_eager", "function_eager"]
"""What becomes of the function around a graph break: a second graph begins after the line; its rest runs eagerly; all
of it runs eagerly, which happens if the line is in a loop or a ``try`` block."""

HOST: Final = "host"
"""The name of the host where a race names a stream."""

PAGEABLE_H2D_WAITS_ABOVE: Final = 2 << 20
"""Up to this many bytes, a ``non_blocking`` host-to-device copy of pageable memory returns at once. Measured on an H200
with driver 580: 2 MiB returned behind a busy queue, 2.06 MiB waited. A copy from device to host waits at any size."""


class RawSync(NamedTuple):
    """One sync as a recorder saw it, on the thread that made the call."""

    kind: Kind
    frame: FrameType | None
    """Innermost Python frame of the calling thread; None if the thread runs no Python (autograd's threads)."""
    thread: int
    """``threading.get_ident()`` of the calling thread."""
    direction: Direction | None = None
    nbytes: int | None = None
    """Bytes of the copy that the sync completes; None without a copy."""
    blocked_ns: int | None = None
    """Time the host spent in the call; for a blocking copy, from the start of its first half. None if no clock was
    read, always so on the simulated device."""
    device: int | None = None
    attribution: Attribution | None = None
    """Its site and thread, if the recorder had to determine them before it delivered the sync."""
    began_ns: int | None = None
    """When the call was entered, on the clock of ``time.perf_counter_ns()``; None if no clock was read."""
    sequence: int | None = None
    """How many calls the recorder had buffered before this one, for a sync that is delivered later than it was made;
    None for one that is delivered at once."""
    stream: int | None = None
    """Handle of the stream that was waited for, as ``torch.cuda.Stream.cuda_stream`` gives it, 0 for the default one;
    None if the call waited for more than one stream, or the stream is unknown."""


SyncSink = Callable[[RawSync], None]
"""Receives each sync on the thread that made it, before the call returns to the user's code."""


class MeasurementError(RuntimeError):
    """Nothing can be measured; the message is one sentence that gives the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class Site:
    """The line charged with a sync: the innermost frame of the user's project."""

    path: str
    """Relative to the working directory if it is below it, with forward slashes."""
    line: int
    function: str
    via: str | None = None
    """The library frame between the site and the call, as ``package/file.py:line function``; None for a direct call."""


class Attribution(NamedTuple):
    """The site and the thread that a sync is charged to."""

    site: Site
    thread: int
    """The thread whose line is charged: the caller's own, or the one inside ``backward()`` for an autograd thread."""


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
    """The reason given to ``allow()``, for a sync inside such a block; it is reported, not counted."""
    background: bool = False
    """True if the sync was made outside of the region: by a thread that neither opened the region, nor steps an
    optimizer, nor was handed work by it through a thread pool, or by another task. It is reported, not counted."""
    began_ns: int | None = None
    """When the host entered the call, in nanoseconds after the region opened; None if no clock was read."""
    stream: int | None = None
    """See :attr:`RawSync.stream`."""


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses of the same bytes, at least one of them a write, that nothing orders. The later one, in the order
    of the program, is at `site`.
    """

    kind: RaceKind
    site: Site
    stream: str
    """Where the later access runs: "host", "default stream", "stream 3"."""
    other: Site
    """The earlier access."""
    other_stream: str
    tensor: str | None
    """The name of the tensor at `site`, if a variable there holds it."""
    shape: tuple[int, ...]
    nbytes: int
    message: str
    """One sentence or more: both lines, what each does, and what would order them."""
    times: int = 1
    """How often these two lines raced."""


@dataclass(frozen=True, slots=True)
class CompilerEvent:
    """A graph break at a line, or a recompilation of the function that begins there."""

    kind: EventKind
    site: Site
    reason: str
    """One line, by Dynamo; of a recompilation, the guard that failed."""
    name: str | None = None
    """Dynamo's name of the graph break, such as "Data-dependent branching"; None for a recompilation."""
    effect: Effect | None = None
    """None for a recompilation, or if it is not known."""
    step: int | None = None
    """Index of the step, from 0; None outside of the steps of a region, or without a region."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a measurement was made; part of every report."""

    torch: str | None
    python: str
    device: str
    """An NVIDIA GPU ("cuda"), "simulated", "none", or another accelerator ("rocm", "xpu", "mps")."""
    gpu: str | None
    """Marketing name of the GPU, or None on the simulated device."""
    driver: str | None
    recorder: str
    coverage: Coverage
    note: str | None = None
    """Why a recorder that sees more could not run, and what this one cannot see; one sentence, or None."""


class DeviceCount(NamedTuple):
    """The syncs that waited for one device."""

    device: int | None
    """Its ordinal, as in ``cuda:1``; None for syncs of which the recorder does not know it."""
    syncs: int
    blocked_ms: float | None


@dataclass(frozen=True, slots=True)
class SiteCount:
    """All syncs of one site, kind and thread in a region."""

    site: Site
    kind: Kind
    direction: Direction | None
    syncs: int
    """Syncs in the whole region, warm-up included."""
    steps: int
    """Number of measured steps (those after warm-up) in which the site made at least one sync."""
    per_step_max: int
    """Most syncs of the site in any measured step."""
    blocked_ms: float | None
    nbytes: int | None
    phase: str | None
    thread: str
    allowed: str | None
    background: bool
    devices: tuple[DeviceCount, ...] = ()
    """Its syncs by device, in the order of the ordinals."""


class MemorySample(NamedTuple):
    """Memory in use at the end of a step, in bytes."""

    allocated: int | None
    """Bytes of tensors on all GPUs, from torch's caching allocator; None before CUDA is initialized."""
    reserved: int | None
    """Bytes the allocator has reserved, including its cache."""
    host: int | None
    """Resident set size of the process; None if the system does not report it."""
    device_mallocs: int | None
    """Calls of ``cudaMalloc`` and similar functions since the process began; None if the allocator does not count
    them."""
    device_frees: int | None = None
    """The same for ``cudaFree``."""
    process: int | None = None
    """Memory of the process on all GPUs, from the driver; None if it was not queried, or is not reported."""


class StepTime(NamedTuple):
    """Time of one step of gpu_train, in nanoseconds."""

    issue: int
    """Host time from the call of the step to its return."""
    complete: int | None
    """Device time from the start of the step to the end of its work, from events on the current stream; None for a step
    that began before CUDA was initialized."""
    ahead: int | None
    """Time from the step's return on the host to the end of its work on the device; 0 if the work was done before."""
    in_flight: int | None = None
    """Steps that the device had not finished when this one returned, including itself; None if that was not checked."""


class GrownLine(NamedTuple):
    """A line whose allocations outlived the steps that made them."""

    path: str
    """Relative to the working directory if it is below it, with forward slashes."""
    line: int
    function: str
    bytes_per_step: float


class RegionTimes(NamedTuple):
    """When a region's steps ended and when it closed, in nanoseconds after it opened."""

    step_ends: tuple[int, ...]
    closed: int


class Disturbance(NamedTuple):
    """Throttling and other processes on the GPU, as NVML saw them."""

    note: str | None
    """One clause for each disturbance; None if there was none."""
    invalidates: bool
    """True if times measured meanwhile cannot be trusted."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one region. See :mod:`~pytest_gpusync.model.site_counts` and
    :mod:`~pytest_gpusync.model.line_counts` for sums over it.
    """

    name: str
    environment: Environment
    all_syncs: tuple[Sync, ...]
    """Every sync of the region, warm-up included, in order."""
    steps: int
    """Number of steps seen, warm-up included; 1 for a region without any."""
    warmup: int
    """Steps left out of budgets; 0 for a region without steps."""
    step_source: str
    """What ended the steps, as reports show it: "optimizer.step()", "gpu_train", "whole region"."""
    complete: bool = True
    """False if the recorder stopped before the region ended; such a measurement satisfies no budget."""
    problem: str | None = None
    """Why nothing, or not everything, was measured; None if the measurement is complete."""
    device_used: bool = True
    """False if the region gave the device no work: nothing was launched, copied or waited for."""
    process: str | None = None
    """Name of the process, if it is not the one that opened the region."""
    unused: str | None = None
    """If the region did not use the device, what did, as a clause; None if nothing is known to have."""
    memory: tuple[MemorySample, ...] | None = None
    """Memory at the end of each step, including warm-up; None unless requested."""
    grown: tuple[GrownLine, ...] | None = None
    """The lines whose allocations made memory grow, most bytes first; None if memory did not grow, or nothing recorded
    them."""
    timing: tuple[StepTime, ...] | None = None
    """Time of each step, including warm-up; None unless requested and run on a real GPU."""
    disturbance: Disturbance | None = None
    """What NVML saw of throttling and other processes while the steps were timed; None if it was not queried."""
    races: tuple[Race, ...] | None = None
    executions: Mapping[tuple[str, int], int] | None = None
    """Executions of the lines that waited, from the first wait of each on, by path and line; None if not counted."""
    """Pairs of accesses that nothing orders, in the order in which they were first seen; None if the recorder does not
    look for them, as on a real GPU."""
    compilation: tuple[CompilerEvent, ...] | None = None
    """The graph breaks and recompilations of ``torch.compile``, warm-up included, in order; None if its compiler is not
    loaded, or was not listened to, as on the simulated device, where it compiles nothing."""
    times: RegionTimes | None = None
    """None if the recorder reads no clock, as on the simulated device, where times of the host mean nothing."""
