"""The conditions of a catalogue entry, apart from its name, under which a call waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusync_lint.catalogue import registry

if TYPE_CHECKING:
    import ast

    from gpusync_lint.catalogue.schema import Barrier
    from gpusync_lint.domain.values import Value
    from gpusync_lint.rules.base.context import RuleContext


def waits_if_called_so(barrier: Barrier, node: ast.Call, context: RuleContext) -> bool:
    """Whether a call that matches an entry by name waits, by its arguments, its function and the version of torch."""
    if barrier.within and context.function.name not in barrier.within:
        return False
    if barrier.max_positional is not None and len(node.args) > barrier.max_positional:
        return False
    if not context.waits_on(barrier):
        return False
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    if any(name in given for name in barrier.unless_keywords):
        return False
    if barrier.unless_all_keywords and all(name in given for name in barrier.unless_all_keywords):
        return False
    if not all(holds_constant(context.value(given.get(name)), value) for name, value in barrier.only_if):
        return False
    return not any(holds_constant(context.value(given.get(name)), value) for name, value in barrier.unless)


def is_meant(barrier: Barrier, context: RuleContext) -> bool:
    """Whether a wait is intended, because it ends the interval that a clock next to it measures."""
    return registry.rule_docs()[barrier.code].timing and context.is_timed()


def holds_constant(value: Value, constant: Any) -> bool:
    """Whether a value is a constant of the same type: ``True`` is not 1."""
    return bool(value.const == constant) and type(value.const) is type(constant)
