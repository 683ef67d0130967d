"""GS702: losses that are kept together with a graph which `backward()` has already used."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.training_idioms import backward_of
from gpusync_lint.model.operations import ReplaceExpression
from gpusync_lint.rules.base.blocks import LOOPS, around
from gpusync_lint.rules.base.context import Report, Rule, RuleContext
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.model.findings import Fix

_CARRIES = frozenset({"sum", "mean", "clone", "float", "double", "cpu", "view", "reshape"})
_ENDS = frozenset({"detach_", "clear", "pop", "popleft"})
_HAZARD = "The kept value no longer requires a gradient."
_NO_GRAD = ("no_grad", "inference_mode")


class KeptGraph(Rule):
    """`total += loss`, `total = total + loss` and `losses.append(loss)` in a loop that calls `loss.backward()`.

    Reported only if the loop calls the `step` of an optimizer, does not reset the sum, and does not retain the graph:
    then no later backward pass can use the graph.
    """

    nodes = (ast.AugAssign, ast.BinOp, ast.Call)
    calls = ("append",)
    barriers = ("kept-graph",)
    VALID: ClassVar = (
        "loss = model(x).sum()\nloss.backward()\nkept += loss.detach()",
        "loss = model(x).sum()\nloss.backward(retain_graph=True)\nkept += loss",
        "kept = 0.0\nloss = model(x).sum()\nloss.backward()\nkept += loss",
        "loss = model(x).sum()\nloss.backward()\nwith torch.no_grad():\n    kept += loss",
        "loss = model(x).sum()\nif step % 2:\n    kept += loss\nelse:\n    loss.backward()",
        "part = model(x).sum()\nlosses.append(part)\ntorch.stack(losses).sum().backward()",
        "for part in (x, x2):\n    loss = model(part).sum()\n    loss.backward()\n    kept += loss",
        "loss = model(x).sum()\nloss.backward()\nloss = loss.detach()\nkept += loss",
    )
    INVALID: ClassVar = (
        "loss = model(x).sum()\nloss.backward()\nkept += loss",
        "loss = model(x).sum()\nloss.backward()\nkept = kept + loss / 2",
        "loss = model(x).sum()\nscaler.scale(loss).backward()\nlosses.append(loss)",
        "loss = model(x).sum()\nif step:\n    loss.backward()\nelse:\n    loss.backward()\nkept += loss.mean()",
    )

    def applies_to(self, context: RuleContext) -> bool:
        """Whether the file may call `backward()`."""
        return "backward" in context.file.text

    def check(self, node: ast.AST, context: RuleContext) -> Iterator[Report]:
        """Check an assignment or a call."""
        kept = _kept(node, context.statement)
        if kept is None or context.occurrence.repeated:
            return
        target, value = kept
        carrier = _carrier(value)
        path = dotted_path(carrier) if carrier is not None else None
        if carrier is None or path is None or path == target:
            return
        confidence = context.confidence(context.value(carrier))
        if confidence is not None and self._keeps_graph(target, path, context):
            yield Report("kept-graph", value, confidence, fix=self._fix(value, carrier, context))

    def _keeps_graph(self, target: str, path: str, context: RuleContext) -> bool:
        """Whether the statement is in a training loop that calls `backward()` on a path and keeps it in `target`."""
        holders = around(context.function, context.statement)
        loops = [place for place, (block, at) in enumerate(holders) if isinstance(block[at], LOOPS)]
        if not loops or any(_without_gradient(block[at]) for block, at in holders):
            return False
        inside = holders[loops[-1] + 1 :]
        block, at = holders[loops[-1]]
        body = block[at].body  # type: ignore[attr-defined]
        if not context.once(_steps, body):
            return False
        if not any(_goes_backward(other, path) for block, _ in inside for other in block):
            return False
        return not _may_be_used(target, path, body, context)

    def _fix(self, value: ast.expr, carrier: ast.expr, context: RuleContext) -> Fix | None:
        if value is not carrier:
            return None
        detached = ReplaceExpression(context.span(carrier), context.template("{}.detach()", carrier))
        return context.fix("Keep the value without its graph", detached, hazard=_HAZARD)


def _kept(node: ast.AST, statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """The name of the sum or list, and the expression that is added to it."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
        return node.target.id, node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.left, ast.Name):
        return (node.left.id, node.right) if _assigns(statement, node, node.left.id) else None
    call = node if isinstance(node, ast.Call) and len(node.args) == 1 else None
    if call is None or not isinstance(call.func, ast.Attribute) or call.func.attr != "append":
        return None
    return (call.func.value.id, call.args[0]) if isinstance(call.func.value, ast.Name) else None


