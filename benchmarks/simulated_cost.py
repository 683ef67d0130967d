"""What the simulated device costs: time per operator and per training step beside eager CPU tensors, in one run.

    python benchmarks/simulated_cost.py [--json OUT.json]
    python benchmarks/simulated_cost.py --races [ROUNDS] [--json OUT.json]

One thread. Times are CPU times of the process, the least of several rounds: other programs on the machine do not count.
With --races: what looking for races adds to a recorded step of the examples, with the default stream alone, and with a
copy on a side stream in every step. Blocks of steps with and without alternate; the ratio is the median over the pairs
of neighboring blocks, with its quartiles.

The examples are those of ``examples/``, with their defaults, the residual network with 18 layers of 16 channels and up.

glibc is told to keep memory that was freed. By itself it gives the end of the heap back after one step and takes it
again in the next, or not, as it happens to lie: that makes any of these steps, on the CPU as well, up to twice as long.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import platform
import runpy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook

from pytest_gpusync import record
from pytest_gpusync.simulated import simulated_cuda

Case = Callable[[], object]
_EXAMPLES = Path(__file__).parents[1] / "examples"
_KEEPING = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
"""For glibc: bytes that may lie free at the end of the heap, and from which a piece of memory is mapped by itself."""


def operators(device: str) -> dict[str, tuple[Case, int]]:
    """Small operators, each with how often a round runs it."""
    x, y, square = torch.ones(8, device=device), torch.ones(8, device=device), torch.ones(8, 8, device=device)
    many = [torch.ones(8, device=device) for _ in range(20)]
    layer = nn.Linear(8, 8).to(device)
    return {
        "x + y": (lambda: x + y, 500),
        "x.add_(y)": (lambda: x.add_(y), 500),
        "x.view(2, 4)": (lambda: x.view(2, 4), 500),
        "x[0]": (lambda: x[0], 500),
        "x @ y, 8x8": (lambda: square @ square, 500),
        "softmax": (lambda: square.softmax(-1), 500),
        "layer_norm": (lambda: functional.layer_norm(square, (8,)), 300),
        "torch.empty": (lambda: torch.empty(8, device=device), 500),
        "_foreach_add_, 20 tensors": (lambda: torch._foreach_add_(many, 1.0), 200),
        "x[0].item()": (lambda: x[0].item(), 300),
        "nn.Linear": (lambda: layer(square), 300),
        "nn.Linear, forward and backward": (lambda: layer(square).sum().backward(), 100),
    }


class Attention(nn.Module):
    """Two transformer layers over 16 tokens."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(32, width), nn.Linear(width, 32)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the last token."""
        return self.head(self.layers(self.table(ids))[:, -1])


def steps(device: str) -> dict[str, tuple[Case, int]]:
    """Training steps, with AdamW as the device would choose it, which read their loss."""
    torch.manual_seed(0)

    def training(model: nn.Module, x: torch.Tensor, classes: int) -> Case:
        model = model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        target = torch.zeros(len(x), dtype=torch.long)

        def step() -> float:
            loss = functional.cross_entropy(model(x.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    def perceptron(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 10))

    convolution = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 225, 10)
    )
    return {
        "perceptron 64-128-10, batch 64": (training(perceptron(64), torch.randn(64, 64), 10), 50),
        "perceptron 512-1024-10, batch 64": (training(perceptron(512), torch.randn(64, 512), 10), 20),
        "transformer 2x64, batch 32x16": (training(Attention(), torch.randint(0, 32, (32, 16)), 32), 10),
        "convolution 16x3x3, batch 32, 32x32": (training(convolution, torch.randn(32, 3, 32, 32), 10), 10),
    }


