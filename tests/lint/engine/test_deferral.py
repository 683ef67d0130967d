"""Sums and lists of numbers that are read one by one: made on the device, and read where they are used."""

from __future__ import annotations

import textwrap

import pytest

HEAD = """\
import torch
import torch.nn.functional as F


def train(model, loader, optimizer, interval):
    model.cuda().train()
"""
LOOP = """\
for step, (x, y) in enumerate(loader):
    x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
"""


def program(before: str, inside: str, after: str) -> str:
    """A training function with these statements before, at the end of, and after its step loop."""
    body = f"{before}\n{LOOP}{textwrap.indent(inside, '    ')}\n{after}\n"
    return HEAD + textwrap.indent(body, "    ")


GUARDED = """\
total += loss.detach()
if step % interval == 0:
    total = float(total)
    print(total / interval)
    total = 0.0"""
FIXED = {
    "a sum that is returned": (
        ("total = 0.0", "total += loss.item()", "return total"),
        ("total = 0.0", "total += loss.detach()", "total = float(total)\nreturn total"),
    ),
    "a sum that nobody reads": (
        ("total = 0.0", "total += loss.item()", "return None"),
        ("total = 0.0", "total += loss.detach()", "return None"),
    ),
    "with a factor on either side": (
        ("total = 0", "total += len(x) * loss.item() / 2", "return total"),
        ("total = 0", "total += len(x) * loss.detach() / 2", "total = float(total)\nreturn total"),
    ),
    "written out": (
        ("total = 0", "total = total + loss.item() * x.size(0)", "return total"),
        ("total = 0", "total = total + loss.detach() * x.size(0)", "total = float(total)\nreturn total"),
    ),
    "a count stays whole": (
        ("hits, n = 0, 0", "hits += (out.argmax(1) == y).sum().item()", "return hits"),
        (
            "hits, n = 0, 0",
            "hits += (out.argmax(1) == y).sum().detach()",
            "hits = int(hits)\nreturn hits",
        ),
    ),
    "of unknown type": (
        ("w = torch.zeros(3, device='cuda')\ntotal = 0", "total += w.max().item()", "return total"),
        (
            "w = torch.zeros(3, device='cuda')\ntotal = 0",
            "total += w.max().detach()",
            "total = torch.as_tensor(total).item()\nreturn total",
        ),
    ),
    "read under a guard": (
        (
            "total = 0.0",
            "total += loss.item()\nif step % interval == 0:\n    print(total / interval)\n    total = 0.0",
            "return None",
        ),
        (
            "total = 0.0",
            GUARDED,
            "return None",
        ),
    ),
    "converted by float()": (
        ("total = 0", "total += float(loss) * x.size(0)", "return total"),
        ("total = 0", "total += loss.detach() * x.size(0)", "total = float(total)\nreturn total"),
    ),
    "detached already": (
        ("total, count = 0, 0.0", "total += loss.detach().item()\ncount += float(loss.detach())", "return total"),
        (
            "total, count = 0, 0.0",
            "total += loss.detach()\ncount += loss.detach()",
            "total = float(total)\nreturn total",
        ),
    ),
    "comments stay": (
        ("total = 0.0", "total += loss.item()  # sum up", "# mean\nreturn total / 3  # it"),
        ("total = 0.0", "total += loss.detach()  # sum up", "total = float(total)\n# mean\nreturn total / 3  # it"),
    ),
    "half precision is not summed in half": (
        ("total = 0.0  # float16", "total += loss.item()", "return total"),
        ("total = 0.0  # float16", "total += loss.detach().float()", "total = float(total)\nreturn total"),
    ),
    "a list": (
        ("losses = []", "losses.append(loss.item())", "return sum(losses) / len(losses)"),
        (
            "losses = []",
            "losses.append(loss.detach())",
            "losses = torch.stack(losses).tolist() if losses else []\nreturn sum(losses) / len(losses)",
        ),
    ),
    "a list that is added to": (
        ("losses = []", "losses += [loss.item()]", "return losses"),
        (
            "losses = []",
            "losses += [loss.detach()]",
            "losses = torch.stack(losses).tolist() if losses else []\nreturn losses",
        ),
    ),
    "its length may be asked for": (
        ("losses = []", "losses.append(loss.item())\nn = len(losses)", "return None"),
        ("losses = []", "losses.append(loss.detach())\nn = len(losses)", "return None"),
    ),
    "a local of the same name elsewhere": (
        ("total = 0.0\ndef other():\n    total = 1\n    return total", "total += loss.item()", "return total"),
        (
            "total = 0.0\ndef other():\n    total = 1\n    return total",
            "total += loss.detach()",
            "total = float(total)\nreturn total",
        ),
    ),
}

