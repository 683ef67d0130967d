"""GS501 to GS503: copies of host memory to the device, and tensors that are created on the host first."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain import accelerators, torch_api
from gpusync_lint.domain.values import GUESSED, UNKNOWN, Device, Kind, Value, has_tensor
from gpusync_lint.inference.transfer.moves import tensor_type_of
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.rules.base.context import (
    Report,
    Rule,
    RuleContext,
    is_constant,
    keyword,
    keyword_is,
    method,
    positional,
)
from gpusync_lint.rules.fixes import call_edits
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator


_RANDOM = frozenset({"rand", "randn", "randint", "randperm", "normal", "bernoulli"})
_MADE = torch_api.tensors().movable_factories | _RANDOM | {"linspace"}
_MOVES = ("cuda", *accelerators.moves())
"""Methods that move to a device of one kind."""
_HOST_KINDS = (Kind.UNKNOWN, Kind.RECORDS)
_OF_DATA = frozenset({"cuda", "float", "long", "size", "squeeze", "to", "type", "unsqueeze", "view"})
"""Methods that a tensor has, and that show no module."""
_NESTED = frozenset({"dict", "list", "tuple", "Mapping", "Sequence"})
_MADE_ON_HOST = "Create it on the device: pass `device=` where it is first created, or create it once and keep it there"
_REFILLED = "Pass `non_blocking=True`, and wait for an event recorded after the copy before the buffer is refilled"
_PINNED = "Pass `non_blocking=True`. The memory is pinned already"


class CopyToDevice(Rule):
    """`.to(device)` and `.cuda()` of host memory. GS503 if a factory function created the tensor just before."""

    nodes = (ast.Call,)
    calls = ("to", *_MOVES, "type", "type_as")
    barriers = ("blocking-copy-to-device", "factory-then-move", "module-to-device")
    VALID: ClassVar = (
        "x.to(dev)",
        "c.to(dev, non_blocking=True)",
        "x.to(torch.float16)",
        "model.to(dev)",
        "c.to(torch.long)",
        "torch.nn.Linear(4, 4).to(torch.float16)",
    )
    INVALID: ClassVar = ("c.to(dev)", "c.cuda()", "c.to(device=dev, dtype=torch.float16)", "torch.zeros(4).to(dev)")

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        called = method(node)
        if called not in self.calls or not isinstance(node.func, ast.Attribute):
            return
        # The second positional argument of the old form is `non_blocking`.
        if keyword_is(node, "non_blocking", True) or any(is_constant(arg, True) for arg in positional(node)[1:]):
            return
        receiver = node.func.value
        value = context.value(receiver)
        if value.kind not in (Kind.TENSOR, Kind.MODULE, *_HOST_KINDS):
            return
        if not self._goes_to_device(node, called, context):
            return
        if value.kind is Kind.MODULE:
            if value.device is Device.CPU and context.has_weights(value):
                # A module that is moved again is on the device already.
                heat = None if isinstance(receiver, ast.Call) else Heat.ONCE
                yield Report("module-to-device", node, Confidence.MEDIUM, highlight_name=True, heat=heat)
            return
        if value.ref == GUESSED and called in ("type", "type_as"):
            return
        confidence = self._confidence(value, receiver, context)
        if confidence is None or _is_empty(receiver, context):
            return
        factory = _factory(receiver, context)
        if factory:
            is_movable = factory in torch_api.tensors().movable_factories
            fix = call_edits.factory_on_device(node, receiver, factory, context) if is_movable else None
            yield Report("factory-then-move", node, confidence, fix=fix)
        elif value.pinned:
            fix = call_edits.add_non_blocking(node, context) if called in ("to", *_MOVES) else None
            remedy = _REFILLED if call_edits.is_changed_in_place(receiver, context) else _PINNED
            yield Report("blocking-copy-to-device", node, confidence, highlight_name=True, fix=fix, remedy=remedy)
        else:
            is_created = value.kind is Kind.TENSOR and value.certain  # not a batch of a loader
            remedy = _MADE_ON_HOST if is_created else ""
            yield Report("blocking-copy-to-device", node, confidence, highlight_name=True, remedy=remedy)

    def _goes_to_device(self, node: ast.Call, called: str, context: RuleContext) -> bool:
        if called in _MOVES:
            return True
        if called == "type":
            wanted = next((context.value(arg) for arg in positional(node)), UNKNOWN)
            return tensor_type_of(wanted) == "cuda"
        given = keyword(node, "device") or keyword(node, "other")
        target = given if given is not None else next(iter(positional(node)), None)
        if target is None:
            return False
        value = context.value(target)
        if value.kind is Kind.MOVED or (value.kind is Kind.UNKNOWN and given is not None):
            return context.uses_device()
        is_gpu = self._names_gpu(value, context)
        return _device_like(target, context) if is_gpu is None else is_gpu

    def _names_gpu(self, value: Value, context: RuleContext) -> bool | None:
        """Whether the target of a move is the device; None if its value does not show that."""
        if value.kind is Kind.DEVICE:
            return value.device is not Device.CPU and (value.device >= Device.ASSUMED or context.uses_device())
        if value.kind is Kind.TENSOR:
            return value.on_device
        if isinstance(value.const, str):
            return not value.const.startswith(("cpu", "meta"))
        if value.kind is Kind.HOST:
            return value.const is None or isinstance(value.const, int)
        return None

    def _confidence(self, value: Value, receiver: ast.expr, context: RuleContext) -> Confidence | None:
        if value.kind is Kind.TENSOR:
            if context.function.name in ("to", "cuda") and (_is_own(receiver, context) or _is_of_container(context)):
                return Confidence.MEDIUM
            if value.ref == GUESSED and context.in_module_method():
                return None  # a module computes with what is on its device
            if value.ref == GUESSED and context.uses_device():
                # `if isinstance(x, torch.Tensor): x = x.to(device)`, or `torch.stack(samples).to(device)`
                return Confidence.MEDIUM
            if value.device is Device.CPU:
                return Confidence.HIGH if value.certain else Confidence.MEDIUM
            return Confidence.MEDIUM if value.device is Device.UNKNOWN and context.prepares_data() else None
        if value.kind is Kind.RECORDS:
            return Confidence.MEDIUM
        # The value is unknown. A loop variable probably comes from the host, except in a module, whose
        # arguments are on its device. Anything else may be a module.
        if context.in_module_method():
            return Confidence.LOW
        handed = context.is_loop_target(receiver) or _is_data(receiver, context) or _may_be_nested(receiver, context)
        return Confidence.MEDIUM if handed else Confidence.LOW


class PinInStep(Rule):
    """`.pin_memory()` on a batch of a data loader, which can pin it in a thread of its own."""

    nodes = (ast.Call,)
    calls = ("pin_memory",)
    barriers = ("pin-in-step",)
    VALID: ClassVar = (
        "y = torch.from_numpy(np.ones(4)).pin_memory().to(dev, non_blocking=True)",
        "for y in torch.utils.data.DataLoader([]):\n    y.view(-1)",
    )
    INVALID: ClassVar = ("for y in torch.utils.data.DataLoader([]):\n    y.pin_memory()",)

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        if method(node) != "pin_memory" or not isinstance(node.func, ast.Attribute):
            return
        value = context.value(node.func.value)
        handed = value.kind is Kind.TENSOR and value.device is Device.CPU and not value.certain
        if handed and not value.pinned and context.is_loop_target(node.func.value):
            yield Report("pin-in-step", node, Confidence.MEDIUM, highlight_name=True)


class TensorFromData(Rule):
    """`torch.tensor(data, device=...)`, `torch.as_tensor`, `x.new_tensor(data)`."""

    nodes = (ast.Call,)
    calls = ("new_tensor", "torch.*")
    barriers = ("tensor-from-data-on-device",)
    VALID: ClassVar = (
        "torch.tensor([1, 2])",
        "torch.zeros(4, device=dev)",
        "torch.tensor(1.0, device='cpu')",
        "torch.as_tensor(x, device=dev)",
        "torch.tensor([], device=dev)",
    )
    INVALID: ClassVar = (
        "torch.tensor(1.0, device=dev)",
        "torch.tensor([1, 2], device=x.device)",
        "x.new_tensor([1.0])",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        dotted = context.qualified_name(node.func)
        given = next(iter(positional(node)), None) or keyword(node, "data")
        if given is None or (isinstance(given, (ast.List, ast.Tuple)) and not given.elts):
            return  # nothing to copy
        data = context.value(given)
        if torch_api.tensor_type(dotted) == "cuda" or (dotted == "torch.Tensor" and context.uses_gpu_by_default()):
            yield from self._legacy_type(node, data, context)
        elif dotted:
            yield from self._function(node, dotted, data, context)
        elif method(node) == "new_tensor" and isinstance(node.func, ast.Attribute):
            confidence = context.confidence(context.value(node.func.value))
            if confidence is not None and not has_tensor(data):
                fix = call_edits.full_instead_of_new_tensor(node, context)
                yield Report("tensor-from-data-on-device", node, confidence, highlight_name=True, fix=fix)

    def _function(self, node: ast.Call, dotted: str, data: Value, context: RuleContext) -> Iterator[Report]:
        name = dotted.removeprefix("torch.")
        if name == dotted or name not in torch_api.tensors().from_data:
            return
        if keyword(node, "device") is None and (data.kind is Kind.UNKNOWN or not context.uses_gpu_by_default()):
            return
        confidence = context.confidence(context.value(node))
        on_device = data.kind is Kind.TENSOR and data.device is not Device.CPU
        if confidence is not None and not on_device and data.kind is not Kind.MOVED and not has_tensor(data):
            if data.kind is Kind.UNKNOWN and name != "tensor":
                confidence = Confidence.LOW
            fix = call_edits.full_instead_of_tensor(node, context) if name == "tensor" else None
            yield Report("tensor-from-data-on-device", node, confidence, fix=fix)

    def _legacy_type(self, node: ast.Call, data: Value, context: RuleContext) -> Iterator[Report]:
        """`torch.cuda.FloatTensor(data)`, or of the default type `torch.Tensor`. Given sizes, it does not wait."""
        literal = data.kind in (Kind.LIST, Kind.TUPLE) and not has_tensor(data)
        if data.kind is Kind.ARRAY or literal:
            yield Report("tensor-from-data-on-device", node, Confidence.HIGH)


def _is_own(receiver: ast.expr, context: RuleContext) -> bool:
    """Whether a method that moves an object, which is no module, moves one of its attributes: `self.boxes.to(device)`.

    The attribute is known to be on the device only because this method puts it there.
    """
    if context.in_module_method() or context.function.cls is None:
        return False
    if isinstance(receiver, ast.Name):  # `mask = self.mask`
        found = [
            statement.value
            for statement in walk_block(context.function.node.body)
            if isinstance(statement, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == receiver.id for target in statement.targets)
        ]
        if not found:
            return _is_item_of_self(receiver.id, context)
        return len(found) == 1 and not isinstance(found[0], ast.Name) and _is_own(found[0], context)
    if isinstance(receiver, ast.Call):  # `getattr(self, name)`
        return context.qualified_name(receiver.func) == "builtins.getattr" and _is_of_self(receiver)
    return isinstance(receiver, ast.Attribute) and isinstance(receiver.value, ast.Name) and receiver.value.id == "self"


def _is_of_container(context: RuleContext) -> bool:
    """Whether the function is a method of a class that holds tensors, and is no module."""
    return context.function.cls is not None and not context.in_module_method()


def _is_item_of_self(label: str, context: RuleContext) -> bool:
    """Whether a loop or a comprehension takes a name from the attributes: `for key, value in vars(self).items()`."""
    return any(
        isinstance(node, (ast.For, ast.comprehension))
        and any(isinstance(target, ast.Name) and target.id == label for target in ast.walk(node.target))
        and _is_of_self(node.iter)
        for node in walk_block(context.function.node.body)
    )


def _is_of_self(node: ast.expr) -> bool:
    """Whether an expression is an attribute of `self`, or the result of a method of one: `self.__dict__.items()`."""
    while True:
        if isinstance(node, ast.Call):
            node = node.args[0] if isinstance(node.func, ast.Name) and node.args else node.func
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        else:
            return isinstance(node, ast.Name) and node.id == "self"


def _may_be_nested(receiver: ast.expr, context: RuleContext) -> bool:
    """Whether a function asks if its argument is a dict or a list: `if isinstance(x, dict): ...; return x.to(device)`.

    A module is neither.
    """
    node = context.function.node
    if not isinstance(receiver, ast.Name) or isinstance(node, ast.Module):
        return False
    return receiver.id in context.once(_tested_for_nesting, node.body)


def _tested_for_nesting(body: list[ast.stmt]) -> frozenset[str]:
    """The names for which a function asks whether they are containers: `isinstance(x, dict)`."""
    return frozenset(
        one.args[0].id
        for one in walk_block(body)
        if isinstance(one, ast.Call)
        and isinstance(one.func, ast.Name)
        and one.func.id == "isinstance"
        and len(one.args) == 2
        and isinstance(one.args[0], ast.Name)
        and any(isinstance(part, ast.Name) and part.id in _NESTED for part in ast.walk(one.args[1]))
    )


def _is_data(receiver: ast.expr, context: RuleContext) -> bool:
    """Whether a function moves one of its arguments, `x = x.to(device)`, and then passes it on like data.

    A module would be called, or asked for its parameters.
    """
    statement, node = context.statement, context.function.node
    if not isinstance(receiver, ast.Name) or not isinstance(statement, ast.Assign) or isinstance(node, ast.Module):
        return False
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or target.id != receiver.id or context.function.name == "__init__":
        return False
    passed = False
    for one in walk_block(node.body):
        if isinstance(one, ast.Call):
            owner = one.func.value if isinstance(one.func, ast.Attribute) else one.func
            if (
                isinstance(owner, ast.Name)
                and owner.id == receiver.id
                and getattr(one.func, "attr", "") not in _OF_DATA
            ):
                return False
            passed = passed or any(isinstance(arg, ast.Name) and arg.id == receiver.id for arg in one.args)
    return passed


def _factory(receiver: ast.expr, context: RuleContext) -> str:
    """The factory function of `torch.zeros(n).to(...)`; empty for other calls."""
    if not isinstance(receiver, ast.Call):
        return ""
    dotted = context.qualified_name(receiver.func)
    last = dotted.removeprefix("torch.")
    return last if dotted.startswith("torch.") and last in _MADE else ""


def _is_empty(receiver: ast.expr, context: RuleContext) -> bool:
    """Whether this is `torch.empty(0)` or the like: there is nothing to copy."""
    sizes = positional(receiver) if isinstance(receiver, ast.Call) and _factory(receiver, context) else []
    return len(sizes) == 1 and isinstance(sizes[0], ast.Constant) and sizes[0].value == 0


def _device_like(node: ast.expr, context: RuleContext) -> bool:
    label = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return "device" in label.lower() or label.lower().endswith("rank") or label.lower() == "gpu"
