"""Simulates the device in the processes that a program starts.

A forked child inherits the device with everything else. Another Python that is started finds in its environment what to
simulate, and at the front of its path a ``sitecustomize`` that switches the device on at the moment that torch has been
imported there. A process that ``multiprocessing`` starts afresh (spawn and forkserver) may not look at its environment;
it is sent, before it imports the program's main module, a dictionary of what to prepare, from which it takes what it
knows: a further entry switches the device on as it is unpickled.

Importing this module imports no torch.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.simulated.base.patches import Patches

VARIABLE = "GPUSYNC_SIMULATED_CUDA"
"""Environment variable that tells what to simulate: the number of devices, the bytes of each, whether with values."""
_PATH = "PYTHONPATH"
_STARTUP = str(Path(__file__).parent / "startup")

_before: dict[str, str | None] = {}
"""The variables of the environment as they were."""


class _Inherited:
    """Unpickled, it is a call of `inherit` with the other arguments."""

    def __init__(
        self, inherit: Callable[[int, int | None, bool], None], devices: int, memory: int | None, values: bool
    ) -> None:
        self._call = functools.partial(inherit, devices, memory, values)

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return self._call, ()


def install(
    patches: Patches,
    inherit: Callable[[int, int | None, bool], None],
    devices: int,
    memory: int | None,
    values: bool,
) -> None:
    """Have processes that are started from now on simulate `devices` devices, until :func:`reset`.

    `inherit` switches the device on in such a process; it takes the other arguments.
    """
    from multiprocessing import spawn

    prepare = spawn.get_preparation_data

    def get_preparation_data(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        return {**prepare(*arguments, **keywords), "simulated_cuda": _Inherited(inherit, devices, memory, values)}

    patches.set(spawn, "get_preparation_data", get_preparation_data)
    _before.update({name: os.environ.get(name) for name in (VARIABLE, _PATH)})
    os.environ[VARIABLE] = json.dumps({"devices": devices, "memory": memory, "values": values})
    others = [entry for entry in (_before[_PATH] or "").split(os.pathsep) if entry and entry != _STARTUP]
    os.environ[_PATH] = os.pathsep.join([_STARTUP, *others])


def reset() -> None:
    """Leave the environment as it was."""
    for name, value in _before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _before.clear()
