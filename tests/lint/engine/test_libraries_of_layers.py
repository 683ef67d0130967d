"""Forms that libraries of flows, simulators and agents are written in."""

from __future__ import annotations

import pytest
from gpusync_lint.model.levels import Heat

HEAD = """
import numpy as np
import torch
from torch import nn
device = torch.device("cuda")
"""
PROGRAMS = {
    "indices that NumPy returns as a tuple": """
class Triangle(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.lower, self.n = np.tril_indices(n), n
        self.weight = nn.Parameter(torch.zeros(n * (n + 1) // 2))
    def forward(self, x):
        full = self.weight.new_zeros(self.n, self.n)
        full[self.lower[0], self.lower[1]] = self.weight  # waits
        rows, columns = np.nonzero(np.eye(self.n))
        full[rows, columns] = x  # waits
        full[np.where(np.eye(self.n) > 0)] = x  # waits
        full[np.where(np.eye(self.n) > 0, 1, 0).shape[0] - 1] = x
        for part in np.split(np.arange(self.n), 2):
            full[part] = x  # waits
        return full
net = Triangle(4).to(device)
for i in range(9):
    net(torch.zeros(4, device=device))
""",
    "a module that is named as what prepares data": """
class Transform(nn.Module):
    pass
class Reverse(Transform):
    def __init__(self, n):
        super().__init__()
        self.scale, self.n = nn.Parameter(torch.ones(n)), n
    def forward(self, x):
        back = torch.arange(self.n - 1, -1, -1)
        return x * self.scale[back]  # waits
net = Reverse(4).to(device)
for i in range(9):
    net(torch.zeros(4, device=device))
""",
    "data by name": """
def convert(array, place: str):
    return torch.tensor(data=array, dtype=torch.float32, device=place)  # waits
net = nn.Linear(4, 4).to(device)
for i in range(9):
    net(convert(np.zeros(4), "cuda:0"))
""",
    "what is no tensor after all": """
def to_torch(x, place):
    if type(x) is dict:
        return {key: to_torch(value, place) for key, value in x.items()}
    elif torch.is_tensor(x):
        return x.double()
    return torch.tensor(x, device=place)  # waits
net = nn.Linear(4, 4).to(device)
for i in range(9):
    y = to_torch(net(to_torch({"x": i}, device)["x"]), device)
""",
    "distributions of the project": """
class Squashed(torch.distributions.Normal):
    def __init__(self, loc, scale, top):
        super().__init__(loc, scale)  # waits
        self.top = top
class Unchecked(torch.distributions.Normal):
    def __init__(self, loc, scale):
        super().__init__(loc, scale, validate_args=False)
class Named(torch.distributions.Normal):
    def __init__(self, loc, scale):
        torch.distributions.Normal.__init__(self, loc, scale)  # waits
class Changed(torch.distributions.TransformedDistribution):
    def __init__(self, base):
        super().__init__(base, [])
net = nn.Linear(4, 4).to(device)
for i in range(9):
    y = net(torch.zeros(4, device=device))
    Squashed(y, y.exp(), 1)
    Unchecked(y, y.exp())
    Named(y, y.exp())
    Changed(Unchecked(y, y.exp()))
""",
    "the declared type of a tuple whose default is a number": """
class Policy:
    def __init__(self, net, alpha: float | tuple[float, torch.Tensor] = 0.2):
        self.net = net
        if isinstance(alpha, tuple):
            self.target, self.log_alpha = alpha
            self.alpha = self.log_alpha.exp()
        else:
            self.alpha = alpha
    def learn(self, x):
        self.net(x).sum().backward()
        return self.alpha.item()  # waits
policy = Policy(nn.Linear(4, 4).to(device))
for i in range(9):
    policy.learn(torch.zeros(4, device=device))
""",
    "a simulation": """
class Integrator:
    def __init__(self, where):
        self.where = where
    def step(self, times):
        for _ in range(times):
            self.where += 0.1
        return self.where.cpu()  # waits
def step(x):
    return x / 2 if x.max() > 0 else x  # waits
def simulate(times):
    world = Integrator(torch.zeros(4, device=device))
    for i in range(times):
        world.step(3)
        print(world.where.max().item())  # waits
    x = world.where
    for i in range(times):
        x = step(x)
    for i in range(times):
        x = x.cpu()
simulate(9)
""",
    "targets of one assignment": """
net = nn.Linear(4, 4).to(device)
def spline(x):
    y, slope = torch.zeros_like(x), torch.zeros_like(x)
    inside_interval_mask = x > 0
    if torch.any(inside_interval_mask):  # waits
        y[inside_interval_mask], slope[inside_interval_mask] = parts(x)  # waits
    return y, slope
def parts(x):
    return x.flatten(), x.abs().flatten()
host, other = torch.zeros(4), torch.zeros(4)
for i in range(9):
    y, slope = spline(net(torch.zeros(4, device=device)))
    host[:], other[:] = torch.ones(4), slope  # waits
    y, host[:] = torch.ones(4), torch.ones(4)
""",
    "dicts of which a loop replaces the values": """
net = nn.Linear(4, 4).to(device)
for i in range(9):
    batch = {"x": np.zeros((4, 4)), "u": np.zeros(4)}
    for key in batch.keys():
        if key == "u":
            batch[key] = torch.tensor(batch[key], dtype=torch.long)
        else:
            batch[key] = torch.tensor(batch[key], dtype=torch.float32)
    x, u = batch["x"], batch["u"]
    y = net(x.cuda())  # waits
    u = u.cuda()  # waits
    sums = {"x": torch.zeros(4), "y": torch.zeros(4)}
    for key, value in sums.items():
        sums[key] = value.cuda()  # waits
    print(sums["y"].sum().item())  # waits
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_lines_that_wait_in_every_step(lint, name):
    source = HEAD + PROGRAMS[name]
    marked = [number for number, line in enumerate(source.split("\n"), 1) if line.endswith("# waits")]
    assert sorted({finding.span.line for finding in lint(source) if finding.heat is Heat.STEP}) == marked
