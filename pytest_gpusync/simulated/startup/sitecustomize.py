"""Run by Python as it starts in a process that a program with the simulated device started: see ``children.py``.

Its folder is first in such a process's PYTHONPATH. The environment's own ``sitecustomize``, if any, runs as ever.
"""

import importlib
import sys
from pathlib import Path

_HERE = str(Path(__file__).parent)


def _make_way() -> None:
    """Let the ``sitecustomize`` that stands behind this one take its place."""
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
        # Not to be seen by the program; the processes that it starts have it from the environment.
        sys.path[:] = [entry for entry in path if entry != _HERE]


def _simulate() -> None:
    try:
        from pytest_gpusync.simulated.startup import switch_on_with_torch
    except ImportError:
        # Another Python environment, without this package or with another version of it.
        return
    switch_on_with_torch()


_simulate()
_make_way()
