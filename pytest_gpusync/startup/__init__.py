"""What a Python process does that was started by a program with the simulated device, or by a measured region.

``sitecustomize.py`` of this folder runs as such a process starts. Once torch has been imported, the simulated device is
switched on (see :mod:`pytest_gpusync.simulated.children`), and the process prepares to report its syncs to the region
(see :mod:`pytest_gpusync.measure.child_process`). Importing this package imports no torch.
"""

from __future__ import annotations

import json
import os
import sys

from pytest_gpusync.machine.child_environment import REPORTS, SIMULATED
from pytest_gpusync.machine.import_hooks import AfterImport


def prepare() -> None:
    """Do what the environment says once torch has been imported: switch the device on, then report."""
    if "torch" in sys.modules:
        return
    if SIMULATED in os.environ:
        sys.meta_path.insert(0, AfterImport("torch", _switch_on))
    if os.environ.get(REPORTS):
        # The finder in front of another one calls back after it.
        sys.meta_path.insert(0, AfterImport("torch", _report))


def _switch_on() -> None:
    from pytest_gpusync.simulated.activation import inherit
    from pytest_gpusync.simulated.base.versions import SimulationUnavailable

    settings = json.loads(os.environ[SIMULATED])
    # Each rank of a launcher has a device of its own, however many the launcher had.
    devices = max(settings["devices"], int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    try:
        inherit(devices, settings["memory"], settings["values"])
    except SimulationUnavailable as error:
        from gpusync_lint.escaping import escaped

        said = escaped(f"gpusync: no simulated CUDA device in process {os.getpid()}: {error}")
        print(said, file=sys.stderr)


def _report() -> None:
    from pytest_gpusync.measure.child_process import report_to

    report_to(os.environ[REPORTS])
