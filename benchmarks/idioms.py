"""Forty ways in which people test and train, each as a small test: syncs per step counted by hand, and by the plugin.

    python benchmarks/idioms.py [--device simulated|cuda] [--only NAME]... [--json OUT.json]

Each idiom is a test file of its own. Those without options of their own run in one session of pytest, the others in
one each. The count is that of the run file: syncs in the worst step after warm-up, of the worst region of the file. A
package that is missing is said in the row. Nothing is fetched. ``docs/generate.py`` writes the newest results of each
device into the documentation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OTHER_PLUGINS = ("randomly", "rerunfailures", "repeat", "benchmark")
COMMON = '''
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Linear(4, 1).cuda()

def read(times):
    x = torch.ones(1, device="cuda")
    for _ in range(times):
        x.item()

def train(steps=6, reads=1, model=None, optimizer=None):
    """Each step makes `reads` syncs."""
    model = net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    x = torch.ones(8, 4, device="cuda")
    losses = []
    for _ in range(steps):
        loss = model(x).square().mean()
        loss.backward()
        for _ in range(reads):
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses
'''


@dataclass(frozen=True)
class Idiom:
    """One way of writing a test or a training."""

    by_hand: int
    """Syncs in the worst step after warm-up."""
    why: str
    """Where they come from."""
    source: str
    needs: tuple[str, ...] = ()
    """Import names of packages."""
    arguments: tuple[str, ...] = ()
    """Options of pytest, which give it a session of its own."""


IDIOMS: dict[str, Idiom] = {
    "plain loop": Idiom(1, "one read in a step", "def test_it(): train()"),
    "loop without waits": Idiom(0, "no read", "def test_it(): train(reads=0)"),
    "inference": Idiom(
        5,
        "no step: copies of two parameters and three reads in the test",
        "def test_it():\n    model = net()\n    with torch.no_grad():\n"
        "        for _ in range(3): model(torch.ones(2, 4, device='cuda')).sum().item()",
    ),
    "parametrize": Idiom(
        2,
        "two reads in a step",
        "@pytest.mark.parametrize('size', [1, 2, 3])\ndef test_it(size): train(reads=2)",
    ),
    "class with setup_method": Idiom(
        1,
        "one read in a step; what setup_method does is not the test's call",
        "class TestIt:\n    def setup_method(self): self.model = net()\n    def test_it(self): train(model=self.model)",
    ),
    "unittest": Idiom(
        1, "one read in a step", "import unittest\nclass It(unittest.TestCase):\n    def test_it(self): train()"
    ),
    "unittest subTest": Idiom(
        3,
        "no step: a read in each of three",
        "import unittest\nclass It(unittest.TestCase):\n    def test_it(self):\n"
        "        x = torch.ones(1, device='cuda')\n"
        "        for i in range(3):\n            with self.subTest(i=i): x.item()",
    ),
    "subtests": Idiom(
        3,
        "no step: a read in each of three",
        "def test_it(subtests):\n    x = torch.ones(1, device='cuda')\n"
        "    for i in range(3):\n        with subtests.test(i=i): x.item()",
    ),
    "fixture of a module": Idiom(
        1,
        "one read in a step; the model is made in set-up",
        "@pytest.fixture(scope='module')\ndef model(): return net()\ndef test_it(model): train(model=model)",
    ),
    "gpu_train": Idiom(
        2,
        "two reads in a step",
        "def test_it(gpu_train):\n    x = torch.ones(1, device='cuda')\n"
        "    gpu_train(lambda: (x.item(), x.item()), steps=8).assert_syncs(max=2)",
    ),
    "gpu_train.whole": Idiom(
        1, "one read in a step", "def test_it(gpu_train): gpu_train.whole(train, 6, warmup=1).assert_syncs(max=1)"
    ),
    "gpu_sync.budget": Idiom(
        1,
        "no step: one read in the block",
        "def test_it(gpu_sync):\n    x = torch.ones(1, device='cuda')\n    with gpu_sync.budget(max=1): x.item()",
    ),
    "gpu_sync.allow": Idiom(
        1,
        "a second read is allowed",
        "from pytest_gpusync import allow\ndef test_it():\n    x = torch.ones(1, device='cuda')\n    x.item()\n"
        "    with allow('shown'): x.item()",
    ),
    "doctest": Idiom(
        1,
        "one read",
        'def f():\n    """\n    >>> import torch\n    >>> with getfixture("gpu_sync").budget(max=1):\n'
        '    ...     _ = torch.ones(1, device="cuda").item()\n    """',
        arguments=("--doctest-modules",),
    ),
    "asyncio.run": Idiom(
        1,
        "one read in a step",
        "import asyncio\nasync def go(): train()\ndef test_it(): asyncio.run(go())",
    ),
    "asyncio.gather": Idiom(
        2,
        "no step: a read in each of two tasks",
        "import asyncio\nasync def read(x):\n    await asyncio.sleep(0)\n    x.item()\n"
        "async def go():\n    x = torch.ones(1, device='cuda')\n    await asyncio.gather(read(x), read(x))\n"
        "def test_it(): asyncio.run(go())",
    ),
    "pytest-asyncio": Idiom(
        1, "one read in a step", "@pytest.mark.asyncio\nasync def test_it(): train()", ("pytest_asyncio",)
    ),
    "anyio": Idiom(
        1,
        "one read in a step",
        "@pytest.fixture\ndef anyio_backend(): return 'asyncio'\n@pytest.mark.anyio\nasync def test_it(): train()",
        ("anyio",),
    ),
    "thread pool": Idiom(
        1,
        "the thread that steps the optimizer reads once in a step",
        "from concurrent.futures import ThreadPoolExecutor\ndef test_it():\n"
        "    with ThreadPoolExecutor(1) as pool: pool.submit(train).result()",
    ),
    "asyncio.to_thread": Idiom(
        1,
        "the thread that steps the optimizer reads once in a step",
        "import asyncio\ndef test_it(): asyncio.run(asyncio.to_thread(train))",
    ),
    "logging thread": Idiom(
        0,
        "the read on the other thread is named and not counted",
        "import threading\ndef test_it():\n    x = torch.ones(1, device='cuda')\n"
        "    t = threading.Thread(target=x.item, name='logger')\n    t.start()\n    t.join()\n    train(reads=0)",
    ),
    "child process": Idiom(
        3,
        "no step: three reads in the child",
        "import multiprocessing, common\ndef test_it():\n    torch.ones(1, device='cuda')\n"
        "    child = multiprocessing.get_context('spawn').Process(target=common.read, args=(3,))\n"
        "    child.start()\n    child.join()\n    assert child.exitcode == 0",
    ),
    "loader with pinned memory": Idiom(
        0,
        "non_blocking copies of pinned memory do not wait",
        "from torch.utils.data import DataLoader, TensorDataset\ndef test_it():\n"
        "    model = net()\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    data = TensorDataset(torch.ones(32, 4), torch.ones(32, 1))\n"
        "    for x, y in DataLoader(data, batch_size=4, pin_memory=True):\n"
        "        x, y = x.to('cuda', non_blocking=True), y.to('cuda', non_blocking=True)\n"
        "        (model(x) - y).square().mean().backward()\n        optimizer.step()",
    ),
    "loader with pageable memory": Idiom(
        2,
        "a copy of x and one of y in a step",
        "from torch.utils.data import DataLoader, TensorDataset\ndef test_it():\n"
        "    model = net()\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    data = TensorDataset(torch.ones(32, 4), torch.ones(32, 1))\n"
        "    for x, y in DataLoader(data, batch_size=4):\n        x, y = x.cuda(), y.cuda()\n"
        "        (model(x) - y).square().mean().backward()\n        optimizer.step()",
    ),
    "pytest-xdist": Idiom(
        1,
        "one read in a step",
        "@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n): train()",
        ("xdist",),
        ("-n2",),
    ),
    "pytest-randomly": Idiom(
        1,
        "one read in a step",
        "@pytest.mark.parametrize('n', [1, 2, 3])\ndef test_it(n): train()",
        ("pytest_randomly",),
        ("-p", "randomly"),
    ),
    "pytest-rerunfailures": Idiom(
        1,
        "the second run counts: one read in a step",
        "seen = []\ndef test_it():\n    seen.append(1)\n    train(reads=3 if len(seen) == 1 else 1)\n"
        "    assert len(seen) == 2",
        ("pytest_rerunfailures",),
        ("--reruns=2", "-p", "rerunfailures"),
    ),
    "pytest-repeat": Idiom(
        1, "one read in a step", "def test_it(): train()", ("pytest_repeat",), ("--count=3", "-p", "repeat")
    ),
    "hypothesis": Idiom(
        1,
        "each example is a step, with one read",
        "from hypothesis import given, settings, strategies\n@settings(max_examples=8, deadline=None)\n"
        "@given(strategies.integers(1, 9))\ndef test_it(n): torch.ones(n, device='cuda').sum().item()",
        ("hypothesis",),
    ),
    "pytest-benchmark": Idiom(
        1,
        "each round is a step, with one read",
        "def test_it(benchmark):\n    x = torch.ones(1, device='cuda')\n    benchmark.pedantic(x.item, rounds=8)",
        ("pytest_benchmark",),
        ("-p", "benchmark"),
    ),
    "xfail": Idiom(
        2,
        "two reads in a step",
        "@pytest.mark.xfail(strict=True)\n@pytest.mark.gpu_sync_budget(max=1)\ndef test_it(): train(reads=2)",
    ),
    "GradScaler": Idiom(
        1,
        "scaler.step reads whether a gradient was infinite",
        "def test_it():\n    model = net()\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    scaler = torch.amp.GradScaler('cuda')\n    x = torch.ones(8, 4, device='cuda')\n"
        "    for _ in range(6):\n        with torch.autocast('cuda', dtype=torch.float16):\n"
        "            loss = model(x).square().mean()\n"
        "        scaler.scale(loss).backward()\n        scaler.step(optimizer)\n        scaler.update()\n"
        "        optimizer.zero_grad()",
    ),
    "LBFGS": Idiom(
        6,
        "float(loss), two conditions on gradients, one on curvature, two step sizes of the history",
        "def test_it():\n    model = net()\n    x = torch.ones(8, 4, device='cuda')\n"
        "    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=1, history_size=1)\n"
        "    def closure():\n        optimizer.zero_grad()\n        loss = (model(x) - 3).pow(4).mean()\n"
        "        loss.backward()\n        return loss\n    for _ in range(6): optimizer.step(closure)",
    ),
    "GAN": Idiom(
        2,
        "a read after each of the two optimizers",
        "def test_it():\n    nets = [net(), net()]\n"
        "    optimizers = [torch.optim.SGD(n.parameters(), lr=0.1) for n in nets]\n"
        "    x = torch.ones(8, 4, device='cuda')\n    for _ in range(6):\n"
        "        for model, optimizer in zip(nets, optimizers):\n            loss = model(x).square().mean()\n"
        "            loss.backward()\n            loss.item()\n            optimizer.step()",
    ),
    "gradient accumulation": Idiom(
        4,
        "a read for each of four small batches of a step",
        "def test_it():\n    model = net()\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    x = torch.ones(8, 4, device='cuda')\n    for batch in range(24):\n"
        "        loss = model(x).square().mean()\n        loss.backward()\n        loss.item()\n"
        "        if batch % 4 == 3:\n            optimizer.step()\n            optimizer.zero_grad()",
    ),
    "activation checkpointing": Idiom(
        1,
        "one read; the states of random numbers are kept on the host",
        "from torch.utils.checkpoint import checkpoint\ndef test_it():\n    model = net()\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    x = torch.ones(8, 4, device='cuda')\n"
        "    for _ in range(6):\n        loss = checkpoint(model, x, use_reentrant=False).square().mean()\n"
        "        loss.backward()\n        loss.item()\n        optimizer.step()",
    ),
    "gradient clipping": Idiom(
        1,
        "error_if_nonfinite reads the norm",
        "def test_it():\n    model = net()\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    x = torch.ones(8, 4, device='cuda')\n    for _ in range(6):\n        model(x).square().mean().backward()\n"
        "        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)\n        optimizer.step()",
    ),
    "ReduceLROnPlateau": Idiom(
        1,
        "the scheduler reads the metric",
        "def test_it():\n    model = net()\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\n"
        "    x = torch.ones(8, 4, device='cuda')\n    for _ in range(6):\n        loss = model(x).square().mean()\n"
        "        loss.backward()\n        scheduler.step(loss.detach())\n        optimizer.step()",
    ),
    "early stopping": Idiom(
        1,
        "the branch on the loss",
        "def test_it():\n    model = net()\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    x = torch.ones(8, 4, device='cuda')\n    best = float('inf')\n    for _ in range(6):\n"
        "        loss = model(x).square().mean()\n        loss.backward()\n        if loss < best: best = 1e9\n"
        "        optimizer.step()",
    ),
    "streams and events": Idiom(
        1,
        "one event.synchronize; streams wait for each other on the device",
        "def test_it():\n    model = net()\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    x = torch.ones(8, 4, device='cuda')\n    side, event = torch.cuda.Stream(), torch.cuda.Event()\n"
        "    for _ in range(6):\n        side.wait_stream(torch.cuda.current_stream())\n"
        "        with torch.cuda.stream(side): y = x * 2\n        torch.cuda.current_stream().wait_stream(side)\n"
        "        model(y).sum().backward()\n        event.record()\n        event.synchronize()\n"
        "        optimizer.step()",
    ),
    "torch.compile": Idiom(
        1,
        "one read in a step; the compiled model makes none",
        "def test_it():\n    model = torch.compile(net(), backend='eager')\n"
        "    train(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))",
    ),
    "TensorBoard": Idiom(
        1,
        "add_scalar reads the loss",
        "def test_it(tmp_path):\n    from torch.utils.tensorboard import SummaryWriter\n"
        "    writer = SummaryWriter(tmp_path)\n    model = net()\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    x = torch.ones(8, 4, device='cuda')\n"
        "    for step in range(6):\n        loss = model(x).square().mean()\n        loss.backward()\n"
        "        writer.add_scalar('loss', loss, step)\n        optimizer.step()",
        ("tensorboard",),
    ),
    "accelerate": Idiom(
        1,
        "one read in a step",
        "def test_it():\n    from accelerate import Accelerator\n    accelerator = Accelerator()\n"
        "    model = nn.Linear(4, 1)\n"
        "    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "    x = torch.ones(8, 4, device='cuda')\n    for _ in range(6):\n        loss = model(x).square().mean()\n"
        "        accelerator.backward(loss)\n        loss.item()\n        optimizer.step()\n"
        "        optimizer.zero_grad()",
        ("accelerate",),
    ),
    "Trainer of Hugging Face, one step": Idiom(
        1,
        "the attention mask of transformers: a branch on whether the batch is packed",
        "def test_it(gpu_train, tmp_path):\n"
        "    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments\n"
        "    sizes = dict(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16)\n"
        "    sizes.update(bos_token_id=0, eos_token_id=0)\n"
        "    model = GPT2LMHeadModel(GPT2Config(**sizes))\n"
        "    trainer = Trainer(model=model, args=TrainingArguments(output_dir=str(tmp_path), report_to=[]))\n"
        "    ids = torch.arange(8, device='cuda')[None]\n"
        "    gpu_train(trainer.training_step, [{'input_ids': ids, 'labels': ids}], steps=8)",
        ("transformers", "accelerate"),
    ),
    "Lightning": Idiom(
        1,
        "training_step reads once; Lightning copies small batches without waiting",
        "def test_it(gpu_train):\n    import lightning\n    class Module(lightning.LightningModule):\n"
        "        def __init__(self):\n            super().__init__()\n            self.net = nn.Linear(4, 1)\n"
        "        def training_step(self, batch, batch_idx):\n            loss = self.net(batch).square().mean()\n"
        "            loss.item()\n            return loss\n"
        "        def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)\n"
        "    trainer = lightning.Trainer(max_steps=8, accelerator='gpu', devices=1, logger=False,\n"
        "        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)\n"
        "    batches = torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2)\n"
        "    gpu_train.whole(trainer.fit, Module(), batches)",
        ("lightning",),
    ),
}


