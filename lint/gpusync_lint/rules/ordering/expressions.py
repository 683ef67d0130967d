"""The memory that expressions refer to, and the accesses that evaluating them performs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from gpusync_lint.domain.values import NEW_STREAM, Device, Kind
from gpusync_lint.rules.ordering.clocks import NOTHING
from gpusync_lint.rules.ordering.indices import Indices
from gpusync_lint.rules.ordering.memory import NONE, Memory, Place, View, Views
from gpusync_lint.rules.ordering.names import (
    CURRENT_STREAMS,
    EVENTS,
    HOST_EVENTS,
    NEW_STREAMS,
    ORDERING,
    last_name,
)
from gpusync_lint.rules.ordering.state import NAMED, Accesses, escape, is_uncertain, uncertain_stream
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import children

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpusync_lint.domain.values import Value
    from gpusync_lint.project.symbols import FunctionDef
    from gpusync_lint.rules.base.context import RuleContext
    from gpusync_lint.rules.ordering.clocks import Snapshot

_SAME_MEMORY = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})
"""Attributes of tensors that share their memory."""


class Expressions(Accesses):
    """Evaluates the expressions of one function."""

    def __init__(self, context: RuleContext, call: Callable[[Expressions, ast.Call], Views]) -> None:
        super().__init__()
        self.context = context
        self._perform_call = call
        self.waits: Collection[ast.AST] = context.waiting
        """The expressions that are reported as waits."""
        self.graphs: dict[str, list[tuple[View, bool]]] = {}
        """By path, the accesses of captured graphs."""
        self._streams = 0
        self._unknown = 0
        self.bound: Counter[str] = Counter()
        """By name, how often it was bound so far."""

    def value(self, node: ast.expr | None) -> Value:
        """What the inference knows about an expression."""
        return self.context.value(node)

    def evaluate(self, node: ast.expr | None) -> Views:
        """Evaluate an expression; return the memory that it refers to."""
        if node is None:
            return NONE
        views = _EVALUATE.get(node.__class__, Expressions._others)(self, node)
        if node in self.waits and not orders(node) and not any(view.memory.place.on_host for view in views):
            self.host_waits_for_current()
        return views

    def inline(self, fn: FunctionDef, node: ast.Call) -> Views | None:
        """Run the body of a function of the project for a call; None if that is not possible."""
        return None

    # streams and paths

    @property
    def indices(self) -> Indices:
        """What is known about numbers."""
        return Indices(self.state.numbers, self.bound)

    def path(self, node: ast.AST | None) -> str | None:
        """The path of an expression; None if it has none."""
        return self.indices.path(node)

    def select(self, views: Views, index: ast.expr) -> Views:
        """A part of memory, or an element of a list of tensors."""
        selected: set[View] = set()
        for view in views:
            found = self.indices.part(index, "" if view.is_indexed else "reshaped ")
            if found is None:
                self._unknown += 1
                found = (f"unknown {self._unknown}",), False
            part, is_element = found
            if view.is_indexed:
                selected.add(view._replace(part=(*view.part, *part), is_indexed=is_element))
            else:
                selected.add(view if view.part else view._replace(part=part))
        return frozenset(selected)

    def stream_of(self, node: ast.expr | None) -> str:
        """The stream that an expression refers to."""
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            return self.state.current
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            if name in CURRENT_STREAMS:
                return self.state.current
            if name in NEW_STREAMS:
                self._streams += 1
                return f"stream {self._streams}"
        path = self.path(node)
        if path is None:
            return uncertain_stream("")
        known = self.state.streams.get(path)
        if known is not None:
            return known
        value = self.value(node)
        root = re.split(r"[.\[]", path, maxsplit=1)[0]
        # An element of a list of streams, or what a loop binds, may be any stream of the list.
        created = value.kind is Kind.STREAM and value.const == NEW_STREAM and "@" not in path and not self.bound[root]
        return f"{NAMED}{path}" if created else uncertain_stream(path)

    def certain_snapshot(self, stream: str) -> Snapshot:
        """What is done when a stream has done what it was given so far; everything, if it may be any stream."""
        clocks = self.state.clocks
        return clocks.now() if is_uncertain(stream) else clocks.snapshot(stream)

    def stream_waits(self, stream: str, until: Snapshot) -> None:
        """A stream waits; all of them do if it may be any stream."""
        if is_uncertain(stream):
            self.order_everything()
        else:
            self.state.clocks.wait(stream, until)

    def views_at(self, node: ast.expr) -> Views:
        """The memory of a path that the function was given; it is the same each time."""
        path = self.path(node)
        if path is None:
            return NONE
        views = self.state.views.get(path)
        if views is None:
            memory = Memory(place_of(self.value(node)), path, escapes=True)
            memory.of_module = self.value(node).kind is Kind.MODULE
            views = self.state.views[path] = frozenset({View(memory)})
        return views

    def operand(self, node: ast.expr) -> Views:
        """The memory of an operand, which is a tensor."""
        views = self.evaluate(node)
        return views or (self.views_at(node) if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) else NONE)

    def operands(self, node: ast.expr) -> Views:
        """The memory of an argument: a tensor, or a list or tuple of tensors."""
        if isinstance(node, ast.Starred):
            return self.operands(node.value)
        if isinstance(node, (ast.List, ast.Tuple)):
            return NONE.union(*(self.operands(element) for element in node.elts))
        return self.evaluate(node)

    def reads(self, views: Views, node: ast.expr) -> None:
        """An operation reads memory: on the host if it is there, else on the current stream."""
        self.host_reads(views, node)
        on_device = [view for view in views if not view.memory.place.on_host and not view.memory.of_module]
        if on_device:
            self.stream_accesses(on_device, node, writes=False)

    def writes(self, views: Views, node: ast.expr) -> None:
        """An operation writes memory: on the host if it is there, else on the current stream."""
        self.host_writes(views, node)
        on_device = [view for view in views if not view.memory.place.on_host]
        if on_device:
            self.stream_accesses(on_device, node, writes=True)

    def result(self, node: ast.expr, operands: Views = NONE) -> Views:
        """The new memory that an operation returns; none if it returns no tensor."""
        value = self.value(node)
        on_device = any(view.memory.place is Place.DEVICE for view in operands)
        if value.kind is Kind.TENSOR and value.certain:
            place = place_of(value)
            place = Place.DEVICE if on_device and place is Place.UNKNOWN else place
        elif on_device and value.kind in (Kind.UNKNOWN, Kind.TENSOR):
            place = Place.DEVICE
        else:
            return NONE
        return self.new(place, node)

    def new(self, place: Place, node: ast.expr) -> Views:
        """New memory, which the current stream writes if it is on the device."""
        views = frozenset({View(self.allocate(place, node))})
        if place is Place.DEVICE:
            self.stream_accesses(views, node, writes=True)
        return views

    # expressions

    def _name(self, node: ast.Name) -> Views:
        views = self.state.views.get(node.id)
        if views is None and self.value(node).kind is Kind.TENSOR:
            return self.views_at(node)
        return views or NONE

    def _attribute(self, node: ast.Attribute) -> Views:
        path = dotted_path(node)
        if path is not None and path in self.state.views:
            return self.state.views[path]
        views = self.evaluate(node.value)
        if node.attr in _SAME_MEMORY or any(view.memory.of_module for view in views):
            return views
        return self.views_at(node) if not views and self.value(node).kind is Kind.TENSOR else NONE

    def _subscript(self, node: ast.Subscript) -> Views:
        path = self.path(node)
        if path is not None and path in self.state.views:
            return self.state.views[path]
        if not isinstance(node.slice, ast.Slice):
            self.reads(self.evaluate(node.slice), node)
        return self.select(self.evaluate(node.value), node.slice)

    def _binary(self, node: ast.BinOp) -> Views:
        operands = self.evaluate(node.left) | self.evaluate(node.right)
        self.reads(operands, node)
        return self.result(node, operands)

    def _unary(self, node: ast.UnaryOp) -> Views:
        operand = self.evaluate(node.operand)
        self.reads(operand, node.operand)
        return NONE if isinstance(node.op, ast.Not) else self.result(node, operand)

    def _comparison(self, node: ast.Compare) -> Views:
        operands = NONE.union(*(self.evaluate(one) for one in (node.left, *node.comparators)))
        if not any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops):
            self.reads(operands, node.left)
            return self.result(node, operands)
        return NONE

    def _boolean(self, node: ast.BoolOp) -> Views:
        for operand in node.values:
            self.truth(operand)
        return NONE

    def truth(self, node: ast.expr) -> None:
        """Evaluate a condition."""
        self.host_reads(self.evaluate(node), node)

    def _if_exp(self, node: ast.IfExp) -> Views:
        self.truth(node.test)
        return self.evaluate(node.body) | self.evaluate(node.orelse)

    def _walrus(self, node: ast.NamedExpr) -> Views:
        views = self.evaluate(node.value)
        self.bind(node.target, views, node.value)
        return views

    def _elements(self, node: ast.Tuple | ast.List | ast.Set) -> Views:
        for element in node.elts:
            self._keep(element)
        return NONE

    def _dict(self, node: ast.Dict) -> Views:
        for element in (*node.keys, *node.values):
            self._keep(element)
        return NONE

    def _keep(self, node: ast.expr | None) -> None:
        escape(self.evaluate(node))

    def _joined(self, node: ast.JoinedStr) -> Views:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.host_reads(self.evaluate(part.value), part.value)
        return NONE

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Views:
        for generator in node.generators:
            self.evaluate(generator.iter)
            self.bind(generator.target, NONE, None)
            for condition in generator.ifs:
                self.truth(condition)
        if isinstance(node, ast.DictComp):
            self._keep(node.key)
            self._keep(node.value)
            return NONE
        views = self.evaluate(node.elt)
        escape(views)
        is_new = isinstance(node.elt, ast.Call) and all(not view.part for view in views)
        return views if isinstance(node, ast.ListComp) and is_new else NONE

    def _suspend(self, node: ast.Await | ast.Yield | ast.YieldFrom) -> Views:
        if node.value is not None:
            self._keep(node.value)
        self.order_everything()
        return NONE

    def _skip(self, node: ast.expr) -> Views:
        return NONE

    def _call(self, node: ast.Call) -> Views:
        return self._perform_call(self, node)

    def _others(self, node: ast.expr) -> Views:
        for child in children(node):
            if isinstance(child, ast.expr):
                self.evaluate(child)
        return NONE

    # assignments

    def bind(self, target: ast.expr, views: Views, value: ast.expr | None) -> None:
        """Assign memory to a target."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self.bind(element, NONE, None)
            return
        if isinstance(target, ast.Starred):
            self.bind(target.value, NONE, None)
            return
        if isinstance(target, ast.Subscript):
            self._store(target, views, value)
            return
        path = self.path(target)
        if path is None:
            escape(views)
            return
        self.bind_path(target, path, views, value)

    def bind_path(self, target: ast.expr, path: str, views: Views, value: ast.expr | None) -> None:
        """Assign memory to a path."""
        number = self.indices.number(value)
        stream, event = self.stream_value(value), self._event_value(value)
        self.unbind(path)
        self.bound[path] += 1
        if number is not None and isinstance(target, ast.Name):
            self.state.numbers[path] = number
        if isinstance(target, (ast.Attribute, ast.Subscript)) or (
            isinstance(target, ast.Name) and target.id in self.shared_names
        ):
            escape(views)
        if views:
            for view in views:
                view.memory.name = view.memory.name or path
            self.state.views[path] = views
        if stream is not None:
            self.state.streams[path] = stream
        if event is not None:
            self.state.events[path] = event
        if isinstance(value, ast.ListComp) and self._event_value(value.elt) is NOTHING:
            self.state.events[f"{path}[*]"] = NOTHING

    @property
    def function(self) -> FunctionDef:
        """The function that is being run."""
        raise NotImplementedError

    @property
    def shared_names(self) -> Collection[str]:
        """The names that other functions see."""
        return ()

    def stream_value(self, value: ast.expr | None) -> str | None:
        """The stream that an assigned expression refers to; None if it is none."""
        if value is None:
            return None
        if isinstance(value, ast.Call):
            name = last_name(value.func)
            is_stream = name in CURRENT_STREAMS or name in NEW_STREAMS
        else:
            is_stream = self.value(value).kind is Kind.STREAM or self.path(value) in self.state.streams
        return self.stream_of(value) if is_stream else None

    def event_at(self, path: str | None) -> Snapshot | None:
        """What the event at a path comes after; None if that is unknown."""
        if path is None:
            return None
        known = self.state.events.get(path)
        return known if known is not None or "[" not in path else self.state.events.get(f"{path.rpartition('[')[0]}[*]")

    def _event_value(self, value: ast.expr | None) -> Snapshot | None:
        """What an event or the work of a collective comes after, if an assigned expression is one."""
        if not isinstance(value, ast.Call):
            return self.event_at(self.path(value))
        is_event = last_name(value.func) in EVENTS
        if is_event and not self.context.qualified_name(value.func).startswith(HOST_EVENTS):
            return NOTHING
        return self.snapshots.get(value)

    def _store(self, target: ast.Subscript, views: Views, value: ast.expr | None) -> None:
        """`target[...] = value`."""
        base = self.evaluate(target.value)
        held = self.value(target.value)
        if base and (held.certain or not any(view.memory.escapes for view in base)):
            self.reads(views, target)
            self.writes(self.select(base, target.slice), target)
        else:
            path = self.path(target)
            escape(views)
            if path is not None:
                self.bind_path(target, path, views, value)
        if target in self.waits:
            self.host_waits_for_current()


