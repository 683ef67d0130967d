"""How often a line runs: step loops told from others, and their heat carried along the project's calls.

A loop is a step loop when its body makes a training step (backward, an optimizer's step), runs over a data loader,
or calls a model, itself or through a function it calls. A loop that holds a step loop is an epoch loop. Any other
loop only repeats what is in it. Functions take the heat of the hottest place that calls them; some are known by
convention.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusync_lint.conventions import called
from gpusync_lint.filling import Fillings, fills, kept_names, remembered, settles
from gpusync_lint.model import Heat
from gpusync_lint.summaries import ClassInfo, FunctionInfo, blocks
from gpusync_lint.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusync_lint.filling import Methods
    from gpusync_lint.project import Project

_GUARD_WORDS = re.compile(
    r"(?<![a-z])(log(s|ger|gers|ged|ging)?|print|report|verbose|every|interval|freq(uency)?|debug|eval(uate)?|sav(e|ing)"
    r"|checkpoint|ckpt|viz|vis|visuali[sz]e|plot)(?![a-z])",
    re.I,
)

_LEVELS = {"layer": 1, "weak": 1, "strong": 2, "loop": 3}
_TRY = (ast.Try, ast.TryStar) if hasattr(ast, "TryStar") else (ast.Try,)
_SIGNS = {1: "weak", 2: "strong", 3: "loop"}


@dataclass(eq=False, slots=True)
class Step:
    """One thing on the way from a function's entry to a statement: a loop, a guard, or a way out of a loop."""

    kind: str
    """`loop`, `guard`, `exit` (a block that leaves the loop around it) or `error` (one that raises)."""
    node: ast.stmt
    parent: Step | None


def _combine(entry: Heat, chain: list[tuple[str, str]]) -> Heat:
    """Fold the way from the entry of a function, outermost first, into a heat."""
    heat = entry
    before: list[Heat] = []
    for kind, level in chain:
        if kind == "loop":
            before.append(heat)
            if level == "step":
                heat = Heat.STEP
            elif level in ("epoch", "repeat") and heat is Heat.ONCE:
                heat = Heat.EPOCH
        elif kind == "guard":
            if heat is Heat.STEP:
                heat = Heat.GUARDED
        elif kind == "error":  # on the way to an exception
            heat = Heat.ONCE
        elif before:  # the way out of the innermost loop runs once per run of the loop
            heat = min(before[-1], heat, key=lambda item: -item.rank)
    return heat


class HeatMap:
    """The heat of every statement of the functions that were interpreted."""

    def __init__(self, project: Project, step_functions: Iterable[str]) -> None:
        self._project = project
        self._extra = frozenset(step_functions)
        self._ways: dict[int, dict[int, Step | None]] = {}
        self._levels: dict[int, str] = {}
        self._stepping: dict[int, int] = {}
        """By function: 1 calls a model, 2 makes a training step, 3 holds a step loop; 0 none of these."""
        self._entries: dict[int, Heat] = {}
        functions = [fn for file in project.files if project.relevant(file) for fn in file.all_functions if fn.runs]
        seen = {id(fn) for fn in functions}
        for fn in functions:
            for site in fn.trace.calls:
                if id(site.callee) not in seen:
                    seen.add(id(site.callee))
                    functions.append(site.callee)
        self._functions = functions
        self._find_step_loops()
        self._spread()

    def heat(self, fn: FunctionInfo, statement: ast.stmt, repeated: bool = False) -> Heat:
        """How often a statement of a function runs; `repeated` for what stands in a comprehension."""
        entry = self._entries.get(id(fn), Heat.ONCE)
        heat = _combine(entry, self._chain(self._way(fn).get(id(statement))))
        return Heat.EPOCH if repeated and heat is Heat.ONCE else heat

    def _way(self, fn: FunctionInfo) -> dict[int, Step | None]:
        ways = self._ways.get(id(fn))
        if ways is None:
            self._ways[id(fn)] = ways = {}
            _walk(fn.node.body, None, ways, False, self._methods(fn))
        return ways

    def _methods(self, fn: FunctionInfo) -> Methods:
        """The bodies of the methods of a function's class, inherited ones included."""
        bodies: dict[str, list[ast.stmt]] = {}
        for base in self._project.lineage(fn.cls) if fn.cls is not None else ():
            if isinstance(base, ClassInfo):
                for label, method in base.methods.items():
                    bodies.setdefault(label, method.node.body)
        return bodies

    def _chain(self, way: Step | None) -> list[tuple[str, str]]:
        chain = []
        while way is not None:
            chain.append((way.kind, self._levels.get(id(way.node), "repeat") if way.kind == "loop" else ""))
            way = way.parent
        chain.reverse()
        return chain

    def _find_step_loops(self) -> None:
        """To a fixed point, because a function makes a step when one that it calls does."""
        for fn in self._functions:
            self._stepping[id(fn)] = 0
        callers: dict[int, list[FunctionInfo]] = {}
        for fn in self._functions:
            for site in fn.trace.calls:
                callers.setdefault(id(site.callee), []).append(fn)
        queue = list(self._functions)
        queued = {id(fn) for fn in queue}
        rounds = 4 * len(queue) + 100
        while queue and rounds:
            rounds -= 1
            fn = queue.pop()
            queued.discard(id(fn))
            level = self._classify(fn)
            if level > self._stepping[id(fn)]:
                self._stepping[id(fn)] = level
                for caller in callers.get(id(fn), ()):
                    if id(caller) not in queued:
                        queued.add(id(caller))
                        queue.append(caller)

    def _classify(self, fn: FunctionInfo) -> int:
        ways = self._way(fn)
        signs: dict[int, set[str]] = {}
        loops: dict[int, Step] = {}
        outside = 0
        module_class = fn.cls is not None and self._project.is_module_class(fn.cls)

        def note(statement: ast.stmt, sign: str) -> None:
            nonlocal outside
            way = ways.get(id(statement))
            while way is not None and way.kind != "loop":
                way = way.parent
            if way is None or sign == "layer":  # a loop over layers is a part of one step
                outside = max(outside, _LEVELS[sign])
                return
            loops[id(way.node)] = way
            signs.setdefault(id(way.node), set()).add(sign)

        for sign, statement in fn.trace.marks:
            note(statement, sign)
        for site in fn.trace.calls:
            level = self._stepping.get(id(site.callee), 0)
            if level and site.callee is not fn:
                sign = _SIGNS[level]
                inside = module_class and site.callee.cls is not None and site.callee.name != "forward"
                note(site.statement, "layer" if inside and sign == "weak" else sign)
        for identity in fn.trace.batch_loops:
            self._levels[identity] = "step"
        ordered = sorted(loops.values(), key=_loop_depth, reverse=True)
        pending = list(ordered)
        seen = set(loops)
        while pending:
            way = pending.pop(0)
            found = signs.get(id(way.node), set())
            if id(way.node) in fn.trace.batch_loops or "strong" in found:
                standing = "step"
            elif "loop" in found:
                standing = "epoch"
            else:
                standing = "step" if "weak" in found else "repeat"
            self._levels[id(way.node)] = standing
            if standing == "repeat":
                continue
            parent = way.parent
            while parent is not None and parent.kind != "loop":
                parent = parent.parent
            if parent is None:
                outside = 3
            else:
                signs.setdefault(id(parent.node), set()).add("loop")
                if id(parent.node) not in seen:
                    seen.add(id(parent.node))
                    pending.append(parent)
                    pending.sort(key=_loop_depth, reverse=True)
        return outside

    def _spread(self) -> None:
        for fn in self._functions:
            self._entries[id(fn)] = self._by_convention(fn)
        queue = list(self._functions)
        while queue:
            fn = queue.pop()
            for site in fn.trace.calls:
                heat = self.heat(fn, site.statement, site.repeated)
                if heat is Heat.STEP and remembered(site.callee.node):
                    heat = Heat.GUARDED
                if heat.rank < self._entries.get(id(site.callee), Heat.ONCE).rank:
                    self._entries[id(site.callee)] = heat
                    queue.append(site.callee)

    def _by_convention(self, fn: FunctionInfo) -> Heat:
        if fn.name in self._extra or fn.qualname in self._extra:
            return Heat.STEP
        return called(fn, self._project)


