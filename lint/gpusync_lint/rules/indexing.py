"""GS402, GS403, GS504, GS505 and GS603: tensors read and written through masks, host indices, and index tensors."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.training_idioms import BACKWARD, backward_of
from gpusync_lint.domain.values import Device, Gradient, Kind, Value, is_number
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.context import (
    Report,
    Rule,
    RuleContext,
    indices,
    keyword,
    method,
    positional,
    stored_value,
)
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator

_VECTORS = frozenset({"arange", "linspace", "logspace", "randperm"})
_SIZED = frozenset({"empty", "full", "ones", "rand", "randn", "zeros"})
"""Functions that create a tensor of the sizes that they are given."""
_SURE_INDEX = (ast.List, ast.ListComp)


class IndexRead(Rule):
    """Reads of `x[mask]` and `x[host_index]`."""

    nodes = (ast.Subscript,)
    barriers = ("mask-read", "index-from-host")
    VALID: ClassVar = ("y = x[idx]", "y = x[0]", "x[m] = 0.0", "y = x[1:3]", "y = c[[0, 1]]", "y = x[:, None]")
    INVALID: ClassVar = (
        "y = x[m]",
        "y = x[:, m[0]]",
        "y = x[[0, 1]]",
        "y = x[cidx]",
        "y = x[np.array([1])]",
        "x[[0, 1]] = 1.0",
        "x[m] *= 2.0",
        "for k in torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(range(8)), 4, True):\n    y = x[k]",
    )

    def check(self, node: ast.Subscript, context: RuleContext) -> Iterator[Report]:
        """Check a subscript."""
        base = context.value(node.value)
        if base.kind is Kind.MOVED:
            base = Value(Kind.TENSOR, Device.GPU, certain=False)
        confidence = context.confidence(base)
        if base.kind is Kind.UNKNOWN and any(_is_mask(context.value(part)) for part in indices(node)):
            confidence = Confidence.MEDIUM  # only a tensor can be indexed with a mask on the device
        if confidence is None:
            return
        # `x[mask] += 1` reads the elements before it stores them.
        stored = isinstance(node.ctx, ast.Store) and not isinstance(context.statement, ast.AugAssign)
        for part in indices(node):
            if isinstance(part, ast.Slice):
                continue
            index = context.value(part)
            if not stored and index.on_device and context.is_mask(part):
                yield Report("mask-read", node, _less(confidence, context.confidence(index)))
                return
            if not stored and index.kind is Kind.UNKNOWN and context.is_called_mask(part):
                yield Report("mask-read", node, _less(confidence, Confidence.MEDIUM))
                return
            if self._from_host(part, index, context):
                yield Report("index-from-host", node, confidence)
                return

    def _from_host(self, node: ast.expr, index: Value, context: RuleContext) -> bool:
        if index.kind is Kind.TENSOR:
            if isinstance(node, ast.Subscript) and context.value(node.slice).kind is Kind.HOST:
                return False  # `x[pair[0]]`: what one index selects is a number as a rule
            # The indices of a mask on the host are copied from pinned memory, without a wait.
            return index.device is Device.CPU and index.certain and not index.zero_dim and not index.boolean
        if index.kind is Kind.TUPLE:  # one index for each dimension
            return any(item.kind is Kind.TENSOR and self._from_host(node, item, context) for item in index.items or ())
        if index.kind is Kind.ARRAY:
            return index.certain
        if isinstance(node, _SURE_INDEX):
            return True
        each = index.elem if index.kind is Kind.LIST else None
        if each is not None and (is_number(each) or (each.kind is Kind.ARRAY and each.certain)):
            return True
        return isinstance(node, ast.Call) and context.qualified_name(node.func) == "builtins.range"


_BACKWARD_WAITS = {
    Gradient.THROUGH_MASK: "mask-gradient",
    Gradient.THROUGH_INDEX: "index-gradient",
    Gradient.THROUGH_PRODUCT: "product-gradient",
    Gradient.THROUGH_SPARSE: "sparse-gradient",
    Gradient.THROUGH_COPY: "copy-gradient",
}
"""The barriers of what a gradient can pass through."""


class WaitingBackward(Rule):
    """`loss.backward()`, if the gradient passes through a mask, a product or another operation that reads values."""

    nodes = (ast.Call,)
    calls = BACKWARD
    barriers = tuple(_BACKWARD_WAITS.values())
    VALID: ClassVar = (
        "loss = F.mse_loss(x[idx], x2[idx])\nloss.backward()",
        "s.backward()",
        "loss = F.mse_loss(model(x), x2)\nloss.backward()",
        "loss = model(x)[idx].sum()\nloss.backward()",
        "loss = model(x).mean() + x.prod()\nloss.backward()",
        "with torch.no_grad():\n    y = model(x)[m].mean()\nloss = (model(x) - y).mean()\nloss.backward()",
        "loss = model(x).mean() + model(x).detach()[m].mean()\nloss.backward()",
        "loss = model(x).mean() + model(x).detach().cpu().mean()\nloss.backward()",
    )
    INVALID: ClassVar = (
        "loss = F.mse_loss(x[m], x2[m])\nloss.backward()",
        "loss = F.mse_loss(model(x)[m], x2[m])\nloss.backward()",
        "loss = model(x).prod(1).mean()\nloss.backward()",
        "loss = model(x)[cidx].sum()\nloss.backward()",
        "loss = model(x).cpu().mean()\nloss.backward()",
        (
            "a = torch.sparse_coo_tensor(torch.ones(2, 3).long(), torch.ones(3), (8, 8)).to(dev).coalesce()\n"
            "loss = torch.sparse.mm(a, model(x)).sum()\nloss.backward()"
        ),
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        if method(node) not in BACKWARD or not isinstance(node.func, ast.Attribute):
            return
        loss = backward_of(node)
        barrier = _BACKWARD_WAITS.get(context.value(loss).gradient)
        if barrier is not None:
            yield Report(barrier, node, Confidence.MEDIUM, highlight_name=True)
            return
        made = _made(loss.id, context) if isinstance(loss, ast.Name) else None
        if made is None:
            return
        # One of them requires a gradient, so the backward pass goes through a mask.
        tensors = [arg for arg in made.args if context.value(arg).kind is Kind.TENSOR]
        if tensors and all(isinstance(arg, ast.Subscript) and _is_mask(context.value(arg.slice)) for arg in tensors):
            yield Report("mask-gradient", node, Confidence.MEDIUM, highlight_name=True)


def _is_mask(index: Value) -> bool:
    return index.kind is Kind.TENSOR and index.boolean and index.on_device


def _made(label: str, context: RuleContext) -> ast.Call | None:
    """The call that was assigned to a name last before the statement."""
    before = [
        statement
        for statement in walk_block(context.function.node.body)
        if isinstance(statement, ast.Assign)
        and statement.lineno < context.statement.lineno
        and any(isinstance(target, ast.Name) and target.id == label for target in statement.targets)
    ]
    value = max(before, key=lambda statement: statement.lineno).value if before else None
    return value if isinstance(value, ast.Call) else None


class IndexWrite(Rule):
    """`x[mask] = tensor`, `x[index_tensor] = number`, and `v[0] = number`."""

    nodes = (ast.Subscript, ast.Call)
    calls = ("index_put", "index_put_")
    barriers = ("mask-write", "scalar-store", "element-store")
    VALID: ClassVar = (
        "x[m] = 0.0",
        "x[0] = 1.0",
        "x[idx] = s",
        "x.index_put_((idx,), s)",
        "y = torch.zeros(4, 4, device=dev)\ny[0] = 1.0",
        "y = torch.zeros(x.shape, device=dev)\ny[0] = 1.0",
        "y = torch.zeros(4)\ny[0] = 1.0",
        "y = torch.zeros(4, device=dev)\ny[...] = 1.0",
        "y = torch.zeros(4, device=dev)\ny[:1] = 1.0\ny[0] = s",
    )
    INVALID: ClassVar = (
        "y = torch.zeros(4, device=dev)\ny[0] = 1.0",
        "y = torch.full((4, 4), 1.0, device=dev)\ny[0, len(lst)] = 2",
        "x[m] = s",
        "x[idx] = 1.0",
        "x.index_put_((m,), s)",
        "x.index_put((m,), s)",
    )

    def check(self, node: ast.Subscript | ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a subscript or a call."""
        if isinstance(node, ast.Call):
            args = positional(node)
            if method(node) in self.calls and isinstance(node.func, ast.Attribute) and args:
                inside = context.value(args[0])
                mask = any(item.boolean and item.on_device for item in inside.items or ())
                confidence = context.confidence(context.value(node.func.value))
                if mask and confidence is not None:
                    yield Report("mask-write", node, confidence, highlight_name=True)
            return
        stored = stored_value(node, context)
        if stored is not None:
            yield from self._store(node, stored, context)

    def _store(self, target: ast.Subscript, value: Value, context: RuleContext) -> Iterator[Report]:
        confidence = context.confidence(context.value(target.value))
        if confidence is None:
            return
        nodes = [part for part in indices(target) if not isinstance(part, ast.Slice)]
        values = [context.value(node) for node in nodes]
        masks = [context.is_mask(node) for node in nodes]
        pairs = list(zip(values, masks, strict=True))
        if value.kind is Kind.TENSOR and any(mask and index.on_device for index, mask in pairs):
            yield Report("mask-write", target, confidence)
        elif value.kind is Kind.HOST and context.waits_on(context.catalogue.barriers["scalar-store"]):
            for index, mask in pairs:
                # A mask on the device makes the store a `masked_fill_`, which takes the number without a copy.
                filled = index.on_device and mask is not False
                indexes = index.on_device or (index.device is Device.CPU and index.boolean)
                if index.kind is Kind.TENSOR and index.certain and indexes and not filled:
                    yield Report("scalar-store", target, confidence)
                    return
        if value.kind is Kind.HOST and all(map(is_number, values)) and not any(map(_is_ellipsis, nodes)):
            made = _creation(target.value, context)
            if made is not None and _rank(made, context) == len(indices(target)) == len(values):
                yield Report("element-store", target, confidence)


