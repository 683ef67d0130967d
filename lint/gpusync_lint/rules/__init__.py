"""The rules. Each checks for one kind of barrier; a file contains the rules of one topic.

Every subclass of `Rule` in a module of this folder is registered. Its declaration is checked when the rules are loaded,
that is, before the first node is checked.
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import registry
from gpusync_lint.messages import did_you_mean
from gpusync_lint.rules.base.context import Rule
from gpusync_lint.rules.base.occurrences import EXPRESSIONS, STATEMENTS
from gpusync_lint.rules.base.table import RuleTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusync_lint.model.findings import EngineSettings
    from gpusync_lint.rules.base.context import RuleContext


class RuleError(TypeError):
    """The declaration of a rule is invalid. The message names the file, the class, the problem and the remedy."""


@cache
def all_rules() -> tuple[type[Rule], ...]:
    """All rules, sorted by file name and by position in the file.

    Raises:
        RuleError: a declaration is invalid, or no rule checks an entry of a catalogue.
    """
    found: list[type[Rule]] = []
    for name in sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.name != "__init__.py"):
        module = import_module(f"{__name__}.{name}")
        found += [
            item
            for item in vars(module).values()
            if isinstance(item, type) and issubclass(item, Rule) and item.__module__ == module.__name__
        ]
    check(found)
    return tuple(found)


def check(rules: Iterable[type[Rule]]) -> None:
    """Check the declarations of rules. Raises RuleError."""
    judged: set[str] = set()
    for rule in rules:
        problem = _problem(rule)
        if problem:
            raise RuleError(f"{rule.__module__.replace('.', '/')}.py: {rule.__name__} {problem}")
        judged.update(rule.barriers)
    for key, barrier in registry.all_barriers().items():
        if key not in judged:
            raise RuleError(
                f"{barrier.framework}.toml: no rule checks for the barrier {key!r}; add it to the "
                "`barriers` of a rule, or list functions, methods or calls in the entry and remove `own_rule`"
            )


def _problem(rule: type[Rule]) -> str:
    """The problem with the declaration of a rule; empty if there is none."""
    supported = {node.__name__: node for node in (*STATEMENTS, *EXPRESSIONS)}
    for node in getattr(rule, "nodes", ()):
        if node not in supported.values():
            hint = did_you_mean(node.__name__, supported)
            return f"has ast.{node.__name__} in `nodes`, which rules cannot check; {hint}"
    if not getattr(rule, "nodes", ()):
        return "has no `nodes`: the types of syntax nodes to check"
    if not rule.barriers:
        return "has no `barriers`: the catalogue entries that it reports"
    for barrier in rule.barriers:
        if barrier not in registry.all_barriers():
            hint = did_you_mean(barrier, registry.all_barriers(), "add an entry to a catalogue")
            return f"reports the barrier {barrier!r}, which no catalogue describes; {hint}"
    # Examples are bodies of a training loop in torch. Those of other frameworks are in their catalogues.
    if all("." not in barrier for barrier in rule.barriers):
        if not rule.VALID:
            return "has no `VALID` example: a loop body that it must not report"
        if not rule.INVALID and not rule.low_confidence:
            return "has no `INVALID` example: a loop body that it must report"
    return ""


@lru_cache(maxsize=4)
def _instances(rules: tuple[type[Rule], ...], settings: EngineSettings) -> tuple[Rule, ...]:
    return tuple(rule(settings) for rule in rules)


@lru_cache(maxsize=64)
def _table(rules: tuple[Rule, ...]) -> RuleTable:
    return RuleTable(rules)


def rule_table(context: RuleContext) -> RuleTable:
    """The rules that apply to the file of a context."""
    return _table(tuple(rule for rule in _instances(all_rules(), context.settings) if rule.applies_to(context)))
