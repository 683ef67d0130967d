"""The forms in which real training code holds and moves its tensors: each case waits in its last line, or nowhere."""

from __future__ import annotations

import pytest
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.model.levels import Heat
from gpusync_lint.run import engine

HEAD = """
import argparse
from dataclasses import dataclass
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Variable
from torch.utils.data import DataLoader, Dataset
"""
_GRAPH = (
    "class Graph:\n    def __init__(self, x, y):\n        self.x, self.y = x, y\n    def to(self, device):\n"
    "        for key, value in {}:\n            setattr(self, key, value.to(device))\n        return self\n"
    "for i in range(9):\n    graph = Graph(torch.zeros(3), torch.zeros(3)).to('cuda')\n    graph.y.sum().item()\n"
)
FOUND = {
    "attributes that are moved by name": _GRAPH.format("self.__dict__.items()"),
    "attributes that are moved by name, through vars": _GRAPH.format("vars(self).items()"),
    "fields of a batch that are moved by name": (
        "from dataclasses import fields\n@dataclass\nclass Batch:\n    x: torch.Tensor\n    def to(self, device):\n"
        "        return Batch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})\n"
        "for i in range(9):\n    batch = Batch(torch.zeros(3)).to('cuda')\n    batch.x.sum().item()\n"
    ),
    "what an object that collates makes": (
        "class Pair:\n    def __init__(self, x):\n        self.x = x\nclass Join:\n    def __call__(self, rows):\n"
        "        return Pair(torch.stack(rows))\nfor pair in DataLoader([], collate_fn=Join()):\n    pair.x.cuda()\n"
    ),
    "columns of rows that a collate function pads": (
        "from torch.nn.utils.rnn import pad_sequence\ndef join(rows):\n    x, y = zip(*rows)\n"
        "    return pad_sequence(x), pad_sequence(y)\n"
        "for x, y in DataLoader([], collate_fn=join):\n    x = x.to('cuda')\n"
    ),
    "a table on the host at a timestep on the device": (
        "table = torch.linspace(0, 1, 100)\nsteps = torch.arange(9)\nif True:\n    steps = steps.cuda()\n"
        "for t in steps:\n    table[t]\n"
    ),
    "losses that a dict is updated with": (
        "model = nn.Linear(3, 3).cuda()\nfor x in DataLoader([]):\n    losses = {}\n"
        "    losses.update({'a': model(x.cuda()).mean()})\n    sum(losses[key] for key in losses).item()\n"
    ),
    "the backward pass of a mask in a criterion": (
        "class Loss(nn.Module):\n    def forward(self, out, y):\n        return F.mse_loss(out[y > 0], y[y > 0])\n"
        "model, criterion = nn.Linear(3, 3).cuda(), Loss()\nfor x in DataLoader([]):\n    y = x.cuda()\n"
        "    loss = criterion(model(y), y)\n    loss.backward()\n"
    ),
    "an object that a pickle may hold as well": (
        "import pickle\nclass Rows:\n    def draw(self):\n        return torch.zeros(3, device='cuda')\n"
        "def learn(kept):\n    return kept.draw()\nif resume:\n    store = pickle.load(open('rows', 'rb'))\n"
        "else:\n    store = Rows()\nfor i in range(9):\n    x = learn(store)\n    x[x > 0]\n"
    ),
    "a product of masks": "x = torch.zeros(3, device='cuda')\nfor i in range(9):\n    x[(x > 0) * (x < 9)] -= 1\n",
    "a product with a scaled sparse tensor": (
        "x = torch.zeros(9, 3, device='cuda')\n"
        "a = torch.sparse_coo_tensor(torch.ones(2, 3).long(), torch.ones(3), (9, 9)).to('cuda')\n"
        "for i in range(9):\n    torch.sparse.mm(a * (1.0 / 0.9), x)\n"
    ),
    "a count on the device that is compared with something unknown": (
        "class Trainer:\n    def __init__(self, config):\n"
        "        self.seen, self.config, self.device = 0, config, 'cuda'\n"
        "    def train(self, data):\n        for row in DataLoader(data):\n"
        "            batch = [x.to(self.device) for x in row]\n            self.seen += (batch[-1] != 0).sum()\n"
        "            if self.seen < self.config.warmup: pass\n"
    ),
    "the backward pass of a mask behind an unknown model that was moved": (
        "def train(loader, **options):\n    net = options['net'].to('cuda')\n    for x in loader:\n"
        "        out = net(x.cuda())\n        loss = out[out > 0].mean()\n        loss.backward()\n"
    ),
    "the backward pass of a loss on the host": (
        "net = nn.Linear(3, 3).cuda()\nfor x in DataLoader([]):\n    out = net(x.cuda()).to('cpu')\n"
        "    loss = out.pow(2).mean()\n    loss.backward()\n"
    ),
    "an argument with methods that only tensors have": (
        "device = torch.device('cuda')\ndef weigh(x, y):\n    z = x.unsqueeze(0)\n    if (x > 0).all():\n"
        "        return y\n    return z\nfor i in range(9):\n    if weigh(load(), 1): pass\n"
        "def scale(x):\n    first = x.detach()\n    return float(x)\n"
    ),
    "an argument that is reduced along a dimension": (
        "device = torch.device('cuda')\ndef ends(x):\n    first = x.int().argmax(dim=1)\n"
        "    return first[x.any(dim=1)]\n"
    ),
    "something unknown indexed with a mask": (
        "x = torch.zeros(3, device='cuda')\nfor i in range(9):\n    y = load(i)[x > 0]\n"
    ),
    "a criterion of lists of tensors that never moved": (
        "class Loss(nn.Module):\n    def forward(self, outputs, targets):\n"
        "        return F.mse_loss(outputs[0], targets[0])\nnet, criterion = nn.Linear(3, 3).cuda(), Loss()\n"
        "for x, y in DataLoader([]):\n    loss = criterion([net(x.cuda())], (y.cuda(),))\n    loss.item()\n"
    ),
    "a named tuple of the columns of drawn rows": (
        "import random\nfrom collections import deque, namedtuple\nRow = namedtuple('Row', 'state reward')\n"
        "x = torch.zeros(3)\nrows = deque([Row(x, 1.0)])\n"
        "for i in range(9):\n    batch = Row(*zip(*random.sample(rows, 4)))\n    torch.cat(batch.state).cuda()\n"
    ),
    "an abstract method of more classes than are followed": (
        "class Base(nn.Module):\n    def losses(self, x):\n        pass\nnets: dict[str, Base] = {}\n"
        + "".join(
            f"class Net{i}(Base):\n    def losses(self, x):\n        return {{'loss': x.sum()}}\n" for i in range(8)
        )
        + "def train(net: Base):\n    net.cuda()\n    for x in DataLoader([]):\n"
        "        losses = net.losses(x.cuda())\n        {key: one.item() for key, one in losses.items()}\n"
    ),
    "a flag made of availability": (
        "cuda = True if torch.cuda.is_available() else False\n"
        "Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor\n"
        "for i in range(9):\n    Tensor(3, 4).fill_(1.0).sum().item()\n"
    ),
    "a tensor type chosen in branches": (
        "if torch.cuda.is_available():\n    dtype = torch.cuda.FloatTensor\nelse:\n    dtype = torch.FloatTensor\n"
        "x = torch.zeros(3).type(dtype)\nfor i in range(9):\n    x.sum().item()\n"
    ),
    "a batch moved by its type": (
        "Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor\n"
        "for imgs, _ in DataLoader([]):\n    real = Variable(imgs.type(Tensor))\n"
    ),
    "a batch moved by the type of another tensor": (
        "x = torch.zeros(3, device='cuda')\nfor imgs, _ in DataLoader([]):\n    real = imgs.type_as(x)\n"
    ),
    "data given to a tensor type of the device": (
        "Tensor = torch.cuda.FloatTensor\nfor i in range(9):\n    z = Variable(Tensor(np.random.rand(3, 4)))\n"
    ),
    "a state dictionary saved": (
        "model = nn.Linear(3, 3).cuda()\nfor i in range(9):\n    torch.save({'model': model.state_dict()}, 'x.pt')\n"
    ),
    "a lambda mapped over a batch": ("for batch in DataLoader([]):\n    x, y = map(lambda t: t.cuda(), batch)\n"),
    "a lambda that moves": (
        "move = lambda t: t.to('cuda', non_blocking=True)\n"
        "for x, y in DataLoader([]):\n    x = move(x)\n    x.sum().item()\n"
    ),
    "a batch asked for with next": (
        "batches = iter(DataLoader([]))\nfor i in range(9):\n    x, y = next(batches)\n    x = x.cuda()\n"
    ),
    "a generator over a loader": (
        "def cycle(loader):\n    while True:\n        for batch in loader:\n            yield batch\n"
        "batches = cycle(DataLoader([]))\nfor i in range(9):\n    x = next(batches).cuda()\n"
    ),
    "a generator that yields from a loader": (
        "def forever(loader):\n    while True:\n        yield from loader\n"
        "for x in forever(DataLoader([])):\n    x = x.cuda()\n"
    ),
    "a loader that moves its batches": (
        "class Mover:\n    def __init__(self, loader):\n        self.loader = loader\n"
        "    def __iter__(self):\n        for x in self.loader:\n            yield x.to('cuda', non_blocking=True)\n"
        "for x in Mover(DataLoader([])):\n    x.sum().item()\n"
    ),
    "the device of an accelerator": (
        "from accelerate import Accelerator\naccelerator = Accelerator()\n"
        "for x in DataLoader([]):\n    x = x.to(accelerator.device)\n"
    ),
    "what an accelerator gathered": (
        "from accelerate import Accelerator\naccelerator = Accelerator()\n"
        "model = accelerator.prepare(nn.Linear(3, 3))\n"
        "for x in accelerator.prepare(DataLoader([])):\n    y = accelerator.gather(model(x))\n    y.cpu()\n"
    ),
    "the values of a maximum": (
        "x = torch.zeros(3, 3, device='cuda')\nfor i in range(9):\n    y = x.max(1).values\n    y.cpu()\n"
    ),
    "the closure of an optimizer": (
        "model = nn.Linear(3, 3).cuda()\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "def closure():\n    loss = model(torch.zeros(3, device='cuda')).mean()\n    loss.backward()\n    return loss\n"
        "for i in range(9):\n    loss = opt.step(closure)\n    print(loss.item())\n"
    ),
    "what a collate function makes": (
        "class Images:\n    def __init__(self, x):\n        self.x = x\n    def to(self, device):\n"
        "        return Images(self.x.to(device, non_blocking=True))\n"
        "def join(batch):\n    return Images(torch.stack(batch)), torch.zeros(3)\n"
        "for images, labels in DataLoader([], collate_fn=join):\n    labels = labels.cuda()\n"
    ),
    "a limit that somebody sets": (
        "import tyro\n@dataclass\nclass Args:\n    limit: float = 3.0\nargs = tyro.cli(Args)\n"
        "for i in range(9):\n    x = torch.zeros((), device='cuda')\n"
        "    y = 1 if args.limit is not None and x > args.limit else 2\n"
    ),
    "a gradient that goes back through a mask": (
        "model, mask = nn.Linear(3, 3).cuda(), torch.zeros(3, device='cuda') > 0\nfor i in range(9):\n"
        "    out = model(torch.zeros(3, 3, device='cuda'))\n"
        "    loss = F.mse_loss(out[mask], out[mask])\n    loss.backward()\n"
    ),
    "the encoder that a Transformer inherits": (
        "class Model(nn.Transformer):\n    def forward(self, x):\n        mask = torch.zeros(3, 3, device=x.device)\n"
        "        y = x.cuda()\n        return self.encoder(y, mask=mask)\n"
    ),
    "an index of several host tensors": (
        "x = torch.ones(3, 3, device='cuda')\nfor i in range(9):\n"
        "    at = torch.arange(3), torch.arange(3)\n    y = x[at]\n"
    ),
    "a default that names a constant of the module": (
        "DEVICE = torch.device('cuda')\ndef train(loader, device=DEVICE):\n    for x in loader:\n"
        "        x = torch.zeros(3, device=device)\n        torch.zeros(3).copy_(x)\n"
    ),
    "a method of an object that is handed in": (
        "class Selector:\n    def get_pairs(self, x):\n        return torch.zeros(3)\n"
        "def train(model, selector, loader):\n    for x in loader:\n        pairs = selector.get_pairs(x).cuda()\n"
    ),
    "a sample of a normal distribution": (
        "from torch.distributions import Independent, Normal\nx = torch.ones(3, device='cuda')\n"
        "d = Independent(Normal(x, x, validate_args=False), 1)\nfor i in range(9):\n    d.sample()\n"
    ),
    "something unknown that is used as a distribution": (
        "device = torch.device('cuda')\nfor i in range(9):\n    d = policy(i)\n    d.log_prob(d.rsample())\n"
    ),
    "one of several functions of torch": (
        "device = torch.device('cuda')\ndef pick(name):\n    if name == 'mse':\n        return F.mse_loss\n"
        "    return F.l1_loss\nmeasure = pick(load())\nx = torch.zeros(3, device=device)\n"
        "for i in range(9):\n    measure(x, x).item()\n"
    ),
    "a conditional expression that tests for a tensor": (
        "device = torch.device('cuda')\nfor i in range(9):\n    x = load(i)\n"
        "    x.to(device) if torch.is_tensor(x) else x\n"
    ),
    "an object of arrays, or a dict of them": (
        "def move(x):\n    if isinstance(x, np.ndarray):\n        return torch.as_tensor(x, device='cuda')\n"
        "    if isinstance(x, dict):\n        return {k: torch.as_tensor(v, device='cuda') for k, v in x.items()}\n"
    ),
    "tensors stacked from something unknown, that are moved": (
        "device = torch.device('cuda')\nfor i in range(9):\n    torch.stack(load(i)).float().to(device)\n"
    ),
    "the tensors of an object that moves itself": (
        "def run():\n    for x in DataLoader([]):\n        Boxes(x).to('cuda')\n"
        "class Boxes:\n    def __init__(self, x):\n        self.x = x\n"
        "    def to(self, device):\n        return Boxes(self.x.to(device))\n"
    ),
    "an unknown iterable of a loop with a backward pass": (
        "model = nn.Linear(3, 3).cuda()\ndef step(x):\n    return model(x).sum()\nfor x, y in load():\n"
        "    step(x).backward()\n    step(y.cuda())\n"
    ),
    "a name that every branch of a loop binds, moved at its end": (
        "device = torch.device('cuda')\nmode = load()\nfor i in range(9):\n"
        "    if mode == 'a':\n        x = torch.zeros(3)\n"
        "    elif mode == 'b':\n        x = torch.ones(3)\n    x = x.to(device)\n"
    ),
    "a function that returns a tensor or a list of them": (
        "def read(x):\n    if isinstance(x, list):\n        return [torch.from_numpy(one) for one in x]\n"
        "    return torch.from_numpy(x)\nfor i in range(9):\n    read(load(i)).cuda()\n"
    ),
    "a tensor of the device converted to the type of one on the host": (
        "x = torch.zeros(3, device='cuda')\nhost = torch.zeros(3)\nfor i in range(9):\n    x.type_as(host)\n"
    ),
    "an array with a method that only tensors have": (
        "device = torch.device('cuda')\nfor i in range(9):\n    np.ones(3).cpu()\n"
    ),
    "a model that is placed by a map of devices": (
        "from transformers import AutoModel\nmodel = AutoModel.from_pretrained('x', device_map='auto')\n"
        "for i in range(9):\n    model(torch.zeros(3)).logits.argmax(dim=-1).item()\n"
    ),
    "a product with a sparse tensor that is not coalesced": (
        "x = torch.ones(3, 3, device='cuda')\na = torch.sparse_coo_tensor(torch.ones(2, 3).long(), torch.ones(3))\n"
        "a = a.cuda()\nfor i in range(9):\n    torch.spmm(a, x)\n"
    ),
    "a checkpoint of a list of modules": (
        "net = nn.Linear(3, 3).cuda()\nfor i in range(9):\n    torch.save([net], 'net.pt')\n"
    ),
}
STEP = {
    "an update with a batch": (
        "class Agent:\n    def update_with_batch(self, x: torch.Tensor):\n        return x.cuda().sum().item()\n"
    ),
    "an object that hooks a module": (
        "class Norm:\n    def __call__(self, module, inputs, output):\n        self.norm = output.norm().item()\n"
        "model = nn.Linear(3, 3).cuda()\nmodel.register_forward_hook(Norm())\n"
    ),
    "a method of a module of a class that overrides how it moves": (
        "class Net(nn.Linear):\n    def to(self, device):\n        self.scale = self.scale.to(device)\n"
        "        return super().to(device)\n    def draw(self, x):\n        return self(x).sum().item()\n"
        "policy = Net(3, 3).to('cuda')\nfor i in range(9):\n    policy.draw(torch.zeros(3, device='cuda'))\n"
    ),
    "a flag that asks for probabilities": (
        "class Actor(nn.Module):\n    def forward(self, x, need_log_prob=True):\n        if need_log_prob:\n"
        "            return x.sum().item()\nnet = Actor().cuda()\n"
        "for i in range(9):\n    net(torch.zeros(3, device='cuda'))\n"
    ),
    "an update function of an Ignite engine": (
        "from ignite.engine import Engine\nmodel = nn.Linear(3, 3).cuda()\n"
        "def update(engine, batch):\n    x = batch[0].cuda()\n    return model(x)\nengine = Engine(update)\n"
    ),
    "a handler of an Ignite event": (
        "def build(engine, Events):\n    model = nn.Linear(3, 3).cuda()\n"
        "    @engine.on(Events.ITERATION_COMPLETED)\n    def report(engine):\n"
        "        print(model.weight.sum().item())\n"
    ),
    "the update of a metric": (
        "from torchmetrics import Metric\ndevice = 'cuda'\nclass Accuracy(Metric):\n"
        "    def update(self, preds, target):\n        if (preds > 1).any():\n            raise ValueError\n"
    ),
    "a collate function that moves": (
        "def collate(batch):\n    return torch.stack([item[0] for item in batch]).cuda()\n"
    ),
    "a dataset that moves": (
        "class Data(Dataset):\n    def __getitem__(self, i):\n        return torch.randn(3).to('cuda')\n"
    ),
    "a method that only objects handed in are asked for": (
        "device = 'cuda'\nclass Agent:\n    def __init__(self):\n        self.net = nn.Linear(3, 3).to(device)\n"
        "    def choose(self, x):\n        return self.net(x).argmax().item()\n"
        "def play(agent, env):\n    while True:\n        env.step(agent.choose(env.state))\n"
    ),
    "a function in a table": (
        "class Criterion(nn.Module):\n    def size(self, x):\n        return x.sum().item()\n"
        "    def one(self, name, x):\n        return {'size': self.size, 'none': self.none}[name](x)\n"
        "    def none(self, x):\n        return x\n"
        "    def forward(self, x: torch.Tensor):\n        return self.one('size', x.cuda(non_blocking=True))\n"
    ),
    "a trainer of transformers": (
        "from transformers import Trainer\nclass Mine(Trainer):\n    def compute_loss(self, model, inputs):\n"
        "        loss = model(**inputs).loss\n        self.log({'loss': loss.item()})\n        return loss\n"
    ),
}
SILENT = {
    "the number of elements of a sparse tensor": (
        "a = torch.sparse_coo_tensor(torch.ones(2, 3).long(), torch.ones(3), (9, 9)).to('cuda')\n"
        "for i in range(9):\n    torch.rand(a._nnz(), device='cuda')\n"
    ),
    "an element that is drawn": (
        "x = torch.zeros(3, device='cuda')\nfor i in range(9):\n"
        "    x[np.random.choice(3)] + x[np.random.randint(0, 3)]\n"
    ),
    "an argument that is bound again before it is used as a tensor": (
        "device = torch.device('cuda')\ndef weigh(x):\n    if (x > 0).all():\n        return 1\n"
        "    x = torch.as_tensor(x)\n    return x.unsqueeze(0)\n"
    ),
    "a tensor type of the host": (
        "x = torch.zeros(3, device='cuda').type(torch.FloatTensor)\nfor i in range(9):\n    x.sum().item()\n"
    ),
    "a size given to a tensor type of the device": (
        "Tensor = torch.cuda.FloatTensor\nfor x in DataLoader([]):\n    Tensor(x.size(0), 1).fill_(1.0)\n"
    ),
    "a limit that is off by default": (
        "import tyro\n@dataclass\nclass Args:\n    limit: float = None\n    steps: int = 10\nargs = tyro.cli(Args)\n"
        "for i in range(args.steps):\n    x = torch.zeros((), device='cuda')\n"
        "    if args.limit is not None and x > args.limit:\n        break\n"
    ),
    "a gradient that does not go through a mask": (
        "model = nn.Linear(3, 3).cuda()\nfor i in range(9):\n    out = model(torch.zeros(3, 3, device='cuda'))\n"
        "    loss = F.mse_loss(out, torch.zeros(3, 3, device='cuda'))\n    loss.backward()\n"
    ),
    "a lambda that reads what lies on the host": (
        "read = lambda t: t.item()\nx = torch.zeros(())\nfor i in range(9):\n    read(x)\n"
    ),
    "an empty tensor that is moved": (
        "x = torch.zeros(3, device='cuda')\nfor i in range(9):\n    torch.empty(0).to(x.device)\n"
    ),
    "a sample that is drawn without a check": (
        "from torch.distributions import Normal\nx = torch.ones(3, device='cuda')\n"
        "d = Normal(x, x, validate_args=False)\nfor i in range(9):\n    d.rsample()\n"
    ),
    "a norm of gradients that is moved": (
        "device = torch.device('cuda')\ndef norm(parameters):\n"
        "    return torch.stack([torch.norm(p.grad.detach()).to(device) for p in parameters])\n"
        "for i in range(9):\n    norm(load(i))\n"
    ),
    "a product with a coalesced sparse tensor": (
        "x = torch.ones(3, 3, device='cuda')\na = torch.sparse_coo_tensor(torch.ones(2, 3).long(), torch.ones(3))\n"
        "a = a.cuda().coalesce()\nfor i in range(9):\n    torch.spmm(a, x)\n"
    ),
    "a change of dtype": "for x in DataLoader([]):\n    x.type(torch.float32)\n",
}


