"""The platforms and versions that the simulated device supports, and the error it raises elsewhere."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys

OLDEST = (2, 11)
NEWEST = (2, 15)
"""The releases of torch, inclusive, whose private structures were checked."""

_WHAT_WORKS = "the simulated device works with torch 2.11 to 2.15 on Linux x86-64"


class SimulationUnavailable(RuntimeError):
    """The simulated device cannot be switched on here; the message is one sentence with the cause and what
    would work.
    """


def check_supported() -> None:
    """Raise :class:`SimulationUnavailable` unless this platform and this torch are known to work; imports torch."""
    if sys.platform != "linux" or platform.machine() not in {"x86_64", "AMD64"}:
        raise SimulationUnavailable(
            f"this is {platform.system()} on {platform.machine()}, and {_WHAT_WORKS}: "
            "run there, in CI or in a container"
        )
    if importlib.util.find_spec("torch") is None:
        raise SimulationUnavailable(f"torch is not installed: pip install torch (a CPU build will do; {_WHAT_WORKS})")
    import torch

    if torch.version.hip is not None:
        raise SimulationUnavailable(f"torch {torch.__version__} is a ROCm build: install a CPU or CUDA build")
    release = torch_release(torch.__version__)
    if release is None or not OLDEST <= release <= NEWEST:
        raise SimulationUnavailable(f"torch {torch.__version__} is not supported: {_WHAT_WORKS}")


def torch_release(version: str) -> tuple[int, int] | None:
    """Return (major, minor) of a torch version string; None if it cannot be parsed."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None
