"""Values that reach a loop through containers, registries, decorators, mixins and other objects of Python.

The lines marked with `# waits` wait in every step, and no other line of the loop does: each program was run on the
simulated device.
"""

from __future__ import annotations

import pytest
from gpusync_lint.model.levels import Heat

HEAD = """
import functools
import itertools
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict, deque, namedtuple
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
device = torch.device("cuda")
loader = DataLoader(TensorDataset(torch.randn(12, 4), torch.randint(0, 3, (12,))), batch_size=4, pin_memory=True)
model = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(model.parameters(), 0.1)
def batches():
    for x, y in loader:
        yield x.to(device, non_blocking=True), y.to(device, non_blocking=True)
"""
MASKED = """
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
    def forward(self, x):
        h = self.fc(x)
        return h[h.sum(1) > -99]  # waits
"""
PROGRAMS = {
    "parts of a dict of layers": """
class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({"small": nn.Linear(4, 2), "large": nn.Linear(4, 3)})
    def forward(self, x):
        return {name: head(x) for name, head in self.heads.items()}
heads = Heads().to(device)
for x, y in batches():
    out = heads(x)
    if out["large"].mean() > 3:  # waits
        break
    if len(out) > 3:
        break
""",
    "copies of dataclasses, and their fields as a dict": """
from dataclasses import asdict, dataclass, replace
@dataclass
class Batch:
    x: torch.Tensor
    size: int = 4
batch = Batch(torch.ones(4, 4, device=device))
for x, y in batches():
    scaled = replace(batch, x=batch.x * 2)
    if scaled.x.mean() > 3:  # waits
        break
    if scaled.size > 9:
        break
    if asdict(batch)["x"].mean() > 3:  # waits
        break
""",
    "the state of an optimizer, and operators of a class": """
class Sum:
    def __init__(self, value):
        self.value = value
    def __add__(self, other):
        return self.value + other.value
adam = torch.optim.Adam(model.parameters())
for x, y in batches():
    loss = model(x).sum()
    adam.zero_grad()
    loss.backward()
    adam.step()
    state = adam.state[model.weight]
    if state["exp_avg"][0, 0] > 99:  # waits
        break
    if state["step"] > 99:
        break
    if Sum(loss) + Sum(loss) > 99999:  # waits
        break
""",
    "mapped functions, parts of results of torch, and the largest of several pairs": """
def total(row):
    return row.sum()
x = torch.randn(4, 4, device=device)
for _, y in batches():
    if torch.vmap(total)(x)[0] > 99:  # waits
        break
    found = torch.linalg.qr(x)
    if found.R[0, 0] > 99:  # waits
        break
    best = max([(x.mean(), 1), (x.sum(), 2)], key=lambda pair: pair[1])
    if best[0] > 99:  # waits
        break
    if best[1] > 99:
        break
    weights = torch.nn.utils.parameters_to_vector(model.parameters())
    if weights.norm() > 99:  # waits
        break
""",
    "a function of autograd, its context and its gradients": """
class Quantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, codes, steps=4):
        index = torch.cdist(x, codes).argmin(1)
        ctx.save_for_backward(x, index)
        ctx.shape = codes.shape
        if codes.sum() < -99:  # waits
            raise ValueError
        if steps > 9:
            steps = 9
        return codes[index], index
    @staticmethod
    def backward(ctx, grad, grad_index):
        x, index = ctx.saved_tensors
        if grad.abs().max() > 10:  # waits
            grad = grad.clamp(-10, 10)
        codes = torch.zeros(ctx.shape, device=grad.device)
        if ctx.shape[0] > 99 or not ctx.needs_input_grad[0]:
            return grad, codes, None
        codes[0] = x.mean().item()  # waits
        return grad, codes, None
quantize = Quantize.apply
codes = torch.randn(8, 3, device=device, requires_grad=True)
for x, y in batches():
    found, index = quantize(model(x), codes)
    opt.zero_grad()
    found.sum().backward()
    opt.step()
    names = index.tolist()  # waits
""",
    "the gradient of a mask behind a function of autograd, with its context made apart": """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(x, factor):
        if x.sum() < -99:  # waits
            return x
        return x * factor
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None
for x, y in batches():
    h = Scale.apply(model(x), 2.0)
    opt.zero_grad()
    h[h > -99].sum().backward()  # waits
    opt.step()
""",
    "a registry that a decorator of classes fills": """
REGISTRY = {}
def register(name):
    def add(cls):
        REGISTRY[name] = cls
        return cls
    return add
@register("plain")
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
    def forward(self, x):
        return self.fc(x)
@register("other")
class Other(Masked):
    pass
net = REGISTRY["other"]().to(device)
for x, y in batches():
    loss = net(x).mean()
    loss.backward()  # waits
    opt.step()
""",
    "a registry that is an object": """
class Registry:
    def __init__(self):
        self._classes = {}
    def register(self, name):
        def add(cls):
            self._classes[name] = cls
            return cls
        return add
    def build(self, kind):
        return self._classes[kind]()
MODELS = Registry()
@MODELS.register("other")
class Other(Masked):
    pass
net = MODELS.build("other").to(device)
for x, y in batches():
    loss = net(x).mean()
    loss.backward()  # waits
    opt.step()
""",
    "a registry that the base class fills": """
class Base(nn.Module):
    known = {}
    def __init_subclass__(cls):
        Base.known[cls.__name__] = cls
class Other(Base):
    def __init__(self):
        super().__init__()
        self.net = Masked()
    def forward(self, x):
        return self.net(x)
net = Base.known["Other"]().to(device)
for x, y in batches():
    loss = net(x).mean()
    loss.backward()  # waits
    opt.step()
""",
    "a ModuleDict of different modules": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 3), "b": Masked()})
    def forward(self, x, key):
        return self.heads[key](x)
