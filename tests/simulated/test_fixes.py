"""What the linter's fixes leave: the same values and types, with fewer waits."""

from __future__ import annotations

import pytest
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.model.levels import Heat
from gpusync_lint.rewrite import apply
from gpusync_lint.rewrite.codemod import Codemod
from gpusync_lint.run import engine

from pytest_gpusync import record

HEAD = """\
import torch
import torch.nn.functional as F


def train(batches, model, optimizer):
"""
STEP = """\
    for step, (x, y) in enumerate(batches):
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PROGRAMS = {
    "a sum": ("total = 0.0", "total += loss.item()", "return total"),
    "a sum of counts": ("hits = 0", "hits += (out.argmax(1) == y).sum().item()", "return hits"),
    "an empty sum": ("total = 0.0\nbatches = []", "total += loss.item()", "return total"),
    "a weighted sum, written out": ("total = 0", "total = total + loss.item() * x.size(0)", "return total / 8"),
    "a sum that is shown now and then": (
        "total, seen = 0.0, []",
        "total += loss.item()\nif step % 3 == 0:\n    seen.append(total / 3)\n    total = 0.0",
        "return seen, total",
    ),
    "a list": ("losses = []", "losses.append(loss.item())", "return losses"),
    "an empty list": ("losses = []\nbatches = []", "losses.append(loss.item())", "return losses"),
    "two means": ("seen = []", "a = x.mean().item()\nb = x.std().item()\nseen.append((a, b))", "return seen"),
    "two counts far apart": (
        "seen = []",
        "a = (x > 0).sum().item()\nz = x * 2\nb = (z > 1).sum().item()\nseen.append((a, b))",
        "return seen",
    ),
    "a share": ("seen = []", "seen.append((x > 0).sum().item() / (x < 9).sum().item())", "return seen"),
    "numbers of a call": (
        "seen = []\ndef keep(*items):\n    seen.append(items)",
        "a = x.mean()\nkeep(a.item(), loss.item())",
        "return seen",
    ),
    "one-hot": ("seen = []", "hot = F.one_hot(x.argmax(-1))\nseen.append(hot.sum(0))", "return len(seen)"),
    "repeats": (
        "lengths = [1, 2, 3, 4]\ncounts = torch.tensor(lengths, device='cuda')\nseen = 0",
        "seen += x[:4].repeat_interleave(counts, 0).size(0)",
        "return seen",
    ),
    "a tensor of equal numbers": (
        "seen = []",
        "w = torch.tensor([0.5, 0.5], dtype=torch.half, device='cuda')\nseen.append((w.dtype, w.cpu()[0].item()))",
        "return seen",
    ),
    "factories": (
        "seen = []",
        "w = torch.zeros(3, dtype=torch.long).to('cuda') + torch.arange(3).to('cuda')\nseen.append((w.dtype, w.cpu()))",
        "return seen",
    ),
    "a copy of pinned memory": (
        "same = torch.ones(3).pin_memory()\nseen = []",
        "seen.append(same.to('cuda') * step)",
        "return [float(one.sum()) for one in seen]",
    ),
    "a copy of pinned memory beside one that is refilled": (
        "same, new = torch.ones(3).pin_memory(), torch.ones(3).pin_memory()\nseen = []",
        "new.fill_(float(step))\nseen.append(same.to('cuda') + new.to('cuda'))",
        "return [float(one.sum()) for one in seen]",
    ),
    "an inverse": (
        "a = torch.eye(3, device='cuda') * 2\nseen = []",
        "seen.append(torch.linalg.inv(a).cpu())\nLU, piv = torch.linalg.lu_factor(a)\nseen.append(LU.cpu())",
        "return seen",
    ),
}


def program(parts: tuple[str, str, str]) -> str:
    before, inside, after = parts
    indented = [part.replace("\n", f"\n{' ' * by}") for part, by in ((before, 4), (inside, 8), (after, 4))]
    return f"{HEAD}    {indented[0]}\n{STEP}        {indented[1]}\n    {indented[2]}\n"


def fixed(source: str) -> str:
    for _ in range(10):
        found = engine.analyze([Source("train.py", source)], EngineSettings()).findings
        codemod = Codemod(source)
        hot = [one for one in found if one.heat is Heat.STEP]
        chosen = apply.choose(hot, lambda one, codemod=codemod: codemod.edits(one.operations), unsafe=True)
        if not chosen.fixes:
            break
        source = apply.apply_edits(source, chosen.edits)
    return source


@pytest.mark.parametrize("parts", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_fixed_program_gives_the_same_waits_less_and_has_no_race(cuda, seen, parts) -> None:
    import torch

    def run(source: str) -> tuple[object, int]:
        names: dict[str, object] = {}
        exec(compile(source, "train.py", "exec"), names)
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [(torch.randn(8, 5).pin_memory(), torch.randint(4, (8,)).pin_memory()) for _ in range(7)]
        with record() as region, seen() as syncs:
            result = names["train"](batches, model, optimizer)  # type: ignore[operator]
        assert region.races == ()
        return result, len(syncs)

    before = program(parts)
    after = fixed(before)
    assert after != before
    (old, waits), (new, fewer) = run(before), run(after)
    assert types(new) == types(old)
    assert new == pytest.approx(old, rel=1e-6) if isinstance(old, float) else close(old, new)
    assert fewer < waits or "batches = []" in before


def types(value: object) -> object:
    return [types(one) for one in value] if isinstance(value, (list, tuple)) else type(value)


def close(old: object, new: object) -> bool:
    import torch

    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(close(one, other) for one, other in zip(old, new, strict=True))
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        return bool(torch.allclose(old, new))
    return new == pytest.approx(old, rel=1e-6) if isinstance(old, float) else bool(old == new)
