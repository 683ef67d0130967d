from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from pytest_gpusync.simulated import simulated_cuda

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpusync.model.measurement import RawSync


@pytest.fixture
def cuda() -> Iterator[str]:
    with simulated_cuda():
        yield "cuda"


@pytest.fixture
def run_python():
    """`run_python(source)` runs a program of its own; returns its status and what it printed."""

    def run(source: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            [sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    return run


@pytest.fixture
def seen():
    """`with seen() as syncs:` collects the syncs made inside."""

    @contextmanager
    def collect() -> Iterator[list[RawSync]]:
        from pytest_gpusync.simulated.base import sync_events

        syncs: list[RawSync] = []
        sync_events.subscribe(syncs.append)
        try:
            yield syncs
        finally:
            sync_events.unsubscribe(syncs.append)

    return collect


@pytest.fixture
def kinds(seen):
    """`with kinds() as counter:` counts the syncs made inside, by kind; a copy's kind is followed by its direction."""

    @contextmanager
    def count() -> Iterator[Counter[str]]:
        counter: Counter[str] = Counter()
        with seen() as syncs:
            yield counter
        counter.update(sync.kind for sync in syncs)

    return count


@pytest.fixture(autouse=True)
def validated_distributions() -> None:
    """Distributions check their arguments, as by default. A test that compiles a function switches the checks off."""
    import torch

    torch.distributions.Distribution.set_default_validate_args(True)