net = Net().to(device)
for x, y in batches():
    for key in ("a", "b"):
        loss = net(x, key).mean()
        loss.backward()  # waits
    opt.step()
""",
    "a ModuleList that is filled in a loop": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList()
        for i in range(2):
            self.layers.append(Masked())
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
net = Net().to(device)
for x, y in batches():
    loss = net(x).mean()
    loss.backward()  # waits
    opt.step()
""",
    "a Sequential with a module of the project": """
class Select(nn.Module):
    def forward(self, x):
        return x[x > -99]  # waits
net = nn.Sequential(nn.Linear(4, 8), Select()).to(device)
for x, y in batches():
    loss = net(x).mean()
    loss.backward()  # waits
    opt.step()
""",
    "the losses of a dict of methods": """
class Criterion(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = {"ce": self.ce, "l2": self.l2}
    def ce(self, out, y):
        return {"ce": F.cross_entropy(out, y)}
    def l2(self, out, y):
        return {"l2": out[y >= 0].pow(2).mean()}  # waits
    def forward(self, out, y):
        losses = {}
        for name in self.parts:
            losses.update(self.parts[name](out, y))
        return losses
criterion = Criterion()
for x, y in batches():
    losses = criterion(model(x), y)
    loss = sum(losses[name] for name in losses)
    loss.backward()  # waits
    opt.step()
""",
    "a mixin class, and a method that subclasses define": """
class Log:
    def log(self, **values):
        self.rows.append({name: value.item() for name, value in values.items()})  # waits
class Base(ABC):
    def __init__(self, net):
        self.net = net
        self.rows = []
    @abstractmethod
    def loss(self, x, y): ...
    def step(self, x, y):
        loss = self.loss(x, y)
        loss.backward()  # waits
        opt.step()
        self.log(loss=loss)
class Trainer(Log, Base):
    def __init__(self, net):
        super().__init__(net)
    def loss(self, x, y):
        return F.cross_entropy(self.net(x), y)
class Selecting(Trainer):
    def loss(self, x, y):
        return super().loss(x, y) + self.net(x)[y > 0].sum()  # waits
for cls in (Trainer, Selecting):
    trainer = cls(model)
    for x, y in batches():
        trainer.step(x, y)
""",
    "hooks that are called by name": """
class Hook:
    def after(self, loss):
        pass
class Print(Hook):
    def after(self, loss):
        print(loss.item())  # waits
class Runner:
    def __init__(self):
        self.hooks = []
    def register(self, hook):
        self.hooks.append(hook)
    def call(self, name, loss):
        for hook in self.hooks:
            getattr(hook, name)(loss)
runner = Runner()
runner.register(Hook())
runner.register(Print())
for x, y in batches():
    loss = model(x).mean()
    loss.backward()
    opt.step()
    runner.call("after", loss)
""",
    "a list of a function and a lambda": """
def show(loss):
    print(float(loss))  # waits
hooks = [show, lambda loss: None]
for x, y in batches():
    loss = model(x).mean()
    loss.backward()
    opt.step()
    for hook in hooks:
        hook(loss)
""",
    "a partial of a method": """
class Trainer:
    def __init__(self):
        self.run = functools.partial(self.work, scale=2.0)
    def work(self, a, b, scale=1.0):
        loss = F.cross_entropy(model(a), b) * scale
        loss.backward()
        opt.step()
        print(b.max().item())  # waits
        return loss
trainer = Trainer()
for x, y in batches():
    print(trainer.run(x, y).item())  # waits
""",
    "dicts with a default, and queues": """
lists, sums, last = defaultdict(list), defaultdict(float), OrderedDict()
for x, y in batches():
    loss = model(x).mean()
    loss.backward()
    opt.step()
    lists["loss"].append(loss.detach())
    sums["loss"] += loss.detach()
    last["loss"] = loss.detach()
    print(lists["loss"][-1].item())  # waits
    for name, value in sums.items():
        print(name, value.item())  # waits
    for name, value in last.items():
        print(name, value.item())  # waits
""",
    "pairs, reductions and fields": """
Batch = namedtuple("Batch", "x weight")
for x, y in batches():
    losses = [model(x).mean(), F.cross_entropy(model(x), y)]
    functools.reduce(lambda a, b: a + b, losses).backward()
    opt.step()
    for a, b in itertools.combinations(losses, 2):
        print((a - b).item())  # waits
    batch = Batch(x, x.mean())
    print(batch._replace(weight=batch.weight * 2).weight.item())  # waits
    print(dict(zip(["a", "b"], losses))["a"].item())  # waits
""",
    "the methods that a block, a loop and a text call": """
class Timer:
    def __enter__(self):
        self.total = torch.zeros(1, device=device)
        return self
    def __exit__(self, *error):
        print(self.total.item())  # waits
class Endless:
    def __init__(self):
        self.items = iter(loader)
    def __iter__(self):
        return self
    def __next__(self):
        return [one.cuda() for one in next(self.items)]  # waits
class Meter:
    def __init__(self):
        self.value = torch.zeros(1, device=device)
    def __str__(self):
        return f"{float(self.value):.3f}"  # waits
meter = Meter()
for step, (x, y) in zip(range(3), Endless()):
    with Timer() as timer:
        loss = model(x).mean()
        loss.backward()
        opt.step()
        timer.total += loss.detach()
    meter.value = loss.detach()
    print(str(meter))
""",
    "an object that hands attributes on": """
class Core(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
    def forward(self, x):
        return self.fc(x)
    def predict(self, x):
        return self.fc(x).argmax(1).tolist()  # waits
class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def __getattr__(self, name):
        return getattr(self.inner, name)
    def forward(self, x):
        return self.inner(x)
net = Wrapped(Core()).to(device)
for x, y in batches():
    loss = net(x).mean()
    loss.backward()
    opt.step()
    print(net.predict(x))
""",
    "names that functions change": """
history, state = [], None
def record(value):
    history.append(value)
def remember(value):
    global state
    state = value
for x, y in batches():
    loss = model(x).mean()
    loss.backward()
    opt.step()
    record((0, loss.detach()))
    remember({"loss": loss.detach()})
    print(history[-1][1].item())  # waits
    print(state["loss"].item())  # waits
""",
    "a method of another library with the name of one of tensors": """
import mpi
class Log:
    def __init__(self):
        self.sums = defaultdict(float)
    def add(self, values):
        for name, value in mpi.world().gather(values):
            self.sums[name] += value
            print(float(value))
log = Log()
for x, y in batches():
    model(x).mean().backward()
    opt.step()
    log.add({"step": 1})
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_lines_that_wait_in_every_step(lint, name):
    program = PROGRAMS[name]
    source = HEAD + (MASKED if "Masked" in program else "") + program
    marked = [number for number, line in enumerate(source.split("\n"), 1) if line.endswith("# waits")]
    assert sorted({finding.span.line for finding in lint(source) if finding.heat is Heat.STEP}) == marked


def test_a_star_import_brings_in_variables(lint):
    models = "from .nets import *\nknown = {'masked': Masked}\n"
    nets = "import torch\nimport torch.nn as nn\n" + MASKED
    source = (
        HEAD + "from zoo import *\nnet = known['masked']().to(device)\n"
        "for x, y in batches():\n    loss = net(x).mean()\n    loss.backward()\n    opt.step()\n"
    )
    found = lint(source, zoo____init__=models, zoo__nets=nets)
    assert [one.code for one in found if one.heat is Heat.STEP] == ["GS603", "GS402"]