def _creation(node: ast.expr, context: RuleContext) -> ast.Call | None:
    """The call that created what a name holds, or an attribute of `self` that the class assigns once."""
    if isinstance(node, ast.Name):
        return _made(node.id, context)
    if not isinstance(node, ast.Attribute) or dotted_path(node.value) != "self" or context.function.cls is None:
        return None
    assigned = context.once(_assigned_in, context.function.cls.node.body).get(f"self.{node.attr}", [])
    return assigned[0] if len(assigned) == 1 and isinstance(assigned[0], ast.Call) else None


def _assigned_in(body: list[ast.stmt]) -> dict[str, list[ast.expr]]:
    """The values that the methods of a class assign, by the path of the target."""
    found: dict[str, list[ast.expr]] = {}
    methods = [one for one in body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for statement in (one for each in methods for one in walk_block(each.body) if isinstance(one, ast.Assign)):
        for path in filter(None, map(dotted_path, statement.targets)):
            found.setdefault(path, []).append(statement.value)
    return found


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _rank(made: ast.Call, context: RuleContext) -> int | None:
    """The number of dimensions of a new tensor, as far as the sizes in its call show it."""
    name = context.qualified_name(made.func).removeprefix("torch.")
    if name in _VECTORS:
        return 1
    sizes = keyword(made, "size") or (made.args[0] if made.args else None)
    if name not in _SIZED or sizes is None or any(isinstance(one, ast.Starred) for one in made.args):
        return None
    if isinstance(sizes, (ast.Tuple, ast.List)):
        return None if any(isinstance(one, ast.Starred) for one in sizes.elts) else len(sizes.elts)
    if name == "full" or not all(context.value(one).kind is Kind.HOST for one in made.args):
        return None
    # A single argument may be a shape, unless it is seen to be a number.
    is_sized = isinstance(context.value(sizes).const, int) or isinstance(sizes, ast.BinOp)
    is_sized = is_sized or (isinstance(sizes, ast.Subscript) and not isinstance(sizes.slice, ast.Slice))
    is_length = isinstance(sizes, ast.Call) and bool(sizes.args)
    return len(made.args) if len(made.args) > 1 or is_sized or is_length else None


def _less(first: Confidence, second: Confidence | None) -> Confidence:
    return first if second is None or first.rank > second.rank else second