def run(names: list[str], device: str, arguments: tuple[str, ...]) -> tuple[dict[str, Any], str]:
    """Run idioms in one session of pytest; return its regions by name of the file, and its output."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pytest.ini").write_text("[pytest]\nasyncio_mode = strict\n")
        Path(folder, "common.py").write_text(COMMON)
        for name in names:
            source = (
                f"import pytest, torch\nfrom torch import nn\nfrom common import net, train\n{IDIOMS[name].source}\n"
            )
            Path(folder, file_of(name)).write_text(source)
        installed = any(point.value == "pytest_gpusync.plugin" for point in entry_points(group="pytest11"))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
        command += [] if installed else ["-p", "pytest_gpusync.plugin"]
        loaded = [plugin for plugin in OTHER_PLUGINS if plugin in arguments]
        for plugin in OTHER_PLUGINS:
            command += [] if plugin in loaded else ["-p", f"no:{plugin}"]
        command += [one for one in arguments if one not in ("-p", *OTHER_PLUGINS)]
        command += [f"--gpu-device={device}", "--gpu-sync-report=run.json"]
        paths = os.pathsep.join([str(ROOT), str(ROOT / "lint"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths}
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        report = Path(folder, "run.json")
        document = json.loads(report.read_text()) if report.exists() else {"regions": [], "environment": {}}
        return document, ended.stdout + ended.stderr


def file_of(name: str) -> str:
    return "test_" + "".join(letter if letter.isalnum() else "_" for letter in name) + ".py"


def row(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return what was counted of an idiom: the worst of its regions."""
    idiom = IDIOMS[name]
    regions = [region for region in document["regions"] if region["name"].startswith(file_of(name))]
    measured = [
        region
        for region in regions
        if region["syncs_per_step"] is not None and region["step_source"] not in ("set-up", "tear-down")
    ]
    worst = max(measured, key=lambda region: region["syncs_per_step"]["max"], default=None)
    counted = worst["syncs_per_step"]["max"] if worst else None
    problems = sorted({str(region["problem"]) for region in regions if region["problem"]})
    return {
        "idiom": name,
        "by_hand": idiom.by_hand,
        "why": idiom.why,
        "counted": counted,
        "steps": worst["steps"] if worst else None,
        "ends_at": worst["step_source"] if worst else None,
        "regions": len(regions),
        "equal": counted == idiom.by_hand,
        "note": "; ".join(problems) or (None if regions else "not measured"),
    }


