"""Runs when Python starts in a process that a program with the simulated device, or a measured region, has started.

Its folder is first in PYTHONPATH of such a process. The environment's own ``sitecustomize``, if any, still runs.
"""

import importlib
import sys
from pathlib import Path

_HERE = str(Path(__file__).parent)


def _run_next_sitecustomize() -> None:
    """Import the ``sitecustomize`` that this one hides, if there is one."""
    path = sys.path[:]
    sys.path[:] = [entry for entry in path if entry != _HERE]
    try:
        this = sys.modules.pop("sitecustomize")
        try:
            importlib.import_module("sitecustomize")
        except ModuleNotFoundError as error:
            if error.name != "sitecustomize":
                raise
            sys.modules["sitecustomize"] = this
    finally:
        # Hide this folder from the program; processes that it starts get it from the environment.
        sys.path[:] = [entry for entry in path if entry != _HERE]


def _prepare() -> None:
    try:
        from pytest_gpusync.startup import prepare
    except ImportError:
        # Another Python environment, without this package or with another version of it.
        return
    prepare()


_prepare()
_run_next_sitecustomize()