def examples(device: str) -> dict[str, float]:
    """Microseconds of a training step of the examples: the median, the first few left out."""
    resnet = runpy.run_path(str(_EXAMPLES / "experiments" / "resnet.py"))["resnet"]
    torch.manual_seed(0)
    model = resnet(18, width=16, classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pixels, labels = torch.randn(8, 3, 64, 64), torch.zeros(8, dtype=torch.long)

    def train_resnet() -> None:
        for _ in range(30):
            loss = functional.cross_entropy(model(pixels.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return {
        "examples/char_gpt": _step_time(lambda: _example("char_gpt")(30, device)),
        "examples/conv_net": _step_time(lambda: _example("conv_net")(4, device)),
        "examples/experiments, ResNet-18": _step_time(train_resnet),
    }


def _example(folder: str) -> Callable[..., Any]:
    """``train`` of the example's ``train_fast.py``."""
    sys.path.insert(0, str(_EXAMPLES / folder))
    try:
        train: Callable[..., Any] = runpy.run_path(str(_EXAMPLES / folder / "train_fast.py"))["train"]
        return train
    finally:
        del sys.path[0]


def _step_time(train: Case) -> float:
    ends: list[int] = []
    hook = register_optimizer_step_post_hook(lambda *_: ends.append(time.process_time_ns()))
    with contextlib.redirect_stdout(io.StringIO()):
        train()
    hook.remove()
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends[5:])) / 1000


def races(rounds: int) -> dict[str, dict[str, Any]]:
    """What looking for races adds to a step of the examples, by streams and example."""
    trainings: dict[str, Case] = {
        "examples/char_gpt": lambda: _example("char_gpt")(30, "cuda"),
        "examples/conv_net": lambda: _example("conv_net")(2, "cuda"),
    }
    figures: dict[str, dict[str, Any]] = {}
    for streams in ("default stream", "side stream in every step"):
        hook = register_optimizer_step_post_hook(_prefetcher()) if streams.startswith("side") else None
        for name, train in trainings.items():
            pairs = []
            for number in range(rounds):
                times = {}
                for looking in (False, True) if number % 2 else (True, False):
                    with record(races=looking) as seen:
                        times[looking] = _step_time(train)
                    assert not (looking and seen.races)
                pairs.append((times[False], times[True]))
            ratios = [with_races / without for without, with_races in pairs]
            low, middle, high = statistics.quantiles(ratios, n=4)
            figures[f"{name}, {streams}"] = {
                "without": round(statistics.median(without for without, _ in pairs), 1),
                "with": round(statistics.median(with_races for _, with_races in pairs), 1),
                "ratio": [round(low, 3), round(middle, 3), round(high, 3)],
                "pairs": rounds,
            }
        if hook is not None:
            hook.remove()
    return figures


def _prefetcher() -> Callable[..., None]:
    """A hook that copies a batch to the device on a side stream, uses it on the current one, and lets go of it."""
    stream, batch = torch.cuda.Stream(), torch.ones(64, 64).pin_memory()

    def prefetch(*_: Any) -> None:
        with torch.cuda.stream(stream):
            copied = batch.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)
        copied.record_stream(torch.cuda.current_stream())
        copied.mul(2)

    return prefetch


def microseconds(case: Case, times: int, rounds: int = 7) -> float:
    """CPU time of one call, in the quickest of several rounds."""
    for _ in range(max(3, times // 10)):
        case()
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time_ns()
        for _ in range(times):
            case()
        best = min(best, (time.process_time_ns() - start) / times / 1000)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument(
        "--races", type=int, nargs="?", const=11, metavar="ROUNDS", help="measure what looking for races adds"
    )
    options = parser.parse_args()
    if not _KEEPING.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**_KEEPING, **os.environ})
    torch.set_num_threads(1)
    if options.races:
        with simulated_cuda():
            found = races(options.races)
        print(f"{'CPU time of a step in us':50}{'without':>10}{'with':>10}   ratio (quartiles)")
        for name, row in found.items():
            low, middle, high = row["ratio"]
            print(f"{name:50}{row['without']:>10.0f}{row['with']:>10.0f}   {middle:.3f} ({low:.3f} to {high:.3f})")
        if options.json:
            document = {"torch": torch.__version__, "python": platform.python_version(), "races": found}
            options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
        return 0
    figures: dict[str, dict[str, Any]] = {}
    for kind, make in (("operators", operators), ("steps", steps)):
        cpu = {name: microseconds(*case) for name, case in make("cpu").items()}
        with simulated_cuda():
            simulated = {name: microseconds(*case) for name, case in make("cuda").items()}
        figures[kind] = {name: [round(cpu[name], 2), round(simulated[name], 2)] for name in cpu}
    cpu = examples("cpu")
    with simulated_cuda():
        simulated = examples("cuda")
    figures["examples"] = {name: [round(cpu[name], 2), round(simulated[name], 2)] for name in cpu}
    python = platform.python_version()
    print(f"torch {torch.__version__}, python {python}, one thread; CPU time in us")
    print(f"{'':38}{'CPU':>10}{'simulated':>12}{'more':>10}{'ratio':>8}")
    for name, (cpu_us, simulated_us) in {
        name: pair for part in figures.values() for name, pair in part.items()
    }.items():
        print(
            f"{name:38}{cpu_us:>10.1f}{simulated_us:>12.1f}{simulated_us - cpu_us:>10.1f}{simulated_us / cpu_us:>8.2f}"
        )
    if options.json:
        document = {"torch": torch.__version__, "python": python, **figures}
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