@pytest.mark.parametrize("name", FOUND)
def test_its_last_line_waits(lint, name):
    source = (HEAD + FOUND[name]).rstrip("\n")
    assert source.count("\n") + 1 in {finding.span.end_line for finding in lint(source)}


def test_a_mask_that_may_not_be_there_says_nothing_about_the_backward_pass(lint):
    code = (
        "model = nn.Linear(3, 3).cuda()\ndef step(x, mask=None):\n    out = model(x)\n    if mask is not None:\n"
        "        out = out[mask]\n    return out.mean()\nfor i in range(9):\n"
        "    x = torch.zeros(3, device='cuda')\n    step(x).backward()\n"
    )
    assert "GS603" not in {finding.code for finding in lint(HEAD + code)}


def test_a_module_with_weights_that_is_moved_waits_once():
    code = "net, loss = nn.Linear(3, 3), nn.MSELoss()\nnet.cuda()\nloss.cuda()\n"
    findings = engine.analyze([Source("train.py", HEAD + code)], EngineSettings()).findings
    assert [(one.code, one.heat, one.span.line) for one in findings] == [
        ("GS501", Heat.ONCE, (HEAD + code).count("\n") - 1)
    ]


@pytest.mark.parametrize("name", STEP)
def test_it_runs_every_step(lint, name):
    assert Heat.STEP in {finding.heat for finding in lint(HEAD + STEP[name])}