def orders(node: ast.expr) -> bool:
    """Whether an expression is a call whose effect on the order is known."""
    return isinstance(node, ast.Call) and last_name(node.func) in ORDERING


def place_of(value: Value) -> Place:
    """Where the memory of a value is."""
    if value.kind is not Kind.TENSOR or not value.certain:
        return Place.UNKNOWN
    if value.device is Device.CPU:
        return Place.PINNED if value.pinned else Place.HOST
    return Place.DEVICE if value.device >= Device.ASSUMED else Place.UNKNOWN


_EVALUATE: dict[type, Callable[[Expressions, Any], Views]] = {
    ast.Name: Expressions._name,
    ast.Constant: Expressions._skip,
    ast.Lambda: Expressions._skip,
    ast.Attribute: Expressions._attribute,
    ast.Subscript: Expressions._subscript,
    ast.BinOp: Expressions._binary,
    ast.UnaryOp: Expressions._unary,
    ast.Compare: Expressions._comparison,
    ast.BoolOp: Expressions._boolean,
    ast.IfExp: Expressions._if_exp,
    ast.NamedExpr: Expressions._walrus,
    ast.Tuple: Expressions._elements,
    ast.List: Expressions._elements,
    ast.Set: Expressions._elements,
    ast.Dict: Expressions._dict,
    ast.JoinedStr: Expressions._joined,
    ast.ListComp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.DictComp: Expressions._comprehension,
    ast.Await: Expressions._suspend,
    ast.Yield: Expressions._suspend,
    ast.YieldFrom: Expressions._suspend,
    ast.Call: Expressions._call,
}
