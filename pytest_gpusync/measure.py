"""Open a region, get a measurement.

One recorder serves every open region of the process. It is started when the first opens and stopped when the last
closes, so outside regions nothing is subscribed and nothing costs anything. Each sync is charged to a site once and
handed to every open region, so regions nest.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pytest_gpusync import attribution, devices, phases, steps
from pytest_gpusync.devices import simulation_is_on as _simulation_is_on
from pytest_gpusync.events import Environment, Measurement, RegionTimes, Site, SiteCount, Sync
from pytest_gpusync.lines import counted_per_step, lines
from pytest_gpusync.memory import Sampler
from pytest_gpusync.recorders import RecorderUnavailable, candidates, create, jax_waits
from pytest_gpusync.recorders.base import NO_GIL, free_threaded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpusync.events import Direction, Kind, MemorySample, RawSync, StepTime
    from pytest_gpusync.nvml import Disturbance
    from pytest_gpusync.recorders import Recorder

DeviceChoice = Literal["auto", "cuda", "simulated"]

DEFAULT_WARMUP = 1
"""Steps left out of budgets in a region that has steps, unless told otherwise."""

_JAX_UNSEEN: Final = "cannot see waits of JAX, which is loaded: this version does not wait where it is known to"
_AT_THE_DRIVER: Final = {"cupy": "CuPy", "numba.cuda": "Numba"}
"""Frameworks beside torch whose waits are calls of the driver, by module."""


class MeasurementError(RuntimeError):
    """Nothing can be measured; the message is one sentence that says why and what would help."""


class _Seen(NamedTuple):
    """A sync as it is kept while the region is open: its step is known only when the region closes."""

    kind: Kind
    site: Site
    direction: Direction | None
    nbytes: int | None
    blocked_ns: int | None
    phase: str | None
    owner: int
    thread: str
    """Name of the owner: looked up now, for a thread may be gone when the region closes."""
    device: int | None
    allowed: str | None
    began_ns: int | None
    sequence: int | None
    """As :attr:`RawSync.sequence` is: what came late is told by it from what follows the end of a step."""
    stream: int | None


class _End(NamedTuple):
    """Where a step ends."""

    seen: int
    """Syncs that had been delivered."""
    noted: int
    """Calls that the recorder had noted, and may deliver later."""


class Region:
    """A stretch of a program that is being measured, or was."""

    def __init__(
        self, name: str, warmup: int | None = None, *, sampler: Sampler | None = None, all_threads: bool = False
    ) -> None:
        self.name = name
        self._all_threads = all_threads
        self._sampler = sampler
        self._optimizer_samples: list[MemorySample] = []
        """Memory at each ``optimizer.step()``, as the marks are, for as long as that ends steps."""
        self._explicit_samples: list[MemorySample] = []
        self._timing: tuple[StepTime, ...] | None = None
        self._disturbance: Disturbance | None = None
        self._warmup = warmup
        self._thread = threading.get_ident()
        self._seen: list[_Seen] = []
        self._opened = time.perf_counter_ns()
        self._optimizer_calls: list[tuple[int, int, int, int]] = []
        """Where each ``optimizer.step()`` returned: syncs delivered, calls noted, identity of the optimizer, time."""
        self._explicit_marks: list[_End] | None = None
        self._explicit_times: list[int] = []
        self._step_source = "optimizer.step()"
        self._problem: str | None = None
        self._result: Measurement | None = None

    def mark_step(self, source: str = "mark_step()") -> None:
        """End a step here. From the first call on, ``optimizer.step()`` no longer ends the steps of this region."""
        noted = _hub.mark()
        if self._explicit_marks is None:
            self._explicit_marks = []
            self._step_source = source
        self._explicit_marks.append(_End(len(self._seen), noted))
        self._explicit_times.append(time.perf_counter_ns())
        if self._sampler is not None:
            self._sampler.take(self._explicit_samples)

    def record_allocations_from(self, step: int) -> None:
        """If memory grows, record which lines allocate, from the end of this step on at the earliest."""
        if self._sampler is not None:
            self._sampler.allocations.not_before = step

    def time_steps(self, times: Sequence[StepTime] | None, disturbance: Disturbance | None = None) -> None:
        """Keep how long each step took, and what NVML saw meanwhile; None where steps could not be timed."""
        self._timing = None if times is None else tuple(times)
        self._disturbance = disturbance

    def warm_up(self, count: int) -> None:
        """Leave the first `count` steps out of budgets."""
        if count < 0:
            raise ValueError(f"warm-up takes a number of steps from 0 on, not {count}")
        self._warmup = count

    def result(self) -> Measurement:
        """Return what was measured: once the region is closed the final word, before that what was seen so far."""
        if self._result is not None:
            return self._result
        _hub.flush()
        return self._measurement(complete=False)

    @property
    def opened_ns(self) -> int:
        """When the region opened, by the clock of ``time.perf_counter_ns()``: its times count from here."""
        return self._opened

    @property
    def syncs(self) -> int:
        """Syncs of the region so far, warm-up included, allowed ones and background threads left out.

        Raises:
            MeasurementError: the region was not measured; not measured is not zero.
        """
        measurement = self.result()
        if measurement.problem is not None:
            raise MeasurementError(measurement.problem)
        return sum(1 for sync in measurement.all_syncs if _counts(sync))

    @property
    def sites(self) -> list[SiteCount]:
        """The lines that synced, most syncs first."""
        return site_counts(self.result())

    @property
    def steps(self) -> int:
        """Steps seen so far, warm-up included; 1 for a region without steps."""
        return self.result().steps

    def __repr__(self) -> str:
        state = "open" if self._result is None else "closed"
        if self._result is None:
            _hub.flush()  # a recorder may hold syncs back
        return f"<Region {self.name!r} {state}: {len(self._seen)} syncs seen>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the region."""
        from pytest_gpusync.reporting.notebook import to_fragment

        return to_fragment(self.result())

    def _optimizer_stepped(self, optimizer: int, noted: int, now: int) -> None:
        # This runs in every step, as cold code: an object less is a microsecond less.
        self._optimizer_calls.append((len(self._seen), noted, optimizer, now))
        if self._sampler is not None and self._explicit_marks is None:
            self._sampler.take(self._optimizer_samples)

    def _fail(self, problem: str) -> None:
        """Remember the first reason why this measurement cannot be trusted."""
        if self._problem is None:
            self._problem = problem

    def _close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
        self._result = self._measurement(complete=self._problem is None)

    def _measurement(self, *, complete: bool) -> Measurement:
        if self._explicit_marks is not None:
            ends, source = self._explicit_marks, self._step_source
        else:
            calls = [self._optimizer_calls[index] for index in self._boundary_calls()]
            ends, source = [_End(seen, noted) for seen, noted, _, _ in calls], self._step_source
            if len(ends) < 2:
                # One optimizer.step() does not repeat: the region itself is the step.
                ends, source = [], "whole region"
        syncs = self._in_steps(ends)
        if not ends:
            warmup = 0
        else:
            warmup = DEFAULT_WARMUP if self._warmup is None else self._warmup
        problem = self._problem
        if problem is None and ends and warmup >= len(ends):
            problem = f"no step was measured: {len(ends)} ran and warm-up takes {warmup}"
        return Measurement(
            name=self.name,
            environment=_hub.environment(),
            all_syncs=tuple(syncs),
            steps=len(ends) or 1,
            warmup=warmup,
            step_source=source,
            complete=complete,
            problem=problem,
            device_used=_cuda_initialised() or bool(self._seen),
            memory=self._memory(len(ends)),
            grown=None if self._sampler is None else self._sampler.grown,
            timing=self._timing,
            disturbance=self._disturbance,
            times=self._times(len(ends)),
        )

    def _in_steps(self, ends: list[_End]) -> list[Sync]:
        """Return the syncs, each with its step, in the order in which they began where that is known."""
        syncs: list[Sync] = []
        delivered, noted = [end.seen for end in ends], [end.noted for end in ends]
        was_late = False
        for position, seen in enumerate(list(self._seen)):
            if seen.sequence is None:
                step = bisect_right(delivered, position)
            else:
                step = bisect_right(noted, seen.sequence)
                was_late = True
            syncs.append(self._sync(seen, None if ends and step == len(ends) else step))
        if was_late and all(sync.began_ns is not None for sync in syncs):
            syncs.sort(key=lambda sync: sync.began_ns or 0)
        return syncs

    def _times(self, ends: int) -> RegionTimes | None:
        if not _hub.reads_clock:
            return None
        closed = time.perf_counter_ns() - self._opened
        if not ends:
            return RegionTimes((closed,), closed)
        if self._explicit_marks is not None:
            step_ends = self._explicit_times
        else:
            step_ends = [self._optimizer_calls[index][3] for index in self._boundary_calls()]
        return RegionTimes(tuple(end - self._opened for end in step_ends), closed)

    def _boundary_calls(self) -> list[int]:
        """Return which of the calls of ``optimizer.step()`` ended a step."""
        return steps.boundaries([(index, call[2]) for index, call in enumerate(self._optimizer_calls)])

    def _memory(self, ends: int) -> tuple[MemorySample, ...] | None:
        """Return the samples at the ends of steps; in a region without steps there are none to tell growth from."""
        if self._sampler is None or not ends:
            return None
        if self._explicit_marks is not None:
            return tuple(self._explicit_samples)
        return tuple(self._optimizer_samples[index] for index in self._boundary_calls())

    def _sync(self, seen: _Seen, step: int | None) -> Sync:
        return Sync(
            kind=seen.kind,
            site=seen.site,
            step=step,
            direction=seen.direction,
            nbytes=seen.nbytes,
            blocked_ns=seen.blocked_ns,
            phase=seen.phase,
            thread=seen.thread,
            device=seen.device,
            allowed=seen.allowed,
            background=seen.owner != self._thread and not self._all_threads,
            began_ns=None if seen.began_ns is None else seen.began_ns - self._opened,
            stream=seen.stream,
        )