def test_an_object_that_a_star_import_brings_is_known():
    files = {
        "data.py": "class Rows:\n    def draw(self):\n        return [1, 2]\n",
        "shared.py": "from data import *\nrows = Rows()\n",
        "train.py": "import torch\nfrom shared import *\nx = torch.zeros(3, device='cuda')\n"
        "for step in range(9):\n    x[rows.draw()].sum()\n",
    }
    found = engine.analyze([Source(path, text) for path, text in files.items()], EngineSettings()).findings
    assert [(one.path, one.code, one.span.line) for one in found] == [("train.py", "GS504", 5)]


def test_what_was_computed_without_gradients_says_nothing_about_the_backward_pass(lint):
    code = (
        "class Net(nn.Module):\n    def __init__(self):\n        self.one = nn.Linear(3, 3)\n"
        "    def forward(self, x):\n        return self.one(x), x\nnet = Net().cuda()\nfor x in DataLoader([]):\n"
        "    x = x.cuda(non_blocking=True)\n    with torch.no_grad():\n        target, _ = net(x)\n"
        "        kept = target.cpu()\n    loss = (net(x)[0] - kept.cuda()).mean()\n    loss.backward()\n"
    )
    assert "GS603" not in {finding.code for finding in lint(HEAD + code)}
    assert "GS603" in {finding.code for finding in lint(HEAD + code.replace("torch.no_grad()", "open('x')"))}


