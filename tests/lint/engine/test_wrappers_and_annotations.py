"""Modules whose base classes or annotations say more than the calls do.

The lines marked with `# waits` wait in every step, and no other line of the loop does: each program was run on the
simulated device.
"""

from __future__ import annotations

import pytest
from gpusync_lint.model.levels import Heat

HEAD = """
import torch
import torch.nn as nn
device = torch.device("cuda")
"""
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
    def forward(self, x):
        y = self.layer(x)
        return y.sum(), y[y > 0].sum()  # waits
"""
STEPS = """
opt = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    x = torch.randn(5, 4, device=device)
    first, second = model(x)
    loss = first + second
    opt.zero_grad()
    loss.backward()  # waits
    opt.step()
"""
PROGRAMS = {
    "a subclass of a wrapper calls the module in it": """
class Several(nn.DataParallel):
    def __init__(self, module, number):
        super().__init__(module)
        self.number = number
model = Net().to(device)
if torch.cuda.device_count() > 1:
    model = Several(model, 2)
"""
    + STEPS,
    "only a subclass of a wrapper": """
class Several(torch.nn.parallel.DataParallel):
    def __init__(self, module, number):
        super().__init__(module)
model = Several(Net().to(device), 1)
"""
    + STEPS,
    "a subclass of a wrapper that only looks up attributes": """
class Several(nn.DataParallel):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)
model = Several(Net().to(device))
"""
    + STEPS,
    "a subclass of a wrapper with a forward of its own": """
class Several(nn.DataParallel):
    def forward(self, *inputs, **options):
        return self.module(*inputs, **options)
model = Several(Net().to(device))
"""
    + STEPS,
    "an annotation that means a class and names an instance": """
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
    def forward(self, x):
        return self.layer(x)
    def observe(self, *batch):
        if (batch[0] > 9).any():  # waits
            return None
        return self(batch[0]).mean()
known = {}
known[Plain.__name__] = Plain
def class_of(name: str) -> Plain:
    return known[name]
def made(name: str) -> Plain:
    return class_of(name)()
def train(model: Plain):
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(8):
        loss = model.observe(torch.randn(5, 4, device=device))
        opt.zero_grad()
        loss.backward()
        opt.step()
train(made("Plain").to(device))
""",
    "an annotation of a module beside a guess": """
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
    def forward(self, x):
        return self.layer(x)
    def observe(self, *batch):
        if (batch[0] > 9).any():  # waits
            return None
        return self(batch[0]).mean()
def train(model: Plain):
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(8):
        loss = model.observe(torch.randn(5, 4, device=device))
        opt.zero_grad()
        loss.backward()
        opt.step()
train(nn.Identity()(Plain().to(device)))
""",
    "a loss of torch's own base class": """
class Loss(nn.modules.loss._Loss):
    def forward(self, output):
        loss = output.mean()
        print(loss.item())  # waits
        return loss
model = nn.Linear(4, 3).to(device)
criterion = Loss()
opt = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    loss = criterion(model(torch.randn(5, 4, device=device)))
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "a number that another call gives as a device": """
model = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(model.parameters(), 0.1)
def batch(place):
    return torch.tensor([[1.0, 2.0, 3.0, 4.0]], device=place)  # waits
def show():
    print(batch(torch.device("cpu")))
def train(gpu):
    for step in range(8):
        loss = model(batch(gpu)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
show()
train(0)
""",
    "tensors that were computed without a graph": """
class Prior(nn.Module):
    def __init__(self):
        super().__init__()
        self.means = nn.Parameter(torch.randn(6, 4))
        self.out = nn.Linear(4, 3)
    def forward(self, x):
        return self.out(x)
    @torch.no_grad()
    def sample(self):
        z = self.means[torch.randint(0, 6, (5,)), :]  # waits
        return z * 2
    def look(self):
        with torch.no_grad():
            z = self.means[torch.randint(0, 6, (5,))]  # waits
        return z
    def tracked(self):
        return self.means[torch.randint(0, 6, (5,)), :]  # waits
model = Prior().to(device)
opt = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    opt.zero_grad()
    model(model.sample()).mean().backward()
    model(model.look()).mean().backward()
    model(model.tracked()).mean().backward()  # waits
    opt.step()
""",
    "indices that are lists and arrays": """
import numpy
chosen = numpy.array([0, 2])
places = torch.tensor([0, 2])
weight = torch.randn(6, 4, device=device, requires_grad=True)
opt = torch.optim.SGD([weight], 0.1)
for step in range(8):
    first = weight[chosen].sum()  # waits
    first.backward()
    second = weight[:, chosen].sum()  # waits
    second.backward()
    third = weight[[0, 2]].sum()  # waits
    third.backward()
    fourth = weight[places].sum()  # waits
    fourth.backward()  # waits
    opt.step()
""",
    "anomaly detection around a backward pass": """
model = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    with torch.autograd.set_detect_anomaly(True):
        loss = model(torch.randn(5, 4, device=device)).mean()
        opt.zero_grad()
        loss.backward()  # waits
        opt.step()
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_lines_that_wait_in_every_step(lint, name):
    program = PROGRAMS[name]
    source = HEAD + (NET if "Net()" in program else "") + program
    marked = [number for number, line in enumerate(source.split("\n"), 1) if line.endswith("# waits")]
    assert sorted({finding.span.line for finding in lint(source) if finding.heat is Heat.STEP}) == marked
