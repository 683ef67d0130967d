"""Forms that programs are written in, and what they show about tensors."""

from __future__ import annotations

import pytest
from gpusync_lint.domain.tensor_ops import combine
from gpusync_lint.domain.values import HOST, Device, tensor
from gpusync_lint.model.levels import Confidence, Heat

HEAD = """
import torch
from einops import pack, rearrange, reduce, repeat, unpack
x = torch.zeros(3, 3, device="cuda")
"""
READ = {
    "rearranged": "rearrange(x, 'a b -> (a b)')",
    "repeated": "repeat(x, 'a b -> c a b', c=2)",
    "packed": "pack([x, x], 'a *')[0]",
    "unpacked": "unpack(x, [[1], [2]], 'a *')[1]",
    "a list that is rearranged": "rearrange([x, x], 'n a b -> a b n')",
}
WAITS = {
    "GS402 a rearranged mask": """
kept = rearrange(x > 0, 'a b -> (a b)')
for i in range(9):
    x.flatten()[kept]
""",
    "GS402 a mask that is changed in place": """
def keep(low):
    mask = x > 0
    mask &= x < low
    return mask
for i in range(9):
    x[keep(i)]
""",
    "GS505 the largest number of a dtype": """
rows = torch.randperm(3, device="cuda")
for i in range(9):
    x[rows] = torch.finfo(x.dtype).max
""",
    "GS301 a partial of a function of torch": """
from functools import partial
arange = partial(torch.arange, device="cuda")
for i in range(9):
    if arange(3).max() > 0:
        pass
""",
    "GS301 an item of an object": """
class Data:
    def __init__(self):
        self.held = {}
    def __setitem__(self, key, item):
        self.held[key] = item
    def __getitem__(self, key):
        return self.held[key]
data = Data()
data["x"] = x
for i in range(9):
    if data["x"].max() > 0:
        pass
""",
    "GS501 one of several cases": """
def train(kind, loader):
    _, y = next(iter(loader))
    for given, other in loader:
        if kind == "a":
            y = given.clone()
        elif kind == "b":
            y = other.clone()
        y = y.to("cuda")
train(input(), torch.utils.data.DataLoader([]))
""",
}
SILENT = {
    "a comparison with None": """
for i in range(9):
    if x != None:
        pass
""",
    "what the name of an attribute is made of": """
class Net(torch.nn.Module):
    def forward(self, x, given):
        losses, kind = given["losses"], given["kind"]
        return getattr(self, "{}_loss".format(kind))(losses)
net = Net().cuda()
for i in range(9):
    net(x, load())
""",
    "an index that counts a mask": """
for i in range(9):
    x[reduce(x > 0, 'a b -> a', 'sum')]
""",
}


@pytest.mark.parametrize("name", READ)
def test_functions_of_einops_return_tensors(lint, name):
    found = lint(f"{HEAD}for i in range(9):\n    if ({READ[name]}).max() > 0:\n        pass\n")
    assert [finding.code for finding in found] == ["GS301"]


@pytest.mark.parametrize("name", WAITS)
def test_it_waits(lint, name):
    found = [one for one in lint(HEAD + WAITS[name]) if one.heat is not Heat.ONCE]
    assert name.split()[0] in {one.code for one in found if one.confidence is not Confidence.LOW}


@pytest.mark.parametrize("name", SILENT)
def test_it_is_silent(lint, name):
    assert [finding for finding in lint(HEAD + SILENT[name]) if finding.heat is not Heat.ONCE] == []


def test_an_operation_on_a_tensor_returns_one():
    certain, guessed = tensor(Device.GPU), tensor(Device.GPU, certain=False)
    assert combine(certain, guessed).certain
    assert combine(guessed, certain).certain
    assert not combine(guessed, guessed).certain
    assert not combine(guessed, HOST).certain
    assert not combine(tensor(Device.CPU), guessed).certain


def test_tests_do_not_say_what_parameters_hold(lint):
    library = (
        "import torch\ndef marked(rows: torch.Tensor):\n    return rows[rows > 0]\n"
        "def train():\n    for i in range(9):\n        marked(torch.zeros(3, device='cuda'))\n"
    )
    tests = (
        "import torch\nfrom library import marked\ndef test_marked():\n"
        "    for device in ('cpu', 'cuda'):\n        marked({'rows': 1})\n        marked([torch.zeros(3)])\n"
    )
    found = [one for one in lint(library=library, test_library=tests) if one.path.startswith("library")]
    assert [(one.code, one.confidence) for one in found if one.code == "GS402"] == [("GS402", Confidence.HIGH)]