def test_a_test_does_not_say_where_the_arguments_of_what_it_tests_are():
    files = {
        "weights.py": "import torch\ndevice = torch.device('cuda')\n"
        "def weigh(x: torch.Tensor):\n    return x.sum().item()\n",
        "tests/test_weights.py": "import torch\nfrom weights import weigh\n"
        "def test_it():\n    assert weigh(torch.ones(3)) == 3\n",
    }
    found = engine.analyze([Source(path, text) for path, text in files.items()], EngineSettings()).findings
    assert [(one.path, one.code) for one in found] == [("weights.py", "GS201")]


def _heats_of_items(code):
    found = engine.analyze([Source("train.py", HEAD + code)], EngineSettings()).findings
    return [one.heat for one in found if one.code == "GS201"]


def test_a_method_of_some_module_runs_as_often_as_it_is_called():
    code = (
        "class Net(nn.Module):\n    def measure_all(self, x):\n        return x.sum().item()\n"
        "def fit(net):\n    net.named_parameters()\n    for x in DataLoader([]):\n        net.measure_all(x.cuda())\n"
    )
    assert _heats_of_items(code) == [Heat.STEP]


def test_all_overrides_run_as_often_as_the_method_without_a_body():
    code = (
        "class Base:\n    def _measure(self, x):\n        raise NotImplementedError\n    def fit(self):\n"
        "        net = nn.Linear(3, 3).cuda()\n        for x in DataLoader([]):\n            self._measure(net(x))\n"
    )
    code += "".join(
        f"class Kind{i}(Base):\n    def _measure(self, x: torch.Tensor):\n        return x.sum().item()\n"
        for i in range(9)
    )
    assert _heats_of_items(code) == [Heat.STEP] * 9


