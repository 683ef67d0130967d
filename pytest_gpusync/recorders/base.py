"""The interface of a recorder: what sees the syncs while a region is open."""

from __future__ import annotations

import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar, Final

from pytest_gpusync.events import RawSync

if TYPE_CHECKING:
    from pytest_gpusync.events import Coverage
    from pytest_gpusync.phases import Counter

Sink = Callable[[RawSync], None]
"""Receives each sync on the thread that made it, before the call returns to the user's code."""


FORKED: Final = (
    "CUDA cannot be used in a child forked after its parent used it; start the process by spawn to count in it"
)


NO_GIL: Final = (
    "this is a free-threaded build of Python, and syncs of a GPU can be counted only under the GIL; "
    "use an ordinary build, such as python3.14 instead of python3.14t"
)


def free_threaded() -> bool:
    """Tell whether this build of Python has no GIL, also where it was told to run with one."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class RecorderUnavailable(RuntimeError):
    """This recorder cannot run here; the message is one sentence that names the cause and the remedy."""


class Recorder(ABC):
    """Sees host-blocking calls between :meth:`start` and :meth:`stop`, and costs nothing outside them."""

    name: ClassVar[str]
    coverage: ClassVar[Coverage]
    blind_spots: ClassVar[str]
    """What this recorder cannot see, as one clause for reports."""

    reads_clock: ClassVar[bool] = False
    """True if every sync comes with the time at which it began and how long the host waited."""

    on_eviction: Callable[[str], None] | None = None
    """Called by a recorder that has to make room for another tool while it runs, with the reason: whoever started it
    stops it then and carries on with another one."""

    @abstractmethod
    def start(self, sink: Sink) -> None:
        """Begin to call `sink` for each sync.

        Raises:
            RecorderUnavailable: the recorder cannot run now; nothing was changed.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop calling the sink and restore what :meth:`start` changed. Harmless when not started."""

    def forget_in_forked_child(self) -> None:
        """Undo in a forked child what :meth:`start` did, without touching the device: it is the parent's."""
        self.stop()

    def flush(self) -> None:
        """Deliver to the sink what was seen but not delivered yet; called at the end of a step and of a region."""

    calls: Counter = SimpleNamespace(value=0)
    """How many calls of the main thread were noted so far; each may be delivered as a sync later."""

    def mark(self) -> int:
        """Deliver as :meth:`flush` does, but for calls of the main thread that were only noted; return their number.

        It is for the ends of steps, which are many: what is delivered later tells by its ``sequence`` whether it came
        before.
        """
        self.flush()
        return self.calls.value

    def plant(self) -> None:
        """Make exactly one known sync, for the self-check: wait for the current stream. Called while started."""
        import torch

        torch.cuda.current_stream().synchronize()
