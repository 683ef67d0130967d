"""GS712: training steps of TensorFlow that nothing puts under `tf.function`."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.values import Kind
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, method

if TYPE_CHECKING:
    from collections.abc import Iterator


class EagerStep(Rule):
    """`optimizer.apply_gradients(...)` in a function that nothing traces.

    Silent where the function is passed to `strategy.run`, which traced code calls.
    """

    nodes = (ast.Call,)
    calls = ("apply_gradients", "minimize")
    barriers = ("tensorflow.eager-step",)
    VALID: ClassVar = ("sgd.step()",)
    INVALID: ClassVar = ()

    def applies_to(self, context: RuleContext) -> bool:
        """Whether the file uses TensorFlow, and not Flax, whose states have a method of the same name."""
        return "tensorflow" in context.foreign_frameworks and "jax" not in context.foreign_frameworks

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        if not isinstance(node.func, ast.Attribute) or context.is_traced():
            return
        receiver = context.value(node.func.value)
        known = receiver.kind is Kind.FOREIGN and receiver.ref == "tensorflow.optimizer"
        if not known and (receiver.kind is not Kind.UNKNOWN or method(node) != "apply_gradients"):
            return
        if re.search(rf"\.run\(\s*(?:self\.)?{re.escape(context.function.name)}\b", context.file.text):
            return
        yield Report(self.barriers[0], node, Confidence.MEDIUM, highlight_name=True)
