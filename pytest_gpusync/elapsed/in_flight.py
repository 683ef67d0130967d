"""Keeps the host from running further ahead of the device than a number of steps.

A loop without syncs queues steps as fast as the host can issue them, and what they allocate stays alive until the
device reaches them. With a limit of two, batch t is done before batch t + 2 begins: the device always has the next step
queued, and at most two steps' memory is held.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Batch = TypeVar("Batch")


class InFlightLimiter:
    """An event at the end of each of the last `limit` steps, on the stream that was current there."""

    def __init__(self, limit: int) -> None:
        """Allow `limit` steps in flight, at least 1.

        Raises:
            ValueError: `limit` is not such a number.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"the limit of steps in flight must be an integer of at least 1, not {limit!r}")
        self._limit = limit
        self._events: deque[Any] = deque()

    def event_to_wait_for(self) -> Any:
        """Return the event that the device must reach before the next step begins; None if it has, or if there
        is none.
        """
        if len(self._events) < self._limit:
            return None
        event = self._events.popleft()
        return None if event.query() else event

    def mark_step(self) -> None:
        """Record the end of a step. Does nothing before CUDA is initialized."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        event = torch.Event(torch.device("cuda"))
        event.record()
        self._events.append(event)


def limit_in_flight(batches: Iterable[Batch], max: int = 2) -> Iterator[Batch]:
    """Yield from `batches`, each one only when fewer than `max` of the steps before it are still in flight.

    The body of the loop is the step: ``for batch in limit_in_flight(loader): train(batch)``. If the host has to wait,
    it waits for an event of an earlier step, while the device still has work queued. Inside a region such a sync is
    reported as allowed. Without CUDA it does not wait.

    Raises:
        ValueError: `max` is not an integer of at least 1.
    """
    return _limited(batches, InFlightLimiter(max), f"keeps at most {max} steps in flight")


def _limited(batches: Iterable[Batch], limiter: InFlightLimiter, reason: str) -> Iterator[Batch]:
    from pytest_gpusync.measure.recording import allow

    for batch in batches:
        event = limiter.event_to_wait_for()
        if event is not None:
            with allow(reason):
                event.synchronize()
        yield batch
        limiter.mark_step()
