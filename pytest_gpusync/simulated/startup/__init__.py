"""Switches the simulated device on in a Python process that a program with the device started.

``sitecustomize.py`` of this folder runs as such a process starts; see :mod:`pytest_gpusync.simulated.children`.
Importing this package imports no torch.
"""

from __future__ import annotations

import json
import os
import sys

from pytest_gpusync.machine.import_hooks import AfterImport
from pytest_gpusync.simulated.activation import inherit
from pytest_gpusync.simulated.base.versions import SimulationUnavailable
from pytest_gpusync.simulated.children import VARIABLE


def switch_on_with_torch() -> None:
    """Switch the device on once torch has been imported, as the environment says; harmless where it says nothing."""
    if VARIABLE in os.environ and "torch" not in sys.modules:
        sys.meta_path.insert(0, AfterImport("torch", _switch_on))


def _switch_on() -> None:
    told = json.loads(os.environ[VARIABLE])
    # The ranks of a launcher have a device each, whatever the launcher had.
    devices = max(told["devices"], int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    try:
        inherit(devices, told["memory"], told["values"])
    except SimulationUnavailable as error:
        print(f"gpusync: no simulated CUDA device in process {os.getpid()}: {error}", file=sys.stderr)
