"""GS802 to GS804: loops that wait for one task of Ray or Dask at a time."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.values import Kind
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.operations import ReplaceExpression
from gpusync_lint.rules.base.blocks import LOOPS, around, bound_names
from gpusync_lint.rules.base.context import Report, Rule, RuleContext
from gpusync_lint.rules.fixes.remote_loops import get_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.model.findings import Fix

_METHODS = {("compute", "dask.collection"): "dask.compute-in-loop", ("result", "dask.future"): "dask.result-in-loop"}
_FUNCTIONS = ("dask.compute", "dask.base.compute")
_RAY = "ray.get-in-loop"
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_AT_ONCE = "The tasks run at the same time."


class RemoteInLoop(Rule):
    """`ray.get`, Dask's `compute`, `.result()` and `gather` of a task that the same iteration of a loop submits.

    The task must depend on the variable of the loop, and not on the result of an earlier iteration. Repeated calls of a
    method of one actor are not reported, since the actor may have state.
    """

    nodes = (ast.Call,)
    calls = ("ray.get", *_FUNCTIONS, "gather", "compute", "result")
    barriers = (_RAY, "dask.compute-in-loop", "dask.result-in-loop")
    VALID: ClassVar = ("get(x)", "model.compute()")
    INVALID: ClassVar = ()

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        barrier, subject = _waits(node, context)
        if subject is None:
            return
        check = self._in_comprehension if context.occurrence.repeated else self._in_loop
        yield from check(barrier, node, subject, context)

    def _in_comprehension(
        self, barrier: str, node: ast.Call, subject: ast.expr, context: RuleContext
    ) -> Iterator[Report]:
        comprehension = _comprehension(context.statement, node)
        if comprehension is None or any(_as_completed(each.iter) for each in comprehension.generators):
            return
        names = {name for each in comprehension.generators for name in _names(each.target)}
        if _task(barrier, subject, names):
            fix = _fix(comprehension, node, subject, context) if barrier == _RAY else None
            yield Report(barrier, node, Confidence.MEDIUM, fix=fix, heat=Heat.STEP)

    def _in_loop(self, barrier: str, node: ast.Call, subject: ast.expr, context: RuleContext) -> Iterator[Report]:
        holders = around(context.function, context.statement)
        loops = [block[at] for block, at in holders if isinstance(block[at], LOOPS)]
        loop = loops[-1] if loops else None
        if not isinstance(loop, ast.For) or _as_completed(loop.iter):
            return
        if _reach(loop.body, bound_names(context.statement)) & _names(subject):
            return
        names = _names(loop.target)
        fix = get_at_once(loop, node, subject, context) if barrier == _RAY else None
        if barrier == _RAY and isinstance(subject, ast.Name) and subject.id in names:
            yield Report(barrier, node, Confidence.MEDIUM, fix=fix)
        elif _task(barrier, subject, _reach(loop.body, names)):
            yield Report(barrier, node, Confidence.MEDIUM, fix=fix, heat=Heat.STEP)


def _waits(node: ast.Call, context: RuleContext) -> tuple[str, ast.expr | None]:
    """The barrier that a call may be, and the task that it waits for."""
    only = node.args[0] if len(node.args) == 1 else None
    called = context.qualified_name(node.func)
    if called == "ray.get" and only is not None:
        return _RAY, only
    if called in _FUNCTIONS and only is not None:
        return "dask.compute-in-loop", only if context.value(only).kind is Kind.FOREIGN else None
    return _method_waits(node.func, only, context) if isinstance(node.func, ast.Attribute) else ("", None)


def _method_waits(func: ast.Attribute, only: ast.expr | None, context: RuleContext) -> tuple[str, ast.expr | None]:
    receiver = context.value(func.value)
    if receiver.kind is not Kind.FOREIGN:
        return "", None
    if func.attr == "gather" and only is not None:
        return "dask.result-in-loop", only if receiver.ref == "dask.client" else None
    barrier = _METHODS.get((func.attr, receiver.ref))
    return (barrier, func.value) if barrier else ("", None)


def _task(barrier: str, subject: ast.expr, names: set[str]) -> bool:
    """Whether an iteration waits for its own task. `names` are those that differ between iterations."""
    if not names & _names(subject):
        return False
    if barrier == "dask.compute-in-loop":
        return True
    if isinstance(subject, (ast.List, ast.Tuple)):  # `ray.get([f.remote(x)])`
        return any(_task(barrier, element, names) for element in subject.elts)
    called = subject.func if isinstance(subject, ast.Call) else None
    if barrier == "dask.result-in-loop":
        return isinstance(called, ast.Attribute) and called.attr == "submit"
    if isinstance(subject, ast.Name):
        return True
    if not isinstance(called, ast.Attribute) or called.attr != "remote":
        return False
    return not isinstance(called.value, ast.Attribute) or bool(names & _names(called.value))


def _fix(comprehension: ast.AST, call: ast.Call, subject: ast.expr, context: RuleContext) -> Fix | None:
    """`[ray.get(r) for r in refs]` to `ray.get(list(refs))`, `[ray.get(f(x)) for ...]` to `ray.get([f(x) for ...])`."""
    if not isinstance(comprehension, ast.ListComp) or comprehension.elt is not call:
        return None
    whole = context.span(comprehension)
    first = comprehension.generators[0]
    plain = len(comprehension.generators) == 1 and not first.ifs and not first.is_async
    if plain and isinstance(subject, ast.Name) and isinstance(first.target, ast.Name) and subject.id == first.target.id:
        text = "{}({})" if isinstance(first.iter, (ast.List, ast.ListComp)) else "{}(list({}))"
        got = ReplaceExpression(whole, context.template(text, call.func, first.iter))
        return context.fix("Get all results at once", got, safe=True)
    if isinstance(subject, ast.Name):
        return None
    return context.fix(
        "Submit all tasks, then get them at once",
        ReplaceExpression(context.span(call), context.template("{}", subject)),
        ReplaceExpression(whole, context.template("{}({})", call.func, comprehension)),
        hazard=_AT_ONCE,
    )


def _comprehension(
    statement: ast.stmt, call: ast.Call
) -> ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp | None:
    """The innermost comprehension whose element contains a call."""
    found = None
    for node in ast.walk(statement):
        if isinstance(node, _COMPREHENSIONS):
            parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            if any(item is call for part in parts for item in ast.walk(part)):
                found = node
    return found


def _reach(body: list[ast.stmt], names: set[str]) -> set[str]:
    """Names, and the names that the statements of a block compute from them, in two passes over it."""
    reached = set(names)
    for _ in range(2):
        for statement in body:
            for node in ast.walk(statement):
                value = node.value if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) else None
                if value is not None and reached & _names(value):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]
                    reached.update(label for target in targets for label in _names(target))
    return reached


def _names(node: ast.AST) -> set[str]:
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}


def _as_completed(node: ast.expr) -> bool:
    func = node.func if isinstance(node, ast.Call) else None
    return (getattr(func, "attr", "") or getattr(func, "id", "")) == "as_completed"
