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
}
UNSAFE = {
    "total += s.item()": "total += s.detach()",
    "total += x.sum().item() * 32": "total += x.sum().detach() * 32",
    "y = torch.linalg.inv(spd)": "y = torch.linalg.inv_ex(spd).inverse",
    "y = torch.linalg.cholesky(spd, upper=True)": "y = torch.linalg.cholesky_ex(spd, upper=True).L",
    "y = torch.linalg.solve(spd, x)": "y = torch.linalg.solve_ex(spd, x).result",
}
NONE = [
    "total += round(s.item(), 3)",
    "total += s.item() * s2.item()",
    "total -= s.item()",
    "total += s.item(); y = total / 2",
    "losses.append(s.item())",
    "y = torch.linalg.inv(spd, out=x2)",
    "y = torch.linalg.lu_factor(spd)",
    "y = torch.tensor([1.0], device=dev)",
    "y = torch.tensor(1.0, dtype=torch.half, device=dev)",
    "y = torch.randn(3).to(dev)",
    "y = torch.zeros(3).to(dev, torch.half)",
    "y = torch.zeros(3).to(x)",
    "y = c.to(dev)",
    "y = x.cpu()",
]


def apply(line, finding):
    (edit,) = finding.fix.edits
    return line[: edit.span.column - 1] + edit.replacement + line[edit.span.end_column - 1 :]


@pytest.mark.parametrize("before", SAFE)
def test_a_safe_fix(lint_step, before):
    (finding,) = lint_step(before)
    assert apply("    " + before, finding) == "    " + SAFE[before]
    assert finding.fix.safe
    assert finding.fix.hazard is None


@pytest.mark.parametrize("before", UNSAFE)
def test_an_unsafe_fix_says_its_hazard(lint_step, before):
    (finding,) = lint_step(before)
    assert apply("    " + before, finding) == "    " + UNSAFE[before]
    assert (finding.fix.safe, bool(finding.fix.hazard)) == (False, True)


@pytest.mark.parametrize("before", [*SAFE, *UNSAFE])
def test_what_a_fix_leaves_has_no_further_fix(lint_step, before):
    after = {**SAFE, **UNSAFE}[before]
    assert [finding.fix for finding in lint_step(after) if finding.fix is not None] == []


@pytest.mark.parametrize("code", NONE)
def test_no_fix_where_it_would_change_more_than_the_wait(lint_step, code):
    assert {finding.fix for finding in lint_step(code)} == {None}


def test_non_blocking_is_offered_as_unsafe_where_the_loader_pins(lint):
    source = (
        "import torch\nfrom torch.utils.data import DataLoader\nloader = DataLoader([], pin_memory=True)\n"
        "for x in loader:\n    x = x.to('cuda')\n"
    )
    (finding,) = lint(source)
    assert apply("    x = x.to('cuda')", finding) == "    x = x.to('cuda', non_blocking=True)"
    assert not finding.fix.safe
    assert finding.fix.hazard


def test_non_blocking_is_not_offered_where_the_loader_does_not_pin(lint):
    source = (
        "import torch\nfrom torch.utils.data import DataLoader\nloader = DataLoader([])\n"
        "for x in loader:\n    x = x.to('cuda')\n"
    )
    (finding,) = lint(source)
    assert finding.fix is None


def test_a_comment_inside_the_call_is_not_lost(lint_step):
    found = lint_step("y = torch.tensor(\n    1.0,  # half\n    device=dev,\n)")
    assert [finding.fix for finding in found] == [None]
