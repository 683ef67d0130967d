"""The memory that expressions refer to, and the accesses that evaluating them performs."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from gpusync_lint.domain.values import NEW_STREAM, Device, Kind
from gpusync_lint.rules.ordering.clocks import NOTHING
from gpusync_lint.rules.ordering.memory import NONE, Memory, Place, View, Views
from gpusync_lint.rules.ordering.names import (
    CURRENT_STREAMS,
    EVENTS,
    HOST_EVENTS,
    NEW_STREAMS,
    ORDERING,
    last_name,
    path_of,
)
from gpusync_lint.rules.ordering.state import NAMED, Accesses, escape, is_uncertain, uncertain_stream
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import children

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpusync_lint.domain.values import Value
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

    # streams and paths

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
        path = path_of(node)
        if path is None:
            return uncertain_stream("")
        known = self.state.streams.get(path)
        if known is not None:
            return known
        value = self.value(node)
        created = value.kind is Kind.STREAM and value.const == NEW_STREAM
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
        path = path_of(node)
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
        path = path_of(node)
        if path is not None and path in self.state.views:
            return self.state.views[path]
        if not isinstance(node.slice, ast.Slice):
            self.reads(self.evaluate(node.slice), node)
        views = self.evaluate(node.value)
        part = _rows(node.slice)
        return frozenset(view._replace(part=part) if view.part is None else view for view in views)

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
        elements = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        for element in elements:
            self._keep(element)
        return NONE

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
            self._store(target, views)
            return
        path = path_of(target)
        if path is None:
            escape(views)
            return
        stream, event = self._stream_value(value), self._event_value(value)
        self.unbind(path)
        if isinstance(target, ast.Attribute) or (isinstance(target, ast.Name) and target.id in self.shared_names):
            escape(views)
        if views:
            for view in views:
                view.memory.name = view.memory.name or path
            self.state.views[path] = views
        if stream is not None:
            self.state.streams[path] = stream
        if event is not None:
            self.state.events[path] = event

    @property
    def shared_names(self) -> Collection[str]:
        """The names that other functions see."""
        return ()

    def _stream_value(self, value: ast.expr | None) -> str | None:
        """The stream that an assigned expression refers to; None if it is none."""
        if value is None:
            return None
        if isinstance(value, ast.Call):
            name = last_name(value.func)
            is_stream = name in CURRENT_STREAMS or name in NEW_STREAMS
        else:
            is_stream = self.value(value).kind is Kind.STREAM or path_of(value) in self.state.streams
        return self.stream_of(value) if is_stream else None

    def _event_value(self, value: ast.expr | None) -> Snapshot | None:
        """What an event or the work of a collective comes after, if an assigned expression is one."""
        if not isinstance(value, ast.Call):
            return self.state.events.get(path_of(value) or "")
        is_event = last_name(value.func) in EVENTS
        if is_event and not self.context.qualified_name(value.func).startswith(HOST_EVENTS):
            return NOTHING
        return self.snapshots.get(value)

    def _store(self, target: ast.Subscript, views: Views) -> None:
        """`target[...] = value`."""
        base = self.evaluate(target.value)
        if not base and self.value(target.value).kind is Kind.TENSOR:
            base = self.views_at(target.value)
        if base:
            self.reads(views, target)
            part = _rows(target.slice)
            self.writes(frozenset(view._replace(part=part) for view in base), target)
        else:
            escape(views)
            path = path_of(target)
            if path is not None:
                self.unbind(path)
                if views:
                    self.state.views[path] = views
        if target in self.waits:
            self.host_waits_for_current()


def orders(node: ast.expr) -> bool:
    """Whether an expression is a call whose effect on the order is known."""
    return isinstance(node, ast.Call) and last_name(node.func) in ORDERING


def place_of(value: Value) -> Place:
    """Where the memory of a value is."""
    if value.kind is not Kind.TENSOR or not value.certain:
        return Place.PINNED if value.kind is Kind.TENSOR and value.pinned else Place.UNKNOWN
    if value.device is Device.CPU:
        return Place.PINNED if value.pinned else Place.HOST
    return Place.DEVICE if value.device >= Device.ASSUMED else Place.UNKNOWN


def _rows(index: ast.expr) -> tuple[int, int] | None:
    """The rows that an index selects; None for all, or if they are not constants."""
    if isinstance(index, ast.Tuple):
        return _rows(index.elts[0]) if index.elts else None
    if isinstance(index, ast.Constant) and type(index.value) is int and index.value >= 0:
        return index.value, index.value + 1
    if not isinstance(index, ast.Slice) or index.step is not None:
        return None
    bounds = []
    for bound, default in ((index.lower, 0), (index.upper, 1 << 62)):
        if bound is None:
            bounds.append(default)
        elif isinstance(bound, ast.Constant) and type(bound.value) is int and bound.value >= 0:
            bounds.append(bound.value)
        else:
            return None
    return bounds[0], bounds[1]


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
