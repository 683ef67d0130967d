"""Device work noticed by the launches that CUPTI shows, and by the counters of torch's allocator.

Launches are enabled only until a region is known to use the device: afterwards a kernel launch costs nothing.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from pytest_gpusync.recorders import gate
from pytest_gpusync.recorders.allocation_watch import AllocationWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pytest_gpusync.recorders.cupti_api import Cupti


class LaunchWatch:
    """Tells a watcher which threads give the device work."""

    def __init__(self, cupti: Cupti, entry: gate.CallGate, launches: Collection[tuple[int, int]]) -> None:
        """Watch nothing yet.

        Args:
            cupti: where launches are enabled.
            entry: the gate that dispatches them.
            launches: domain and callback id of each call that launches.
        """
        self.launches = launches
        self._cupti = cupti
        self._gate = entry
        self._allocations = AllocationWatch()
        self._watcher: Callable[[int], bool] | None = None
        """Called at the next launch; None once it knows enough."""
        self._workers: set[int] = set()
        """The threads that were seen to give the device work since the watch began."""
        self._is_enabled = False

    def begin_subscription(self) -> None:
        """Launches are not enabled in a new subscription."""
        self._watcher = None
        self._is_enabled = False

    def start(self, watcher: Callable[[int], bool]) -> None:
        """Call `watcher` with the thread that gives the device work next, until it has returned True."""
        self._allocations.start(watcher)
        self._watcher = watcher
        self._workers = set()
        for domain, callback_id in self.launches:
            self._gate.set_action(domain, callback_id, gate.PYTHON)
            if not self._is_enabled:
                self._cupti.enable(domain, callback_id)
        self._is_enabled = bool(self.launches)

    def worked(self) -> None:
        """Tell the watcher that this thread gave the device work. Runs in callbacks: CUPTI is not called here."""
        watcher = self._watcher
        if watcher is None:
            return
        self._workers.add(get_ident())
        if watcher(get_ident()):
            self._watcher = None
            self._allocations.stop()
            for domain, callback_id in self.launches:
                self._gate.set_action(domain, callback_id, gate.IGNORE)

    def look_for_tensors(self) -> None:
        """Tell the watcher if tensors were made that no launch has shown."""
        # The allocator's counters do not say which thread made a tensor.
        if self._watcher is not None and self._workers <= {get_ident()}:
            self._allocations.look(get_ident())

    def disable_if_done(self) -> None:
        """Let launches go without a callback again, once nobody watches them."""
        if self._is_enabled and self._watcher is None:
            self._is_enabled = False
            for domain, callback_id in self.launches:
                self._cupti.disable(domain, callback_id)

    def stop(self) -> None:
        """Tell the watcher nothing any more."""
        self._watcher = None
        self._allocations.stop()
