"""What is counted of JAX on a GPU: it waits without a synchronize call of the driver."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch has the same GPU
jax = pytest.importorskip("jax")

import numpy as np  # noqa: E402

from pytest_gpusync import record  # noqa: E402

jnp = jax.numpy

READS = {
    "float": (lambda x: float(x.sum()), 1),
    "item": (lambda x: x.sum().item(), 1),
    "numpy": (lambda x: np.asarray(x), 1),
    "branch": (lambda x: bool(x[0, 0] > 0), 1),
    "text": (lambda x: str(x), 1),
    "tolist": (lambda x: x.tolist(), 1),
    "device_get": (lambda x: jax.device_get(x), 1),
    "nonzero": (lambda x: jnp.nonzero(x), 1),
    "block_until_ready": (lambda x: x.block_until_ready(), 1),
    "jax.block_until_ready": (lambda x: jax.block_until_ready([x, x + 1]), 1),
    "product": (lambda x: x @ x, 0),
    "copy_to_host_async": (lambda x: x.copy_to_host_async(), 0),
}


@pytest.fixture(scope="module")
def x():
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    return jnp.ones((256, 256))


@pytest.mark.parametrize("name", READS)
def test_a_wait_of_jax_counts_once(x, name):
    read, waits = READS[name]
    torch.ones(1, device="cuda")
    read(x * 2)
    y = x * 3
    with record(recorder="cupti") as region:
        read(y)
    counted = [(sync.kind, sync.site.path, sync.site.via) for sync in region.result().all_syncs]
    assert len(counted) == waits, counted
    assert region.syncs == waits


def test_blocked_time_is_that_of_the_work(x):
    big = jnp.ones((8192, 8192))
    work = jax.jit(lambda a: (a @ a @ a @ a).sum())
    float(work(big))
    twice = big * 2
    jax.block_until_ready(twice)
    with record(recorder="cupti") as region:
        float(work(twice))
    (site,) = region.sites
    assert site.blocked_ms > 3  # three products of 1.1e12 operations each
