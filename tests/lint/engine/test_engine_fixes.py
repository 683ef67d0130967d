"""The fixes that rules offer: the text they leave, and whether they call themselves safe."""

from __future__ import annotations

import pytest

SAFE = {
    "y = torch.tensor(1.0, device=dev)": "y = torch.full((), 1.0, device=dev)",
    "y = torch.tensor(-3, device=dev)": "y = torch.full((), -3, device=dev)",
    "y = torch.tensor(True, device=dev)": "y = torch.full((), True, device=dev)",
    "y = torch.zeros(3, 4).to(dev)": "y = torch.zeros(3, 4, device=dev)",
    "y = torch.ones((3,), dtype=torch.long).to(device=dev)": "y = torch.ones((3,), dtype=torch.long, device=dev)",
    "y = torch.full((3,), 1.5,).to(dev)": "y = torch.full((3,), 1.5, device=dev)",
    "y = torch.empty(3).to('cuda:0')": "y = torch.empty(3, device='cuda:0')",
    "y = torch.ones(3).cuda()": 'y = torch.ones(3, device="cuda")',
    "y = torch.eye(3).cuda(dev)": "y = torch.eye(3, device=dev)",
    "y = torch.arange(3).to(dev)": "y = torch.arange(3, device=dev)",
    "y = torch.arange(len(x), dtype=torch.half).to(dev)": "y = torch.arange(len(x), dtype=torch.half, device=dev)",
    "y = torch.tensor(1.0, dtype=torch.half, device=dev)": "y = torch.full((), 1.0, dtype=torch.half, device=dev)",
    "y = torch.tensor(1, device=dev, dtype=torch.long)": "y = torch.full((), 1, device=dev, dtype=torch.long)",
    "y = torch.tensor([1.0], device=dev)": "y = torch.full((1,), 1.0, device=dev)",
    "y = torch.tensor([0, 0, 0], device=dev)": "y = torch.full((3,), 0, device=dev)",
    "y = torch.tensor([0.5] * 8, device=dev)": "y = torch.full((8,), 0.5, device=dev)",
    "y = torch.tensor(1.0, dtype=x.dtype, device=dev)": "y = torch.full((), 1.0, dtype=x.dtype, device=dev)",
    "y = torch.eye(3).type_as(x)": "y = torch.eye(3, dtype=x.dtype, device=x.device)",
    "y = torch.zeros(3).to(x)": "y = torch.zeros(3, dtype=x.dtype, device=x.device)",
    "y = x.new_tensor(1.0)": "y = x.new_full((), 1.0)",
    "y = x.new_tensor([0, 0])": "y = x.new_full((2,), 0)",
}
UNSAFE = {
    "y = torch.arange(0.1, 3.0, 0.3).to(dev)": "y = torch.arange(0.1, 3.0, 0.3, device=dev)",
    "y = F.one_hot(x.argmax(-1))": "y = F.one_hot(x.argmax(-1), num_classes=x.size(-1))",
    "x = x * 2; y = F.one_hot(x.argmax(-1))": "x = x * 2; y = F.one_hot(x.argmax(-1), num_classes=x.size(-1))",
    "y = F.one_hot(torch.argmax(x, dim=1))": "y = F.one_hot(torch.argmax(x, dim=1), num_classes=x.size(1))",
    "y = F.one_hot(tgt)": "y = F.one_hot(tgt, num_classes=256)",
    "y = F.one_hot(torch.randint(10, (4,), device=dev))": (
        "y = F.one_hot(torch.randint(10, (4,), device=dev), num_classes=10)"
    ),
    "y = F.one_hot(torch.randint(0, 10, (4,), device=dev))": (
        "y = F.one_hot(torch.randint(0, 10, (4,), device=dev), num_classes=10)"
    ),
    "LU, pivots = torch.linalg.lu_factor(spd)": "LU, pivots = torch.linalg.lu_factor_ex(spd)[:2]",
    "y = torch.linalg.inv(spd)": "y = torch.linalg.inv_ex(spd).inverse",
    "y = torch.linalg.cholesky(spd, upper=True)": "y = torch.linalg.cholesky_ex(spd, upper=True).L",
    "y = torch.linalg.solve(spd, x)": "y = torch.linalg.solve_ex(spd, x).result",
}
NONE = [
    "total += round(s.item(), 3)",
    "total += s.item() * v[0].item()",
    "total -= s.item()",
    "total += s.item(); y = total / 2",
    "losses.append(s.item())",
    "y = torch.linalg.inv(spd, out=x2)",
    "y = torch.linalg.lu_factor(spd)",
    "y = torch.tensor([1.0, 2.0], device=dev)",
    "y = torch.tensor([[0.0, 0.0]], device=dev)",
    "y = torch.tensor([1.0] * lst[0], device=dev)",
    "y = torch.tensor(1.5, dtype=torch.long, device=dev)",
    "y = torch.tensor(1.0, device=dev, pin_memory=False)",
    "y = x.new_tensor(1.5)",
    "y = x.new_tensor([1, 2])",
    "y = torch.zeros(3, requires_grad=True).to(dev)",
    "y = F.one_hot(idx + 1)",
    "y = F.one_hot(x.argmax())",
    "z = x.argmax(-1); x = x * 2; y = F.one_hot(z)",
    "y = x.repeat_interleave(counts, 0)",
    "y = torch.randn(3).to(dev)",
    "y = torch.zeros(3).to(dev, torch.half)",
    "y = torch.full((3,), 0.1).type_as(x)",
    "y = torch.zeros(3, dtype=torch.long).type_as(x)",
    "y = torch.zeros(3).type_as(x[0])",
    "y = torch.zeros(3).type('torch.cuda.FloatTensor')",
    "y = torch.zeros(3).type(torch.cuda.FloatTensor)",
    "y = c.to(dev)",
    "y = x.cpu()",
]


