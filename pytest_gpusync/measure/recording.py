"""The one recorder of the process and the open regions that it serves.

The recorder is started when the first region opens and stopped when the last one closes. Outside regions nothing is
subscribed and nothing costs anything.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pytest_gpusync.machine import devices
from pytest_gpusync.machine.devices import simulation_is_on as _simulation_is_on
from pytest_gpusync.measure import device_choice, phases, scopes, step_boundaries
from pytest_gpusync.measure.scopes import Scope
from pytest_gpusync.measure.sync_log import SyncOrigin
from pytest_gpusync.model.measurement import MeasurementError
from pytest_gpusync.recorders import RecorderUnavailable, candidates, compiler_events, create, jax_waits
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpusync.measure.device_choice import DeviceChoice
    from pytest_gpusync.measure.region_log import RegionLog
    from pytest_gpusync.model.measurement import CompilerEvent, Environment, Race, RawSync
    from pytest_gpusync.recorders import Recorder

_JAX_NOT_SEEN: Final = "cannot see waits of JAX, which is loaded: this version does not wait in the known places"
_COUNTED_AT_THE_DRIVER: Final = {"cupy": "CuPy", "numba.cuda": "Numba"}
"""Frameworks other than torch that wait by calls of the driver, by module."""

_allowed: tuple[tuple[Scope, str], ...] = ()
"""The open allow() blocks with their reasons, in the order in which they were opened. Replaced, never changed in
place."""
_allowed_lock = threading.RLock()
_uncounted: set[int] = set()
"""Threads that are measuring: their syncs are not the user's."""


class allow(AbstractContextManager[None], ContextDecorator):  # noqa: N801 (used like a function)
    """Allow the syncs that the program makes in a ``with`` block: reported with the reason, not counted.

    The block covers its thread, or in a task of an event loop the task; and the tasks and the work in thread pools that
    are started in it. If a generator opens the block, its consumer is not covered.

    ``torch.compile`` traces through the block, also with ``fullgraph=True``. The code that it compiles does not open
    the block, so its syncs are counted: put the block around the call of the compiled function.

    Raises:
        ValueError: the reason is empty.
    """

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError('allow() takes the reason for the sync, as in allow("early stop needs the value")')
        self._reason = reason
        self._scope: Scope | None = None

    def _recreate_cm(self) -> allow:
        return allow(self._reason)

    def __enter__(self) -> None:
        global _allowed
        if scopes.traced_by_compiler():
            return
        # A recorder may have buffered syncs: those made before the block are not allowed by it.
        current.flush()
        scope = self._scope = Scope(is_region=False)
        scope.enter(sys._getframe(1))
        with _allowed_lock:
            _allowed = (*_allowed, (scope, self._reason))
        current.update_buffering()

    def __exit__(self, *exc: object) -> None:
        if self._scope is None:  # traced by torch.compile
            return
        try:
            current.flush()
        finally:
            self._leave()

    def _leave(self) -> None:
        """Close the block; an interrupted call can be repeated."""
        global _allowed
        scope = self._scope
        if scope is None:
            return
        with _allowed_lock:
            _allowed = tuple(entry for entry in _allowed if entry[0] is not scope)
        scope.leave()
        current.update_buffering()
        self._scope = None

    def __del__(self) -> None:
        # A signal handler that raises as __exit__() begins leaves the block open: it would allow all later syncs.
        if getattr(self, "_scope", None) is not None and not sys.is_finalizing():
            self._leave()


@contextmanager
def uncounted() -> Iterator[None]:
    """Leave out the syncs that this thread makes in a ``with`` block: those of measuring itself. Blocks may nest."""
    thread = threading.get_ident()
    current.flush()
    is_outermost = thread not in _uncounted
    try:
        _uncounted.add(thread)
        yield
    finally:
        try:
            # A recorder may have buffered syncs of the block: deliver them now, while they are left out.
            current.flush()
        finally:  # also if a signal handler raises above
            if is_outermost:
                _uncounted.discard(thread)


