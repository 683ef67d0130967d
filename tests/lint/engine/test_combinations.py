"""Values that cross functions, classes, containers and lambdas, and keep their kind and device on the way.

The lines marked with `# waits` wait in every step, and no other line that runs in every step does: each program was run
on the simulated device.
"""

from __future__ import annotations

import pytest
from gpusync_lint.model.levels import Heat

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
device = torch.device("cuda")
model = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(8, 4, device=device)
"""
GRAPHS = """
class Graph:
    def __init__(self, nodes, links):
        self.nodes, self.links = nodes, links
    def to(self, where):
        return Graph(self.nodes.to(where), self.links.to(where))  # waits
class Graphs(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return Graph(torch.randn(6, 4), torch.randint(0, 6, (2, 9))), index
"""
PROGRAMS = {
    "a loader whose class passes a collate function": GRAPHS
    + """
class Collate:
    def __call__(self, samples):
        graphs, _ = zip(*samples)
        return Graph(torch.cat([one.nodes for one in graphs]), torch.cat([one.links for one in graphs], 1))
class Loader(DataLoader):
    def __init__(self, data, size):
        super().__init__(data, size, collate_fn=Collate())
for batch in Loader(Graphs(), 2):
    batch = batch.to(device)
    if batch.nodes.mean() > 99:  # waits
        break
    model(batch.nodes).mean().backward()
    opt.step()
""",
    "columns of samples that are told apart": GRAPHS
    + """
def collate(samples):
    columns = list(zip(*samples))
    columns[1] = torch.tensor(columns[1])
    return tuple(columns)
for graphs, labels in DataLoader(Graphs(), 2, collate_fn=collate):
    graphs = [one.to(device) for one in graphs]
    nodes = graphs[0].nodes
    kept = nodes[nodes.sum(1) > -99]  # waits
    with torch.no_grad():
        model(kept)
    model(nodes).mean().backward()
    opt.step()
""",
    "a mask in one call and an index in another": """
class Rows:
    def __init__(self, rows):
        self.rows = rows
    def to(self, where):
        return Rows(self.rows.to(where))
    def __getitem__(self, kept):
        return Rows(self.rows[kept])  # waits
rows = Rows(x)
order = torch.arange(4, device=device)
for step in range(20):
    with torch.no_grad():
        some = rows[order][x[:4, 0] > -99]
    model(some.rows).mean().backward()
    opt.step()
""",
    "a lambda that another function calls": """
class Holder:
    def __init__(self):
        self.value = torch.zeros(4, 4)
    def apply(self, function):
        return function(self.value)
    def on(self, where):
        return self.apply(lambda one: one.to(where))  # waits
holder = Holder()
for step in range(20):
    moved = holder.on(device)
    print(moved.sum().item())  # waits
    model(moved).mean().backward()
    opt.step()
""",
    "a pair in one branch and one value in the other": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
    def forward(self, x, target=None):
        y = self.fc(x)
        if target is None:
            return y
        return y, {"ce": F.cross_entropy(y, target)}
def run(net, x, target):
    return net(x, target)
net = Net().to(device)
opt = torch.optim.SGD(net.parameters(), 0.1)
target = torch.randint(0, 3, (8,), device=device)
for step in range(20):
    y, parts = run(net, x, target)
    if parts["ce"] > 99:  # waits
        break
    parts["ce"].backward()
    opt.step()
""",
    "a list whose elements have nothing in common": """
def evaluate(y):
    return [y.mean(), {"std": y.std(), "name": "y"}]
for step in range(20):
    loss, parts = evaluate(model(x))
    print(float(parts["std"]))  # waits
    loss.backward()
    opt.step()
""",
    "attributes by the prefix of their name": """
class Base:
    def __init__(self):
        self.loss_names = ["mean", "std"]
    def losses(self):
        return {name: float(getattr(self, "loss_" + name)) for name in self.loss_names}  # waits
class Fit(Base):
    def step(self):
        y = model(x)
        self.loss_mean, self.loss_std = y.mean(), y.std()
        self.loss_mean.backward()
        opt.step()
fit = Fit()
for step in range(20):
    fit.step()
    print(fit.losses())
""",
    "a weight of a class that extends a layer": """
class Scaled(nn.Linear):
    def forward(self, x):
        if self.weight.abs().max() > 99:  # waits
            return x
        return F.linear(x, self.weight, self.bias)
net = Scaled(4, 3).to(device)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(20):
    net(x).mean().backward()
    opt.step()
""",
    "tensors that an autograd function has saved": """
class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        print(x[x.abs() < 1].sum())  # waits
        return g
for step in range(20):
    Clip.apply(model(x)).mean().backward()
    opt.step()
""",
    "a layer that a device tensor chooses": """
layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]).to(device)
for step in range(20):
    chosen = x.sum(0)[:2].argmax()
    layers[chosen](x).mean().backward()  # waits
    opt.step()
""",
    "a batch of which an item is replaced": """
class Views(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return [torch.randn(4), torch.randn(4)], index
for views, labels in DataLoader(Views(), 2):
    views[0] = views[0].cuda()  # waits
    rows = torch.randperm(2, device=device)
    first = views[0][rows]
    model(first).mean().backward()
    opt.step()
""",
    "a function that moves what is nested": """
def move(what, where):
    if torch.is_tensor(what):
        return what.to(where)  # waits
    if isinstance(what, dict):
        return {key: move(value, where) for key, value in what.items()}
    if isinstance(what, (list, tuple)):
        return [move(value, where) for value in what]
    return what
class Dicts(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return {"x": torch.randn(4), "name": str(index)}
def collate(samples):
    return {"x": torch.stack([one["x"] for one in samples]), "names": [one["name"] for one in samples]}
for batch in DataLoader(Dicts(), 2, collate_fn=collate):
    batch = move(batch, device)
    large = batch["x"] > 9
    with torch.no_grad():
        model(batch["x"][large.any(1)])  # waits
    model(batch["x"]).mean().backward()
    opt.step()
""",
    "a tensor or a tuple": """
def scores(values, extras=()):
    result = values * 2
    if extras:
        result = (result, *extras)
    return result
def powers(values, count=1):
    found = [values ** number for number in range(1, count + 1)]
    return found[0] if len(found) == 1 else found
for step in range(20):
    with torch.no_grad():
        if scores(x).sum() > 99:  # waits
            break
        both = scores(x, (x + 1,))
        if both[1].sum() > 99:  # waits
            break
        if isinstance(both, tuple):
            both = both[0]
        if both.sum() > 99:  # waits
            break
        if powers(x).sum() > 99:  # waits
            break
        first, second = powers(x, 2)
        if second.sum() > 99:  # waits
            break
        if both is not None and powers(x, 3):
            pass
    model(x).mean().backward()
    opt.step()
""",
    "a container that is moved both ways": """
class Held:
    def __init__(self, first, second):
        self.first, self.second = first, second
    def to(self, where):
        found = {name: getattr(self, name) for name in ("first", "second")}
        return Held(**{name: value.to(where) for name, value in found.items()})  # waits
held = Held(x, x)
for step in range(20):
    held = held.to("cpu").to(device)
    model(held.first).mean().backward()
    opt.step()
""",
    "a tracker of the project": """
class Tracker:
    def __init__(self):
        self.kept = {}
    def add_scalar(self, name, value, step):
        self.kept[name] = value
tracker = Tracker()
for step in range(20):
    loss = model(x).mean()
    tracker.add_scalar("loss", loss.detach(), step)
    loss.backward()
    opt.step()
""",
    "masks that a graph gives by name": """
graph = read_graph().to(device)
for step in range(20):
    out = model(graph.x)
    for _, mask in graph("train_mask", "test_mask"):
        out[mask].sum()  # waits
    out.mean().backward()
    opt.step()
""",
    "parts of a container that a loop moves, each under its key": """
for step in range(20):
    parts = {"a": torch.zeros(8, 4), "b": torch.ones(8, 4)}
    for key in parts:
        parts[key] = parts[key].to(device)  # waits
    rows = [torch.zeros(8, 4) for _ in range(3)]
    for i in range(len(rows)):
        rows[i] = rows[i].cuda()  # waits
    total = model(x)
    for i in range(len(rows)):
        total = total + rows[i].sum()
    total.mean().backward()
    opt.step()
for batch in DataLoader([]):
    for key in batch.keys():
        batch[key] = batch[key].to(device)  # waits
    model(batch["x"]).mean().backward()
    opt.step()
""",
    "an optimizer of the project that evaluates a closure": """
class Descent(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, dict(lr=lr, tolerance=1e-9))
        self._params = self.param_groups[0]["params"]
    def _gradient(self):
        return torch.cat([p.grad.view(-1) for p in self._params])
    def _evaluate(self, closure, t, d):
        offset = 0
        for p in self._params:
            p.data.add_(d[offset:offset + p.numel()].view_as(p), alpha=t)
            offset += p.numel()
        return float(closure()), self._gradient()  # waits
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        group = self.param_groups[0]
        loss = float(closure())  # waits
        d = -self._gradient()
        if d.abs().max() <= group["tolerance"]:  # waits
            return loss
        slope = d.dot(d)
        if slope < group["tolerance"]:  # waits
            return loss
        return self._evaluate(closure, group["lr"], d)[0]
descent = Descent(model.parameters())
def closure():
    descent.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    return loss
for step in range(20):
    descent.step(closure)
""",
    "a line search that compares numbers": """
def cubic(t1, f1, g1, t2, f2, g2):
    d1 = g1 + g2 - 3 * (f1 - f2) / (t1 - t2)
    square = abs(d1) ** 2 - g1 * g2
    return square
def search(evaluate, t, d, f, slope, limit=3):
    for i in range(limit):
        f_new, g_new = evaluate(t, d)
        along = g_new.dot(d)
        if abs(along) <= 0.0 * slope:  # waits
            return t
        t = min(t * 2.0, 0.5 * (t + cubic(0.0, f, slope, t, f_new, along) * 0.0))  # waits
    return t
target = torch.randn(12, device=device)
def evaluate(t, d):
    moved = target + t * d
    return moved.pow(2).sum(), 2 * moved
for step in range(20):
    f, g = evaluate(0.0, target)
    t = search(evaluate, 0.1, -g, f, -g.dot(g))
    if g.norm(2) < 1e-9:  # waits
        break
    model(x).mean().backward()
    opt.step()
""",
    "lambdas that are called elsewhere": """
psnr = lambda value: -10.0 * torch.log(value) / torch.log(torch.tensor([10.0], device=device))  # waits
FORMATS = {"loss": lambda value: value.item()}  # waits
class Tracker:
    def __init__(self):
        self.convert = lambda value: float(value)  # waits
        self.rows = []
    def add(self, value):
        self.rows.append(self.convert(value))
tracker = Tracker()
def train():
    for step in range(20):
        loss = model(x).pow(2).mean()
        loss.backward()
        opt.step()
        tracker.add(psnr(loss.detach()).sum())
        FORMATS["loss"](loss)
train()
""",
    "a distribution of the project that does not validate by default": """
class Scores(torch.distributions.Distribution):
    arg_constraints = {"scores": torch.distributions.constraints.real}
    def __init__(self, scores, validate_args=False):
        self.scores = scores
        super().__init__(scores.shape[:1], scores.shape[1:], validate_args=validate_args)
class Chains(Scores):
    def __init__(self, scores, validate_args=False):
        super(Chains, self).__init__(scores, validate_args=validate_args)
for step in range(20):
    Chains(model(x)).scores.mean().backward()
    opt.step()
""",
    "classes that are dicts and lists": """
class Meter(dict):
    def add(self, **given):
        for key, value in given.items():
            count, total = self.get(key, (0, 0.0))
            self[key] = (count + 1, total + value)
    def mean(self, key):
        count, total = self[key]
        return total / count
class Trace(dict):
    def log(self, key, value):
        if key not in self:
            self[key] = []
        self[key].append(value)
    def last(self, key):
        return self[key][-1]
class Counts(dict):
    def put(self, **given):
        for key, value in given.items():
            self[key] = value + 1
class History(list):
    def push(self, value):
        self.append(value)
    def smooth(self):
        return sum(self) / len(self)
meter, trace, counts, history = Meter(), Trace(), Counts(), History()
for step in range(20):
    loss = model(x).pow(2).mean()
    loss.backward()
    opt.step()
    meter.add(loss=loss.detach())
    trace.log("loss", loss.detach())
    counts.put(steps=step)
    history.push(loss.detach())
    print("%.3f" % meter.mean("loss"))  # waits
    if trace.last("loss") > 99:  # waits
        break
    for key, value in counts.items():
        print(key, f"{value:.3f}")
    if counts["steps"] > 99:
        break
    if history.smooth() > 99:  # waits
        break
""",
    "a buffer on the device that takes numbers": """
class Buffer:
    def __init__(self):
        self.priorities = torch.zeros(64, device=device)
        self.rows = torch.zeros(64, 4, device=device)
        self.next = 0
    def add(self):
        self.priorities[self.next] = self.priorities.max()
        self.priorities[self.next] = 1.0  # waits
        self.rows[self.next] = 2.0
        self.rows[self.next, 1] = 2.0  # waits
        self.next += 1
buffer = Buffer()
for step in range(20):
    model(x).mean().backward()
    opt.step()
    buffer.add()
""",
    "numbers of vectors as indices": """
for step in range(20):
    loss = model(x).mean()
    rows = [x[i] for i in torch.randperm(8)[:3]]
    for i in torch.randperm(8).long():
        loss = loss + x[i].mean()
    for i in torch.arange(3, device=device):
        loss = loss + x[i].mean()  # waits
    loss.backward()
    opt.step()
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_lines_that_wait_in_every_step(lint, name):
    source = HEAD + PROGRAMS[name]
    marked = [number for number, line in enumerate(source.split("\n"), 1) if line.endswith("# waits")]
    assert sorted({finding.span.line for finding in lint(source) if finding.heat is Heat.STEP}) == marked