@contextmanager
def record(
    name: str = "region",
    *,
    warmup: int | None = None,
    recorder: str = "auto",
    device: DeviceChoice = "auto",
    memory: bool = False,
    process_memory: bool = False,
    all_threads: bool = False,
) -> Iterator[Region]:
    """Measure the syncs of a ``with`` block.

    Args:
        name: what reports call the region.
        warmup: steps to leave out of budgets; 1 by default, 0 for a region without steps.
        recorder: "auto", or one of :data:`pytest_gpusync.recorders.NAMES`.
        device: "auto" takes the simulated device if it is on, else the GPU.
        memory: read the memory counters at the end of each step, for its growth.
        process_memory: then also ask the driver what the process holds, which takes some tenths of a millisecond.
        all_threads: count the syncs of other threads too; otherwise only those of the thread that opens the region, and
            of autograd's threads for it, count, and the others are reported as background.

    Yields:
        The open region; its ``syncs``, ``sites`` and ``result()`` are final once the block is left.

    Raises:
        MeasurementError: nothing can be measured here.
    """
    sampler = Sampler(DEFAULT_WARMUP if warmup is None else warmup, process_memory) if memory else None
    region = Region(name, warmup, sampler=sampler, all_threads=all_threads)
    _hub.open(region, recorder, device)
    try:
        yield region
    finally:
        _hub.close(region)


