"""Whether time grows with the size of an input or with its square, decided on a machine that may be busy.

A limit in seconds fails on a slow machine and says nothing on a fast one. So a small and a large input are timed in
turn, by the processor time of this thread, and only their ratio counts. What else runs on the machine can make a ratio
too large in one try, so the least of three tries is taken; the work itself, if it is quadratic, is so in each of them.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Input = TypeVar("Input")
TRIES = 3
SHORTEST_S = 0.005
"""A small input that takes less counts as this much: the clock has steps."""


def ratio(run: Callable[[Input], object], small: Input, large: Input, *, limit: float) -> float:
    """Return how many times as long `run` takes for `large` as for `small`.

    Args:
        run: the work; what it leaves behind must not make its next call cheaper.
        small: an input.
        large: a larger input.
        limit: the first ratio below this is returned; without one, the least of all tries.
    """
    found = []
    for _ in range(TRIES):
        small_s, large_s = _seconds(run, small), _seconds(run, large)
        found.append(large_s / max(small_s, SHORTEST_S))
        if found[-1] < limit:
            break
    return min(found)


def _seconds(run: Callable[[Input], object], value: Input) -> float:
    was_enabled = gc.isenabled()
    gc.disable()  # the collector would walk all that other tests have left
    try:
        start = time.thread_time()
        run(value)
        return time.thread_time() - start
    finally:
        if was_enabled:
            gc.enable()
