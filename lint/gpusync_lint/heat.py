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
from gpusync_lint.summaries import ClassInfo, blocks
from gpusync_lint.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpusync_lint.filling import Methods
    from gpusync_lint.project import Project
    from gpusync_lint.summaries import FileInfo, FunctionInfo

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
    parent: Step | None


Key = tuple[str, int]
"""Stands for a function: its file, and the line that it begins on; 0 for the body of the file."""


@dataclass(eq=False, slots=True)
class FunctionRun:
    """All that tells how often the lines of one function run, without its source."""

    convention: Heat
    """How often a framework calls it."""
    remembered: bool
    """Whether it keeps what it gave back."""
    method: bool
    """Whether it is a method other than `forward`."""
    inside: bool
    """Whether it is a method of a module."""
    signs: list[tuple[str, Step | None]]
    """The signs of a step in it, each with the way to it."""
    calls: list[tuple[Key, Step | None, bool]]
    """The functions that it calls, the way there, and whether in a comprehension."""
    batches: list[Step]
    """Its loops over a data loader."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in its function a finding stands."""

    function: Key
    way: Step | None
    repeated: bool
    """In a comprehension."""
    deferred: bool
    """In what may be called later, or never."""


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


class Recorder:
    """Notes how the functions of a project run, once they have been interpreted."""

    def __init__(self, project: Project, own: Iterable[FileInfo], step_functions: Iterable[str]) -> None:
        self._project = project
        self._extra = frozenset(step_functions)
        self._ways: dict[int, _Ways] = {}
        self.own: dict[Key, FunctionRun] = {}
        """The functions of `own` files."""
        files = {id(file) for file in own}
        functions = [fn for file in project.files if project.relevant(file) for fn in file.all_functions if fn.runs]
        everything: dict[Key, FunctionRun] = {}
        seen = {id(fn) for fn in functions}
        for fn in functions:
            for site in fn.trace.calls:
                if id(site.callee) not in seen:
                    seen.add(id(site.callee))
                    functions.append(site.callee)
            everything[key_of(fn)] = running = self._record(fn)
            if id(fn.file) in files:
                self.own[key_of(fn)] = running
        self._map = HeatMap(everything)

    def heat(self, fn: FunctionInfo, statement: ast.stmt) -> Heat:
        """How often a statement of a function runs."""
        return self.heat_at(self.place(fn, statement))

    def heat_at(self, place: Place) -> Heat:
        """How often a place runs, as far as these files tell."""
        return self._map.heat(place)

    def place(self, fn: FunctionInfo, statement: ast.stmt, repeated: bool = False, deferred: bool = False) -> Place:
        """Where a statement stands."""
        return Place(key_of(fn), self._walked(fn).ways.get(id(statement)), repeated, deferred)

    def _walked(self, fn: FunctionInfo) -> _Ways:
        walked = self._ways.get(id(fn))
        if walked is None:
            self._ways[id(fn)] = walked = _Ways({}, {})
            _walk(fn.node.body, None, walked, False, self._methods(fn))
        return walked

    def _methods(self, fn: FunctionInfo) -> Methods:
        """The bodies of the methods of a function's class, inherited ones included."""
        bodies: dict[str, list[ast.stmt]] = {}
        for base in self._project.lineage(fn.cls) if fn.cls is not None else ():
            if isinstance(base, ClassInfo):
                for label, method in base.methods.items():
                    bodies.setdefault(label, method.node.body)
        return bodies

    def _record(self, fn: FunctionInfo) -> FunctionRun:
        trace = fn.trace
        extra = fn.name in self._extra or fn.qualname in self._extra
        running = FunctionRun(
            Heat.STEP if extra else called(fn, self._project),
            remembered(fn.node),
            fn.cls is not None and fn.name != "forward",
            fn.cls is not None and self._project.is_module_class(fn.cls),
            [],
            [],
            [],
        )
        if trace.marks or trace.calls or trace.batch_loops:
            walked = self._walked(fn)
            ways, loops = walked.ways, walked.loops
            running.signs = [(sign, ways.get(id(statement))) for sign, statement in trace.marks]
            sites = ((key_of(site.callee), ways.get(id(site.statement)), site.repeated) for site in trace.calls)
            running.calls = list({(key, id(way), again): (key, way, again) for key, way, again in sites}.values())
            running.batches = [loops[identity] for identity in trace.batch_loops if identity in loops]
        return running


def key_of(fn: FunctionInfo) -> Key:
    """What stands for a function."""
    return fn.file.path, getattr(fn.node, "lineno", 0)


