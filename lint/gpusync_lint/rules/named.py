"""Barriers of libraries on top of torch, and those that a project defines itself, by the name of the callee."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.catalogue import roots
from gpusync_lint.domain.values import UNKNOWN, Device, Kind, Value
from gpusync_lint.inference.named_barriers import named_by
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.rules.base.context import Report, Rule, RuleContext
from gpusync_lint.rules.base.entries import holds_constant, waits_if_called_so
from gpusync_lint.rules.text import text_confidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.catalogue.schema import Barrier
    from gpusync_lint.model.findings import EngineSettings


class NamedBarrier(Rule):
    """Functions and methods of libraries such as torchvision, torchmetrics and Lightning, and of the project itself."""

    nodes = (ast.Call,)
    barriers = (
        *(key for each in roots.libraries() for key, one in each.barriers.items() if one.calls and not one.own_rule),
        "project-barrier",
    )
    VALID: ClassVar = ("model.log('loss', s)", "torch.cuda.is_available()")
    INVALID: ClassVar = ()

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.calls = frozenset(named_by(settings.barriers).suffixes)

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        for barrier in context.barriers_by_name(node):
            confidence = _confidence(barrier, node, context)
            if confidence is not None:
                yield Report(barrier.id, node, confidence, highlight_name=_is_method(node, context))
                return


class PreparedLoader(Rule):
    """A loop over a loader that Accelerate has prepared, which moves each batch to the device."""

    nodes = (ast.For, ast.AsyncFor)
    barriers = ("accelerate.prepared-loader",)
    VALID: ClassVar = ("for y in torch.utils.data.DataLoader([]): model(y)",)
    INVALID: ClassVar = ()

    def check(self, node: ast.For | ast.AsyncFor, context: RuleContext) -> Iterator[Report]:
        """Check the iterable of a loop."""
        loader = node.iter
        while isinstance(loader, ast.Call) and loader.args:  # enumerate, tqdm
            loader = loader.args[0]
        value = context.value(loader)
        if value.kind is not Kind.LOADER or value.device <= Device.ASSUMED:
            return
        # Lightning's Fabric prepares loaders too, without a wait. A file that mentions `non_blocking` is trusted.
        accelerate = any(dotted.startswith("accelerate") for dotted in context.file.imports.values())
        if accelerate and "non_blocking" not in context.file.text:
            yield Report("accelerate.prepared-loader", loader, Confidence.MEDIUM, heat=Heat.STEP)


def _confidence(barrier: Barrier, node: ast.Call, context: RuleContext) -> Confidence | None:
    """The confidence that a call waits, by its arguments; None if it does not."""
    if not waits_if_called_so(barrier, node, context):
        return None
    if barrier.unless_made_with:
        receiver = context.value(node.func.value if _has_receiver(node, context) else node.func)  # type: ignore[attr-defined]
        made = receiver.made_with if receiver.kind in (Kind.MODULE, Kind.NAME) else None
        if made is None:
            return Confidence.LOW
        if any(holds_constant(receiver.argument(name), value) for name, value in barrier.unless_made_with):
            return None
    if barrier.takes:
        return _confidence_of_arguments(barrier, node, context)
    if barrier.framework == "project":
        return Confidence.HIGH
    if barrier.among_processes:
        return Confidence.LOW
    return Confidence.MEDIUM if context.uses_device() else None


def _confidence_of_arguments(barrier: Barrier, node: ast.Call, context: RuleContext) -> Confidence | None:
    """The confidence that a call is passed a tensor, or a number, as the barrier requires."""
    if barrier.takes == "number":
        value = context.value(node.args[-1]) if node.args else UNKNOWN
        return Confidence.MEDIUM if context.uses_device() and _holds_number(value) else None
    given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg is not None)]
    found = [text_confidence(context, context.value(arg)) for arg in given]
    return min((one for one in found if one is not None), key=lambda one: one.rank, default=None)


def _holds_number(value: Value) -> bool:
    if value.kind is Kind.DICT:
        return any(_holds_number(item) for _, item in value.items or ())
    return value.kind is Kind.HOST and not isinstance(value.const, str)


def _has_receiver(node: ast.Call, context: RuleContext) -> bool:
    return isinstance(node.func, ast.Attribute) and context.value(node.func).kind is not Kind.MODULE


def _is_method(node: ast.Call, context: RuleContext) -> bool:
    if not isinstance(node.func, ast.Attribute):
        return False
    receiver = context.value(node.func.value)
    return receiver.kind is not Kind.NAME or str(receiver.ref).endswith("()")
