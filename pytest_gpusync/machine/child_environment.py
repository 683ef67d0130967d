"""How a Python process that this one starts is told what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PATH: Final = "PYTHONPATH"
STARTUP: Final = str(Path(__file__).parents[1] / "startup")
"""The folder whose ``sitecustomize`` runs as such a process starts, if it is first in its path."""
SIMULATED: Final = "GPUSYNC_SIMULATED_CUDA"
"""Environment variable with what to simulate, as JSON: the number of devices, the bytes of each, whether
with values."""
REPORTS: Final = "GPUSYNC_CHILD_REPORTS"
"""Environment variable with the folder in which the process reports what it does on the device."""
