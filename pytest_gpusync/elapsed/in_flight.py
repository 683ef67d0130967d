"""Keeps the host from running further ahead of the device than a number of steps: a ring of events.

A loop without any sync queues steps as fast as the host can issue them, and what they allocate stays alive until the
device has come to them. With a ring of two, batch t is done before batch t + 2 begins: the device always has the next
step to go on with, and no more than two steps' memory is held.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Batch = TypeVar("Batch")


class EventRing:
    """An event at the end of each of the last `limit` steps, on the stream that is current there."""

    def __init__(self, limit: int) -> None:
        """Allow `limit` steps, from 1 on, to be in flight.

        Raises:
            ValueError: there is no such number of steps.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"steps in flight are a whole number from 1 on, not {limit!r}")
        self._limit = limit
        self._events: deque[Any] = deque()

    def due(self) -> Any:
        """Before a step: return the event that the device has to come to first; None if it has, or there is none."""
        if len(self._events) < self._limit:
            return None
        event = self._events.popleft()
        return None if event.query() else event

    def mark(self) -> None:
        """Record the end of a step; before CUDA is initialised there is nothing to mark."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        event = torch.Event(torch.device("cuda"))
        event.record()
        self._events.append(event)


def limit_in_flight(batches: Iterable[Batch], max: int = 2) -> Iterator[Batch]:
    """Yield from `batches`, each only when fewer than `max` of the steps before it are still in flight.

    The body of the loop is the step: ``for batch in limit_in_flight(loader): train(batch)``. Where the host has to
    wait, it waits for an event of an earlier step, and the device still has work queued; inside a region such a sync
    is reported as allowed. Without CUDA nothing is waited for.

    Raises:
        ValueError: `max` is no number of steps from 1 on.
    """
    return _limited(batches, EventRing(max), f"keeps at most {max} steps in flight")


def _limited(batches: Iterable[Batch], ring: EventRing, reason: str) -> Iterator[Batch]:
    from pytest_gpusync.measure.recording import allow

    for batch in batches:
        event = ring.due()
        if event is not None:
            with allow(reason):
                event.synchronize()
        yield batch
        ring.mark()
