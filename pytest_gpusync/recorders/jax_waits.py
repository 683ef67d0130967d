"""Counts the waits of JAX by wrapping its own functions: JAX waits on a condition variable of the host, without a CUDA
call.

An array's value is fetched in one place, ``ArrayImpl._value``. ``float()``, ``.item()``, ``np.asarray``, a branch,
``print``, ``jax.device_get`` and operations with a shape that depends on values all go through it. JAX keeps a fetched
value, so fetching it again costs nothing. The other places are ``block_until_ready``, of one array or several, and
``jax.effects_barrier()``. Each wait is counted once; what the driver sees of it is not counted again.

JAX is never imported here; its functions are wrapped while a region is open if it is loaded by then. Not seen are waits
inside XLA (a full launch queue), and reads through the buffer protocol, which JAX offers only on the CPU.
"""

from __future__ import annotations

import sys
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.machine.replacements import Replacements
from pytest_gpusync.model.measurement import RawSync

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pytest_gpusync.model.measurement import Direction, Kind, SyncSink

COUNTED: Final = "JAX is counted where it fetches values and blocks until they are ready"
"""What reports say about JAX while this is attached."""

PLATFORMS = frozenset({"gpu", "cuda"})
"""JAX's names for the platform of a GPU."""


class JaxWaits:
    """Follows the waits of JAX while attached."""

    def __init__(self, sink: SyncSink, uncounted: Callable[[], AbstractContextManager[None]]) -> None:
        """Deliver the waits to `sink`; make the calls inside `uncounted()`, which leaves out the syncs of
        its thread.
        """
        self._sink = sink
        self._uncounted = uncounted
        self._replaced = Replacements()
        self._inside: set[int] = set()
        """Threads inside a counted wait: JAX implements some waits by others."""

    @property
    def is_attached(self) -> bool:
        """True while the waits of JAX are counted."""
        return bool(self._replaced)

    def attach(self) -> None:
        """Start, if JAX is loaded and laid out as expected. Does nothing if attached."""
        if self._replaced or "jax._src.array" not in sys.modules:
            return
        array: Any = getattr(sys.modules["jax._src.array"], "ArrayImpl", None)
        value = getattr(array, "__dict__", {}).get("_value")
        if not isinstance(value, property) or not hasattr(array, "block_until_ready"):
            return
        fetch: Any = value.fget

        def fetched(array: Any) -> Any:
            if getattr(array, "_npy_value", None) is not None:
                return fetch(array)
            return self._wait("copy", (array,), lambda: fetch(array), "D2H")

        self._replaced.put(array, "_value", property(fetched))
        self._wrap(array, "block_until_ready", lambda array: (array,))
        several = getattr(sys.modules.get("jax._src.api"), "xc", None)
        self._wrap(several, "batched_block_until_ready", tuple)
        tokens = getattr(sys.modules.get("jax._src.dispatch"), "RuntimeTokenSet", None)
        self._wrap(tokens, "block_until_ready", _tokens_of)

    def detach(self) -> None:
        """Restore JAX's functions. Does nothing if not attached."""
        self._replaced.restore()

    def _wrap(self, owner: Any, name: str, values_of: Callable[[Any], tuple[Any, ...]]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        def block_until_ready(what: Any, *rest: Any, **options: Any) -> Any:
            return self._wait("event", values_of(what), lambda: original(what, *rest, **options))

        self._replaced.put(owner, name, block_until_ready)

    def _wait(
        self, kind: Kind, values: tuple[Any, ...], call: Callable[[], Any], direction: Direction | None = None
    ) -> Any:
        """Make a call of JAX, and count it if any of the values it waits for is on a GPU."""
        thread = get_ident()
        devices = [] if thread in self._inside else [device for value in values for device in _gpus(value)]
        if not devices:
            return call()
        nbytes = getattr(values[0], "nbytes", None) if direction is not None else None
        # Frames of this module are skipped when the call is attributed to a line.
        frame = sys._getframe(1)
        self._inside.add(thread)
        began = ended = 0
        try:
            with self._uncounted():
                began = perf_counter_ns()
                try:
                    return call()
                finally:
                    ended = perf_counter_ns()
        finally:
            self._inside.discard(thread)
            number = devices[0] if len(set(devices)) == 1 else None
            self._sink(RawSync(kind, frame, thread, direction, nbytes, ended - began, number, None, began))


def _gpus(value: Any) -> list[int | None]:
    """Return the indices of the GPUs that an array of JAX is on."""
    try:
        devices = value.devices()
    except Exception:  # a deleted array: JAX raises its own error
        return []
    return [getattr(device, "local_hardware_id", None) for device in devices if device.platform in PLATFORMS]


class _Token:
    """A token of the runtime, with the interface that :func:`_gpus` uses."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def devices(self) -> set[Any]:
        return {self._device}


def _tokens_of(tokens: Any) -> tuple[Any, ...]:
    """Return what ``jax.effects_barrier()`` waits for."""
    ordered = [getattr(token, "_buf", token) for token in tokens.current_tokens.values()]
    return (*ordered, *(_Token(device) for device in tokens.output_runtime_tokens))
