"""What names hold: each case ends in a line that waits, or in one that does not."""

from __future__ import annotations

import pytest
from gpusync_lint.model.levels import Confidence, Heat

HEAD = """
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
"""
FOUND = {
    "a device chosen by availability": (
        'dev = "cuda" if torch.cuda.is_available() else "cpu"\n'
        "for i in range(9):\n    torch.zeros(3, device=dev).sum().item()\n"
    ),
    "a device chosen in branches": (
        "if torch.cuda.is_available():\n    dev = torch.device('cuda')\nelse:\n    dev = torch.device('cpu')\n"
        "for i in range(9):\n    torch.zeros(3, device=dev).sum().item()\n"
    ),
    "the accelerator": (
        "dev = torch.accelerator.current_accelerator()\nfor i in range(9):\n"
        "    torch.zeros(3, device=dev).sum().item()\n"
    ),
    "a device from arguments": (
        "args = argparse.ArgumentParser().parse_args()\nmodel = nn.Linear(3, 3).to(args.device)\n"
        "for i in range(9):\n    model(torch.zeros(3).to(args.device, non_blocking=True)).sum().item()\n"
    ),
    "a loss proved by backward": (
        "def train(criterion, out, device):\n    for i in range(9):\n        loss = criterion(out)\n"
        "        loss.backward()\n        loss.item()\n"
    ),
    "a sum that begins as a number": (
        "total = 0\nx = torch.zeros((), device='cuda')\nfor i in range(9):\n    total += x\n    float(total)\n"
    ),
    "tuple unpacking": "a, b = torch.zeros(3, device='cuda'), 1\nfor i in range(9):\n    a.sum().item()\n",
    "max with a dimension": (
        "x = torch.zeros(3, 3, device='cuda')\nfor i in range(9):\n    _, y = x.max(1)\n    y.sum().item()\n"
    ),
    "a walrus": (
        "x = torch.zeros(3, device='cuda')\nfor i in range(9):\n    if (y := x.sum()) is not None:\n        y.item()\n"
    ),
    "an attribute": (
        "class A:\n    def __init__(self):\n        self.x = torch.zeros(3, device='cuda')\n"
        "    def run(self):\n        for i in range(9):\n            self.x.sum().item()\n"
    ),
    "a closure": (
        "def outer():\n    x = torch.zeros(3, device='cuda')\n    def inner():\n        return x.sum().item()\n"
        "    for i in range(9):\n        inner()\n"
    ),
    "a module global": (
        "x = torch.zeros(3, device='cuda')\ndef f():\n    for i in range(9):\n        x.sum().item()\n"
    ),
    "an annotation": "def f(x: torch.Tensor):\n    x = x.cuda()\n    for i in range(9):\n        x.sum().item()\n",
    "what a function returns": (
        "def make():\n    return torch.zeros(3, device='cuda')\nx = make()\nfor i in range(9):\n    x.sum().item()\n"
    ),
    "a dictionary": "d = {'x': torch.zeros(3, device='cuda')}\nfor i in range(9):\n    d['x'].sum().item()\n",
    "a list that grew": (
        "xs = []\nfor i in range(9):\n    xs.append(torch.zeros(3, device='cuda'))\nfor x in xs:\n    x.sum().item()\n"
    ),
    "a batch of a loader moved": (
        "loader = DataLoader([])\nfor x, y in loader:\n    x = x.to('cuda', non_blocking=True)\n    x.sum().item()\n"
    ),
    "a module moved in place": (
        "m = nn.Linear(3, 3)\nm.to('cuda')\nfor i in range(9):\n    m(torch.zeros(3, device='cuda')).sum().item()\n"
    ),
    "import aliases": (
        "import torch as t\nfrom torch import zeros as z\nfor i in range(9):\n    z(3, device='cuda').sum().item()\n"
    ),
    "an f-string": "x = torch.zeros((), device='cuda')\nfor i in range(9):\n    s = f'{i} {x.item():.3f}'\n",
    "a tensor made on the device that is in force": (
        "with torch.device('cuda'):\n    for i in range(9):\n        torch.zeros(3).sum().item()\n"
    ),
    "try and except": (
        "for i in range(9):\n    try:\n"
        "        x = torch.zeros(3, device='cuda')\n    except RuntimeError:\n        continue\n    x.sum().item()\n"
    ),
}
SILENT = {
    "numpy": "x = np.zeros(3)\nfor i in range(9):\n    x.sum().item()\n    x.tolist()\n",
    "a tensor on the host": "x = torch.zeros(3)\nfor i in range(9):\n    x.sum().item()\n    print(x)\n",
    "the branch without a GPU": (
        "x = torch.zeros(3)\nif torch.cuda.is_available():\n    pass\nelse:\n    for i in range(9):\n        x.cuda()\n"
    ),
    "what .cpu() gave": (
        "x = torch.zeros(3, device='cuda').cpu()\nfor i in range(9):\n    x.sum().item()\n    x.numpy()\n"
    ),
    "a batch before it is moved": "loader = DataLoader([])\nfor x, y in loader:\n    print(x.sum().item())\n",
    "a module on the host": "m = nn.Linear(3, 3)\nfor i in range(9):\n    m(torch.zeros(3)).sum().item()\n",
    "shapes": (
        "x = torch.zeros(3, device='cuda')\nfor i in range(9):\n    print(x.shape, x.size(0), len(x), x.dtype)\n"
    ),
    "a re-assigned name": "x = torch.zeros(3, device='cuda')\nx = 3.0\nfor i in range(9):\n    print(x)\n",
    "items of a dictionary": "d = {'a': 1}\nfor k, v in d.items():\n    print(k, v)\n",
    "what item gave": (
        "x = torch.zeros((), device='cuda')\ny = x.item()\nfor i in range(9):\n    print(y)\n    float(y)\n"
    ),
    "isinstance": (
        "def f(x):\n    if isinstance(x, float):\n        for i in range(9):\n"
        "            print(x)\nf(torch.zeros(3, device='cuda'))\n"
    ),
    "a helper called with tensors elsewhere": (
        "def pick(a, b):\n    return a if a is not None else b\n"
        "y = pick(torch.zeros((), device='cuda'), 1)\nz = pick(None, 3)\n"
        "for i in range(9):\n    print(z)\n"
    ),
    "a string compared": (
        "def forward(mode):\n    for i in range(9):\n        if mode == 'sum':\n            pass\nforward('sum')\n"
    ),
    "what is asserted to lie on the host": (
        "def f(x: torch.Tensor):\n    assert x.device.type == 'cpu', 'on the host'\n"
        "    for i in range(9):\n        x.sum().item()\nx = torch.zeros(3, device='cuda')\nf(x)\n"
    ),
    "what must not lie on a device": (
        "def f(x: torch.Tensor):\n    if x.is_cuda:\n        raise ValueError('on a device')\n"
        "    for i in range(9):\n        x.sum().item()\nx = torch.zeros(3, device='cuda')\nf(x)\n"
    ),
    "a collator": (
        "class Collator:\n    def __call__(self, batch: list[dict[str, torch.Tensor]]):\n"
        "        out = torch.zeros(9, 3)\n"
        "        for i, item in enumerate(batch):\n            out[i] = item['x']\n        return out\n"
    ),
    "a module that only a feature extractor calls": (
        "class Filters(nn.Module):\n    def forward(self, x, lengths):\n        return x[:, :lengths.max()]\n"
        "from transformers import SequenceFeatureExtractor\nclass Extractor(SequenceFeatureExtractor):\n"
        "    def __init__(self):\n        self.filters = Filters()\n"
        "    def __call__(self, x: torch.Tensor, lengths: torch.Tensor):\n        return self.filters(x, lengths)\n"
        "device = torch.device('cuda')\n"
    ),
    "a buffer of a model that is built on a device": (
        "class Net(nn.Module):\n    def __init__(self):\n        self.buffer = torch.zeros(9)\n"
        "    def forward(self, x):\n        self.buffer.copy_(x)\n        return x\n"
        "target = torch.device('cuda')\nwith target:\n    net = Net()\n"
    ),
    "a number stored through a mask": (
        "class Net(nn.Module):\n    def forward(self, x: torch.Tensor, keep: torch.Tensor, mask: torch.Tensor):\n"
        "        x[~keep] = 0.0\n        x[mask] = 0.0\n        return x\ndevice = torch.device('cuda')\n"
    ),
    "a buffer on a device that is kept in an attribute": (
        "class Net(nn.Module):\n    def __init__(self, config):\n        self.device = config.platform.kind()\n"
        "        self.buffer = torch.empty(9, device=self.device)\n"
        "    def forward(self, x):\n        self.buffer[:3].copy_(x)\n"
    ),
    "a change to the default dtype": (
        "class Net(nn.Module):\n    def forward(self, x):\n"
        "        return torch.arange(9).to(torch.get_default_dtype())\ndevice = torch.device('cuda')\n"
    ),
    "a numpy number that is stored": (
        "x = torch.zeros(3, device='cuda')\nfor i in range(9):\n    x[0] = np.log(np.exp(1 - 0.5) - 1)\n"
    ),
    "a host tensor that takes its shape from device tensors": (
        "h = torch.zeros((), device='cuda')\nx = torch.arange(9)\n"
        "y = x.reshape(3, h)\nfor i in range(9):\n    y[y != 3].tolist()\n"
    ),
    "two tensors that are brought together": (
        "def f(x: torch.Tensor):\n    c = torch.zeros(3)\n    for i in range(9):\n        x.to(c.device)\n"
        "f(torch.zeros(3, device='cuda'))\n"
    ),
    "a switch with the annotation of a tensor": (
        "class Net(nn.Module):\n    def forward(self, x: torch.Tensor, detailed: torch.Tensor = None):\n"
        "        if not detailed:\n            return x\n        return x, x\ndevice = torch.device('cuda')\n"
    ),
    "a copy that is called one of the CPU": (
        "class Net(nn.Module):\n    def forward(self, x: torch.Tensor, ids_cpu: torch.Tensor):\n"
        "        for row_cpu in self.rows():\n            torch.eq(row_cpu, 3).nonzero()\n"
        "        return ids_cpu.tolist(), self.lengths_cpu.max().item()\ndevice = torch.device('cuda')\n"
    ),
    "what a loop in a module hands out": (
        "class Net(nn.Module):\n    def forward(self, x: torch.Tensor, parts):\n        for part in self.kept(parts):\n"
        "            part.to(x.device)\ndevice = torch.device('cuda')\n"
    ),
    "an empty tensor": "for i in range(9):\n    torch.tensor([], device='cuda')\n",
    "settings that forward is given": (
        "class Net(nn.Module):\n    def forward(self, x, layer_type, length=None, max_size=None):\n"
        "        scale = getattr(self, f'{layer_type}_scale')\n        return x[:, :length] * scale, x[:, :max_size]\n"
        "device = torch.device('cuda')\n"
    ),
    "a bound that only a convention makes a tensor": (
        "class Net(nn.Module):\n    def forward(self, x, stop):\n        for i in range(stop):\n            pass\n"
        "        return x[:stop], torch.zeros(stop)\n"
        "device = torch.device('cuda')\n"
    ),
    "what a layer from a mixin gives": (
        "class Head:\n    def __init__(self):\n        self.score = nn.Linear(3, 3)\n"
        "class Net(Head, nn.Module):\n    def forward(self, x: torch.Tensor, mask: torch.Tensor):\n"
        "        return mask.to(self.score(x).device)\ndevice = torch.device('cuda')\n"
    ),
    "an index that is called a mask": (
        "def pick(out, mask):\n    return out[mask]\nout = torch.zeros(9, device='cuda')\n"
        "train = torch.arange(3, device='cuda')\nfor i in range(9):\n    pick(out, train)\n"
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_device_tensor_is_known(lint, name):
    code = FOUND[name]
    found = [finding for finding in lint(HEAD + code) if finding.heat is not Heat.ONCE]
    assert found
    assert {finding.code for finding in found} <= {"GS201", "GS205"}


@pytest.mark.parametrize("name", SILENT)
def test_what_lies_on_the_host_is_silent(lint, name):
    assert [finding for finding in lint(HEAD + SILENT[name]) if finding.heat is not Heat.ONCE] == []


def test_backward_proves_that_a_sum_of_parts_is_one_element(lint):
    found = lint(
        HEAD + "class Net(nn.Module):\n    def forward(self, x):\n        return self.body(x)\n"
        "def train(data, device, weigh, best):\n    net = Net().to(device)\n    for x in DataLoader(data):\n"
        "        out = net(x)\n"
        "        loss = out.mean() + torch.ones((), device=device) * out.square().mean(weigh)\n"
        "        loss.backward()\n        if loss < best:\n            pass\n"
    )
    assert [finding.confidence is Confidence.LOW for finding in found if finding.code == "GS301"] == [False]


def test_one_finding_for_a_chain(lint):
    code = "x = torch.zeros(3, device='cuda')\nfor i in range(9):\n    y = x.detach().cpu().numpy().tolist()\n"
    assert [finding.code for finding in lint(HEAD + code)] == ["GS202"]


def test_two_syncs_in_one_statement_are_two_findings(lint):
    code = "x = torch.zeros((), device='cuda')\nfor i in range(9):\n    y = x.item() + x.item()\n"
    found = lint(HEAD + code)
    assert len({finding.key for finding in found}) == len(found) == 2


OFFERED = "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x.sum().item()\n"
TRAINS = "import torch\nfrom net import Net\nfor x in torch.zeros(9, 3):\n    Net()(x).backward()\n"


def test_modules_of_a_library_that_names_no_device_run_where_others_run_them(lint):
    assert [finding.code for finding in lint(net=OFFERED)] == ["GS201"]
    assert [finding.code for finding in lint(net=OFFERED, test_net=TRAINS)] == ["GS201"]


def test_a_program_that_names_no_device_is_not_reported(lint):
    assert lint(net=OFFERED, train=TRAINS) == []
    assert lint(net=OFFERED.replace("torch.nn.Module", "object")) == []


def test_what_is_called_a_mask_is_read_as_one(lint):
    code = (
        "class Net(nn.Module):\n    def forward(self, x: torch.Tensor, keep: torch.Tensor, mask: torch.Tensor):\n"
        "        return x[~keep], x[mask]\ndevice = torch.device('cuda')\n"
    )
    assert [finding.code for finding in lint(HEAD + code)] == ["GS402", "GS402"]


def test_an_assertion_in_a_test_is_silent(lint):
    code = (
        "def test_it():\n    x = torch.zeros(3, device='cuda')\n    for i in range(9):\n        assert (x == 0).all()\n"
    )
    assert lint(test_net=HEAD + code) == []
    assert [finding.code for finding in lint(net=HEAD + code)] == ["GS302"]


def test_the_default_type_of_a_program_holds_in_the_files_it_imports(lint):
    helper = "import torch\ndef ratio(value):\n    return value / torch.Tensor([10.0])\n"
    program = (
        "import torch\nfrom helper import ratio\n"
        "def main():\n    model = torch.nn.Linear(4, 1)\n    opt = torch.optim.SGD(model.parameters(), 0.1)\n"
        "    for i in range(9):\n        ratio(model(torch.randn(8, 4))).mean().backward()\n        opt.step()\n"
        "if __name__ == '__main__':\n"
    )
    found = [
        lint(helper=helper, program=f"{program}    {start}main()\n")
        for start in ("torch.set_default_tensor_type('torch.cuda.FloatTensor'); ", "")
    ]
    assert [[(one.path, one.span.line, one.heat) for one in each if one.code == "GS502"] for each in found] == [
        [("helper.py", 3, Heat.STEP)],
        [],
    ]


def test_a_wait_in_a_test_function_is_a_note(lint):
    code = (
        "def test_step():\n    net = nn.Linear(3, 1).cuda()\n    for i in range(9):\n"
        "        loss = net(torch.zeros(3, device='cuda')).sum()\n        loss.backward()\n        print(loss)\n"
    )
    files = {"test_net": "import pytest\n", "net": "import pytest\n", "test_epochs": ""}
    found = [lint(**{name: head + HEAD + code}) for name, head in files.items()]
    heats = [[one.heat for one in each if one.code == "GS206"] for each in found]
    assert heats == [[Heat.GUARDED], [Heat.STEP], [Heat.STEP]]


def test_a_forward_makes_a_module_of_a_class_from_elsewhere(lint):
    code = (
        "from elsewhere import Layer\nclass Net(Layer):\n    def forward(self, x):\n        return x.sum().item()\n"
        "device = torch.device('cuda')\n"
    )
    assert [(finding.code, finding.heat) for finding in lint(HEAD + code)] == [("GS201", Heat.STEP)]


def test_a_forward_without_instances_is_none_of_a_module(lint):
    code = (
        "import lib\nclass Net(lib.Layer):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return x.sum().item()\ndevice = torch.device('cuda')\n"
    )
    assert [finding for finding in lint(HEAD + code) if finding.heat is not Heat.ONCE] == []
