"""Inference with ResNet-18 and ResNet-50: blocking copies, asynchronous copies of pinned memory, and no copies.

A blocking copy waits for everything queued before it, in both directions. Copies from and to pinned memory can be
queued like kernels; the host then waits once, for the batch before the last.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from resnet import resnet  # noqa: E402
from torch.profiler import record_function  # noqa: E402


class Inference:
    """A network, its input on the host and on the device, and a pinned buffer for its output."""

    def __init__(self, network: torch.nn.Module, batch: int, size: int) -> None:
        self.network = network
        self.shape = (batch, 3, size, size)
        self.pinned = torch.empty(self.shape, pin_memory=True)
        self.next_pinned = torch.empty(self.shape, pin_memory=True)
        self.pageable = torch.empty(self.shape)
        self.resident = torch.rand(self.shape, device="cuda")
        self.result = torch.empty((batch, 1000), pin_memory=True)
        self.reads_input = False
        """Whether to read a value of each batch before the network runs."""
        self.mean, self.std = (torch.full((3, 1, 1), value, device="cuda") for value in (0.45, 0.22))

    def generate(self):
        # Fill the other buffer: the copy of this one may still be queued.
        self.pinned, self.next_pinned = self.next_pinned, self.pinned
        with record_function("random_generation"):
            self.pageable.uniform_()
            self.pinned.copy_(self.pageable)

    @torch.no_grad()
    def blocking(self):
        with record_function("cpu_to_gpu"):
            images = self.pageable.to("cuda")
        with record_function("gpu_to_cpu"):
            return self.run(images).cpu()

    @torch.no_grad()
    def pipelined(self):
        with record_function("cpu_to_gpu"):
            images = self.pinned.to("cuda", non_blocking=True)
        out = self.run(images)
        with record_function("gpu_to_cpu"):
            return self.result.copy_(out, non_blocking=True)

    @torch.no_grad()
    def resident_only(self):
        return self.run(self.resident)

    def run(self, images):
        with record_function("normalization"):
            images = (images - self.mean) / self.std
            if self.reads_input:
                print(images.max().item())
        with record_function("model"):
            return self.network(images)


@pytest.fixture(scope="module", params=[18, 50], ids=["resnet18", "resnet50"])
def network(request):
    from pytest_gpusync.simulated import is_on

    return resnet(request.param, width=4 if is_on() else 64).cuda().eval()


@pytest.fixture
def inference(network, simulated):
    def make(batch):
        return Inference(network, min(batch, 2) if simulated else batch, size=32 if simulated else 224)

    return make


@pytest.mark.parametrize(("how", "syncs"), [("blocking", 2), ("pipelined", 0), ("resident_only", 0)])
def test_syncs_of_a_batch(inference, planted, gpu_train, report_result, how, syncs):
    one = inference(16)

    def step():
        one.generate()
        out = getattr(one, how)()
        if planted:
            # If the result is on the host already, read the input on the device.
            (out if out.is_cuda else one.resident).max().item()

    # A buffer is refilled when the batch before the last has finished with it.
    run = gpu_train(step, steps=6, warmup=3, in_flight=2)
    report_result(f"syncs per batch, copies {how}: {max(run.syncs_per_step)}")
    run.assert_syncs(exact=syncs)


def test_only_the_copies_wait(inference, planted, gpu_sync, report_result):
    one = inference(16)
    one.reads_input = planted
    one.blocking()
    with gpu_sync.record() as seen:
        one.generate()
        one.blocking()
    phases = {site.phase for site in seen.sites}
    report_result(f"phases with syncs: {', '.join(sorted(map(str, phases)))}")
    assert phases == {"cpu_to_gpu", "gpu_to_cpu"}


@pytest.mark.parametrize("batch", [8, 32, 128])
def test_blocking_copies_cost_time(inference, planted, gpu_elapsed, report_result, batch):
    one = inference(batch)
    one.generate()
    ratio = gpu_elapsed.ratio(one.pipelined, one.resident_only, rounds=12)
    report_result(f"pinned copies, compared with none: {ratio}")
    ratio = gpu_elapsed.ratio(one.blocking, one.blocking if planted else one.pipelined, rounds=24, tolerance=0.1)
    report_result(f"blocking copies, compared with pinned ones: {ratio}")
    assert ratio.low > 1.0
