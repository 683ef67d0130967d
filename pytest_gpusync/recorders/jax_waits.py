"""Counts where JAX waits, at its own seam: it does so without a CUDA synchronize call, on a condition of the host.

An array's value is fetched in one place, ``ArrayImpl._value``: ``float()``, ``.item()``, ``np.asarray``, a branch,
``print`` and ``jax.device_get`` all pass through it, and so do operations with a shape that depends on values. A value
that was fetched before is kept by JAX, and costs nothing again. The other places are ``block_until_ready``, of an array
or of several, and ``jax.effects_barrier()``. Each is counted once and as itself: what the driver sees of a wait of JAX
is not counted beside it.

JAX is never imported here; its entry points are wrapped while a region is open, if it is loaded by then. Not seen are
waits inside XLA (a full queue of launches), and reads through the buffer protocol, which JAX offers on the CPU only.
"""

from __future__ import annotations

import sys
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.model.measurement import RawSync

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pytest_gpusync.model.measurement import Direction, Kind, SyncSink

SEEN: Final = "JAX is counted where it fetches values and blocks until they are ready"
"""What is told of JAX in a report where this is attached."""

PLATFORMS = frozenset({"gpu", "cuda"})
"""Names that JAX gives to the platform of a GPU."""


class JaxWaits:
    """Follows the waits of JAX while attached."""

    def __init__(self, sink: SyncSink, uncounted: Callable[[], AbstractContextManager[None]]) -> None:
        """Take what receives the waits, and what leaves out the syncs that its thread makes in a ``with`` block."""
        self._sink = sink
        self._uncounted = uncounted
        self._undo: list[Callable[[], None]] = []
        self._inside: set[int] = set()
        """Threads that are in a wait that is counted: JAX implements some of them by others."""

    @property
    def is_attached(self) -> bool:
        """True while the waits of JAX are counted."""
        return bool(self._undo)

    def attach(self) -> None:
        """Begin, if JAX is loaded and is as it is known. Harmless when attached."""
        if self._undo or "jax._src.array" not in sys.modules:
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

        self._replace(array, "_value", property(fetched))
        self._wrap(array, "block_until_ready", lambda array: (array,))
        several = getattr(sys.modules.get("jax._src.api"), "xc", None)
        self._wrap(several, "batched_block_until_ready", tuple)
        tokens = getattr(sys.modules.get("jax._src.dispatch"), "RuntimeTokenSet", None)
        self._wrap(tokens, "block_until_ready", _tokens_of)

    def detach(self) -> None:
        """Restore JAX's entry points. Harmless when not attached."""
        while self._undo:
            self._undo.pop()()

    def _wrap(self, owner: Any, name: str, values_of: Callable[[Any], tuple[Any, ...]]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        def block_until_ready(what: Any, *rest: Any, **options: Any) -> Any:
            return self._wait("event", values_of(what), lambda: original(what, *rest, **options))

        self._replace(owner, name, block_until_ready)

    def _replace(self, owner: Any, name: str, wrapper: Any) -> None:
        original = vars(owner)[name]
        setattr(owner, name, wrapper)

        def restore() -> None:
            if vars(owner)[name] is wrapper:
                setattr(owner, name, original)

        self._undo.append(restore)

    def _wait(
        self, kind: Kind, values: tuple[Any, ...], call: Callable[[], Any], direction: Direction | None = None
    ) -> Any:
        """Make a call of JAX, and count it if any of the values it waits for is on a GPU."""
        thread = get_ident()
        devices = [] if thread in self._inside else [device for value in values for device in _gpus(value)]
        if not devices:
            return call()
        nbytes = getattr(values[0], "nbytes", None) if direction is not None else None
        # The frames of this module are skipped when the line is looked for.
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
    """Return the numbers of the GPUs that an array of JAX is on."""
    try:
        devices = value.devices()
    except Exception:  # a deleted array: JAX says so itself
        return []
    return [getattr(device, "local_hardware_id", None) for device in devices if device.platform in PLATFORMS]


class _Token:
    """A token of the runtime, as far as :func:`_gpus` asks for it."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def devices(self) -> set[Any]:
        return {self._device}


def _tokens_of(tokens: Any) -> tuple[Any, ...]:
    """Return what ``jax.effects_barrier()`` waits for."""
    ordered = [getattr(token, "_buf", token) for token in tokens.current_tokens.values()]
    return (*ordered, *(_Token(device) for device in tokens.output_runtime_tokens))
