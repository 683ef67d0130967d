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
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .patches import Patches

VARIABLE = "GPUSYNC_SIMULATED_CUDA"
"""Environment variable that tells what to simulate: the number of devices, the bytes of each, whether with values."""
_PATH = "PYTHONPATH"
_STARTUP = str(Path(__file__).parent / "startup")

_before: dict[str, str | None] = {}
"""The variables of the environment as they were."""


class _Inherited:
    """Unpickled, it is a call of :func:`pytest_gpusync.simulated.inherit`."""

    def __init__(self, devices: int, memory: int | None, values: bool) -> None:
        self._devices, self._memory, self._values = devices, memory, values

    def __reduce__(self) -> tuple[Callable[..., None], tuple[()]]:
        from . import inherit

        return functools.partial(inherit, self._devices, self._memory, self._values), ()


def install(patches: Patches, devices: int, memory: int | None, values: bool) -> None:
    """Have processes that are started from now on simulate `devices` devices, until :func:`reset`."""
    from multiprocessing import spawn

    prepare = spawn.get_preparation_data

    def get_preparation_data(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        return {**prepare(*arguments, **keywords), "simulated_cuda": _Inherited(devices, memory, values)}

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


def switch_on_with_torch() -> None:
    """Switch the device on once torch has been imported, as the environment says; harmless where it says nothing."""
    from pytest_gpusync.imports import AfterImport

    if VARIABLE in os.environ and "torch" not in sys.modules:
        sys.meta_path.insert(0, AfterImport("torch", _switch_on))


def _switch_on() -> None:
    from . import SimulationUnavailable, inherit

    told = json.loads(os.environ[VARIABLE])
    # The ranks of a launcher have a device each, whatever the launcher had.
    devices = max(told["devices"], int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    try:
        inherit(devices, told["memory"], told["values"])
    except SimulationUnavailable as error:
        print(f"gpusync: no simulated CUDA device in process {os.getpid()}: {error}", file=sys.stderr)
