"""More streams than help: a stream made for each batch, and a side stream that the host joins at once.

torch keeps freed memory apart for each stream. A stream made per batch finds none of the memory that the batch before
has freed: each of the 32 streams that torch hands out in turn allocates for itself. A stream made once, or a small pool
at the top of the module, reuses it. And work on a side stream that the host waits for right away could have stayed on
the default stream: the streams are ordered with `wait_stream`, which does not block the host.
"""

from __future__ import annotations

from itertools import cycle

import pytest

torch = pytest.importorskip("torch")

POOL = 2


@pytest.fixture
def batch(simulated):
    size = 32 if simulated else 512
    return torch.randn(size, size, device="cuda")


@pytest.fixture
def pool(simulated):
    """Return an endless iterator over a pool of two streams, made once."""
    return cycle([torch.cuda.Stream() for _ in range(POOL)])


def on(stream, batch):
    current = torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        # Large enough for a segment of its own.
        result = (torch.zeros(1 << 22, device="cuda") + 1.0)[0] * batch
    current.wait_stream(stream)
    return result


def test_a_stream_made_per_batch_allocates_in_each_and_a_pool_does_not(batch, pool, planted, gpu_train, report_result):
    def stream_per_batch():
        on(torch.cuda.Stream(), batch)

    def stream_of_the_pool():
        on(next(pool), batch)

    kept = {}
    for name, step in (("per batch", stream_per_batch), ("pool", stream_per_batch if planted else stream_of_the_pool)):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        run = gpu_train(step, steps=20, warmup=4)
        kept[name] = run.device_mallocs.max, torch.cuda.memory_reserved() - before
        report_result(f"stream {name}: {kept[name][0]} cudaMalloc in the worst step, {kept[name][1] >> 20} MiB kept")
    assert kept["per batch"][0] >= 1
    assert kept["pool"][0] == 0
    assert kept["per batch"][1] > 4 * kept["pool"][1]


def test_streams_are_ordered_without_the_host(batch, pool, planted, gpu_train, report_result):
    stream = next(pool)

    def step():
        on(stream, batch)
        if planted:
            # Joined at once: the host waits although only the default stream needs the result.
            stream.synchronize()

    run = gpu_train(step, steps=12, warmup=4)
    report_result(f"syncs per step: {max(run.syncs_per_step)}")
    run.assert_syncs(max=0)
