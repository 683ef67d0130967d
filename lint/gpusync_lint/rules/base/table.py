"""Which rules judge a node."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from gpusync_lint.domain.values import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusync_lint.domain.values import Value
    from gpusync_lint.rules.base.context import Rule


class RuleTable:
    """Finds the rules that judge a node."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.nodes = frozenset(node for rule in rules for node in rule.nodes)
        """The types of nodes that some rule judges."""
        self._rules = {node: tuple(rule for rule in rules if node in rule.nodes) for node in self.nodes}
        self._calls = [(rule, frozenset(rule.calls)) for rule in self._rules.get(ast.Call, ())]
        self._known: dict[tuple[str, ...], tuple[Rule, ...]] = {}
        """The rules of calls by the names of what is called."""

    def judging(self, node: ast.AST, values: Mapping[ast.expr, Value]) -> tuple[Rule, ...] | None:
        """The rules that judge a node, given what is known of expressions; None for none."""
        if node.__class__ is not ast.Call:
            return self._rules.get(node.__class__)
        names = _names_of(node.func, values)
        found = self._known.get(names)
        if found is None:
            found = self._known[names] = self._of_call(names)
        return found

    def _of_call(self, names: tuple[str, ...]) -> tuple[Rule, ...]:
        wanted = set(names)
        for name in names:
            words = name.split(".")
            wanted.update((words[-1], ".".join(words[-2:])))
            wanted.update(f"{'.'.join(words[:length])}.*" for length in range(1, len(words)))
        return tuple(rule for rule, calls in self._calls if not calls or not calls.isdisjoint(wanted))


def _names_of(func: Any, values: Mapping[ast.expr, Value]) -> tuple[str, ...]:
    """What is called, by the name that is written and the one that is known; of an object its class's `__call__`."""
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
    if called.kind is Kind.FUNCTION:
        return (ref.name, written)
    return (written,)