@contextmanager
def allow(reason: str) -> Iterator[None]:
    """Allow the syncs that this thread makes in a ``with`` block: reported with the reason, not counted.

    Raises:
        ValueError: the reason is empty.
    """
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError('allow() takes the reason for the sync, as in allow("early stop needs the value")')
    thread = threading.get_ident()
    # A recorder may hold syncs back: what was made before is not allowed by this.
    _hub.flush()
    reasons = _allowed.setdefault(thread, [])
    reasons.append(reason)
    try:
        yield
    finally:
        _hub.flush()
        reasons.pop()
        if not reasons:
            _allowed.pop(thread, None)


@contextmanager
def aside() -> Iterator[None]:
    """Leave out the syncs that this thread makes in a ``with`` block: those of measuring itself. Blocks may nest."""
    thread = threading.get_ident()
    _hub.flush()
    is_outermost = thread not in _aside
    _aside.add(thread)
    try:
        yield
    finally:
        # A recorder may hold syncs back: they are delivered, and left out, now.
        _hub.flush()
        if is_outermost:
            _aside.discard(thread)


def syncs_per_step(measurement: Measurement) -> list[int]:
    """Return the syncs that count in each measured step, in order; warm-up and what follows the last step left out."""
    return counted_per_step(lines(measurement), measurement)


