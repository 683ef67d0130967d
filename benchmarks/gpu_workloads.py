"""Our count beside torch.profiler's, on workloads of many kinds.

usage: gpu_workloads.py [--steps N] [--json OUT] [NAME...]

Each workload is set up anew and run twice, once counted by `record()` and once by torch.profiler; a run before both
loads libraries and grows pools. The synchronize calls of the two runs must be equal, kind by kind. The profiler makes
calls of its own when it starts and stops; they are counted on an empty profile and taken off. A workload whose packages
are not there is named and left out.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from training_steps import GPT

from pytest_gpusync import record
from pytest_gpusync.model.line_counts import line_counts

SYNCHRONIZE = {
    "cudaStreamSynchronize": "stream",
    "cudaDeviceSynchronize": "device",
    "cudaEventSynchronize": "event",
    "cuStreamSynchronize": "stream",
    "cuCtxSynchronize": "device",
    "cuEventSynchronize": "event",
}
Run = Callable[[int], None]
"""Runs so many steps."""


def looped(step: Callable[[], object]) -> Run:
    def run(steps: int) -> None:
        for _ in range(steps):
            step()

    return run


def gpt() -> Run:
    """A small GPT in bf16 that logs its loss every fifth step and clips gradients."""
    model = GPT(vocabulary=512, length=128, layers=4, width=256).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = torch.randint(0, 512, (4096,))

    def run(steps: int) -> None:
        for number in range(steps):
            starts = torch.randint(0, 4096 - 129, (8,))
            ids = torch.stack([data[start : start + 129] for start in starts]).pin_memory().cuda(non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if number % 5 == 0:
                loss.item()

    return run


def resnet50_amp() -> Run:
    """ResNet-50 in fp16 with a GradScaler, blocking copies of images, accuracy read every step."""
    from torchvision.models import resnet50

    model = resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")

    def step() -> float:
        images, target = torch.randn(16, 3, 128, 128).cuda(), torch.randint(0, 1000, (16,)).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(images)
            loss = functional.cross_entropy(output, target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return (output.argmax(1) == target).float().mean().item()

    return looped(step)


def lstm() -> Run:
    """An LSTM over packed sequences of different lengths."""
    model, head = nn.LSTM(64, 128, 2, batch_first=True).cuda(), nn.Linear(128, 1).cuda()
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])

    def step() -> None:
        batch = torch.randn(16, 40, 64, device="cuda")
        lengths = torch.randint(5, 40, (16,)).sort(descending=True).values
        packed = nn.utils.rnn.pack_padded_sequence(batch, lengths, batch_first=True)
        _, (hidden, _) = model(packed)
        loss = head(hidden[-1]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return looped(step)


def detection() -> Run:
    """A step of a detector: boxes chosen by score, non-maximum suppression, features pooled per box."""
    from torchvision.ops import batched_nms, roi_align

    backbone = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1)).cuda()
    head = nn.Linear(64 * 49, 4).cuda()
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.01)

    def step() -> None:
        features = backbone(torch.randn(2, 3, 256, 256, device="cuda"))
        corners = torch.rand(2, 500, 2, device="cuda") * 200
        boxes = torch.cat([corners, corners + 8 + torch.rand(2, 500, 2, device="cuda") * 40], -1)
        scores = torch.rand(2, 500, device="cuda")
        chosen = []
        for image in range(2):
            confident = scores[image] > 0.5
            kept = batched_nms(
                boxes[image][confident],
                scores[image][confident],
                torch.zeros(int(confident.sum()), device="cuda", dtype=torch.long),
                0.5,
            )
            chosen.append(boxes[image][confident][kept[:20]])
        pooled = roi_align(features, chosen, 7, 0.25)
        loss = functional.smooth_l1_loss(head(pooled.flatten(1)), torch.cat(chosen) / 256)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return looped(step)


def dcgan() -> Run:
    """A generator and a discriminator that read both losses and two scores every step."""
    generator = nn.Sequential(
        nn.ConvTranspose2d(64, 64, 4), nn.BatchNorm2d(64), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 4), nn.Tanh()
    ).cuda()
    judge = nn.Sequential(
        nn.Conv2d(3, 64, 4, 4), nn.LeakyReLU(0.2), nn.Conv2d(64, 1, 4), nn.Flatten(), nn.Sigmoid()
    ).cuda()
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4)
    criterion = nn.BCELoss()

    def step() -> tuple[float, ...]:
        judge.zero_grad()
        real = judge(torch.randn(32, 3, 16, 16).cuda())
        loss_real = criterion(real, torch.full((32, 1), 1.0, device="cuda"))
        loss_real.backward()
        fake = generator(torch.randn(32, 64, 1, 1, device="cuda"))
        score = judge(fake.detach())
        loss_fake = criterion(score, torch.full((32, 1), 0.0, device="cuda"))
        loss_fake.backward()
        of_judge.step()
        generator.zero_grad()
        loss = criterion(judge(fake), torch.full((32, 1), 1.0, device="cuda"))
        loss.backward()
        of_generator.step()
        return (loss_real + loss_fake).item(), loss.item(), real.mean().item(), score.mean().item()

    return looped(step)


def ppo() -> Run:
    """Rollouts through a host environment, minibatch updates, an early stop on the measured divergence."""
    policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4)).cuda()
    optimizer = torch.optim.Adam(policy.parameters(), eps=1e-5)

    def step() -> None:
        states, actions, before = [], [], []
        state = torch.zeros(16, 8)
        for _ in range(8):
            on_device = state.to("cuda")
            with torch.no_grad():
                chances = torch.distributions.Categorical(logits=policy(on_device), validate_args=False)
                action = chances.sample()
            states.append(on_device)
            actions.append(action)
            before.append(chances.log_prob(action))
            state = state + action.cpu().unsqueeze(1) * 0.01
        all_states, all_actions, old = torch.cat(states), torch.cat(actions), torch.cat(before)
        for _ in range(2):
            for part in torch.randperm(128).split(32):
                chosen = part.to("cuda")
                chances = torch.distributions.Categorical(logits=policy(all_states[chosen]))
                ratio = (chances.log_prob(all_actions[chosen]) - old[chosen]).exp()
                loss = -torch.min(ratio, ratio.clamp(0.8, 1.2)).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                optimizer.step()
            if (1 - ratio).abs().mean() > 10:
                break

    return looped(step)


def hf_trainer() -> Run:
    """Hugging Face's Trainer on a small GPT-2, logging every second step."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    data = [{"input_ids": torch.randint(0, 256, (64,)), "labels": torch.randint(0, 256, (64,))} for _ in range(256)]

    def run(steps: int) -> None:
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2))
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder,
                max_steps=steps,
                per_device_train_batch_size=4,
                logging_steps=2,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            )
            Trainer(model=model, args=arguments, train_dataset=data).train()

    return run


