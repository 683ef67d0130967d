"""Passes the simulated device on to the processes that a program starts.

A forked child inherits the device with everything else. A new Python process finds in its environment what to simulate,
and at the front of its path a ``sitecustomize`` that switches the device on right after torch has been imported. A
process started by ``multiprocessing`` (spawn and forkserver) may ignore its environment. Before it imports the
program's main module, it receives a dictionary of preparation data, from which it uses the entries it knows; an
additional entry switches the device on when it is unpickled.

Importing this module does not import torch.
"""

from __future__ import annotations

import functools
import json
import os
from typing import TYPE_CHECKING, Any

from pytest_gpusync.machine.child_environment import PATH, SIMULATED, STARTUP

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.simulated.base.patches import Patches

_original_environment: dict[str, str | None] = {}
"""The original values of the environment variables."""


class _Inherited:
    """When unpickled, calls `inherit` with the other arguments."""

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
    """Make processes started from now on simulate `devices` devices, until :func:`reset`.

    `inherit` switches the device on in such a process; it takes the other arguments.
    """
    from multiprocessing import spawn

    prepare = spawn.get_preparation_data

    def get_preparation_data(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        return {**prepare(*arguments, **keywords), "simulated_cuda": _Inherited(inherit, devices, memory, values)}

    patches.set(spawn, "get_preparation_data", get_preparation_data)
    _original_environment.update({name: os.environ.get(name) for name in (SIMULATED, PATH)})
    os.environ[SIMULATED] = json.dumps({"devices": devices, "memory": memory, "values": values})
    others = [entry for entry in (_original_environment[PATH] or "").split(os.pathsep) if entry and entry != STARTUP]
    os.environ[PATH] = os.pathsep.join([STARTUP, *others])


def reset() -> None:
    """Restore the environment."""
    for name, value in _original_environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _original_environment.clear()
