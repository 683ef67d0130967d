"""The base class of rules about code that runs while a CUDA graph is captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from gpusync_lint.model.levels import Confidence
from gpusync_lint.model.placement import PathKind
from gpusync_lint.rules.base.context import Report, Rule, RuleContext

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator


class CaptureRule(Rule):
    """A rule about what a CUDA graph does not record. `torch.compile` guards what Python computes instead."""

    words: ClassVar[tuple[str, ...]] = ("",)
    """Any finding is in a file with one of these. In a part of a component, every function may be captured."""

    def applies_to(self, context: RuleContext) -> bool:
        """Whether a CUDA graph is captured at all, and the file has one of the words."""
        return context.captures_graphs and any(word in context.file.text for word in self.words)

    def check(self, node: Any, context: RuleContext) -> Iterator[Report]:
        """Check one node, if its function may run during a capture."""
        return self.check_captured(node, context) if context.may_be_captured(context.function) else iter(())

    def check_captured(self, node: Any, context: RuleContext) -> Iterator[Report]:
        """Check one node of a function that may run during a capture."""
        raise NotImplementedError

    def is_captured(self, context: RuleContext) -> bool:
        """Whether the node runs during a capture, or may do so because of calls in other parts of the project."""
        if context.is_part:
            return True
        capture = context.capture()
        return capture is not None and capture.kind is PathKind.CAPTURE

    def report(self, barrier: str, node: ast.expr, confidence: Confidence = Confidence.MEDIUM) -> Report:
        """A report of something in a capture."""
        return Report(barrier, node, confidence)
