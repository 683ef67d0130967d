"""Several numbers that are read in one block, and the one read that serves them all."""

from __future__ import annotations

import pytest

ARGUMENTS = """\
first = x.mean()
second = x.std()
first_value, second_value = torch.stack([first, second]).tolist()
log(first_value, second_value)"""
FIXED = {
    "one after the other": (
        "a = x.mean().item()\nb = x.std().item()",
        "a, b = torch.stack([x.mean(), x.std()]).tolist()",
    ),
    "counts": (
        "a = (x > 0).sum().item()\nb = (x > 1).sum().item()",
        "a, b = torch.stack([(x > 0).sum(), (x > 1).sum()]).tolist()",
    ),
    "with something in between": (
        "a = x.mean().item()\ny = x * 2\nb = y.mean().item()  # two",
        "a = x.mean().detach()\ny = x * 2\nb = y.mean().detach()  # two\na, b = torch.stack([a, b]).tolist()",
    ),
    "with a comment in between": (
        "a = x.mean().item()  # one\nb = x.std().item()",
        "a = x.mean().detach()  # one\nb = x.std().detach()\na, b = torch.stack([a, b]).tolist()",
    ),
    "of one name at different times": (
        "y = x + 1\na = y.mean().item()\ny = x + 2\nb = y.mean().item()",
        "y = x + 1\na = y.mean().detach()\ny = x + 2\nb = y.mean().detach()\na, b = torch.stack([a, b]).tolist()",
    ),
    "unpacked": (
        "a, b = x.mean().item(), x.std().item()",
        "a, b = torch.stack([x.mean(), x.std()]).tolist()",
    ),
    "a tuple": (
        "pair = (x.mean().item(), x.std().item())",
        "pair = tuple(torch.stack([x.mean(), x.std()]).tolist())",
    ),
    "a list": (
        "both = [x.mean().item(), x.std().item()]",
        "both = torch.stack([x.mean(), x.std()]).tolist()",
    ),
    "arguments": (
        "first = x.mean()\nsecond = x.std()\nlog(first.item(), second.item())",
        ARGUMENTS,
    ),
}

COMBINED = {
    "a share": ("y = (x > 0).sum().item() / (x > 1).sum().item()", "y = ((x > 0).sum() / (x > 1).sum()).item()"),
    "a difference": ("y = x.mean().item() - x.std().item()", "y = (x.mean() - x.std()).item()"),
    "in a larger expression": (
        "log(1 - (x > 0).sum().item() / (x > 1).sum().item())",
        "log(1 - ((x > 0).sum() / (x > 1).sum()).item())",
    ),
}

KEPT = {
    "a count over a mean": "y = (x > 0).sum().item() / x.mean().item()",
    "a whole quotient": "y = (x > 0).sum().item() // (x > 1).sum().item()",
    "a count and a mean": "a = (x > 0).sum().item()\nb = x.mean().item()",
    "of unknown type": "a = s.item()\nb = s2.item()",
    "with a dimension": "a = x.exp()[0].item()\nb = x.mean().item()",
    "the first is used before the second": "a = x.mean().item()\ny = x * a\nb = y.mean().item()",
    "the step may end in between": "a = x.mean().item()\nif a_flag:\n    continue\nb = x.std().item()",
    "booleans": "a = (x > 0).any().item()\nb = (x > 1).any().item()",
    "one of them may not be evaluated": "y = x.mean()\nz = x.std()\nlog(y.item() if c_flag else z.item())",
}


def program(body: str) -> str:
    head = "import torch\ndef train(model, loader, optimizer, c_flag, a_flag):\n    model.cuda().train()\n"
    head += "    for data in loader:\n        x = data.cuda(non_blocking=True)\n        s = s2 = model(x).max()\n"
    head += "        optimizer.step()\n"
    return head + "".join(f"        {line}\n" for line in body.split("\n"))


@pytest.mark.parametrize(("before", "after"), FIXED.values(), ids=FIXED.keys())
def test_they_are_read_at_once(fixed, before, after):
    assert fixed(program(before), unsafe=True) == program(after)


@pytest.mark.parametrize(("before", "after"), COMBINED.values(), ids=COMBINED.keys())
def test_operands_are_combined_on_the_device(fixed, before, after):
    assert fixed(program(before), unsafe=True) == program(after)


@pytest.mark.parametrize("after", [after for _, after in FIXED.values()], ids=FIXED.keys())
def test_a_second_run_changes_nothing(fixed, after):
    assert fixed(program(after), unsafe=True) == program(after)


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT.keys())
def test_they_are_read_one_by_one_where(fixed, body):
    assert fixed(program(body), unsafe=True) == program(body)


def test_a_tensor_that_changes_in_place_is_read_at_once(fixed):
    body = "y = x.mean()\na = y.item()\ny.mul_(2)\nb = x.std().item()"
    assert fixed(program(body), unsafe=True) == program(body)


def test_it_is_never_a_safe_fix(fixed):
    body = "a, b = x.mean().item(), x.std().item()"
    assert fixed(program(body)) == program(body)
