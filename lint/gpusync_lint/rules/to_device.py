"""GS501 to GS503: copies of host memory to the device, and tensors that are created on the host first."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain import torch_api
from gpusync_lint.domain.values import UNKNOWN, Device, Kind, Value, has_tensor
from gpusync_lint.inference.transfer.moves import tensor_type_of
from gpusync_lint.model.levels import Confidence
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

if TYPE_CHECKING:
    from collections.abc import Iterator


_RANDOM = frozenset({"rand", "randn", "randint", "randperm", "normal", "bernoulli"})
_MADE = torch_api.tensors().movable_factories | _RANDOM | {"linspace"}
_HOST_KINDS = (Kind.UNKNOWN, Kind.RECORDS)
_MADE_ON_HOST = "Create it on the device: pass `device=` where it is first created, or create it once and keep it there"
_REFILLED = "Pass `non_blocking=True`, and wait for an event recorded after the copy before the buffer is refilled"
_PINNED = "Pass `non_blocking=True`. The memory is pinned already"


class CopyToDevice(Rule):
    """`.to(device)` and `.cuda()` of host memory. GS503 if a factory function created the tensor just before."""

    nodes = (ast.Call,)
    calls = ("to", "cuda", "type", "type_as")
    barriers = ("blocking-copy-to-device", "factory-then-move")
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
        if called not in ("to", "cuda", "type", "type_as") or not isinstance(node.func, ast.Attribute):
            return
        # The second positional argument of the old form is `non_blocking`.
        if keyword_is(node, "non_blocking", True) or any(is_constant(arg, True) for arg in positional(node)[1:]):
            return
        receiver = node.func.value
        value = context.value(receiver)
        if value.kind not in (Kind.TENSOR, *_HOST_KINDS) or not self._goes_to_device(node, called, context):
            return
        confidence = self._confidence(value, receiver, context)
        if confidence is None:
            return
        factory = _factory(receiver, context)
        if factory:
            is_movable = factory in torch_api.tensors().movable_factories
            fix = call_edits.factory_on_device(node, receiver, factory, context) if is_movable else None
            yield Report("factory-then-move", node, confidence, fix=fix)
        elif value.pinned:
            fix = call_edits.add_non_blocking(node, context) if called in ("to", "cuda") else None
            remedy = _REFILLED if call_edits.is_changed_in_place(receiver, context) else _PINNED
            yield Report("blocking-copy-to-device", node, confidence, highlight_name=True, fix=fix, remedy=remedy)
        else:
            is_created = value.kind is Kind.TENSOR and value.certain  # not a batch of a loader
            remedy = _MADE_ON_HOST if is_created else ""
            yield Report("blocking-copy-to-device", node, confidence, highlight_name=True, remedy=remedy)

    def _goes_to_device(self, node: ast.Call, called: str, context: RuleContext) -> bool:
        if called == "cuda":
            return True
        if called == "type":
            wanted = next((context.value(arg) for arg in positional(node)), UNKNOWN)
            return tensor_type_of(wanted) == "cuda"
        given = keyword(node, "device") or keyword(node, "other")
        target = given if given is not None else next(iter(positional(node)), None)
        if target is None:
            return False
        value = context.value(target)
        if value.kind in (Kind.UNKNOWN, Kind.MOVED) and context.uses_device() and given is not None:
            return True
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
            if value.device is Device.CPU:
                return Confidence.HIGH if value.certain else Confidence.MEDIUM
            return Confidence.MEDIUM if value.device is Device.UNKNOWN and context.prepares_data() else None
        if value.kind is Kind.RECORDS:
            return Confidence.MEDIUM
        # The value is unknown. A loop variable probably comes from the host, except in a module, whose
        # arguments are on its device. Anything else may be a module.
        handed = context.is_loop_target(receiver) and not context.in_module_method()
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
        given = next(iter(positional(node)), None)
        if given is None or (isinstance(given, (ast.List, ast.Tuple)) and not given.elts):
            return  # nothing to copy
        data = context.value(given)
        if torch_api.tensor_type(dotted) == "cuda":
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
        if name == dotted or name not in torch_api.tensors().from_data or keyword(node, "device") is None:
            return
        confidence = context.confidence(context.value(node))
        on_device = data.kind is Kind.TENSOR and data.device is not Device.CPU
        if confidence is not None and not on_device and data.kind is not Kind.MOVED and not has_tensor(data):
            if data.kind is Kind.UNKNOWN and name != "tensor":
                confidence = Confidence.LOW
            fix = call_edits.full_instead_of_tensor(node, context) if name == "tensor" else None
            yield Report("tensor-from-data-on-device", node, confidence, fix=fix)

    def _legacy_type(self, node: ast.Call, data: Value, context: RuleContext) -> Iterator[Report]:
        """`torch.cuda.FloatTensor(data)`. With sizes as arguments, it does not wait."""
        literal = data.kind in (Kind.LIST, Kind.TUPLE) and not has_tensor(data)
        if data.kind is Kind.ARRAY or literal:
            yield Report("tensor-from-data-on-device", node, Confidence.HIGH)


def _factory(receiver: ast.expr, context: RuleContext) -> str:
    """The factory function of `torch.zeros(n).to(...)`; empty for other calls."""
    if not isinstance(receiver, ast.Call):
        return ""
    dotted = context.qualified_name(receiver.func)
    last = dotted.removeprefix("torch.")
    return last if dotted.startswith("torch.") and last in _MADE else ""


def _device_like(node: ast.expr, context: RuleContext) -> bool:
    label = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return "device" in label.lower() or label.lower().endswith("rank") or label.lower() == "gpu"
