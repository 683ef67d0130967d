"""The interface of a recorder: what sees the syncs while a region is open."""

from __future__ import annotations

import sysconfig
from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from pytest_gpusync.machine import devices

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.model.measurement import Coverage, Race, SyncSink

FORKED: Final = (
    "CUDA cannot be used in a child forked after its parent used it; start the process by spawn to count in it"
)


NO_GIL: Final = (
    "this is a free-threaded build of Python, and syncs of a GPU can be counted only under the GIL; "
    "use an ordinary build, such as python3.14 instead of python3.14t"
)


def free_threaded() -> bool:
    """Return whether this build of Python has no GIL, even if it was told to run with one."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class CallCounter(Protocol):
    """The number of calls of the main thread that a recorder has buffered so far."""

    value: int


class RecorderUnavailable(RuntimeError):
    """This recorder cannot run here; the message is one sentence with the cause and the remedy."""


class Recorder(ABC):
    """Sees host-blocking calls between :meth:`start` and :meth:`stop`. Costs nothing outside them."""

    name: ClassVar[str]
    coverage: ClassVar[Coverage]
    blind_spots: ClassVar[str]
    """What this recorder cannot see, as one clause for reports."""

    reads_clock: ClassVar[bool] = False
    """True if every sync has the time at which it began and how long the host waited."""

    on_eviction: Callable[[str], None] | None = None
    """Called with the reason by a recorder that has to make room for another tool while it runs. Whoever started it
    then stops it and carries on with another one."""

    finds_races: ClassVar[bool] = False
    """True if it can look for races."""

    @abstractmethod
    def start(self, sink: SyncSink) -> None:
        """Start calling `sink` for each sync.

        Raises:
            RecorderUnavailable: the recorder cannot run now; nothing was changed.
        """

    def watch_device_work(self, watcher: Callable[[int], bool]) -> None:
        """Call `watcher` with the thread that gives the device work next, until it returns True. Called while started;
        :meth:`stop` ends it.

        A recorder that does not see the work itself calls it at the latest in :meth:`look_for_device_work`.
        """

    def look_for_device_work(self) -> None:
        """Check whether the device has been given work that :meth:`watch_device_work` has not reported."""

    @abstractmethod
    def stop(self) -> None:
        """Stop calling the sink, and restore what :meth:`start` changed. Does nothing if not started."""

    def forget_in_forked_child(self) -> None:
        """Undo in a forked child what :meth:`start` did, without touching the device, which belongs to the parent."""
        self.stop()

    def flush(self) -> None:
        """Deliver syncs that were seen but not delivered yet; called at the end of a step and of a region."""

    def buffer_calls(self, allowed: bool) -> None:
        """Deliver each sync at the moment it is made unless `allowed`; called while started."""

    calls: CallCounter = SimpleNamespace(value=0)
    """Number of calls of the main thread buffered so far; each may be delivered as a sync later."""

    def mark(self) -> int:
        """Deliver as :meth:`flush` does, except for buffered calls of the main thread; return their number.

        It runs at the end of every step, so it must be cheap. Whether a call delivered later came before the step's end
        is decided by its ``sequence``.
        """
        self.flush()
        return self.calls.value

    def look_for_races(self, sink: Callable[[Race], None] | None) -> None:
        """Call `sink` with each race from now on, on the thread of its later access; None to stop. Called while
        started, by a recorder that finds none without effect.
        """

    def can_plant(self) -> bool:
        """Return whether the program has initialized the device, so that :meth:`plant` does not."""
        return devices.cuda_is_initialized()

    def plant(self) -> None:
        """Make exactly one known sync for the self-check: wait for the current stream. Called while started."""
        import torch

        torch.cuda.current_stream().synchronize()
