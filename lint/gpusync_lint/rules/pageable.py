"""GS705: copies with `non_blocking=True` from memory that is not pinned."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain import accelerators, torch_api
from gpusync_lint.domain.values import Device, Kind
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, keyword, keyword_is, method, positional

if TYPE_CHECKING:
    from collections.abc import Iterator


class PageableCopy(Rule):
    """`.to(device, non_blocking=True)` of a batch whose loader does not pin it, or of a new tensor on the host.

    It waits if the copy is larger than about 1 MiB. Sizes are not known, so the confidence is low.
    """

    nodes = (ast.Call,)
    calls = ("to", "cuda", *accelerators.moves())
    barriers = ("pageable-copy",)
    low_confidence = True
    VALID: ClassVar = (
        "for y in torch.utils.data.DataLoader([], pin_memory=True):\n    y.to(dev, non_blocking=True)",
        "p.to(dev, non_blocking=True)",
        "torch.empty(9, pin_memory=True).to(dev, non_blocking=True)",
    )
    INVALID: ClassVar = ()

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        if method(node) not in self.calls or not keyword_is(node, "non_blocking", True):
            return
        assert isinstance(node.func, ast.Attribute)
        value = context.value(node.func.value)
        if (
            value.kind is not Kind.TENSOR
            or value.device is not Device.CPU
            or value.pinned
            or not self._moves(node, context)
        ):
            return
        if value.pageable or self._made_here(node.func.value, context):
            yield Report("pageable-copy", node, Confidence.LOW, highlight_name=True)

    def _moves(self, node: ast.Call, context: RuleContext) -> bool:
        if method(node) != "to":
            return True
        place = context.value(keyword(node, "device") or next(iter(positional(node)), None))
        named = isinstance(place.const, str) and (
            place.const.startswith("cuda") or accelerators.named(place.const) is not None
        )
        return named or (place.kind is Kind.DEVICE and place.device >= Device.ASSUMED)

    def _made_here(self, receiver: ast.expr, context: RuleContext) -> bool:
        if not isinstance(receiver, ast.Call) or keyword(receiver, "pin_memory") is not None:
            return False
        dotted = context.qualified_name(receiver.func)
        return dotted.startswith("torch.") and torch_api.is_factory(dotted[6:])
