"""The rules: each decides about one kind of barrier, one topic per file.

A rule is registered by being here: every subclass of `Rule` in a module of this folder is one, and is checked when the
rules are loaded, which is when the first node has to be judged.
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
    """A rule that cannot work as it is declared, in one line: the file, the class, the problem and the remedy."""


@cache
def all_rules() -> tuple[type[Rule], ...]:
    """Every rule: by file name, and in the order of the file.

    Raises:
        RuleError: one of them is declared wrongly, or no rule judges some entry of a catalogue.
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
    """Check how rules are declared. Raises RuleError."""
    judged: set[str] = set()
    for rule in rules:
        problem = _problem(rule)
        if problem:
            raise RuleError(f"{rule.__module__.replace('.', '/')}.py: {rule.__name__} {problem}")
        judged.update(rule.barriers)
    for key, barrier in registry.all_barriers().items():
        if key not in judged:
            raise RuleError(
                f"{barrier.framework}.toml: no rule judges the barrier {key!r}; name it in the `barriers` of a rule, "
                "or list functions, methods or calls in the entry and leave out `own_rule`"
            )


def _problem(rule: type[Rule]) -> str:
    """What is wrong with the declaration of a rule; empty for nothing."""
    shown = {node.__name__: node for node in (*STATEMENTS, *EXPRESSIONS)}
    for node in getattr(rule, "nodes", ()):
        if node not in shown.values():
            return f"looks at ast.{node.__name__}, which no rule is shown; {did_you_mean(node.__name__, shown)}"
    if not getattr(rule, "nodes", ()):
        return "does not say which `nodes` it looks at"
    if not rule.barriers:
        return "does not say which `barriers` it reports"
    for barrier in rule.barriers:
        if barrier not in registry.all_barriers():
            hint = did_you_mean(barrier, registry.all_barriers(), "add an entry to a catalogue")
            return f"reports the barrier {barrier!r}, which no catalogue describes; {hint}"
    # The bodies stand in a training loop of torch. Examples of other frameworks are in their catalogues.
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
