"""GS202 and GS204: copies of device tensors to the host."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.values import CPU_DEVICE, Device, Kind, Value
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.context import (
    Report,
    Rule,
    RuleContext,
    arguments,
    is_constant,
    keyword,
    keyword_is,
    method,
    positional,
    stored_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class CopyToHost(Rule):
    """`.cpu()`, `.to("cpu")`, `.numpy(force=True)`."""

    nodes = (ast.Call,)
    calls = ("cpu", "to", "type_as", "numpy", "numpy.*")
    barriers = ("copy-to-host", "numpy-conversion")
    VALID: ClassVar = ("c.cpu()", "x.to('cpu', non_blocking=True)", "x.to(torch.float16)", "np.ones(3).copy()")
    INVALID: ClassVar = (
        "x.cpu()",
        "x.detach().cpu().numpy()",
        "x.to(device='cpu')",
        "x.numpy(force=True)",
        "x.type_as(c)",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        called = method(node)
        if called not in ("cpu", "to", "type_as", "numpy") or not isinstance(node.func, ast.Attribute):
            yield from self._numpy_function(node, context)
            return
        value = context.value(node.func.value)
        confidence = context.confidence(value)
        if called == "numpy":
            if confidence is not None and keyword_is(node, "force", True):
                yield Report("numpy-conversion", node, confidence, highlight_name=True)
        elif not keyword_is(node, "non_blocking", True) and (called == "cpu" or _names_host(node, context)):
            if confidence is None:
                confidence = self._confidence_of_unknown(value, called, context)
            if confidence is not None:
                yield Report("copy-to-host", node, confidence, highlight_name=True)

    def _confidence_of_unknown(self, value: Value, called: str, context: RuleContext) -> Confidence | None:
        """The confidence that something which is not known to be a tensor is one, or contains some."""
        if not context.unknown_is_probably_tensor():
            return None
        # Neither arrays nor numbers have a method `cpu`.
        without_it = value.kind in (Kind.UNKNOWN, Kind.ARRAY) or (value.kind is Kind.HOST and value.const is None)
        is_unknown = value.kind is Kind.MOVED or (without_it and called == "cpu")
        return Confidence.MEDIUM if is_unknown or _holds_tensors(value) else None

    def _numpy_function(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        dotted = context.qualified_name(node.func)
        if not dotted.startswith("numpy."):
            return
        for arg in arguments(node):
            confidence = context.confidence(context.value(arg))
            if confidence is not None:  # it raises an error for most device tensors, so it must be certain
                confidence = confidence if confidence is not Confidence.MEDIUM else Confidence.LOW
                yield Report("numpy-conversion", node, confidence)
                return


class StoreToHost(Rule):
    """A device tensor that is stored in a host tensor: `host[i] = t`, `host.copy_(t)`."""

    nodes = (ast.Subscript, ast.Call)
    calls = ("copy_",)
    barriers = ("store-to-host", "store-to-device")
    VALID: ClassVar = ("x[0] = x2[0]", "c[0] = c[1]", "x[0] = 1.0", "x.copy_(p, non_blocking=True)")
    INVALID: ClassVar = ("c[0] = x[0]", "c.copy_(x, non_blocking=True)", "x[0] = c[0]", "x.copy_(c)")

    def check(self, node: ast.Subscript | ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check an assignment or a call."""
        if isinstance(node, ast.Subscript):
            stored = stored_value(node, context)
            if stored is not None and not isinstance(context.value(node.slice).const, str):
                yield from self._judge(context.value(node.value), stored, context, node, False, False)
        elif method(node) == "copy_" and isinstance(node.func, ast.Attribute):
            source = positional(node)
            if source:
                flag = keyword(node, "non_blocking") or (source[1] if len(source) > 1 else None)
                free = flag is not None and is_constant(flag, True)
                yield from self._judge(
                    context.value(node.func.value), context.value(source[0]), context, node, free, True
                )

    def _judge(
        self, base: Value, value: Value, context: RuleContext, mark: ast.expr, free: bool, call: bool
    ) -> Iterator[Report]:
        confidence: Confidence | None
        if base.kind is not Kind.TENSOR:
            return
        if base.device is Device.CPU and value.on_device:
            if not (free and base.pinned):
                confidence = context.confidence(value) if base.certain else Confidence.LOW
                yield Report("store-to-host", mark, confidence or Confidence.LOW, highlight_name=call)
        elif base.on_device and not free and _is_on_host(value, call):
            confidence = context.confidence(base) if value.certain else Confidence.MEDIUM
            yield Report("store-to-device", mark, confidence or Confidence.LOW, highlight_name=call)


def _is_on_host(value: Value, call: bool) -> bool:
    """Whether storing a value copies host memory. 0-dimensional tensors are passed as numbers, except by `copy_`."""
    if value.kind is Kind.TENSOR:
        return value.device is Device.CPU and not (value.zero_dim and not call)
    return value.kind is Kind.ARRAY and value.certain


def _names_host(node: ast.Call, context: RuleContext) -> bool:
    target = keyword(node, "device") or next(iter(positional(node)), None)
    if isinstance(target, ast.Attribute) and context.value(target.value).kind is Kind.TENSOR:
        return False  # `a.to(b.device)` brings two tensors together, on any device
    value = context.value(target)
    if isinstance(value.const, str):
        return value.const.startswith("cpu")
    return value == CPU_DEVICE or (value.kind is Kind.TENSOR and value.device is Device.CPU and value.certain)


def _holds_tensors(value: Value) -> bool:
    return value.kind is Kind.LIST and value.elem is not None and value.elem.on_device
