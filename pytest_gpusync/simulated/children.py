"""Simulates the device in the processes that ``multiprocessing`` starts afresh (spawn and forkserver).

A forked child inherits the device with everything else. A fresh one is sent, before it imports the program's main
module, a dictionary of what to prepare; it takes from it what it knows and leaves the rest. A further entry is added,
which switches the device on as it is unpickled. Other programs that are started are not reached.
"""

from __future__ import annotations

import functools
from multiprocessing import spawn
from typing import TYPE_CHECKING, Any

from .state import process

if TYPE_CHECKING:
    from collections.abc import Callable

    from .patches import Patches


class _Inherited:
    """Unpickled, it is a call of :func:`pytest_gpusync.simulated.switch_on`."""

    def __init__(self, devices: int, memory: int | None, values: bool) -> None:
        self._devices, self._memory, self._values = devices, memory, values

    def __reduce__(self) -> tuple[Callable[..., None], tuple[()]]:
        from . import switch_on

        return functools.partial(switch_on, self._devices, memory=self._memory, values=self._values), ()


def install(patches: Patches) -> None:
    """Send the entry along from now on; `patches` puts everything back."""
    prepare = spawn.get_preparation_data

    def get_preparation_data(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        return {
            **prepare(*arguments, **keywords),
            "simulated_cuda": _Inherited(process.devices, process.memory, process.values),
        }

    patches.set(spawn, "get_preparation_data", get_preparation_data)