LENGTHS = "def cut(x, lengths: list[int]):\n    counts = torch.tensor(lengths, device='cuda')\n"
LISTS = {
    "the list it was made of": ("    return x.cuda().repeat_interleave(counts, 0)\n", True),
    "also of the function": ("    return torch.repeat_interleave(x.cuda(), counts)\n", True),
    "not a list that changed": ("    lengths.append(3)\n    return x.cuda().repeat_interleave(counts, 0)\n", False),
    "not other counts": ("    counts = counts + 1\n    return x.cuda().repeat_interleave(counts, 0)\n", False),
}


@pytest.mark.parametrize(("body", "offered"), LISTS.values(), ids=LISTS.keys())
def test_the_total_of_repeats_is_that_of_their_list(lint, with_fix, body, offered):
    step = "for x in loader:\n    cut(x, [1, 2]).sum().backward()\n"
    source = f"import torch\n{LENGTHS}{body}{step}"
    found = lint(source)
    fixes = [one.fix for one in found if one.code == "GS405"]
    assert len(fixes) == 1
    assert (fixes[0] is not None) is offered
    if offered:
        assert with_fix(source, fixes[0]) == source.replace(body, f"{body[:-2]}, output_size=sum(lengths))\n")


@pytest.mark.parametrize("before", SAFE)
def test_a_safe_fix(lint_step, with_step_fix, before):
    (finding,) = lint_step(before)
    assert with_step_fix(before, finding) == SAFE[before]
    assert finding.fix.safe
    assert finding.fix.hazard is None


@pytest.mark.parametrize("before", UNSAFE)
def test_an_unsafe_fix_says_its_hazard(lint_step, with_step_fix, before):
    (finding,) = lint_step(before)
    assert with_step_fix(before, finding) == UNSAFE[before]
    assert (finding.fix.safe, bool(finding.fix.hazard)) == (False, True)


@pytest.mark.parametrize("before", [*SAFE, *UNSAFE])
def test_what_a_fix_leaves_has_no_further_fix(lint_step, before):
    after = {**SAFE, **UNSAFE}[before]
    assert [finding.fix for finding in lint_step(after) if finding.fix is not None] == []


@pytest.mark.parametrize("code", NONE)
def test_no_fix_where_it_would_change_more_than_the_wait(lint_step, code):
    assert {finding.fix for finding in lint_step(code)} == {None}


def test_non_blocking_is_offered_as_unsafe_where_the_loader_pins(lint, with_fix):
    source = (
        "import torch\nfrom torch.utils.data import DataLoader\nloader = DataLoader([], pin_memory=True)\n"
        "for x in loader:\n    x = x.to('cuda')\n"
    )
    (finding,) = lint(source)
    assert with_fix(source, finding.fix) == source.replace("'cuda'", "'cuda', non_blocking=True")
    assert not finding.fix.safe
    assert finding.fix.hazard


def test_non_blocking_is_not_offered_where_the_loader_does_not_pin(lint):
    source = (
        "import torch\nfrom torch.utils.data import DataLoader\nloader = DataLoader([])\n"
        "for x in loader:\n    x = x.to('cuda')\n"
    )
    (finding,) = lint(source)
    assert finding.fix is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.ones(\n    3,\n    4,\n).to(dev)", "torch.ones(\n    3,\n    4,\n    device=dev,\n)"),
        ("torch.ones(\n    3,\n    4\n).to(dev)", "torch.ones(\n    3,\n    4,\n    device=dev\n)"),
        ("torch.ones(\n    3,\n).to(dev)", "torch.ones(\n    3,\n    device=dev,\n)"),
        ("torch.ones(3,\n    4).to(dev)", "torch.ones(3,\n    4, device=dev)"),
    ],
)
def test_arguments_on_lines_of_their_own_stay_there(lint_step, with_step_fix, before, after):
    (finding,) = lint_step(f"y = {before}")
    assert with_step_fix(f"y = {before}", finding) == f"y = {after}"


def test_a_comment_inside_the_call_is_not_lost(lint_step):
    found = lint_step("y = torch.tensor(\n    1.0,  # half\n    device=dev,\n)")
    assert [finding.fix for finding in found] == [None]