def lightning_trainer() -> Run:
    """Lightning's Trainer with a progress-bar metric."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = self.net(batch[0]).square().mean()
            self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(512, 32)), batch_size=4)

    def run(steps: int) -> None:
        torch.manual_seed(0)
        lightning.Trainer(
            max_steps=steps,
            accelerator="gpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            gradient_clip_val=1.0,
        ).fit(Module(), loader)

    return run


def pyg() -> Run:
    """A graph network of PyTorch Geometric over batches of graphs, pooled per graph."""
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = GCNConv(16, 32), GCNConv(32, 32), nn.Linear(32, 2)

        def forward(self, data: Any) -> torch.Tensor:
            hidden = self.first(data.x, data.edge_index).relu()
            return self.head(global_mean_pool(self.second(hidden, data.edge_index).relu(), data.batch))

    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> int:
        graphs = [Data(x=torch.randn(20, 16), edge_index=torch.randint(0, 20, (2, 60))) for _ in range(8)]
        batch = Batch.from_data_list(graphs).to("cuda")
        output = model(batch)
        target = torch.randint(0, 2, (8,)).cuda()
        functional.cross_entropy(output, target).backward()
        optimizer.step()
        optimizer.zero_grad()
        return int((output.argmax(1) == target).sum())

    return looped(step)


def cuda_graphs() -> Run:
    """A step captured once and replayed, fed from pinned memory, its loss read every second step."""
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(64, 256, device="cuda")
    host = torch.randn(64, 256).pin_memory()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            model(data).square().mean().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()

    def run(steps: int) -> None:
        for number in range(steps):
            data.copy_(host, non_blocking=True)
            graph.replay()
            if number % 2:
                loss.item()

    return run


WORKLOADS: dict[str, tuple[Callable[[], Run], tuple[str, ...]]] = {
    "gpt": (gpt, ()),
    "resnet50_amp": (resnet50_amp, ("torchvision",)),
    "lstm": (lstm, ()),
    "detection": (detection, ("torchvision",)),
    "dcgan": (dcgan, ()),
    "ppo": (ppo, ()),
    "hf_trainer": (hf_trainer, ("transformers", "accelerate")),
    "lightning": (lightning_trainer, ("lightning",)),
    "pyg": (pyg, ("torch_geometric",)),
    "cuda_graphs": (cuda_graphs, ()),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_workloads.py needs a GPU, and there is none", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    own = profiled(lambda: None) and profiled(lambda: None)
    rows = []
    print(f"{'workload':<14}{'per step':>9}  {'ours':<28}{'torch.profiler':<28}")
    for name in options.names or WORKLOADS:
        make, packages = WORKLOADS[name]
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            print(f"{name:<14} left out: {', '.join(missing)} not installed")
            rows.append({"workload": name, "left_out": missing})
            continue
        rows.append(compare(name, make, options.steps, own))
    differ = [row["workload"] for row in rows if "ours" in row and row["ours"] != row["profiler"]]
    print(f"{sum('ours' in row for row in rows)} workloads, {len(differ)} counts differ {' '.join(differ)}".rstrip())
    if options.json:
        versions = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
        Path(options.json).write_text(json.dumps({**versions, "steps": options.steps, "rows": rows}, indent=1) + "\n")
    return 1 if differ else 0


def compare(name: str, make: Callable[[], Run], steps: int, own: Counter[str]) -> dict[str, Any]:
    """Run one workload under both counters."""

    def fresh() -> Run:
        gc.collect()
        torch.manual_seed(0)
        run = make()
        torch.manual_seed(1)
        run(3)
        torch.manual_seed(2)
        return run

    fresh()(steps)
    run = fresh()
    with record(name, recorder="cupti") as region:
        run(steps)
    measurement = region.result()
    ours = Counter(sync.kind for sync in measurement.all_syncs if sync.kind in SYNCHRONIZE.values())
    run = fresh()
    theirs = profiled(lambda: run(steps))
    theirs.subtract(own)
    seen, expected = dict(sorted((+ours).items())), dict(sorted((+theirs).items()))
    mark = "" if seen == expected else "  DIFFER"
    print(f"{name:<14}{sum(seen.values()) / steps:>9.1f}  {seen!s:<28}{expected!s:<28}{mark}", flush=True)
    if mark:
        for line in line_counts(measurement)[:12]:
            print(f"    {line.path}:{line.line} {line.function} {sum(line.by_step) + line.outside_measured_steps}")
    if measurement.problem:
        print(f"    {measurement.problem}")
    return {"workload": name, "ours": seen, "profiler": expected, "problem": measurement.problem}


def profiled(call: Callable[[], object]) -> Counter[str]:
    """Return the synchronize calls that torch.profiler lists for `call`."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        call()
    return Counter(SYNCHRONIZE[event.name] for event in profiler.events() if event.name in SYNCHRONIZE)


if __name__ == "__main__":
    sys.exit(main())