def _assigns(statement: ast.stmt, value: ast.expr, name: str) -> bool:
    """Whether a statement is `name = value`."""
    if not isinstance(statement, ast.Assign) or statement.value is not value or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    return isinstance(target, ast.Name) and target.id == name


def _carrier(value: ast.expr) -> ast.expr | None:
    """The name of the tensor whose graph an expression keeps."""
    while True:
        if isinstance(value, (ast.Name, ast.Attribute)):
            return value
        if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Mult, ast.Div)):
            value = value.left
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _CARRIES:
            value = value.func.value
        else:
            return None


def _goes_backward(statement: ast.stmt, path: str) -> bool:
    """Whether a statement always calls `backward()` on a path, without retaining the graph."""
    if isinstance(statement, ast.Expr):
        call = statement.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return False
        if call.func.attr not in ("backward", "manual_backward") or dotted_path(backward_of(call)) != path:
            return False
        return not any(keyword.arg in ("retain_graph", "create_graph", None) for keyword in call.keywords)
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return any(_goes_backward(inner, path) for inner in statement.body)
    if isinstance(statement, ast.If):
        return all(any(_goes_backward(inner, path) for inner in block) for block in (statement.body, statement.orelse))
    return False


def _steps(body: list[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == "step" for node in walk_block(body))


def _without_gradient(statement: ast.stmt) -> bool:
    if not isinstance(statement, (ast.With, ast.AsyncWith)):
        return False
    return any(
        isinstance(item.context_expr, ast.Call)
        and (dotted_path(item.context_expr.func) or "").rpartition(".")[2] in _NO_GRAD
        for item in statement.items
    )


def _may_be_used(target: str, path: str, body: list[ast.stmt], context: RuleContext) -> bool:
    """Whether the loop resets the sum, limits the list, detaches the loss, or calls `backward()` on the sum."""
    uses = context.once(_Uses.in_body, body)
    others = uses.assigned.get(target, 0) - (target in _assigned_by(context.statement))
    detached = uses.detached.get(path, 0) - (path in _detached_by(context.statement))
    if others > 0 or detached > 0 or not uses.ended.isdisjoint({path, target}):
        return True
    differentiated = context.once(_differentiated, context.function.node.body)
    return differentiated is None or target in differentiated


@dataclass(slots=True)
class _Uses:
    """What the statements of a block do to names and dotted paths."""

    assigned: Counter[str | None] = field(default_factory=Counter)
    """By path, the number of statements that assign or delete it."""
    detached: Counter[str | None] = field(default_factory=Counter)
    """By path, the number of statements that assign something detached to it."""
    ended: set[str | None] = field(default_factory=set)
    """The paths on which a method of `_ENDS` is called."""

    @classmethod
    def in_body(cls, body: list[ast.stmt]) -> _Uses:
        uses = cls()
        for node in walk_block(body):
            if isinstance(node, ast.stmt):
                uses.assigned.update(_assigned_by(node))
                uses.detached.update(_detached_by(node))
            elif isinstance(node, ast.Attribute) and node.attr in _ENDS:
                uses.ended.add(dotted_path(node.value))
        return uses


def _assigned_by(node: ast.stmt) -> set[str | None]:
    """The paths that a statement assigns or deletes."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.Delete)):
        return set()
    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
    return {dotted_path(item) for target in targets for item in ast.walk(target) if isinstance(item, ast.expr)}


def _detached_by(node: ast.stmt) -> set[str | None]:
    """The paths to which a statement assigns something detached."""
    value = getattr(node, "value", None)
    if value is None or not any(
        isinstance(one, ast.Attribute) and one.attr in ("detach", "item", "data") for one in ast.walk(value)
    ):
        return set()
    return _assigned_by(node)


def _differentiated(body: list[ast.stmt]) -> frozenset[str] | None:
    """The names in calls of functions for the backward pass; None if a `deque` is created, which limits a list."""
    names: set[str] = set()
    for node in walk_block(body):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "deque":
                return None
            if "backward" in name or name == "grad":
                names.update(item.id for item in ast.walk(node) if isinstance(item, ast.Name))
    return frozenset(names)