class HeatMap:
    """The heat of every place in functions that call each other."""

    def __init__(self, functions: Mapping[Key, FunctionRun]) -> None:
        self._functions = functions
        self._levels: dict[int, str] = {}
        """By `id` of a loop's step."""
        self._stepping: dict[Key, int] = dict.fromkeys(functions, 0)
        """1 calls a model, 2 makes a training step, 3 holds a step loop; 0 none of these."""
        self._entries = {key: running.convention for key, running in functions.items()}
        self._find_step_loops()
        self._spread()

    def heat(self, place: Place) -> Heat:
        """How often a place runs."""
        heat = self._at(self._entries.get(place.function, Heat.ONCE), place.way, place.repeated)
        return Heat.GUARDED if place.deferred and heat is Heat.STEP else heat

    def _at(self, entry: Heat, way: Step | None, repeated: bool) -> Heat:
        heat = entry
        if way is not None:
            chain = []
            while way is not None:
                chain.append((way.kind, self._levels.get(id(way), "repeat") if way.kind == "loop" else ""))
                way = way.parent
            chain.reverse()
            heat = _combine(entry, chain)
        return Heat.EPOCH if repeated and heat is Heat.ONCE else heat

    def _find_step_loops(self) -> None:
        """To a fixed point, because a function makes a step when one that it calls does."""
        callers: dict[Key, list[Key]] = {}
        for key, running in self._functions.items():
            for callee in {callee for callee, _, _ in running.calls}:
                callers.setdefault(callee, []).append(key)
        queue = [key for key, running in self._functions.items() if running.signs or running.batches]
        queued = set(queue)
        rounds = 4 * len(self._functions) + 100
        while queue and rounds:
            rounds -= 1
            key = queue.pop()
            queued.discard(key)
            level = self._classify(key)
            if level > self._stepping[key]:
                self._stepping[key] = level
                for caller in callers.get(key, ()):
                    if caller not in queued:
                        queued.add(caller)
                        queue.append(caller)

    def _classify(self, key: Key) -> int:
        running = self._functions[key]
        signs: dict[int, set[str]] = {}
        loops: dict[int, Step] = {}
        outside = 0

        def note(way: Step | None, sign: str) -> None:
            nonlocal outside
            while way is not None and way.kind != "loop":
                way = way.parent
            if way is None or sign == "layer":  # a loop over layers is a part of one step
                outside = max(outside, _LEVELS[sign])
                return
            loops[id(way)] = way
            signs.setdefault(id(way), set()).add(sign)

        for sign, way in running.signs:
            note(way, sign)
        for callee, way, _ in running.calls:
            level = self._stepping.get(callee, 0)
            if level and callee != key:
                sign = _SIGNS[level]
                layer = sign == "weak" and running.inside and self._functions[callee].method
                note(way, "layer" if layer else sign)
        batches = {id(way) for way in running.batches}
        self._levels.update(dict.fromkeys(batches, "step"))
        pending = sorted(loops.values(), key=_loop_depth, reverse=True)
        seen = set(loops)
        while pending:
            loop = pending.pop(0)
            found = signs.get(id(loop), set())
            if id(loop) in batches or "strong" in found:
                standing = "step"
            elif "loop" in found:
                standing = "epoch"
            else:
                standing = "step" if "weak" in found else "repeat"
            self._levels[id(loop)] = standing
            if standing == "repeat":
                continue
            parent = loop.parent
            while parent is not None and parent.kind != "loop":
                parent = parent.parent
            if parent is None:
                outside = 3
            else:
                signs.setdefault(id(parent), set()).add("loop")
                if id(parent) not in seen:
                    seen.add(id(parent))
                    pending.append(parent)
                    pending.sort(key=_loop_depth, reverse=True)
        return outside

    def _spread(self) -> None:
        queue = [key for key, running in self._functions.items() if running.calls]
        while queue:
            key = queue.pop()
            entry = self._entries[key]
            for callee, way, repeated in self._functions[key].calls:
                if callee not in self._entries:
                    continue
                heat = self._at(entry, way, repeated)
                if heat is Heat.STEP and self._functions[callee].remembered:
                    heat = Heat.GUARDED
                if heat.rank < self._entries[callee].rank:
                    self._entries[callee] = heat
                    if self._functions[callee].calls:
                        queue.append(callee)


def _loop_depth(way: Step) -> int:
    depth = 0
    parent: Step | None = way
    while parent is not None:
        depth += 1
        parent = parent.parent
    return depth


@dataclass(eq=False, slots=True)
class _Ways:
    """The ways through one function: to each statement, and of each loop the step that it is; by `id`."""

    ways: dict[int, Step | None]
    loops: dict[int, Step]


def _walk(body: list[ast.stmt], way: Step | None, walked: _Ways, in_loop: bool, own: Methods) -> None:
    ways = walked.ways
    last = body[-1] if body else None
    if isinstance(last, ast.Raise):
        way = Step("error", way)
    elif in_loop and way is not None and isinstance(last, (ast.Return, ast.Break)):
        way = Step("exit", way)
    kept: dict[str, str] = {}
    fillings = Fillings(body, own)
    for place, statement in enumerate(body):
        ways[id(statement)] = way
        kind = type(statement)
        if kind in (ast.For, ast.AsyncFor, ast.While):
            walked.loops[id(statement)] = loop = Step("loop", way)
            if kind is ast.While:  # its test runs as often as its body
                ways[id(statement)] = loop
            _walk(statement.body, loop, walked, True, own)  # type: ignore[attr-defined]
            _walk(statement.orelse, way, walked, False, own)  # type: ignore[attr-defined]
        elif kind is ast.If:
            assert isinstance(statement, ast.If)
            guarded = _is_guard(statement.test) or fills(statement, own)
            _walk(statement.body, Step("guard", way) if guarded else way, walked, in_loop, own)
            _walk(statement.orelse, way, walked, in_loop, own)
            if _lets_pass(statement) or settles(statement, fillings.after(place), kept):
                way = Step("guard", way)
        elif isinstance(statement, _TRY):
            for block in (statement.body, statement.orelse, statement.finalbody):
                _walk(block, way, walked, in_loop, own)
            for handler in statement.handlers:  # what goes wrong in every step is repaired, not caught
                _walk(handler.body, Step("guard", way), walked, in_loop, own)
        elif kind in (ast.FunctionDef, ast.AsyncFunctionDef):
            continue
        elif kind is ast.ClassDef:
            _walk(statement.body, way, walked, False, own)  # type: ignore[attr-defined]
        else:
            kept.update(kept_names(statement))
            for block in blocks(statement):
                _walk(block, way, walked, in_loop, own)


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