KEPT = {
    "every step looks at it": ("total = 0.0", "total += loss.item()\nprint(total)", ""),
    "a condition of every step looks at it": ("total = 0.0", "total += loss.item()\nif total > 9:\n    return", ""),
    "another scope looks at it": ("total = 0.0\nshow = lambda: print(total)", "total += loss.item()", "show()"),
    "it is global": ("global total\ntotal = 0.0", "total += loss.item()", ""),
    "it begins as something else": ("total = make()", "total += loss.item()", "return total"),
    "it is also added to itself": ("total = 0.0", "total += loss.item() * total", "return total"),
    "a rounded number": ("total = 0.0", "total += round(loss.item(), 3)", "return total"),
    "an exception handler looks at it": (
        "total = 0.0\ntry:\n    pass\nfinally:\n    pass",
        "try:\n    total += loss.item()\nfinally:\n    print(total)",
        "",
    ),
    "converted by int()": ("total = 0", "total += int(loss)", "return total"),
    "an operation converted": ("total = 0.0", "total += float(loss + 1)", "return total"),
    "a list of conversions": ("losses = []", "losses.append(float(loss))", "return losses"),
    "two numbers in one": ("total = 0.0", "total += loss.item() * x.sum().item()", "return total"),
    "an element of a tensor": ("total = torch.zeros(3)", "total[0] += loss.item()", "return total"),
    "a list that the loop reads": ("losses = []", "losses.append(loss.item())\nprint(losses[-1])", ""),
    "a list that was used before": ("losses = []\nkeep(losses)", "losses.append(loss.item())", "return losses"),
    "a list that holds something": ("losses = [1.0]", "losses.append(loss.item())", "return losses"),
    "a tensor that changes later": ("losses = []", "losses.append(loss.item())\nloss += 1", "return losses"),
    "a tensor that changes in place": ("losses = []", "losses.append(loss.item())\nloss.zero_()", "return losses"),
    "a tensor with a dimension": ("losses = []", "losses.append(out[:1, 0].item())", "return losses"),
}


@pytest.mark.parametrize(("before", "after"), FIXED.values(), ids=FIXED.keys())
def test_it_is_read_where_it_is_used(fixed, before, after):
    assert fixed(program(*before), unsafe=True) == program(*after)


@pytest.mark.parametrize(("before", "after"), FIXED.values(), ids=FIXED.keys())
def test_a_second_run_changes_nothing(fixed, before, after):
    assert fixed(program(*after), unsafe=True) == program(*after)


@pytest.mark.parametrize("parts", KEPT.values(), ids=KEPT.keys())
def test_it_is_left_alone_where(fixed, parts):
    assert fixed(program(*parts), unsafe=True) == program(*parts)


@pytest.mark.parametrize("parts", [before for before, _ in FIXED.values()], ids=FIXED.keys())
def test_it_is_never_a_safe_fix(fixed, parts):
    assert fixed(program(*parts)) == program(*parts)


@pytest.mark.parametrize("clause", ["except KeyboardInterrupt", "finally"])
def test_it_is_left_alone_where_an_exception_would_pass_by_the_read(fixed, clause):
    loop = textwrap.indent(LOOP + "    total += loss.item()\n", "    ")
    source = HEAD + textwrap.indent(f"total = 0.0\ntry:\n{loop}{clause}:\n    print(total)\n", "    ")
    assert fixed(source, unsafe=True) == source


def test_the_hazard_of_a_list_is_the_memory_it_keeps(lint):
    found = lint(program("losses = []", "losses.append(loss.item())", "return losses"))
    assert ["One small tensor per step" in one.fix.hazard for one in found if one.fix] == [True]


def test_it_is_read_after_the_outermost_loop_that_does_not_look_at_it(fixed):
    loops = "total = 0.0\nfor epoch in range(3):\n" + textwrap.indent(LOOP, "    ") + "        total += loss.item()\n"
    result = fixed(HEAD + textwrap.indent(loops + "return total\n", "    "), unsafe=True)
    assert result.endswith("            total += loss.detach()\n    total = float(total)\n    return total\n")


def test_it_is_read_in_each_epoch_that_looks_at_it(fixed):
    loops = (
        "for epoch in range(3):\n    total = 0.0\n" + textwrap.indent(LOOP, "    ") + "        total += loss.item()\n"
    )
    result = fixed(HEAD + textwrap.indent(loops + "    print(total)\n", "    "), unsafe=True)
    assert result.endswith("            total += loss.detach()\n        total = float(total)\n        print(total)\n")
