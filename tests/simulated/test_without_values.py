"""The device without values: the syncs and the memory of a run with them, and a refusal where a value is needed."""

from __future__ import annotations

import math
import re
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_gpusync.simulated import SimulationUnavailable, simulated_cuda
from pytest_gpusync.simulated.base import sync_events


@pytest.fixture
def unknown():
    with simulated_cuda(values=False):
        yield


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 16), nn.Linear(16, 4)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        return self.head(self.layers(self.table(x))[:, -1])


MODELS = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4)), (4, 8), "adamw"),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)
        ),
        (4, 3, 8, 8),
        "sgd",
    ),
    "recurrent": (Recurrent, (4, 5, 8), "fused"),
    "attention": (Attentive, (4, 5), "adamw"),
}
OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def train(model, shape, optimizer):
    """Syncs by kind and bytes allocated after each of three steps."""
    network = model().to("cuda")
    optimizer = OPTIMIZERS[optimizer](network.parameters())
    x = torch.ones(shape, dtype=torch.long if len(shape) == 2 and shape[1] == 5 else torch.float32)
    syncs: list[str] = []

    def sink(sync):
        syncs.append(sync.kind)

    sync_events.subscribe(sink)
    rows = []
    for _ in range(3):
        syncs.clear()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.cross_entropy(network(x.to("cuda")), torch.zeros(4, dtype=torch.long).to("cuda"))
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        f"{loss.item():.3f}"
        del loss
        rows.append((Counter(syncs), torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()))
    sync_events.unsubscribe(sink)
    return rows


@pytest.mark.parametrize("name", MODELS)
def test_a_step_has_the_syncs_and_the_memory_of_one_with_values(name):
    with simulated_cuda():
        expected = train(*MODELS[name])
    with simulated_cuda(values=False):
        assert train(*MODELS[name]) == expected


def test_memory_is_not_touched():
    import resource

    with simulated_cuda(values=False, memory="1 TiB"):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        weights = [torch.zeros(1 << 28, device="cuda") for _ in range(8)]
        assert torch.cuda.memory_allocated() == 8 << 30
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
        del weights


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda x: x.sum().item() > 0, "a comparison"),
        (lambda x: 1 if x.sum().item() else 0, "bool"),
        (lambda x: bool(x.sum() > 0), "reading a number"),
        (lambda x: int(x.sum()), "reading a number"),
        (lambda x: x.argmax().item(), "reading a number"),
        (lambda x: x[x > 0], "index"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x.unique(), "unique"),
        (lambda x: torch.equal(x, x.clone()), "equal"),
        (lambda x: x.cpu(), "a copy to the host"),
        (lambda x: torch.empty(3).copy_(x), "a copy to the host"),
    ],
)
def test_what_needs_a_value_is_refused_at_its_line(unknown, use, what):
    x = torch.ones(3, device="cuda")
    line = use.__code__.co_firstlineno
    with pytest.raises(RuntimeError, match=rf"test_without_values\.py:{line}: {what}.* needs a value") as caught:
        use(x)
    assert "\n" not in str(caught.value)


def test_a_wrong_shape_is_still_an_error_of_its_own(unknown):
    with pytest.raises(RuntimeError, match=r"[Ss]hapes|size|dim"):
        torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")


@pytest.mark.parametrize("use", [str, repr, lambda number: f"{number:.4f}", lambda number: str(2 * number / 3 - 1)])
def test_a_number_that_is_only_printed_is_a_question_mark(unknown, use):
    assert use(torch.ones(3, device="cuda").mean().item()) == "?"


def test_a_check_for_nan_goes_on(unknown):
    assert math.isfinite(torch.ones(3, device="cuda").mean().item())


def test_a_list_of_numbers_is_read_with_one_sync(unknown, kinds):
    with kinds() as counted:
        assert [len(row) for row in torch.ones(2, 3, device="cuda").tolist()] == [3, 3]
    assert dict(counted) == {"stream": 1}


def test_cpu_tensors_keep_their_values(unknown):
    assert torch.ones(3).sum().item() == 3.0
    assert torch.ones(3).tolist() == [1.0] * 3


def test_values_are_computed_again_afterwards():
    with simulated_cuda(values=False):
        torch.ones(3, device="cuda")
    with simulated_cuda():
        assert torch.ones(3, device="cuda").sum().item() == 3.0


def test_a_device_cannot_be_both(cuda):
    with pytest.raises(SimulationUnavailable, match="is on with values"), simulated_cuda(values=False):
        pass


def test_trace_without_values(run_python, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")  # the folder of a test may be long
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nx = torch.ones(1 << 34, device='cuda', dtype=torch.bfloat16)\nprint('mean', x.mean().item())\n"
    )
    done = run_python(
        "from pytest_gpusync.commands.trace import main; import sys; "
        f"sys.exit(main(['--device', 'simulated', '--no-values', '--memory', '80 GiB', {str(program)!r}]))"
    )
    assert done.returncode == 0, done.stderr
    assert "mean ?" in done.stdout
    assert re.search(r"program\.py:3 .*item\(\)", done.stdout)


def test_trace_refuses_what_is_no_memory(run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("")
    done = run_python(
        "from pytest_gpusync.commands.trace import main; import sys; "
        f"sys.exit(main(['--device', 'simulated', '--memory', 'much', {str(program)!r}]))"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("gpusync trace: --memory: a size is")