def site_counts(measurement: Measurement) -> list[SiteCount]:
    """Return one entry per line, kind, thread and allow reason, most syncs per step first."""
    groups: dict[tuple[object, ...], list[Sync]] = {}
    for sync in measurement.all_syncs:
        key = (sync.site, sync.kind, sync.direction, sync.thread, sync.allowed, sync.background)
        groups.setdefault(key, []).append(sync)
    counts = [_site_count(group, measurement) for group in groups.values()]
    return sorted(
        counts,
        key=lambda c: (
            c.allowed is not None or c.background,
            -c.per_step_max,
            -c.syncs,
            c.site.path,
            c.site.line,
        ),
    )


def _site_count(group: list[Sync], measurement: Measurement) -> SiteCount:
    first = group[0]
    by_step = Counter(sync.step for sync in group if _measured(sync, measurement))
    blocked = [sync.blocked_ns for sync in group if sync.blocked_ns is not None]
    nbytes = [sync.nbytes for sync in group if sync.nbytes is not None]
    phases_seen = Counter(sync.phase for sync in group)
    return SiteCount(
        site=first.site,
        kind=first.kind,
        direction=first.direction,
        syncs=len(group),
        steps=len(by_step),
        per_step_max=max(by_step.values(), default=0),
        blocked_ms=sum(blocked) / 1e6 if blocked else None,
        nbytes=sum(nbytes) if nbytes else None,
        phase=phases_seen.most_common(1)[0][0],
        thread=first.thread,
        allowed=first.allowed,
        background=first.background,
    )


def _counts(sync: Sync) -> bool:
    return sync.allowed is None and not sync.background


def _measured(sync: Sync, measurement: Measurement) -> bool:
    return sync.step is not None and sync.step >= measurement.warmup


