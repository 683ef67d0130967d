"""The platforms and versions that the simulated device supports, and the error it raises elsewhere."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from typing import Final

OLDEST: Final = (2, 11)
NEWEST: Final = (2, 15)
"""The releases of torch, inclusive, whose private structures were checked."""
MACHINES: Final = frozenset({"x86_64", "AMD64", "aarch64"})

RELEASES: Final = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
PYTHONS: Final = "3.10 to 3.14"
INSTALL: Final = f"install torch {RELEASES} from PyPI or pytorch.org"
"""What to do where a torch is laid out in another way than its release."""
_WHAT_WORKS: Final = f"the simulated device works with torch {RELEASES} on Linux (x86-64, aarch64)"


class SimulationUnavailable(RuntimeError):
    """The simulated device cannot be switched on here; the message is one sentence with the cause and what
    would work.
    """


def check_supported() -> None:
    """Raise :class:`SimulationUnavailable` unless this platform and this torch are known to work; imports torch."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise SimulationUnavailable(
            f"this is {platform.system()} on {platform.machine()}, and {_WHAT_WORKS}: "
            "run there, in CI or in a container"
        )
    if importlib.util.find_spec("torch") is None:
        raise SimulationUnavailable(f"torch is not installed: pip install torch (a CPU build will do; {_WHAT_WORKS})")
    import torch

    if torch.version.hip is not None:
        raise SimulationUnavailable(f"torch {torch.__version__} is a ROCm build: install a CPU or CUDA build")
    version = str(torch.__version__)
    found = re.match(r"(\d+)\.(\d+)[\d.]*(?:a|b|rc|\.?dev)?", version)
    if found is None or not OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        older = found is not None and (int(found[1]), int(found[2])) < OLDEST
        elsewhere = "; on a GPU, syncs are counted with earlier releases too" if older else ""
        raise SimulationUnavailable(f"torch {version} is not supported: {_WHAT_WORKS}{elsewhere}")
    if found[0][-1].isalpha():
        # Such a build is of some commit between two releases, and may be laid out like neither.
        raise SimulationUnavailable(
            f"torch {version} is a pre-release, as NVIDIA's containers and the nightly builds have it: {INSTALL}"
        )