def _loop_depth(way: Step) -> int:
    depth = 0
    parent: Step | None = way
    while parent is not None:
        depth += 1
        parent = parent.parent
    return depth


def _walk(body: list[ast.stmt], way: Step | None, ways: dict[int, Step | None], in_loop: bool, own: Methods) -> None:
    last = body[-1] if body else None
    if isinstance(last, ast.Raise):
        way = Step("error", last, way)
    elif in_loop and way is not None and isinstance(last, (ast.Return, ast.Break)):
        way = Step("exit", last, way)
    kept: dict[str, str] = {}
    fillings = Fillings(body, own)
    for place, statement in enumerate(body):
        ways[id(statement)] = way
        kind = type(statement)
        if kind in (ast.For, ast.AsyncFor, ast.While):
            loop = Step("loop", statement, way)
            if kind is ast.While:  # its test runs as often as its body
                ways[id(statement)] = loop
            _walk(statement.body, loop, ways, True, own)  # type: ignore[attr-defined]
            _walk(statement.orelse, way, ways, False, own)  # type: ignore[attr-defined]
        elif kind is ast.If:
            assert isinstance(statement, ast.If)
            guarded = _is_guard(statement.test) or fills(statement, own)
            _walk(statement.body, Step("guard", statement, way) if guarded else way, ways, in_loop, own)
            _walk(statement.orelse, way, ways, in_loop, own)
            if _lets_pass(statement) or settles(statement, fillings.after(place), kept):
                way = Step("guard", statement, way)
        elif isinstance(statement, _TRY):
            for block in (statement.body, statement.orelse, statement.finalbody):
                _walk(block, way, ways, in_loop, own)
            for handler in statement.handlers:  # what goes wrong in every step is repaired, not caught
                _walk(handler.body, Step("guard", statement, way), ways, in_loop, own)
        elif kind in (ast.FunctionDef, ast.AsyncFunctionDef):
            continue
        elif kind is ast.ClassDef:
            _walk(statement.body, way, ways, False, own)  # type: ignore[attr-defined]
        else:
            kept.update(kept_names(statement))
            for block in blocks(statement):
                _walk(block, way, ways, in_loop, own)


def _lets_pass(statement: ast.If) -> bool:
    """`if step % 100: continue`, `if not verbose: return`: what follows is guarded."""
    if len(statement.body) > 1 or statement.orelse or not isinstance(statement.body[0], (ast.Return, ast.Continue)):
        return False
    test = statement.test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_guard(test.operand)
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.NotEq) and isinstance(test.left, ast.BinOp) and _is_guard(test)
    return isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod)


def _is_guard(test: ast.expr) -> bool:
    """`step % 100 == 0`, `if log_interval and ...`, `if step == 0`."""
    for node in walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return True
        if isinstance(node, (ast.Name, ast.Attribute)):
            label = node.id if isinstance(node, ast.Name) else node.attr
            if _GUARD_WORDS.search(label):
                return True
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
            left, right = node.left, node.comparators[0]
            if isinstance(left, ast.Name) and isinstance(right, ast.Constant) and isinstance(right.value, int):
                return True
    return False
