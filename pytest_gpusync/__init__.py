"""Count the syncs of real GPU training steps and hold them to a budget.

Importing this package loads neither torch nor pytest; the names below are resolved on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusync_lint._version import __version__

if TYPE_CHECKING:
    from pytest_gpusync.measure import allow, record
    from pytest_gpusync.ring import limit_in_flight
    from pytest_gpusync.simulated import simulated_cuda

__all__ = ["__version__", "allow", "limit_in_flight", "record", "simulated_cuda"]

_HOMES = {
    "allow": "pytest_gpusync.measure",
    "limit_in_flight": "pytest_gpusync.ring",
    "record": "pytest_gpusync.measure",
    "simulated_cuda": "pytest_gpusync.simulated",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
