"""The rules that check a node, by its type and, for a call, by the name of the callee."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from gpusync_lint.domain.values import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusync_lint.domain.values import Value
    from gpusync_lint.rules.base.context import Rule


class RuleTable:
    """Finds the rules that check a node."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.nodes = frozenset(node for rule in rules for node in rule.nodes)
        """The types of nodes that rules check."""
        self._rules = {node: tuple(rule for rule in rules if node in rule.nodes) for node in self.nodes}
        self._calls = [(rule, frozenset(rule.calls)) for rule in self._rules.get(ast.Call, ())]
        self._by_names: dict[tuple[str, ...], tuple[Rule, ...]] = {}
        """By the names of the callee, the rules that check a call."""

    def judging(self, node: ast.AST, values: Mapping[ast.expr, Value]) -> tuple[Rule, ...] | None:
        """The rules that check a node, given the values of expressions; None if there are none."""
        if node.__class__ is not ast.Call:
            return self._rules.get(node.__class__)
        names = _names_of(node.func, values)
        rules = self._by_names.get(names)
        if rules is None:
            rules = self._by_names[names] = self._of_call(names)
        return rules

    def _of_call(self, names: tuple[str, ...]) -> tuple[Rule, ...]:
        wanted = set(names)
        for name in names:
            words = name.split(".")
            wanted.update((words[-1], ".".join(words[-2:])))
            wanted.update(f"{'.'.join(words[:length])}.*" for length in range(1, len(words)))
        return tuple(rule for rule, calls in self._calls if not calls or not calls.isdisjoint(wanted))


def _names_of(func: Any, values: Mapping[ast.expr, Value]) -> tuple[str, ...]:
    """The names of the callee: its qualified name, if it is known, and the name in the source."""
    kind = func.__class__
    written = func.attr if kind is ast.Attribute else func.id if kind is ast.Name else ""
    called = values.get(func)
    if called is None:
        return (written,)
    ref = called.ref
    if called.kind is Kind.NAME and ref.__class__ is str:
        return (f"{ref[:-2]}.__call__" if ref[-2:] == "()" else ref, written)
    if called.kind is Kind.MODULE and ref is not None:
        return (f"{ref if ref.__class__ is str else ref.name}.__call__", written)
    if called.kind is Kind.CLASS:
        return ("class.__call__", written)
    if called.kind is Kind.FUNCTION:
        return (ref.name, written)
    return (written,)
