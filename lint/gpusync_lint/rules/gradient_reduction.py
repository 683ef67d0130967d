"""GS807: gradients that are reduced one parameter at a time."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.values import Device, Kind
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.blocks import around
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, called_names, keyword

if TYPE_CHECKING:
    from collections.abc import Iterator

_DIST = "import torch.distributed as dist\n"
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)


class ReducePerParameter(Rule):
    """`dist.all_reduce(p.grad)`, where a loop or a comprehension binds `p`.

    Silent in a block that coalesces collectives into one, and outside of loops: in a hook of a parameter, the
    collective overlaps with the backward pass.
    """

    nodes = (ast.Call,)
    barriers = ("reduce-per-parameter",)
    calls = called_names(*barriers)
    VALID: ClassVar = (
        f"{_DIST}dist.all_reduce(x)",
        f"{_DIST}for y in (x, x2):\n    dist.all_reduce(y)",
        f"{_DIST}flat = torch.cat([p.grad.view(-1) for p in model.parameters()])\ndist.all_reduce(flat)",
        f"{_DIST}def hook(p):\n    dist.all_reduce(p.grad, async_op=True)",
        f"{_DIST}with dist._coalescing_manager():\n    for p in model.parameters():\n        dist.all_reduce(p.grad)",
    )
    INVALID: ClassVar = (
        f"{_DIST}for p in model.parameters():\n    dist.all_reduce(p.grad)",
        f"{_DIST}for n, p in model.named_parameters():\n    if p.grad is not None:\n        dist.reduce(p.grad.data)",
        f"{_DIST}for g in sgd.param_groups:\n    for p in g['params']:\n        dist.reduce(tensor=p.grad, dst=0)",
        f"{_DIST}works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        given = node.args[0] if node.args else keyword(node, "tensor")
        name = _owner_of_gradient(given)
        value = context.value(given)
        on_host = value.kind is Kind.TENSOR and value.device is Device.CPU
        if not name or on_host or context.qualified_name(node.func) not in self._entry(context):
            return
        outer = [block[at] for block, at in around(context.function, context.statement)]
        if any(map(_is_coalesced, outer)):
            return
        targets: list[ast.expr] = [one.target for one in outer if isinstance(one, ast.For)]
        if context.occurrence.repeated:
            targets += _targets_of_comprehensions(context.statement)
        if any(isinstance(inner, ast.Name) and inner.id == name for target in targets for inner in ast.walk(target)):
            # Tests compare a distributed wrapper with a reference that is written like this.
            yield Report("reduce-per-parameter", node, Confidence.LOW if context.in_tests() else Confidence.MEDIUM)

    def _entry(self, context: RuleContext) -> tuple[str, ...]:
        return context.catalogue.barriers[self.barriers[0]].functions


def _is_coalesced(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.With) and "coalesc" in ast.unparse(statement.items[0])


def _targets_of_comprehensions(statement: ast.stmt) -> list[ast.expr]:
    return [
        generator.target
        for node in ast.walk(statement)
        if isinstance(node, _COMPREHENSIONS)
        for generator in node.generators
    ]


def _owner_of_gradient(node: ast.expr | None) -> str:
    """The name of the parameter whose gradient an expression is: `p.grad`, `p.grad.data`; empty for another one."""
    while isinstance(node, ast.Attribute):
        if node.attr == "grad":
            return node.value.id if isinstance(node.value, ast.Name) else ""
        node = node.value
    return ""
