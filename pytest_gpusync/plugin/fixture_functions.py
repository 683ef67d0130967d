"""The fixtures, which import what they return only when a test requests them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpusync.plugin.current_session import begin_session
from pytest_gpusync.plugin.stash_keys import MEASURED_TEST

if TYPE_CHECKING:
    from pytest_gpusync.plugin.fixtures import GpuCapture, GpuElapsed, GpuMemory, GpuSync
    from pytest_gpusync.plugin.inference import GpuInfer
    from pytest_gpusync.plugin.measured_test import MeasuredTest
    from pytest_gpusync.plugin.training import GpuTrain


@pytest.fixture
def gpu_sync(request: pytest.FixtureRequest) -> GpuSync:
    """Count the syncs of a part of a test: gpu_sync.budget(max=0), gpu_sync.record(), gpu_sync.allow(reason)."""
    from pytest_gpusync.plugin.fixtures import GpuSync

    return GpuSync(_measured_test(request))


@pytest.fixture(scope="module")
def gpu_sync_module(request: pytest.FixtureRequest) -> GpuSync:
    """As gpu_sync, for fixtures of a module or class: records what several tests share, such as one training."""
    from pytest_gpusync.plugin.fixtures import GpuSync
    from pytest_gpusync.plugin.measured_test import MeasuredTest

    gpu = begin_session(request.config)
    gpu.measures = True
    run = MeasuredTest(
        request.node.nodeid, gpu.device, must_decide=gpu.options.require_measured, all_threads=gpu.options.all_threads
    )
    request.node.stash[MEASURED_TEST] = run
    run.device.switch_on()
    return GpuSync(run)


@pytest.fixture
def gpu_train(request: pytest.FixtureRequest) -> GpuTrain:
    """Run real training steps and count their syncs: gpu_train(step, batches, steps=20).assert_syncs(max=1)."""
    from pytest_gpusync.plugin.progress import progress_of
    from pytest_gpusync.plugin.training import GpuTrain

    return GpuTrain(_measured_test(request), progress_of(request.config))


@pytest.fixture
def gpu_infer(request: pytest.FixtureRequest) -> GpuInfer:
    """Answer real requests and count their syncs: gpu_infer(model, requests, steps=20).assert_syncs(max=1)."""
    from pytest_gpusync.plugin.inference import GpuInfer
    from pytest_gpusync.plugin.progress import progress_of

    return GpuInfer(_measured_test(request), progress_of(request.config))


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> GpuMemory:
    """Limit the growth of GPU memory per step: gpu_memory.budget(max="1 MiB"), gpu_memory.record()."""
    from pytest_gpusync.plugin.fixtures import GpuMemory

    return GpuMemory(_measured_test(request))


@pytest.fixture
def gpu_elapsed(request: pytest.FixtureRequest) -> GpuElapsed:
    """Compare elapsed times on a real GPU: gpu_elapsed.ratio(with_item, without_item).low > 1.0."""
    from pytest_gpusync.plugin.fixtures import GpuElapsed

    return GpuElapsed(_measured_test(request))


@pytest.fixture
def gpu_capture(request: pytest.FixtureRequest) -> GpuCapture:
    """Check that a step can be captured as a CUDA graph: gpu_capture.assert_capturable(step, batch)."""
    from pytest_gpusync.plugin.fixtures import GpuCapture

    return GpuCapture(_measured_test(request))


def _measured_test(request: pytest.FixtureRequest) -> MeasuredTest:
    """Return the measurements of the test that requests a fixture."""
    from pytest_gpusync.plugin.measured_items import measured_test_for

    return measured_test_for(request)
