"""What one file tells about another."""

from __future__ import annotations

from gpusync_lint.model.levels import Heat

TRAIN = """
import torch
from torch.utils.data import DataLoader
device = torch.device("cuda")
"""


def test_a_helper_without_torch_is_found_through_its_caller(lint):
    found = lint(
        train=TRAIN
        + (
            "from metrics import accuracy\nfor x in DataLoader([]):\n"
            "    y = x.to(device, non_blocking=True)\n    accuracy(y, y)\n"
        ),
        metrics="def accuracy(out, target):\n    return (out == target).sum().item()\n",
    )
    assert [(finding.path, finding.code, finding.heat) for finding in found] == [("metrics.py", "GS201", Heat.STEP)]


def test_a_result_from_another_file_is_known(lint):
    found = lint(
        train=TRAIN + "from pkg.make import make\nfor i in range(9):\n    print(make())\n",
        pkg____init__="",
        pkg__make="import torch\ndef make():\n    return torch.zeros(3, device='cuda')\n",
    )
    assert [(finding.path, finding.code) for finding in found] == [("train.py", "GS206")]


def test_relative_imports_are_followed(lint):
    found = lint(
        pkg____init__="",
        pkg__make="import torch\ndef make():\n    return torch.zeros(3, device='cuda')\n",
        pkg__train="import torch\nfrom .make import make\nfor i in range(9):\n    print(make())\n",
    )
    assert [finding.path for finding in found] == ["pkg/train.py"]


def test_files_of_the_same_name_in_other_folders_are_not_mixed_up(lint):
    found = lint(
        a__model="import torch\ndef make():\n    return torch.zeros(3, device='cuda')\n",
        b__model="def make():\n    return 3\n",
        b__main="import torch\nfrom model import make\ndevice = 'cuda'\nfor i in range(9):\n    print(make())\n",
    )
    assert found == []


def test_a_class_of_another_file_moves_to_the_device(lint):
    found = lint(
        net="import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n",
        train=TRAIN
        + (
            "from net import Net\nnet = Net().to(device)\nfor i in range(9):\n"
            "    print(net(torch.ones(3, device=device)))\n"
        ),
    )
    assert [finding.code for finding in found] == ["GS206"]


def test_import_cycles_are_harmless(lint):
    assert (
        lint(
            a="import torch\nfrom b import g\ndef f():\n    return g()\n",
            b="import torch\nfrom a import f\ndef g():\n    return f()\n",
        )
        == []
    )


def test_recursion_is_harmless(lint):
    assert lint("import torch\ndef f(x):\n    return f(f(x))\nf(torch.zeros(3))\n") == []


def test_a_package_that_imports_itself_in_circles_is_seen_through(lint):
    found = lint(
        pkg____init__="from .conv import *\nfrom .base import Base\n",
        pkg__conv____init__="from .one import One\n__all__ = ['One']\n",
        pkg__conv__one="from pkg import Base\nimport torch\nclass One(torch.nn.Module):\n"
        "    def forward(self, x):\n        return x.sum().item()\n",
        pkg__base="from pkg.conv import One\nimport torch\nclass Base:\n    pass\n",
        train="import torch\nfrom pkg import One\nnet = One().cuda()\nfor i in range(9):\n"
        "    torch.zeros(3).cuda()\n    y = net(torch.zeros(3, device='cuda'))\n",
    )
    assert ("pkg/conv/one.py", 5) in {(finding.path, finding.span.line) for finding in found}


def test_a_name_that_two_modules_of_a_package_pass_in_a_circle_is_found(lint):
    found = lint(
        pkg____init__="from .new import *\nfrom .old import *\n",
        pkg__old="from pkg import make\n",
        pkg__new="import torch\ndef make():\n    return torch.zeros(3, device='cuda')\n",
        train=TRAIN + "from pkg import make\nfor i in range(9):\n    print(make())\n",
    )
    assert [(finding.path, finding.code) for finding in found] == [("train.py", "GS206")]


def test_a_function_of_a_package_hides_the_module_of_its_name(lint):
    found = lint(
        pkg____init__="from .integrate import integrate\n",
        pkg__integrate="def integrate(y, t):\n    if t[0] > t[1]:\n        t = -t\n    return y * t\n",
        train=TRAIN + "from pkg import integrate\nt = torch.linspace(0, 1, 5, device='cuda')\n"
        "for i in range(9):\n    loss = integrate(torch.ones(5, device='cuda'), t).sum()\n    loss.backward()\n",
    )
    assert [(finding.path, finding.code) for finding in found] == [("pkg/integrate.py", "GS301")]


def test_a_module_that_its_package_imports_as_a_module_stays_one(lint):
    found = lint(
        pkg____init__="from . import integrate\n",
        pkg__integrate="import torch\ndef make():\n    return torch.zeros(3, device='cuda')\n",
        train=TRAIN + "from pkg import integrate\nfor i in range(9):\n    print(integrate.make())\n",
    )
    assert [(finding.path, finding.code) for finding in found] == [("train.py", "GS206")]


def test_a_class_from_a_package_that_star_imports_the_file_in_turn_is_known(lint):
    package = "from .base import *\nfrom .vae import *\n"
    base = "from torch import nn\nclass Base(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    vae = (
        "import torch\nfrom models import Base\nclass Vae(Base):\n"
        "    def forward(self, x):\n        return x * torch.ones(1).cuda().item()\n"
    )
    found = lint(
        experiment="import torch\nfrom models import Base\n",
        models____init__=package,
        models__base=base,
        models__vae=vae,
    )
    assert [(finding.path, finding.heat.value) for finding in found if finding.code == "GS201"] == [
        ("models/vae.py", "step")
    ]


def test_a_variable_of_another_module_keeps_its_value_however_it_is_imported(lint):
    found = lint(
        a="import torch\nfrom z import TABLE\ndef step(x):\n    if TABLE[0] > 3:\n        return x\n"
        "    from y import MORE\n    return x * MORE.item()\nmodel = torch.nn.Linear(2, 2).cuda()\nfor i in range(9):\n"
        "    step(model(torch.zeros(2, device='cuda'))).sum().backward()\n",
        y="from z import TABLE as MORE\n",
        z="import torch\nTABLE = torch.arange(5).cuda()\n",
    )
    assert [(finding.span.line, finding.code) for finding in found if finding.path == "a.py"] == [
        (4, "GS301"),
        (7, "GS201"),
    ]