class _Hub:
    """The open regions of the process and the one recorder that serves them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._regions: tuple[Region, ...] = ()
        """Replaced, never changed in place: the sink reads it without the lock."""
        self._recorder: Recorder | None = None
        self._noted = 0
        """Calls that recorders had noted when a step ended last."""
        self._environment: Environment | None = None
        self.reads_clock = False
        """True if the recorder that was started last tells when each sync began."""
        self._verified: set[str] = set()
        """Recorders that were seen to see a planted sync in this process."""
        self._planting: tuple[int, list[RawSync]] | None = None
        """Thread that is planting a sync, and what the recorder saw of it."""
        self._optimizer_steps = steps.OptimizerSteps(self._optimizer_stepped)
        self._jax = jax_waits.JaxWaits(self._sink, aside)
        self._jax_was_followed = False
        """True if the waits of JAX were counted in the regions that are open, or were last."""

    def open(self, region: Region, recorder: str, device: DeviceChoice) -> None:
        with self._lock:
            if self._regions:
                self.flush()  # what was made before is none of the new region's
            else:
                self._start(recorder, device)
            self._regions = (*self._regions, region)

    def close(self, region: Region) -> None:
        with self._lock:
            if region not in self._regions:  # a child's, which inherited it
                region._close()
                return
            try:
                self.flush()
                self._verify()
            except Exception as error:
                region._fail(f"the recorder failed: {type(error).__name__}: {error}")
            finally:
                region._close()
                self._regions = tuple(other for other in self._regions if other is not region)
                if not self._regions:
                    self._stop()

    def flush(self) -> None:
        recorder = self._recorder
        if recorder is not None:
            recorder.flush()

    def follow_jax(self) -> None:
        """Count the waits of JAX from now on, if it is loaded and there is a GPU for it to wait for."""
        if self._recorder is not None and self._recorder.coverage != "simulated" and not self._jax.is_attached:
            self._jax.attach()
            self._jax_was_followed |= self._jax.is_attached

    def mark(self) -> int:
        """Let a step end here: what the recorder delivers later with a lower ``sequence`` than this was in it."""
        recorder = self._recorder
        if recorder is not None:
            if "jaxlib" in sys.modules:
                self.follow_jax()
            noted = recorder.mark()
            # One that sees less, and took over, notes none: those before it were noted all the same.
            if noted > self._noted:
                self._noted = noted
        return self._noted

    def forget_in_forked_child(self) -> None:
        """Leave the recorder to the parent: in a forked child CUDA cannot be used, and nothing of it may be touched.

        The regions that the child inherited end there and are no measurement; it may open regions of its own, where
        a recorder can run.
        """
        self._lock = threading.RLock()  # the thread that held it does not exist here
        recorder, self._recorder = self._recorder, None
        self._planting = None
        regions, self._regions = self._regions, ()
        for region in regions:
            region._fail("the process that opened the region was forked; it is measured in the parent")
        if regions:
            self._unwrap()
        if recorder is not None:
            recorder.forget_in_forked_child()

    def environment(self) -> Environment:
        """Return where the last started recorder measures, or measured."""
        if self._environment is None:
            raise MeasurementError("no region was opened")
        notes = [self._environment.note, *self._other_frameworks(self._environment)]
        return replace(self._environment, note="; ".join(note for note in notes if note) or None)

    def _other_frameworks(self, environment: Environment) -> Iterator[str]:
        """Say what is seen of the frameworks that are loaded beside torch."""
        if environment.coverage == "simulated":
            return
        found = [name for module, name in _AT_THE_DRIVER.items() if module in sys.modules]
        if found and environment.coverage == "driver":
            yield f"{' and '.join(found)} {'is' if len(found) == 1 else 'are'} counted at the driver"
        if self._jax_was_followed:
            yield jax_waits.SEEN
        elif "jaxlib" in sys.modules:
            yield _JAX_UNSEEN

    def _start(self, wanted: str, device: DeviceChoice) -> None:
        simulated = _simulation_is_on()
        found = _usable_device(device, simulated)
        refusals: list[str] = []
        self._start_first(candidates(simulated, wanted), found, refusals)
        self._optimizer_steps.attach()
        phases.follow()
        self._jax_was_followed = False
        self.follow_jax()

    def _start_first(self, names: Sequence[str], found: devices.Device, refusals: list[str]) -> None:
        """Start the first of the named recorders that can run, and note why those before it cannot.

        Raises:
            MeasurementError: none can.
        """
        for name in names:
            recorder = create(name)
            recorder.on_eviction = self._evicted
            try:
                recorder.start(self._sink)
            except RecorderUnavailable as refusal:
                refusals.append(f"{name}: {refusal}")
                continue
            self._recorder = recorder
            phases.count_by(recorder.calls)
            self._environment = _environment(recorder, found, refusals)
            self.reads_clock = recorder.reads_clock
            return
        raise MeasurementError("no recorder can run: " + "; ".join(refusals))

    def _evicted(self, reason: str) -> None:
        """Carry on with a recorder that sees less: the one that runs has to make room for another tool."""
        with self._lock:
            recorder, self._recorder = self._recorder, None
            if recorder is None:
                return
            names = candidates(simulated=False, wanted="auto")
            weaker = names[names.index(recorder.name) + 1 :]
            try:
                recorder.flush()
                recorder.stop()
                self._start_first(weaker, devices.detect(), [f"{recorder.name}: {reason}"])
            except Exception as error:  # must not reach the tool that asked for room
                for region in self._regions:
                    region._fail(str(error))

    def _stop(self) -> None:
        recorder, self._recorder = self._recorder, None
        self._unwrap()
        if recorder is not None:
            recorder.stop()

    def _unwrap(self) -> None:
        """Restore what was wrapped when the first region opened."""
        self._optimizer_steps.detach()
        phases.unfollow()
        self._jax.detach()

    def _verify(self) -> None:
        """Plant one sync and see it seen, once per process and recorder, after the user's code: it must not disturb."""
        recorder = self._recorder
        if recorder is None or recorder.name in self._verified or not _cuda_initialised():
            return
        seen: list[RawSync] = []
        self._planting = (threading.get_ident(), seen)
        try:
            recorder.plant()
            recorder.flush()
        finally:
            self._planting = None
        if len(seen) == 1:
            self._verified.add(recorder.name)
            return
        for region in self._regions:
            region._fail(
                f"the {recorder.name} recorder is not to be trusted here: it saw {len(seen)} of 1 planted sync; "
                "run `gpusync doctor`"
            )

    def _optimizer_stepped(self, optimizer: object, _args: object, _kwargs: object) -> None:
        noted, now = self.mark(), time.perf_counter_ns()
        for region in self._regions:
            region._optimizer_stepped(id(optimizer), noted, now)

    def _sink(self, raw: RawSync) -> None:
        planting = self._planting
        if planting is not None and raw.thread == planting[0]:
            planting[1].append(raw)
            return
        if raw.thread in _aside:
            return
        try:
            kind, frame, thread, direction, nbytes, blocked, device, charged, began, sequence, stream = raw
            site, owner = charged or attribution.charge(frame, thread)
            if sequence is not None:
                phase = phases.at(sequence)
            else:
                phase = (phases.current(thread) or phases.current(owner)) if phases.are_open() else None
            reasons = _allowed.get(owner)
            allowed = reasons[-1] if reasons else None
            name = _thread_name(owner)
            values = (kind, site, direction, nbytes, blocked, phase, owner, name, device, allowed)
            seen = tuple.__new__(_Seen, (*values, began, sequence, stream))  # in a third of the time
            for region in self._regions:
                region._seen.append(seen)
            if self._optimizer_steps.handle is None:
                self._optimizer_steps.attach()
        except Exception as error:  # must not reach the driver's callback or the user's operator
            for region in self._regions:
                region._fail(f"a sync could not be attributed: {type(error).__name__}: {error}")


