"""Reads a value of the device one step later, when it has arrived, instead of waiting for it.

The value is copied to pinned memory behind the work that computes it, and an event is recorded after the copy. The host
goes on. A step later the event has usually been reached, and reading the value makes no sync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Deferred:
    """A value on its way to the host."""

    def __init__(self, value: torch.Tensor) -> None:
        import torch

        value = value.detach()
        if not value.is_cuda:
            self._host, self._arrived = value.clone(), None
            return
        self._host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        self._host.copy_(value, non_blocking=True)
        self._arrived = torch.cuda.current_stream(value.device).record_event()
        self._source: torch.Tensor | None = value
        """Kept until the copy is done: its memory must not be given to another stream before."""

    @property
    def ready(self) -> bool:
        """Whether the value has arrived; does not wait."""
        return self._arrived is None or bool(self._arrived.query())

    def tensor(self) -> torch.Tensor:
        """Return the value as a CPU tensor; waits for it, which is one sync, if it has not arrived."""
        if self._arrived is not None:
            if not self._arrived.query():
                self._arrived.synchronize()
            self._arrived = self._source = None
        return self._host

    def item(self) -> Any:
        """Return the one element as a Python number; waits as :meth:`tensor` does."""
        return self.tensor().item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers; waits as :meth:`tensor` does."""
        return self.tensor().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __repr__(self) -> str:
        return f"Deferred({self._host!r})" if self._arrived is None else "Deferred(not read yet)"


def deferred(value: torch.Tensor) -> Deferred:
    """Start to copy `value`, a tensor of any shape, to the host, and return it for later.

    Read it in the next step, with ``item()``, ``tolist()`` or ``tensor()``: then it has usually arrived, and the host
    does not wait. A CPU tensor is copied at once, so the same code runs without a GPU. Gradients do not pass through.
    """
    return Deferred(value)
