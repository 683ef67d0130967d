"""What measures time for others: context managers, timers with methods, decorators, functions that time a function.

This is read from the source of these helpers, not from the inference: many of them are in files that use no framework.
A helper that waits for the device before it reads the clock a second time is none, nor is one that calls something
unknown there, which may wait.
"""

from __future__ import annotations

import ast
import re
from enum import Enum
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.catalogue import roots
from gpusync_lint.domain import python_api
from gpusync_lint.domain.values import UNKNOWN, Kind, Value
from gpusync_lint.project.symbols import ClassDef, FunctionDef
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.catalogue.schema import Timer
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import ModuleDef

CLOCKS = frozenset(
    {
        *(f"time.{name}" for name in python_api.CLOCKS), "timeit.default_timer", "datetime.datetime.now",
        "datetime.datetime.utcnow", "datetime.datetime.today",
    }
)  # fmt: skip
"""Functions that read a clock which goes on while the host waits, by their dotted names."""
_CLOCK_MODULES = frozenset({"time", "timeit", "datetime"})
_CLOCK_CALL = re.compile(rf"\b(?:{'|'.join(sorted({name.rpartition('.')[2] for name in CLOCKS}))})\(")
_HARMLESS = frozenset(
    {
        "append", "callable", "dict", "enumerate", "extend", "format", "get", "getattr", "hasattr", "isinstance",
        "items", "iter", "join", "keys", "len", "list", "locals", "next", "open", "range", "reversed", "setdefault",
        "tuple", "type", "values", "zip",
    }
)  # fmt: skip
"""Builtin functions and methods of containers that read no values of tensors."""
_MAX_DEPTH = 4
"""Calls that are followed into each other, at most."""


class _Event(Enum):
    """What a call in a helper does that matters to what it measures."""

    CLOCK = "clock"
    HANDOVER = "handover"
    """It runs what is measured: a `yield`, or a call of a parameter."""
    MAY_WAIT = "may wait"


class _Step(NamedTuple):
    event: _Event
    parameter: str = ""
    """The parameter that is called; empty for a `yield`."""


class Stopwatch(NamedTuple):
    """A class whose objects measure time."""

    times_block: bool
    """Whether it times the body of a `with` statement."""
    starts: frozenset[str]
    """Methods that read the clock at the beginning; `__init__` if creating an object does."""
    stops: frozenset[str]
    """Methods that read it at the end."""


_NO_STOPWATCH = Stopwatch(False, frozenset(), frozenset())


