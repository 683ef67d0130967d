"""Programs whose structure decides how often their lines wait: trainers, options, callbacks, packages of models.

Written by hand; each stands for a way to write such code. `main.py` is run. A step ends at `optimizer.step()`, and at
a line with the comment `# step`.
"""

from __future__ import annotations

PROGRAMS = {
    "options whose periods are one": {
        "main.py": """\
import argparse
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Config:
    log_interval: int = 1
    save_interval: int = 5

def log(i, loss, every=1):
    if i % every == 0:
        print(loss.item())

class Runner:
    def __init__(self, config, args):
        self.config, self.args = config, args
        self.net = nn.Linear(4, 2).to("cuda")
        self.opt = torch.optim.Adam(self.net.parameters())

    def fit(self, batches):
        for i, (x, y) in enumerate(batches):
            loss = nn.functional.cross_entropy(self.net(x.to("cuda")), y.to("cuda"))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if i % self.config.log_interval == 0:
                print(float(loss))
            if i % self.args.print_every == 0 and i > 0:
                print(loss.item())
            if i % self.config.save_interval == 4:
                print(loss.cpu())
            log(i, loss)

parser = argparse.ArgumentParser()
parser.add_argument("--print-every", type=int, default=1)
batches = [(torch.randn(4, 4), torch.randint(0, 2, (4,))) for _ in range(10)]
Runner(Config(), parser.parse_args([])).fit(batches)
""",
    },
    "denoising with a callback": {
        "main.py": """\
import torch
from torch import nn

class Pipeline:
    def __init__(self, net, steps):
        self.net, self.betas = net, torch.linspace(1e-4, 0.02, steps)

    @torch.no_grad()
    def __call__(self, n, callback=None, callback_steps=1):
        x = torch.randn(n, 4, device="cuda")
        for i, t in enumerate(torch.arange(len(self.betas)).flip(0)):
            x = x - self.betas[t].to(x.device) * self.net(x)
            if callback is not None and i % callback_steps == 0:
                callback(i, x)
        return x.cpu().numpy()

def show(i, x):
    print(i, x.mean().item())

pipeline = Pipeline(nn.Linear(4, 4).cuda(), 4)
for prompt in ["a", "b", "c", "d"]:
    image = pipeline(2, callback=show)
    print(image.mean())  # step
""",
    },
    "decoding sentence by sentence": {
        "main.py": """\
import torch
from torch import nn

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(9, 8), nn.GRU(8, 8), nn.Linear(8, 9)

    def forward(self, token, hidden):
        y, hidden = self.rnn(self.embed(token).view(1, 1, -1), hidden)
        return self.out(y[0]).log_softmax(1), hidden

device = torch.device("cuda")

def evaluate(decoder, length=3):
    with torch.no_grad():
        hidden = torch.zeros(1, 1, 8, device=device)
        token = torch.tensor([[0]], device=device)
        words = []
        for _ in range(length):
            output, hidden = decoder(token, hidden)
            token = output.topk(1)[1].squeeze().detach()
            words.append(token.item())
        return words

decoder = Decoder().to(device)
for sentence in range(6):
    print(evaluate(decoder))  # step
""",
    },
    "a package of models that import each other": {
        "experiment.py": """\
import torch
from autoencoders import BaseVAE
class Experiment:
    def __init__(self, model):
        self.model = model
    def training_step(self, batch):
        losses = self.model.loss_function(*self.model(batch))
        self.shown = {name: value.item() for name, value in losses.items()}
        return losses["loss"]
""",
        "autoencoders/__init__.py": """\
from .base import *
from .vanilla import *
vae_models = {"VanillaVAE": VanillaVAE}
""",
        "autoencoders/base.py": """\
from torch import nn
from abc import abstractmethod
class BaseVAE(nn.Module):
    @abstractmethod
    def loss_function(self, *inputs):
        pass
""",
        "autoencoders/vanilla.py": """\
import torch
from autoencoders import BaseVAE
from torch import nn
class VanillaVAE(BaseVAE):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)
    def forward(self, x):
        z = self.encoder(x)
        if z.isnan().any():
            raise ValueError
        return self.decoder(z), x
    def loss_function(self, y, x):
        weight = torch.tensor(0.5).to(x.device)
        return {"loss": weight * (y - x).pow(2).mean()}
""",
        "main.py": """\
import torch
from autoencoders import vae_models
from experiment import Experiment
from torch.utils.data import DataLoader, TensorDataset

experiment = Experiment(vae_models["VanillaVAE"]().to("cuda"))
opt = torch.optim.Adam(experiment.model.parameters())
for x, in DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4):
    loss = experiment.training_step(x.to("cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    },
    "tables that are stored under a key of their own": {
        "main.py": """\
import torch
from torch import nn

basis, window = {}, {}

def spectrogram(y, fmax):
    if fmax not in basis:
        basis[f"{fmax}_{y.device}"] = torch.ones(4).to(y.device)
    if fmax not in window:
        window[fmax] = torch.ones(4).to(y.device)
    return y * basis[f"{fmax}_{y.device}"] * window[fmax]

net = nn.Linear(4, 4).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(8):
    loss = spectrogram(net(torch.randn(2, 4, device="cuda")), 8000).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    },
    "batches that a function maps": {
        "main.py": """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def nested_map(batch, function):
    if isinstance(batch, (list, tuple)):
        return type(batch)(nested_map(part, function) for part in batch)
    return function(batch)

class Learner:
    def __init__(self):
        self.model = nn.Linear(4, 1).cuda()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self, data, max_steps=None):
        device, step = next(self.model.parameters()).device, 0
        while True:
            for features in data:
                if max_steps is not None and step >= max_steps:
                    return
                features = nested_map(features, lambda x: x.to(device) if isinstance(x, torch.Tensor) else x)
                loss = (self.model(features[0]) - features[1]).abs().mean()
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                if torch.isnan(loss).any():
                    raise RuntimeError
                step += 1

Learner().train(DataLoader(TensorDataset(torch.randn(40, 4), torch.randn(40, 1)), batch_size=4), max_steps=12)
""",
    },
    "a trainer with phases": {
        "main.py": """\
import torch
from torch import nn

class Solver:
    def __init__(self, config):
        self.config = config
        self.device = torch.device(config["device"])
        self.net = nn.Linear(4, 4).to(self.device)
        self.optim = torch.optim.Adam(self.net.parameters())

    def run_phase(self, phase, data):
        self.net.train(phase == "train")
        loss_sum, correct = 0.0, 0
        for inputs, labels in data[phase]:
            inputs, labels = inputs.to(self.device), labels.to(self.device)
            with torch.set_grad_enabled(phase == "train"):
                outputs = self.net(inputs)
                loss = nn.functional.cross_entropy(outputs, labels)
                if phase == "train":
                    self.optim.zero_grad()
                    loss.backward()
                    self.optim.step()
                    loss_sum += loss.item()
            correct += (outputs.argmax(1) == labels).sum().item()
        return correct

    def fit(self, data, epochs):
        best = 0
        for epoch in range(epochs):
            for phase in ["train", "val"]:
                correct = self.run_phase(phase, data)
                if phase == "val" and correct > best:
                    best = correct
                    self.weights = {name: value.cpu() for name, value in self.net.state_dict().items()}

def batches():
    return [(torch.randn(2, 4), torch.randint(0, 4, (2,))) for _ in range(8)]

Solver({"device": "cuda"}).fit({"train": batches(), "val": batches()}, 3)
""",
    },
    "steps that are skipped or fail": {
        "main.py": """\
import torch
from torch import nn

class Trainer:
    def __init__(self, model):
        self.model, self.updates = model.cuda(), 0
        self.optimizer = torch.optim.Adam(model.parameters())

    def train_step(self, samples):
        logs = []
        for sample in samples:
            try:
                x = sample.cuda()
                loss = self.model(x).pow(2).sum()
                loss.backward()
                logs.append(loss.detach())
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise
                print(x.sum().item())
                continue
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if not torch.isfinite(norm):
            self.optimizer.zero_grad()
            return None
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1
        return sum(log.item() for log in logs)

def train(trainer, groups):
    for samples in groups:
        out = trainer.train_step(samples)
        if out is None:
            continue
        if trainer.updates >= 30:
            break

trainer, epoch = Trainer(nn.Linear(4, 2)), 0
groups = [[torch.randn(4, 4), torch.randn(4, 4)] for _ in range(6)]
while epoch < 3:
    train(trainer, groups)
    epoch += 1
""",
    },
    "buffers that are made when they are needed": {
        "main.py": """\
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.mask, self.cache = nn.Linear(width, width), None, {}

    def _mask(self, n, device):
        if self.mask is None or self.mask.size(0) < n:
            self.mask = torch.triu(torch.full((n, n), -1e9), 1).to(device)
        return self.mask[:n, :n]

    def _bias(self, n, device):
        key = (n, device)
        if key not in self.cache:
            self.cache[key] = torch.arange(n).float().to(device)
        return self.cache[key]

    def forward(self, x):
        n, scale = x.size(1), torch.tensor(float(x.size(-1)), device=x.device).sqrt()
        scores = self.q(x) @ x.transpose(1, 2) / scale + self._mask(n, x.device) + self._bias(n, x.device)
        if self.training:
            scores = scores * (torch.rand(n) > 0.1).to(x.device)
        return scores.softmax(-1) @ x

net = nn.Sequential(*[Attention(4) for _ in range(2)]).to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(9):
    loss = net(torch.randn(2, 5, 4).to("cuda")).pow(2).mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
    if i == 4:
        print(loss.item())
""",
    },
}
"""By name, the files of each program."""
