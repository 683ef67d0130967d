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
    """Switch the device on once torch has been imported, if the environment says so."""
    if VARIABLE in os.environ and "torch" not in sys.modules:
        sys.meta_path.insert(0, AfterImport("torch", _switch_on))


def _switch_on() -> None:
    settings = json.loads(os.environ[VARIABLE])
    # Each rank of a launcher has a device of its own, however many the launcher had.
    devices = max(settings["devices"], int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    try:
        inherit(devices, settings["memory"], settings["values"])
    except SimulationUnavailable as error:
        print(f"gpusync: no simulated CUDA device in process {os.getpid()}: {error}", file=sys.stderr)