class Timers:
    """The helpers of one project, and those of libraries that the catalogues describe."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._steps: dict[FunctionDef, tuple[_Step, ...]] = {}
        self._stopwatches: dict[ClassDef, Stopwatch] = {}
        self._attributes: dict[tuple[ClassDef, str], ClassDef | None] = {}
        """By class and name, the classes of the attributes that were asked for."""

    def is_clock(self, called: Value) -> bool:
        """Whether calling a value reads a clock and does nothing that may wait."""
        if called.kind is Kind.NAME and isinstance(called.ref, str):
            return called.ref in CLOCKS
        if called.kind is not Kind.FUNCTION:
            return False
        return {step.event for step in self._of(called.ref)} == {_Event.CLOCK}

    def times_block(self, manager: Value) -> bool:
        """Whether a context manager, or what a call of a function gave, times the body of its `with` statement."""
        if manager.kind is Kind.FUNCTION:
            return self._times_what_it_yields_to(manager.ref)
        return self.stopwatch(manager).times_block

    def stopwatch(self, value: Value) -> Stopwatch:
        """How an object measures time; all empty for one that does not."""
        if isinstance(value.ref, ClassDef) and value.kind in (Kind.INSTANCE, Kind.CLASS):
            known = self._stopwatches.get(value.ref)
            if known is None:
                dotted = ".".join((*value.ref.file.parts, value.ref.name))  # the project may be the library itself
                known = self._stopwatches[value.ref] = _described(dotted) or self._stopwatch_of(value.ref)
            return known
        if value.kind is Kind.NAME and isinstance(value.ref, str):
            return _described(value.ref.removesuffix("()")) or _NO_STOPWATCH
        return _NO_STOPWATCH

    def decorates(self, fn: FunctionDef) -> bool:
        """Whether a decorator, with or without arguments, gives back a function that times what it calls."""
        inner = list(fn.nested.values())
        while inner:
            wrapper = inner.pop()
            if self._timed_parameter(wrapper):
                return True
            inner += wrapper.nested.values()
        return False

    def timed_parameter(self, fn: FunctionDef) -> str:
        """The parameter of a function that it calls between two reads of the clock; empty for none."""
        name = self._timed_parameter(fn)
        return name if name in _parameters(fn) else ""

    def times_parameter(self, fn: FunctionDef) -> bool:
        """Whether a function calls a parameter, its own or of a function around it, between two reads of the clock."""
        return bool(self._timed_parameter(fn))

    @cached_property
    def functions(self) -> frozenset[str]:
        """The names of the functions of the project that time a parameter."""
        return frozenset(
            fn.name
            for file in self._with_clocks
            for fn in file.all_functions
            if fn.cls is None and not fn.is_module and _reads(fn.node, file) > 1 and self.timed_parameter(fn)
        )

    @cached_property
    def stops(self) -> frozenset[str]:
        """The names of the methods that end a measurement."""
        names = {name for each in roots.libraries() for timer in each.timers for name in timer.stops}
        for file in self._with_clocks:
            for cls in set(file.classes.values()):
                if _reads(cls.node, file):
                    names.update(self.stopwatch(Value(Kind.CLASS, ref=cls)).stops)
        return frozenset(names)

    @cached_property
    def _with_clocks(self) -> list[ModuleDef]:
        return [file for file in self._project.files if _imports_clock(file)]

    def _timed_parameter(self, fn: FunctionDef) -> str:
        started, handed = False, ""
        for step in self._of(fn):
            if step.event is _Event.HANDOVER:
                handed = step.parameter if started else ""
            elif step.event is _Event.MAY_WAIT:
                handed = ""
            elif handed:
                return handed
            else:
                started = True
        return ""

    def _times_what_it_yields_to(self, fn: FunctionDef) -> bool:
        """Whether a function under `@contextmanager` reads the clock before its `yield` and right after it."""
        decorators = (self._project.static(fn.file, each) for each in getattr(fn.node, "decorator_list", ()))
        if not any(isinstance(each.ref, str) and each.ref.endswith("contextmanager") for each in decorators):
            return False
        steps = self._of(fn)
        at = next((i for i, step in enumerate(steps) if step == _Step(_Event.HANDOVER)), len(steps))
        return _Step(_Event.CLOCK) in steps[:at] and steps[at + 1 : at + 2] == (_Step(_Event.CLOCK),)

    def _stopwatch_of(self, cls: ClassDef) -> Stopwatch:
        self._stopwatches[cls] = _NO_STOPWATCH  # ends cycles of classes that hold each other
        methods = {
            name: method
            for base in reversed(self._project.classes.project_lineage(cls))
            for name, method in base.methods.items()
            if method.kind == "function"
        }
        reading = {name for name, method in methods.items() if self._of(method)[:1] == (_Step(_Event.CLOCK),)}
        stops = {name for name in reading if _subtracts(methods[name])}
        starts = {name for name in reading if name not in stops or _keeps(methods[name])}
        begins = "__init__" in methods and _Step(_Event.CLOCK) in self._of(methods["__init__"])
        begins = begins or ("__enter__" in methods and _Step(_Event.CLOCK) in self._of(methods["__enter__"]))
        dunder = {name for name in methods if name.startswith("__")}
        return Stopwatch(
            begins and "__exit__" in reading,
            frozenset(starts - dunder | ({"__init__"} & reading)),
            frozenset(stops - dunder),
        )

    def _of(self, fn: FunctionDef, depth: int = 0) -> tuple[_Step, ...]:
        """What a function does, in the order of its source."""
        known = self._steps.get(fn)
        if known is None:
            self._steps[fn] = ()  # ends cycles of calls
            known = self._steps[fn] = tuple(self._read(fn, depth))
        return known

    def _read(self, fn: FunctionDef, depth: int) -> Iterator[_Step]:
        if fn.is_module or depth > _MAX_DEPTH:
            yield _Step(_Event.MAY_WAIT)
            return
        nodes = [node for node in walk_block(fn.node.body) if isinstance(node, (ast.Call, ast.Yield, ast.Await))]
        nodes.sort(key=lambda node: (node.end_lineno, node.end_col_offset))  # an argument is evaluated before the call
        for node in nodes:
            if isinstance(node, ast.Yield):
                yield _Step(_Event.HANDOVER)
            elif isinstance(node, ast.Call):
                step = self._of_call(fn, node, depth)
                if step is not None:
                    yield step

    def _of_call(self, fn: FunctionDef, node: ast.Call, depth: int) -> _Step | None:
        """What one call does; None for a call that neither reads a clock nor may wait."""
        func = node.func
        if isinstance(func, ast.Name) and any(func.id in _parameters(one) for one in _around(fn)):
            return _Step(_Event.HANDOVER, func.id)
        called = self._called(fn, func)
        dotted = called.dotted_name
        if dotted:
            timer = _of_library(dotted)
            if dotted in CLOCKS or (timer is not None and "__init__" in timer.starts):
                return _Step(_Event.CLOCK)
            if dotted.partition(".")[0] in python_api.HOST_MODULES:
                return None
        target = called.ref
        if called.kind is Kind.CLASS:
            target = self._project.classes.method(called.ref, "__init__")
            if target is None:
                return None
        if isinstance(target, FunctionDef):
            return next(iter(self._of(target, depth + 1)), None)
        label = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        return None if label in _HARMLESS or label in python_api.LOGGERS else _Step(_Event.MAY_WAIT)

    def _called(self, fn: FunctionDef, func: ast.expr) -> Value:
        """What is called, by imports, definitions, and what a name or an attribute of the object was created as."""
        if isinstance(func, ast.Attribute):
            owner = self._class_of(fn, func.value)
            if owner is not None:
                method = self._project.classes.method(owner, func.attr)
                return UNKNOWN if method is None else Value(Kind.FUNCTION, ref=method)
        return self._project.static(fn.file, func)

    def _class_of(self, fn: FunctionDef, node: ast.expr) -> ClassDef | None:
        """The class of the project that an object belongs to: of `self`, of `self.timer`, of a local name."""
        if isinstance(node, ast.Name):
            if node.id == "self":
                return fn.cls
            count, values = fn.assignments.get(node.id, (0, []))
            return self._made(fn.file, values[0]) if count == len(values) == 1 else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self" and fn.cls:
            key = (fn.cls, node.attr)
            if key not in self._attributes:
                self._attributes[key] = self._class_of_attribute(*key)
            return self._attributes[key]
        return None

    def _class_of_attribute(self, cls: ClassDef, name: str) -> ClassDef | None:
        """The class of what the methods of a class assign to an attribute first."""
        for method in cls.mentioning(name):
            for inner in walk_block(method.node.body):
                if isinstance(inner, ast.Assign) and any(_is_own_attribute(target, name) for target in inner.targets):
                    return self._made(cls.file, inner.value)
        return None

    def _made(self, file: ModuleDef, node: ast.expr) -> ClassDef | None:
        """The class that a call creates an object of."""
        value = self._project.static(file, node.func) if isinstance(node, ast.Call) else UNKNOWN
        return value.ref if value.kind is Kind.CLASS else None


def _of_library(dotted: str) -> Timer | None:
    """What the catalogue of a library says of a class that measures time; the library may be in a folder."""
    if not dotted.endswith(_timer_names()):
        return None
    each = next((found for word in dotted.split(".") if (found := roots.library_of().get(word)) is not None), None)
    return next((timer for timer in each.timers if dotted.endswith(f".{timer.name}")), None) if each else None


@cache
def _timer_names() -> tuple[str, ...]:
    """Ends of the dotted names of the classes that measure time."""
    return tuple(f".{timer.name}" for each in roots.libraries() for timer in each.timers)


def _described(dotted: str) -> Stopwatch | None:
    timer = _of_library(dotted)
    return Stopwatch(timer.times_block, timer.starts, timer.stops) if timer is not None else None


def _reads(node: ast.stmt | ast.Module, file: ModuleDef) -> int:
    """How many calls in the source of a definition may read a clock, by their names."""
    return len(_CLOCK_CALL.findall(file.source_of(node)))


def _imports_clock(file: ModuleDef) -> bool:
    return any(dotted.partition(".")[0] in _CLOCK_MODULES for dotted in file.imports.values())


def _around(fn: FunctionDef) -> Iterator[FunctionDef]:
    """A function and those around it, without the body of the module."""
    one: FunctionDef | None = fn
    while one is not None and not one.is_module:
        yield one
        one = one.outer


def _parameters(fn: FunctionDef) -> frozenset[str]:
    """The names of the parameters of a function, without the object that a method is bound to."""
    args = getattr(fn.node, "args", None)
    if args is None:
        return frozenset()
    names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return frozenset(names[1:] if fn.cls is not None and fn.kind != "static" else names)


def _subtracts(fn: FunctionDef) -> bool:
    """Whether a method subtracts something that its object keeps."""
    return any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and any(map(_is_own, ast.walk(node.right)))
        for node in walk_block(fn.node.body)
    )


def _keeps(fn: FunctionDef) -> bool:
    """Whether a method binds an attribute of its object to what a name holds or a call gives: to a time."""
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, (ast.Name, ast.Call))
        and any(map(_is_own, node.targets))
        for node in walk_block(fn.node.body)
    )


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _is_own_attribute(node: ast.expr, name: str) -> bool:
    return _is_own(node) and isinstance(node, ast.Attribute) and node.attr == name
