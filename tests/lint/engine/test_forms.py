"""The forms in which real training code holds and moves its tensors: each case waits in its last line, or nowhere."""

from __future__ import annotations

import pytest
from gpusync_lint.model import Heat

HEAD = """
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Variable
from torch.utils.data import DataLoader
"""
FOUND = {
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
}
SILENT = {
    "a tensor type of the host": (
        "x = torch.zeros(3, device='cuda').type(torch.FloatTensor)\nfor i in range(9):\n    x.sum().item()\n"
    ),
    "a size given to a tensor type of the device": (
        "Tensor = torch.cuda.FloatTensor\nfor x in DataLoader([]):\n    Tensor(x.size(0), 1).fill_(1.0)\n"
    ),
    "a change of dtype": "for x in DataLoader([]):\n    x.type(torch.float32)\n",
}


@pytest.mark.parametrize("name", FOUND)
def test_its_last_line_waits(lint, name):
    source = HEAD + FOUND[name]
    last = source.count("\n")
    assert last in {finding.span.end_line for finding in lint(source)}


@pytest.mark.parametrize("name", SILENT)
def test_nothing_waits(lint, name):
    assert [finding for finding in lint(HEAD + SILENT[name]) if finding.heat is not Heat.ONCE] == []
