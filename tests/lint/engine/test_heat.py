"""How often a line runs."""

from __future__ import annotations

import textwrap

import pytest
from gpusync_lint.model.findings import EngineSettings
from gpusync_lint.model.levels import Heat

SETUP = """
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm
device = torch.device("cuda")
model = torch.nn.Linear(4, 4).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader([])
x = torch.zeros(4, device=device)

"""
CASES = {
    "a loop that calls backward": (
        "for i in range(9):\n    loss = model(x).sum()\n    loss.backward()\n    loss.item()\n",
        Heat.STEP,
    ),
    "a loop over a data loader": ("for batch in loader:\n    x.sum().item()\n", Heat.STEP),
    "a wrapped data loader": (
        "for i, (a, b) in enumerate(tqdm(loader), 1):\n    x.sum().item()\n",
        Heat.STEP,
    ),
    "a loop that calls the model": (
        "with torch.no_grad():\n    for i in range(9):\n        model(x).sum().item()\n",
        Heat.STEP,
    ),
    "a while loop": ("while True:\n    model(x).sum().backward()\n    opt.step()\n    x.sum().item()\n", Heat.STEP),
    "under step % n": ("for i, b in enumerate(loader):\n    if i % 10 == 0:\n        x.sum().item()\n", Heat.GUARDED),
    "under a log interval": (
        "for i, b in enumerate(loader):\n    if should_log(i):\n        x.sum().item()\n",
        Heat.GUARDED,
    ),
    "the else of a guard": (
        "for i, b in enumerate(loader):\n    if i % 10 == 0:\n        pass\n    else:\n        x.sum().item()\n",
        Heat.STEP,
    ),
    "after the step loop, in the epoch loop": (
        "for epoch in range(9):\n    for b in loader:\n        pass\n    x.sum().item()\n",
        Heat.EPOCH,
    ),
    "a loop without a step": ("for i in range(9):\n    x.sum().item()\n", Heat.EPOCH),
    "a comprehension": ("r = [t.item() for t in x]\n", Heat.EPOCH),
    "not in a loop": ("x.sum().item()\n", Heat.ONCE),
    "before an unconditional break": (
        "for b in loader:\n    if b is None:\n        x.sum().item()\n        break\n",
        Heat.ONCE,
    ),
    "on the way to an exception": (
        "for b in loader:\n    if b is None:\n        raise ValueError(x.sum().item())\n",
        Heat.ONCE,
    ),
    "a function called in the step loop": (
        "def log(t):\n    return t.item()\nfor b in loader:\n    log(x.sum())\n",
        Heat.STEP,
    ),
    "a function called under a guard": (
        "def log(t):\n    return t.item()\nfor i, b in enumerate(loader):\n    if i % 9 == 0:\n        log(x.sum())\n",
        Heat.GUARDED,
    ),
    "a function called once": ("def log(t):\n    return t.item()\nlog(x.sum())\n", Heat.ONCE),
    "a function that makes a step, called in a loop": (
        (
            "def step():\n    loss = model(x).sum()\n    loss.backward()\n    opt.step()\n    return loss.item()\n"
            "for i in range(9):\n    step()\n"
        ),
        Heat.STEP,
    ),
    "after a function that runs an epoch": (
        "def epoch():\n    for b in loader:\n        opt.step()\nfor i in range(9):\n    epoch()\n    x.sum().item()\n",
        Heat.EPOCH,
    ),
    "around a loop that only runs a model": (
        (
            "def denoise(a):\n    for t in times:\n        a = model(a)\n    return a\n"
            "for prompt in prompts:\n    y = denoise(x)\n    y.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "in a function that such a loop calls": (
        (
            "def sample(a):\n    z = a.sum().item()\n    for t in times:\n        a = model(a)\n    return a\n"
            "for prompt in prompts:\n    sample(x)\n"
        ),
        Heat.STEP,
    ),
    "around a loop that only runs a model, by epochs": (
        "for epoch in range(n):\n    for part in parts:\n        model(part)\n    x.sum().item()\n",
        Heat.EPOCH,
    ),
    "under a period of one": (
        "log_every = 1\nfor i, b in enumerate(loader):\n    if i % log_every == 0:\n        x.sum().item()\n",
        Heat.STEP,
    ),
    "under an option whose default is one": (
        (
            "parser.add_argument('--log-every', type=int, default=1)\nargs = parser.parse_args()\n"
            "for i, b in enumerate(loader):\n    if i % args.log_every == 0:\n        x.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "under a field whose default is one": (
        (
            "class Config:\n    log_every: int = 1\nconfig = Config()\n"
            "for i, b in enumerate(loader):\n    if i % config.log_every:\n        continue\n    x.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "under a period that is one elsewhere": (
        (
            "log_every = 1\nquiet = dict(log_every=100)\n"
            "for i, b in enumerate(loader):\n    if i % log_every == 0:\n        x.sum().item()\n"
        ),
        Heat.GUARDED,
    ),
    "under a period of ten": (
        "log_every = 10\nfor i, b in enumerate(loader):\n    if i % log_every == 0:\n        x.sum().item()\n",
        Heat.GUARDED,
    ),
    "stored under another key than the tested one": (
        (
            "table = {}\ndef basis(n):\n    if n not in table:\n        table[f'{n}_{device}'] = x.sum().item()\n"
            "for b in loader:\n    basis(4)\n"
        ),
        Heat.STEP,
    ),
    "stored under the tested key": (
        (
            "table = {}\ndef basis(n):\n    if n not in table:\n        table[n] = x.sum().item()\n"
            "for b in loader:\n    basis(4)\n"
        ),
        Heat.GUARDED,
    ),
    "a method of a module that nothing visible calls": (
        "class Crf(torch.nn.Module):\n    def decode(self, mask):\n        return x.sum().item()\n",
        Heat.STEP,
    ),
    "a method of a module that is called seldom, by its name": (
        "class Crf(torch.nn.Module):\n    def get_size(self, mask):\n        return x.sum().item()\n",
        Heat.ONCE,
    ),
    "a method of a module that is called once": (
        ("class Crf(torch.nn.Module):\n    def decode(self, mask):\n        return x.sum().item()\nCrf().decode(x)\n"),
        Heat.ONCE,
    ),
    "a value that the first iteration makes": (
        "mean = None\nfor b in loader:\n    if mean is None:\n        mean = x.sum().item()\n    mean += 1\n",
        Heat.GUARDED,
    ),
    "a value that each iteration may lack": (
        "for mean in loader:\n    if mean is None:\n        mean = x.sum().item()\n",
        Heat.STEP,
    ),
    "a value that the first part of a step makes": (
        (
            "def norm(parts):\n    total = None\n    for part in parts:\n        if total is None:\n"
            "            total = x.sum().item()\n    return total\n"
            "for b in loader:\n    norm(b)\n"
        ),
        Heat.STEP,
    ),
    "a hook after each iteration, called by its name": (
        "class Check(Hook):\n    def after_train_iter(self, runner):\n        return x.sum().item()\n",
        Heat.STEP,
    ),
    "around several updates of the critic": (
        (
            "for i in range(n):\n    for _ in range(n_critic):\n        model(x).sum().backward()\n        opt.step()\n"
            "    x.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "after micro-batches": (
        (
            "for i in range(n):\n    for part in parts:\n        model(part).sum().backward()\n    opt.step()\n"
            "    x.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "after micro-batches in another function": (
        (
            "def accumulate():\n    for part in parts:\n        model(part).sum().backward()\n"
            "def step():\n    accumulate()\n    opt.step()\n    x.sum().item()\n"
            "while True:\n    step()\n"
        ),
        Heat.STEP,
    ),
    "around a loop over layers that train themselves": (
        (
            "class Net:\n    def fit(self, a):\n        for layer in self.layers:\n            a.sum().backward()\n"
            "            opt.step()\nnet = Net()\nfor i in range(n):\n    net.fit(x)\n    x.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "in a loop over an environment that updates several times": (
        (
            "for i in range(n):\n    action = model(x)\n    for k in range(m):\n        model(x).sum().backward()\n"
            "        opt.step()\n    action.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "after the minibatches of an update": (
        (
            "for i in range(n):\n    action = model(x)\n    for k in range(0, m, size):\n"
            "        model(x).sum().backward()\n        opt.step()\n    action.sum().item()\n"
        ),
        Heat.EPOCH,
    ),
    "after all data, with an update of the whole": (
        (
            "for epoch in range(n):\n    opt.zero_grad()\n    for b in loader:\n        model(b).sum().backward()\n"
            "        opt.step()\n    x.sum().item()\n"
        ),
        Heat.EPOCH,
    ),
    "after all data that no loader gives": (
        (
            "for epoch in range(n):\n    opt.zero_grad()\n    for k in range(len(texts)):\n"
            "        model(x).sum().backward()\n        opt.step()\n    x.sum().item()\n"
        ),
        Heat.EPOCH,
    ),
    "in a loop over learning rates": (
        (
            "for rate in rates:\n    for i in range(n):\n        model(x).sum().backward()\n        opt.step()\n"
            "    x.sum().item()\n"
        ),
        Heat.EPOCH,
    ),
    "beside the update of several batches": (
        (
            "for i, b in enumerate(loader):\n    model(b).sum().backward()\n    if (i + 1) % 4 == 0:\n"
            "        opt.step()\n        x.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "where another model is trained now and then": (
        (
            "def update():\n    model(x).sum().backward()\n    opt.step()\n    x.sum().item()\n"
            "for i, b in enumerate(loader):\n    model(b).sum().backward()\n    if i % delay == 0:\n        update()\n"
        ),
        Heat.STEP,
    ),
    "a generator that a loop of steps iterates over": (
        (
            "def batches():\n    for i in range(9):\n        x.sum().item()\n        yield x\n"
            "for b in batches():\n    model(b).sum().backward()\n"
        ),
        Heat.STEP,
    ),
    "before the loop of a generator": (
        (
            "def batches():\n    x.sum().item()\n    for i in range(9):\n        yield x\n"
            "for b in batches():\n    model(b).sum().backward()\n"
        ),
        Heat.ONCE,
    ),
    "a generator that a loop without steps iterates over": (
        "def items():\n    for i in range(9):\n        x.sum().item()\n        yield x\nfor b in items():\n    pass\n",
        Heat.EPOCH,
    ),
    "the sampler of a loader": (
        (
            "class Mine(torch.utils.data.Sampler):\n    def __iter__(self):\n        for i in range(9):\n"
            "            yield x.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "a collator": ("class Collator:\n    def __call__(self, batch):\n        return x.sum().item()\n", Heat.STEP),
    "a function with its own gradient": (
        (
            "class Mine(torch.autograd.Function):\n    @staticmethod\n"
            "    def backward(ctx, grad):\n        return x.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "a distribution": (
        (
            "class Mine(torch.distributions.Distribution):\n"
            "    def log_prob(self, value):\n        return x.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "the choice of an action that nothing visible calls": (
        "class Agent:\n    def select_action(self, state):\n        return x.sum().item()\n",
        Heat.STEP,
    ),
    "the choice of an action that is called once": (
        "def select_action(state):\n    return x.sum().item()\nselect_action(x)\n",
        Heat.ONCE,
    ),
    "a loss that nothing visible calls": ("def focal_loss(p, t):\n    return x.sum().item()\n", Heat.STEP),
    "a function that makes a loss": ("def make_loss(p, t):\n    return x.sum().item()\n", Heat.ONCE),
    "an update that trains, and that nothing visible calls": (
        (
            "class Agent:\n    def update(self, state):\n        model(x).sum().backward()\n        opt.step()\n"
            "        x.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "an update that does not train": (
        "class Meter:\n    def update(self, value):\n        self.value = x.sum().item()\n",
        Heat.ONCE,
    ),
    "a method of a module that runs it": (
        (
            "class Net(torch.nn.Module):\n    def __init__(self):\n        self.head = torch.nn.Linear(4, 4)\n"
            "    def features(self, a: torch.Tensor):\n        return self.head(a).sum().item()\n"
        ),
        Heat.STEP,
    ),
    "what a decorator wraps around a function of a step": (
        (
            "def timed(fn):\n    def wrapper(*args):\n        x.sum().item()\n        return fn(*args)\n"
            "    return wrapper\n"
            "@timed\ndef step(b):\n    model(b).sum().backward()\nfor b in loader:\n    step(b)\n"
        ),
        Heat.STEP,
    ),
    "a nested function that something else calls": (
        (
            "def step(b):\n    def closure(t):\n        return x.sum().item()\n    run(closure)\n"
            "    model(b).sum().backward()\nfor b in loader:\n    step(b)\n"
        ),
        Heat.STEP,
    ),
    "forward of a module": (
        "class Net(torch.nn.Module):\n    def forward(self, a):\n        return a.sum().item()\n",
        Heat.STEP,
    ),
    "a training step by convention": (
        "class Net(torch.nn.Module):\n    def training_step(self, batch, i):\n        return x.sum().item()\n",
        Heat.STEP,
    ),
    "a processor of logits": (
        (
            "from transformers import LogitsProcessor\nclass Mine(LogitsProcessor):\n"
            "    def __call__(self, ids: torch.Tensor, scores: torch.Tensor):\n        return scores.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "a loop that calls the module it is a part of": (
        (
            "class Generation:\n    def sample(self, ids: torch.Tensor):\n        while True:\n"
            "            self(ids)\n            ids.sum().item()\n"
        ),
        Heat.STEP,
    ),
    "a nested function": (
        "def train():\n    def log(t):\n        return t.item()\n    for b in loader:\n        log(x.sum())\n",
        Heat.STEP,
    ),
}
CASES |= {
    "a handful of iterations that train nothing": (
        "for index in range(3):\n    model(x).sum().item()\n",
        Heat.EPOCH,
    ),
    "a handful of updates": (
        "for index in range(3):\n    model(x).sum().backward()\n    opt.step()\n    x.sum().item()\n",
        Heat.STEP,
    ),
    "a handful of iterations in every step": (
        "for b in loader:\n    for index in range(3):\n        model(b).sum().item()\n",
        Heat.STEP,
    ),
    "until a list is full": (
        "kept = []\nfor b in loader:\n    if wanted and len(kept) < 16:\n        kept.append(x.sum().item())\n",
        Heat.GUARDED,
    ),
    "until a list is full that is emptied": (
        (
            "kept = []\nfor b in loader:\n    if len(kept) < 16:\n        kept.append(x.sum().item())\n"
            "    else:\n        pass\n    if len(kept) == 16:\n        kept.clear()\n"
        ),
        Heat.STEP,
    ),
    "until a list of the step is full": (
        ("for b in loader:\n    kept = []\n    if len(kept) < 16:\n        kept.append(x.sum().item())\n"),
        Heat.STEP,
    ),
    "for a few numbers": (
        "for size in [3, 6, 12]:\n    model(x).sum().item()\n",
        Heat.EPOCH,
    ),
    "where it is evaluated now and then, by a function that may train": (
        (
            "def run(b, trains):\n    loss = model(b).sum()\n"
            "    if trains:\n        loss.backward()\n        opt.step()\n"
            "for i, b in enumerate(loader):\n    run(b, True)\n"
            "    if i % eval_freq == 0:\n        run(b, False)\n        x.sum().item()\n"
        ),
        Heat.GUARDED,
    ),
    "a function named like a step that is called now and then": (
        (
            "def eval_step():\n    return x.sum().item()\n"
            "for i, b in enumerate(loader):\n    model(b).sum().backward()\n    if i % 100 == 0:\n        eval_step()\n"
        ),
        Heat.GUARDED,
    ),
    "a function named like a step that nothing visible calls": (
        "def train_step(b):\n    return model(b).sum().item()\n",
        Heat.STEP,
    ),
    "an exception at the end of a loop": (
        "for b in loader:\n    if b.known:\n        continue\n    raise ValueError(x.sum().item())\n",
        Heat.ONCE,
    ),
    "after an exception that is always raised": (
        "for b in loader:\n    if wanted:\n        raise NotImplementedError\n        x.sum().item()\n",
        Heat.ONCE,
    ),
    "a function that takes the place of forward": (
        (
            "def patch(net):\n    def our_forward(a):\n        return x.sum().item()\n    net.forward = our_forward\n"
            "patch(model)\n"
        ),
        Heat.STEP,
    ),
    "before the end of the program": (
        "import sys\nfor b in loader:\n    if stopped:\n        x.sum().item()\n        sys.exit(0)\n",
        Heat.ONCE,
    ),
    "a constructor that runs a part of itself": (
        (
            "class Net(torch.nn.Module):\n    def __init__(self):\n        self.net = torch.nn.Linear(4, 4).cuda()\n"
            "        self.size = self.net(x).sum().item()\n"
            "nets = [None, None]\nfor name in names:\n    nets[name] = Net()\n"
        ),
        Heat.EPOCH,
    ),
    "a method that the constructor memoizes": (
        (
            "from functools import lru_cache\nclass Pattern:\n    def __init__(self):\n"
            "        self.table = lru_cache(100)(self.table)\n"
            "    def table(self, size):\n        return x.sum().item()\n"
            "pattern = Pattern()\nfor b in loader:\n    pattern.table(len(b))\n"
        ),
        Heat.GUARDED,
    ),
}
CLASS = """
class Net(torch.nn.Module):
    def __init__(self):
        self.table, self.tables, self.ready = None, dict(), False
    def prepare(self):
        self.ready = True
    def forward(self, a, size, pe=None):
{body}
"""
RARELY = {
    "an attribute that is filled when it is missing": "if self.table is None:\n    self.table = a.sum().item()",
    "an attribute that is filled when it is too small": (
        "if self.table is None or self.table.size(1) < size:\n    self.table = a.sum().item()"
    ),
    "an attribute that may not exist": "if not hasattr(self, 'table'):\n    self.table = a.sum().item()",
    "a container asked for a key": "if size not in self.tables:\n    self.tables[size] = a.sum().item()",
    "a buffer that is filled in place": "if not self.ready:\n    self.ready.fill_(a.sum().item())",
    "what a method of the class fills": "if not self.ready:\n    self.table = a.sum().item()\n    self.prepare()",
    "after a key was seen": ("if size in self.tables:\n    return\na.sum().item()\nself.tables.add(size)"),
    "after what was kept is given back": (
        "if self.table is not None and self.table.size(1) >= size:\n    return self.table\n"
        "self.table = a.sum().item()\nreturn self.table"
    ),
    "after a hit in a container": (
        "hit = self.tables.get(size)\nif hit is not None:\n    return hit\nself.tables[size] = a.sum().item()"
    ),
    "after it was said to be done": "if self.ready:\n    return\na.sum().item()\nself.ready = True",
    "after an argument that is large enough": (
        "if pe is not None:\n    if pe.size(1) >= size:\n        return pe\npe = a.sum().item()\nreturn pe"
    ),
    "the message of an assertion": "assert size > 3, f'{a.sum().item()}'",
    "an exception that is handled": "try:\n    a.sum()\nexcept RuntimeError:\n    a.sum().item()",
    "after an early return": "if not self.should_log:\n    return\na.sum().item()",
    "at milestones": "if self.step in self.milestones:\n    a.sum().item()",
    "in the first step": "if self.step == 0:\n    a.sum().item()",
    "where the remainder is told first": "now = self.steps % 100 == 0\nif now:\n    a.sum().item()",
    "unless a remainder is left": "if not self.steps % 100:\n    a.sum().item()",
    "where no remainder is left, last": "if self.steps % 100 != 0:\n    pass\nelse:\n    a.sum().item()",
    "after all but the first few": "if self.steps >= 3:\n    return\na.sum().item()",
    "after all but every hundredth": "if self.steps % 100 != 0:\n    return\na.sum().item()",
}
EVERY_STEP = {
    "a default": "if pe is None:\n    pe = a.sum().item()",
    "an attribute that is filled for another reason too": (
        "if self.table is None or size > 9:\n    self.table = a.sum().item()"
    ),
    "a list that is not full": "if self.tables:\n    self.tables.append(a.sum().item())",
    "an attribute that grows": "if self.total is not None:\n    self.total = self.total + a.sum().item()",
    "after a shortcut": "if pe is not None:\n    return pe\npe = a.sum().item()\nreturn pe",
    "until it is done": "if self.done:\n    return\nself.done = a.sum().item() < size",
    "under a mask that is called visual": "if self.visual is not None and self.logits:\n    a.sum().item()",
    "in all but every hundredth": "if self.steps % 100 != 0:\n    a.sum().item()",
    "unless it is asked to log": "if not self.should_log:\n    a.sum().item()",
    "in every other step": "if self.steps % 2 == 0:\n    a.sum().item()",
    "on the first rank": "if self.rank == 0:\n    a.sum().item()",
    "in the main process": "if self.is_main_process:\n    a.sum().item()",
    "under a switch": "if self.save_attention or self.evaluate:\n    a.sum().item()",
    "under a switch for checkpoints": "if self.use_checkpoint and self.training:\n    a.sum().item()",
    "in the first layer": "for i, layer in enumerate(self.layers):\n    if i == 0:\n        a.sum().item()",
    "in every third layer": "for i, layer in enumerate(self.layers):\n    if i % 3 == 0:\n        a.sum().item()",
    "for a device with an index": "if self.device_idx == 0:\n    a.sum().item()",
    "after every hundredth": "if self.steps % 100 == 0:\n    return\na.sum().item()",
}


@pytest.mark.parametrize(
    ("name", "heat"), [*((name, Heat.GUARDED) for name in RARELY), *((name, Heat.STEP) for name in EVERY_STEP)]
)
def test_heat_in_a_module(lint, name, heat):
    body = textwrap.indent({**RARELY, **EVERY_STEP}[name], " " * 8)
    found = [finding for finding in lint(SETUP + CLASS.format(body=body)) if finding.code == "GS201"]
    assert [finding.heat for finding in found] == [heat]


def test_a_function_that_remembers_its_results_runs_rarely(lint):
    code = (
        "import functools\n@functools.lru_cache\ndef table(n):\n    return torch.zeros(n, device=device).sum().item()\n"
        "for batch in loader:\n    table(3)\n"
    )
    assert [finding.heat for finding in lint(SETUP + code)] == [Heat.GUARDED]


@pytest.mark.parametrize("name", CASES)
def test_heat(lint, name):
    code, heat = CASES[name]
    found = [finding for finding in lint(SETUP + code) if finding.code == "GS201"]
    assert [finding.heat for finding in found] == [heat]


def test_objects_that_tests_make_again_and_again_are_made_once(lint):
    agent = (
        "class Agent:\n    def __init__(self):\n        self.scale = torch.ones(4, device=device).sum().item()\n"
        "        self.model = model\n    def act(self, a):\n        return self.model(a).sum().item()\n"
    )
    test = (
        "from agent import Agent\ndef test_it():\n    for seed in range(99):\n        agent = Agent()\n"
        "        agent.act(x)\n"
    )
    found = lint(agent=SETUP + agent, tests__test_agent=SETUP + test)
    assert sorted((finding.span.line - SETUP.count("\n"), finding.heat) for finding in found) == [
        (3, Heat.EPOCH),
        (6, Heat.STEP),
    ]


def test_a_function_named_in_the_settings_runs_every_step(lint):
    code = SETUP + "def mine(t: torch.Tensor):\n    return t.item()\n"
    assert [f.heat for f in lint(code, EngineSettings(step_functions=("mine",)))] == [Heat.STEP]


def test_a_synchronize_next_to_a_clock_is_not_reported(lint):
    code = "import time\nfor b in loader:\n    torch.cuda.synchronize()\n    start = time.perf_counter()\n"
    assert lint(SETUP + code) == []


def test_a_synchronize_under_a_condition_next_to_a_clock_is_not_reported(lint):
    code = (
        "import time\nfor b in loader:\n    if device.type == 'cuda':\n        torch.cuda.synchronize()\n"
        "    start = time.perf_counter()\n"
    )
    assert lint(SETUP + code) == []


def test_a_lambda_runs_when_someone_calls_it(lint):
    code = "for b in loader:\n    check(b, lambda: x.sum().item())\n    sorted(b, key=lambda i: x.sum().item())\n"
    assert [finding.heat for finding in lint(SETUP + code)] == [Heat.GUARDED, Heat.STEP]


def test_a_lambda_for_each_part_of_a_batch_runs_at_once(lint):
    code = "for b in loader:\n    nested_map(b, lambda part: x.sum().item())\n    mapped(b, lambda: x.sum().item())\n"
    assert [finding.heat for finding in lint(SETUP + code)] == [Heat.STEP, Heat.GUARDED]


def test_a_synchronize_far_from_a_clock_is_reported(lint):
    code = "import time\nstart = time.time()\nfor b in loader:\n    torch.cuda.synchronize()\n"
    assert [finding.code for finding in lint(SETUP + code)] == ["GS101"]


@pytest.mark.parametrize("loop", ["for mlp in self.mlps: a = mlp(a)", "for k in range(self.n): a = self.mlps[k](a)"])
@pytest.mark.parametrize("layers", ["", "Block() for _ in range(4)"])
def test_a_loop_over_layers_does_not_make_its_caller_an_epoch(lint, loop, layers):
    code = (
        "class Block(torch.nn.Module):\n    def __init__(self):\n        self.part = torch.nn.Linear(4, 4)\n"
        "    def forward(self, a):\n        return self.part(a)\n"
        f"class Net(torch.nn.Module):\n    def __init__(self):\n        self.mlps = torch.nn.ModuleList([{layers}])\n"
        f"    def forward(self, a):\n        {loop}\n        return a\n"
        "    def act(self, a):\n        return self.forward(a)\n"
        "net = Net().to(device)\nfor y in x.split(1):\n    net.act(y).sum().item()\n"
    )
    assert [finding.heat for finding in lint(SETUP + code)] == [Heat.STEP]


LEFT_OUT = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 4).cuda()
def run(x, lengths=None, norm=2.0, quiet=True, *, scale=0):
    out = model(x)
    if {test}:
        print(out.sum().item())
    return out
for x in DataLoader([], pin_memory=True):
    {call}.sum().backward()
"""


@pytest.mark.parametrize(
    ("test", "call", "heat"),
    [
        ("lengths is not None", "run(x)", Heat.GUARDED),
        ("lengths", "run(x)", Heat.GUARDED),
        ("not quiet", "run(x)", Heat.GUARDED),
        ("norm == float('inf')", "run(x)", Heat.GUARDED),
        ("scale > 0 and model.training", "run(x)", Heat.GUARDED),
        ("lengths is None", "run(x)", Heat.STEP),
        ("norm == 2.0", "run(x)", Heat.STEP),
        ("scale > 0 or model.training", "run(x)", Heat.STEP),
        ("lengths is not None", "run(x, lengths=x)", Heat.STEP),
        ("lengths is not None", "run(*[x, x])", Heat.STEP),
        ("lengths is not None", "run(x, **model.options)", Heat.STEP),
    ],
)
def test_a_block_for_an_argument_that_every_call_leaves_out_is_a_note(lint, test, call, heat):
    found = lint(LEFT_OUT.format(test=test, call=call))
    assert [one.heat for one in found if one.code == "GS201"] == [heat]


def test_a_demo_on_the_host_says_nothing_about_the_inputs_of_a_module(lint):
    source = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 8))
    def forward(self, images, index):
        device = images.device
        return self.table[torch.arange(3, device=device)] + self.table[index]
if __name__ == "__main__":
    net = Net()
    for _ in range(10):
        print(net({images}, torch.randint(0, 4, (3,))))
"""
    assert lint(source.format(images="torch.randn(2, 3)")) == []
    moved = source.replace("Net()\n    for", "Net().cuda()\n    for").format(images="torch.randn(2, 3).cuda()")
    assert "GS504" in {one.code for one in lint(moved)}