class Recording:
    """The recorder that runs, and the logs of the open regions."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._regions: tuple[RegionLog, ...] = ()
        """Replaced, never changed in place: the sink reads it without the lock."""
        self._recorder: Recorder | None = None
        self._buffered = 0
        """Calls that recorders had buffered when a step last ended."""
        self._environment: Environment | None = None
        self.reads_clock = False
        """True if the recorder that was started last says when each sync began."""
        self.finds_races = False
        """True if the recorder that was started last can look for races."""
        self._looks_for_races = False
        """Syncs without a time of their own, of which the logs hold one object for each line."""
        self._verified: set[str] = set()
        """Recorders that have seen a planted sync in this process."""
        self._planting: tuple[int, list[RawSync]] | None = None
        """The thread that is planting a sync, and what the recorder saw of it."""
        self._optimizer_steps = step_boundaries.OptimizerSteps(self._optimizer_stepped)
        self._optimizer_numbers = step_boundaries.OptimizerNumbers()
        self._jax = jax_waits.JaxWaits(self._sink, uncounted)
        self._handed_work = scopes.HandedWork()
        self._jax_was_followed = False
        """True if the waits of JAX were counted in the regions that are open, or were last."""

    def open(self, region: RegionLog, recorder: str, device: DeviceChoice) -> None:
        """Record into a region from now on.

        Raises:
            MeasurementError: nothing can be measured here.
        """
        with self._lock:
            if self._regions:
                self.flush()  # syncs made before do not belong to the new region
            else:
                self._start(recorder, device)
            self._regions = (*self._regions, region)
            region.scope.enter(region.frame)
            region.frame = None
            self.update_buffering()
            if self._recorder is not None:
                self._recorder.watch_device_work(self._device_worked)
            self._look_for_races()

    def forget(self, region: RegionLog) -> None:
        """Stop recording into a region that could not be opened, or was opened in part; can be repeated."""
        with self._lock:
            region.scope.leave()
            self._regions = tuple(other for other in self._regions if other is not region)
            if self._regions:
                self.update_buffering()
                self._look_for_races()
            else:
                self._stop()

    def close(self, region: RegionLog) -> None:
        """Stop recording into a region, and make its measurement. An interrupted call can be repeated."""
        with self._lock:
            if region not in self._regions:  # it was inherited by a forked child, or closing it was interrupted
                if region.result is None:
                    self._close(region)
                self.forget(region)
                return
            try:
                self.flush()
                if self._recorder is not None:
                    self._recorder.look_for_device_work()
                self._verify()
            except Exception as error:
                region.fail(f"the recorder failed: {type(error).__name__}: {error}")
            finally:
                self._close(region)
                self.forget(region)

    def _look_for_races(self) -> None:
        """Look for races as long as a region wants to know of them."""
        recorder = self._recorder
        if recorder is None or not recorder.finds_races:
            return
        wanted = any(region.wants_races for region in self._regions)
        if wanted != self._looks_for_races:
            self._looks_for_races = wanted
            recorder.look_for_races(self._raced if wanted else None)

    def _close(self, region: RegionLog) -> None:
        region.close(self.environment(), reads_clock=self.reads_clock, finds_races=self.finds_races)

    def flush(self) -> None:
        """Deliver the syncs that the recorder has buffered."""
        recorder = self._recorder
        if recorder is not None:
            recorder.flush()

    def update_buffering(self) -> None:
        """Let the recorder buffer calls, unless a sync has to be delivered at the moment it is made."""
        recorder = self._recorder
        if recorder is not None:
            recorder.buffer_calls(not scopes.need_immediate_delivery())

    def follow_jax(self) -> None:
        """Count the waits of JAX from now on, if it is loaded and there is a GPU for it to wait for."""
        if self._recorder is not None and self._recorder.coverage != "simulated" and not self._jax.is_attached:
            self._jax.attach()
            self._jax_was_followed |= self._jax.is_attached

    def mark(self) -> int:
        """End a step: return the number of buffered calls, below which a ``sequence`` belongs to this step."""
        recorder = self._recorder
        if recorder is not None:
            if "jaxlib" in sys.modules:
                self.follow_jax()
            buffered = recorder.mark()
            # A recorder that took over after an eviction buffers nothing; the earlier calls were buffered all the same.
            if buffered > self._buffered:
                self._buffered = buffered
        return self._buffered

    def forget_in_forked_child(self) -> None:
        """Leave the recorder to the parent: a forked child cannot use CUDA and must not touch any of it.

        The regions that the child inherited end there without a measurement. It may open regions of its own, where a
        recorder can run.
        """
        self._lock = threading.RLock()  # the thread that held it does not exist here
        scopes.forget_in_forked_child()
        recorder, self._recorder = self._recorder, None
        self._looks_for_races = False
        self._planting = None
        regions, self._regions = self._regions, ()
        for region in regions:
            region.fail("the process that opened the region was forked; it is measured in the parent")
        if regions:
            self._unwrap()
        if recorder is not None:
            recorder.forget_in_forked_child()

    def environment(self) -> Environment:
        """Return where the recorder that was started last measures, or measured."""
        if self._environment is None:
            raise MeasurementError("no region was opened")
        notes = [self._environment.note, *self._other_frameworks(self._environment)]
        return replace(self._environment, note="; ".join(note for note in notes if note) or None)

    def _other_frameworks(self, environment: Environment) -> Iterator[str]:
        """Yield what is counted of the frameworks other than torch that are loaded."""
        if environment.coverage == "simulated":
            return
        found = [name for module, name in _COUNTED_AT_THE_DRIVER.items() if module in sys.modules]
        if found and environment.coverage == "driver":
            yield f"{' and '.join(found)} {'is' if len(found) == 1 else 'are'} counted at the driver"
        if self._jax_was_followed:
            yield jax_waits.COUNTED
        elif "jaxlib" in sys.modules:
            yield _JAX_NOT_SEEN

    def _start(self, wanted: str, device: DeviceChoice) -> None:
        simulated = _simulation_is_on()
        found = device_choice.usable_device(device, simulated=simulated)
        refusals: list[str] = []
        self._start_first(candidates("simulated" if simulated else found.kind, wanted), found, refusals)
        self._optimizer_steps.attach()
        self._handed_work.attach()
        compiler_events.listen(self._compiled)
        phases.follow()
        self._jax_was_followed = False
        self.follow_jax()

    def _start_first(self, names: Sequence[str], found: devices.Device, refusals: list[str]) -> None:
        """Start the first of the named recorders that can run; add why each one before it cannot to `refusals`.

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
            except BaseException:
                recorder.stop()
                raise
            self._recorder = recorder
            phases.use_call_counter(recorder.calls)
            self._environment = device_choice.describe_environment(recorder, found, refusals)
            self.reads_clock = recorder.reads_clock
            self.finds_races = recorder.finds_races
            return
        raise MeasurementError("no recorder can run: " + "; ".join(refusals))

    def _evicted(self, reason: str) -> None:
        """Carry on with a recorder that sees less: the running one has to make room for another tool."""
        with self._lock:
            recorder, self._recorder = self._recorder, None
            if recorder is None:
                return
            names = candidates("cuda", "auto")
            weaker = names[names.index(recorder.name) + 1 :]
            try:
                recorder.flush()
                recorder.stop()
                self._start_first(weaker, devices.detect(), [f"{recorder.name}: {reason}"])
                if self._recorder is not None:
                    self._recorder.watch_device_work(self._device_worked)
            except Exception as error:  # must not reach the tool that asked for room
                for region in self._regions:
                    region.fail(str(error))

    def _stop(self) -> None:
        self._looks_for_races = False
        self._unwrap()
        if self._recorder is not None:
            self._recorder.stop()
            self._recorder = None

    def _unwrap(self) -> None:
        """Restore what was wrapped when the first region opened."""
        self._optimizer_steps.detach()
        self._handed_work.detach()
        compiler_events.stop_listening(self._compiled)
        phases.unfollow()
        self._jax.detach()

    def _verify(self) -> None:
        """Plant one sync and check that the recorder sees it, once per process and recorder.

        It happens after the user's code, which it must not disturb.
        """
        recorder = self._recorder
        if recorder is None or recorder.name in self._verified or not recorder.can_plant():
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
            region.fail(
                f"the {recorder.name} recorder cannot be trusted here: it saw {len(seen)} of 1 planted sync; "
                "run `gpusync doctor`"
            )

    def _optimizer_stepped(self, optimizer: object, _args: object, _kwargs: object) -> None:
        buffered, now = self.mark(), time.perf_counter_ns()
        thread, held = threading.get_ident(), scopes.held()
        number, name = self._optimizer_numbers.number(optimizer), _thread_name(thread)
        for region in self._regions:
            if region.is_stepped_by(thread, held):
                region.optimizer_stepped(optimizer, number, buffered, now, (thread, name))
        for region in self._regions:  # once all have the step: it may stop the program
            if region.on_step is not None and region.takes_steps_of(optimizer, thread, held):
                region.on_step(number)

    def _device_worked(self, thread: int) -> bool:
        """Note that `thread` gave the device work; return True once every open region knows of work of its own."""
        if thread in _uncounted:
            return False
        held, name = scopes.held(), _thread_name(thread)
        for region in self._regions:
            region.device_worked(thread, name, held)
        return all(region.has_worked for region in self._regions)

    def _raced(self, race: Race) -> None:
        if threading.get_ident() not in _uncounted:
            for region in self._regions:
                region.raced(race)

    def _compiled(self, event: CompilerEvent) -> None:
        thread, held = threading.get_ident(), scopes.held()
        name = _thread_name(thread)
        for region in self._regions:
            region.compiled(event, thread, name, held)

    def _sink(self, raw: RawSync) -> None:
        planting = self._planting
        if planting is not None and raw.thread == planting[0]:
            planting[1].append(raw)
            return
        if raw.thread in _uncounted:
            return
        try:
            kind, frame, thread, direction, nbytes, blocked, device, charged, began, sequence, stream = raw
            site, owner = charged or attribution.charge(frame, thread)
            if sequence is not None:
                phase = phases.at_call(sequence)
            else:
                phase = (phases.current(thread) or phases.current(owner)) if phases.are_open() else None
            held = scopes.held(owner)
            allowed = _reason(owner, held) if _allowed else None
            name = _thread_name(owner)
            origin = SyncOrigin(kind, site, direction, nbytes, phase, owner, name, device, allowed, stream, held)
            for region in self._regions:
                region.syncs.append(origin, blocked_ns=blocked, began_ns=began, sequence=sequence)
                if region.executions is not None:
                    region.executions.waited(frame, site)
            if self._optimizer_steps.handle is None:
                self._optimizer_steps.attach()
        except Exception as error:  # must not reach the driver's callback or the user's operator
            for region in self._regions:
                region.fail(f"a sync could not be attributed: {type(error).__name__}: {error}")


current = Recording()
"""The recording of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: current.forget_in_forked_child())


def _reason(thread: int, held: tuple[Scope, ...]) -> str | None:
    """Return the reason of the innermost allow() block that covers a call on `thread`."""
    return next((reason for scope, reason in reversed(_allowed) if scope.covers(thread, held)), None)


def _thread_name(ident: int) -> str:
    # threading.enumerate() takes a lock that the interrupted thread may hold.
    thread: threading.Thread | None = threading._active.get(ident)  # type: ignore[attr-defined]
    return thread.name if thread is not None else f"thread {ident}"