_hub = _Hub()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _hub.forget_in_forked_child())
_allowed: dict[int, list[str]] = {}
"""Reasons of the open allow() blocks by thread, outermost first."""
_aside: set[int] = set()
"""Threads that are measuring, and whose syncs are not the user's."""


def _usable_device(device: DeviceChoice, simulated: bool) -> devices.Device:
    if simulated:
        if device == "cuda":
            raise MeasurementError("the simulated CUDA device is on in this process, so the GPU cannot be measured")
        return devices.Device("none", reason="the simulated CUDA device is on")
    if device == "simulated":
        raise MeasurementError(
            "the simulated CUDA device is not on; open the region under `with simulated_cuda(), record():`"
        )
    found = devices.detect()
    if found.kind == "none":
        raise MeasurementError(
            f"no GPU to measure: {found.reason}; "
            "use `with simulated_cuda(), record():` to count on the simulated device"
        )
    if free_threaded():
        raise MeasurementError(NO_GIL)
    return found


def _environment(recorder: Recorder, found: devices.Device, refusals: list[str]) -> Environment:
    build = devices.torch_build()
    notes = [f"cannot see {recorder.blind_spots}"] if recorder.blind_spots else []
    if refusals:
        notes.insert(0, "; ".join(refusals))
    return Environment(
        torch=build[0] if build else None,
        python=platform.python_version(),
        device="simulated" if recorder.coverage == "simulated" else "cuda",
        gpu=found.gpu,
        driver=found.driver,
        recorder=recorder.name,
        coverage=recorder.coverage,
        note="; ".join(notes) or None,
    )


def _cuda_initialised() -> bool:
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


def _thread_name(ident: int) -> str:
    # threading.enumerate() takes a lock that the interrupted thread may hold.
    thread: threading.Thread | None = threading._active.get(ident)  # type: ignore[attr-defined]
    return thread.name if thread is not None else f"thread {ident}"