def test_a_scaler_that_a_setting_switches_on_is_guarded(lint):
    code = (
        "args = argparse.ArgumentParser().parse_args()\nopt = torch.optim.SGD(nn.Linear(3, 3).cuda().parameters())\n"
        "scaler = torch.amp.GradScaler(enabled={})\nfor x in DataLoader([]):\n    scaler.step(opt)\n"
    )
    heats = [[one.heat for one in lint(HEAD + code.format(enabled))] for enabled in ("args.fp16", "True")]
    assert heats == [[Heat.GUARDED], [Heat.STEP]]


def test_an_event_that_fires_every_so_often_is_guarded(lint):
    found = lint(
        HEAD + "def build(engine, Events):\n    model = nn.Linear(3, 3).cuda()\n"
        "    @engine.on(Events.ITERATION_COMPLETED(every=100))\n    def report(engine):\n"
        "        print(model.weight.sum().item())\n"
    )
    assert [finding.heat for finding in found if finding.code == "GS201"] == [Heat.GUARDED]


@pytest.mark.parametrize("name", SILENT)
def test_nothing_waits(lint, name):
    assert [finding for finding in lint(HEAD + SILENT[name]) if finding.heat is not Heat.ONCE] == []


@pytest.mark.parametrize("index", ["mask, 0", "torch.arange(3), 0", "[0, 1], 0"])
def test_brackets_around_an_index_change_nothing(lint, index):
    def found(index):
        text = (
            "import torch\nx = torch.zeros(3, 3, device='cuda')\nmask = x[:, 0] > 0\n"
            f"for step in range(9):\n    x[{index}] = 1\n    y = x[{index}]\n"
        )
        return [(one.code, one.span.line) for one in lint(text)]

    assert found(index)
    assert found(index) == found(f"({index})")