def measure(names: list[str], device: str) -> dict[str, Any]:
    missing = {name: [one for one in IDIOMS[name].needs if find_spec(one) is None] for name in names}
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        if missing[name]:
            note = f"{' and '.join(missing[name])} {'is' if len(missing[name]) == 1 else 'are'} not installed"
            rows[name] = {**row(name, {"regions": []}), "equal": None, "note": note}
    sessions = [[name for name in names if name not in rows and not IDIOMS[name].arguments]]
    sessions += [[name] for name in names if name not in rows and IDIOMS[name].arguments]
    environment: dict[str, Any] = {}
    for number, session in enumerate(filter(None, sessions), start=1):
        print(f"session {number} of {len(sessions)}: {', '.join(session)}", file=sys.stderr)
        document, output = run(session, device, IDIOMS[session[0]].arguments)
        environment = environment or document["environment"]
        rows |= {name: row(name, document) for name in session}
        if not all(rows[name]["equal"] for name in session):
            print(textwrap.indent(output[-6000:], "    "), file=sys.stderr)
    return {"environment": environment, "rows": [rows[name] for name in names]}


def table(documents: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table, a column for each of them."""
    columns = [device_of(document) for document in documents]
    lines = [f"| idiom | by hand | why | {' | '.join(columns)} |", "|---|---|---|" + "---|" * len(columns)]
    found = [{one["idiom"]: one for one in document["rows"]} for document in documents]
    for name, idiom in IDIOMS.items():
        cells = [cell(rows[name]) if name in rows else "" for rows in found]
        if not any(cells):
            continue
        lines.append(f"| {name} | {idiom.by_hand} | {idiom.why} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def table_of_results() -> str:
    """Return the newest results of each device as a Markdown table."""
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted((ROOT / "benchmarks" / "results").glob("*/idioms-*.json")):
        document = json.loads(path.read_text())
        newest[device_of(document)] = document
    return table([newest[device] for device in sorted(newest, reverse=True)])


def device_of(document: dict[str, Any]) -> str:
    environment = document["environment"]
    return environment.get("gpu") or environment.get("device") or "nothing"


def cell(one: dict[str, Any]) -> str:
    if one["counted"] is None:
        return one["note"]
    return str(one["counted"]) if one["equal"] else f"**{one['counted']}**"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("simulated", "cuda"), default="simulated")
    parser.add_argument("--only", action="append", choices=list(IDIOMS), help="run this idiom; may be repeated")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    document = measure(options.only or list(IDIOMS), options.device)
    print(table([document]))
    ran = [one for one in document["rows"] if one["equal"] is not None]
    print(f"{sum(one['equal'] for one in ran)} of {len(ran)} counts are those by hand; {len(document['rows'])} idioms")
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(one["equal"] for one in ran) else 1


if __name__ == "__main__":
    sys.exit(main())
