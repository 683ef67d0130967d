"""What calls access and wait for: copies, streams and events, collectives, operations of tensors, other functions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.domain import accelerators, python_api, torch_api
from gpusync_lint.domain.values import Device, Kind
from gpusync_lint.rules.base.context import arguments, is_constant, keyword, positional
from gpusync_lint.rules.ordering.clocks import COLLECTIVES, HOST, Snapshot
from gpusync_lint.rules.ordering.memory import NONE, Place, View, Views
from gpusync_lint.rules.ordering.names import CURRENT_STREAMS, EVENTS, NEW_STREAMS, ORDERS, last_name
from gpusync_lint.rules.ordering.state import escape, is_uncertain

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.rules.ordering.expressions import Expressions

_VIEWS = frozenset(
    {
        "as_strided", "chunk", "contiguous", "detach", "diagonal", "expand", "expand_as", "flatten", "movedim",
        "narrow", "permute", "requires_grad_", "reshape", "select", "split", "squeeze", "squeeze_", "swapaxes", "t",
        "tensor_split", "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "unsqueeze_", "view", "view_as",
    }
)  # fmt: skip
"""Methods of tensors that return the same memory, or a part of it."""
_NO_ACCESS = frozenset(
    {
        "backward", "data_ptr", "dim", "element_size", "get_device", "is_contiguous", "is_complex", "is_floating_point",
        "is_pinned", "is_shared", "ndimension", "nelement", "numel", "register_hook", "resize_", "retain_grad", "set_",
        "share_memory_", "size", "storage", "storage_offset", "stride", "untyped_storage",
    }
)  # fmt: skip
"""Methods and functions of tensors that neither read nor write the elements."""
_READ = frozenset({"item", "tolist", "__array__"})
_NEW_LIKE = frozenset({"new", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"})
_TENSOR_METHODS = frozenset(
    name
    for names in (
        torch_api.tensors().booleans, torch_api.tensors().reduces, torch_api.tensors().elementwise,
        torch_api.tensors().torch_only, _VIEWS, _READ,
        ("copy_", "fill_", "zero_", "add_", "mul_", "clone", "pin_memory", "numpy", "record_stream"),
    )
    for name in names
)  # fmt: skip
"""Methods that are taken for those of tensors, of a receiver that is unknown."""
_CONTAINER_METHODS = frozenset(
    {
        "add", "append", "appendleft", "clear", "endswith", "extend", "format", "insert", "items", "join", "keys",
        "pop", "popleft", "put", "setdefault", "split", "startswith", "strip", "values",
    }
)  # fmt: skip
_CONTAINERS = (Kind.HOST, Kind.LIST, Kind.DICT, Kind.TUPLE, Kind.DTYPE, Kind.DEVICE, Kind.ARRAY)
_OTHER_OBJECTS = (Kind.OPTIMIZER, Kind.SCHEDULER, Kind.SCALER, Kind.LOADER)
_READING_BUILTINS = frozenset(
    {
        "abs", "all", "any", "bool", "float", "format", "int", "max", "min", "print", "repr", "round", "sorted", "str",
        "sum",
    }
)  # fmt: skip


class _Role(NamedTuple):
    """An argument of a collective."""

    name: str
    writes: bool


_INTO = (_Role("output_tensor", True), _Role("input_tensor", False))
_SCATTERED = (_Role("output", True), _Role("input", False))
_COLLECTIVES: dict[str, tuple[_Role, ...]] = {
    "all_reduce": (_Role("tensor", True),),
    "broadcast": (_Role("tensor", True),),
    "reduce": (_Role("tensor", True),),
    "all_gather_into_tensor": _INTO,
    "_all_gather_base": _INTO,
    "reduce_scatter_tensor": _SCATTERED,
    "_reduce_scatter_base": _SCATTERED,
    "all_to_all_single": _SCATTERED,
    "all_gather": (_Role("tensor_list", True), _Role("tensor", False)),
    "reduce_scatter": (_Role("output", True), _Role("input_list", False)),
    "all_to_all": (_Role("output_tensor_list", True), _Role("input_tensor_list", False)),
    "gather": (_Role("tensor", False), _Role("gather_list", True)),
    "scatter": (_Role("tensor", True), _Role("scatter_list", False)),
    "isend": (_Role("tensor", False),),
    "irecv": (_Role("tensor", True),),
}
"""The tensors that collectives access, in the order of their arguments."""
_ALWAYS_ASYNCHRONOUS = ("isend", "irecv")


def call(run: Expressions, node: ast.Call) -> Views:
    """Evaluate a call; return the memory that it returns."""
    name = last_name(node.func)
    if name in _COLLECTIVES and _is_asynchronous(run, node, name):
        return _collective(run, node, name)
    ordering = _ORDERING.get(name)
    if ordering is not None and isinstance(node.func, ast.Attribute):
        for argument in arguments(node):
            run.evaluate(argument)
        return ordering(run, node, node.func.value)
    dotted = run.context.qualified_name(node.func)
    if dotted:
        return _function(run, node, dotted)
    if isinstance(node.func, ast.Attribute):
        return _method(run, node, node.func, name)
    return _other(run, node, name)


# streams and events


def _until(run: Expressions, node: ast.expr | None) -> Snapshot:
    """What an event or stream comes after; everything if it is unknown."""
    if node is None:
        return run.state.clocks.now()
    known = run.event_at(run.path(node))
    if known is None and isinstance(node, ast.Call):
        known = run.snapshots.get(node)
    return run.state.clocks.now() if known is None else known


def _is_stream(run: Expressions, node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return last_name(node.func) in CURRENT_STREAMS
    return run.path(node) in run.state.streams or run.value(node).kind is Kind.STREAM


def _synchronize(run: Expressions, node: ast.Call, receiver: ast.expr) -> Views:
    """`torch.cuda.synchronize()`, `stream.synchronize()`, `event.synchronize()`, `event.query()`."""
    run.evaluate(receiver)
    if _is_stream(run, receiver):
        stream = run.stream_of(receiver)
        run.host_waits(run.certain_snapshot(stream))
    elif run.value(receiver).kind is Kind.NAME:
        run.order_everything()
    else:
        run.host_waits(_until(run, receiver))
    return NONE


def _wait_stream(run: Expressions, node: ast.Call, receiver: ast.expr) -> Views:
    waiter = run.stream_of(receiver)
    until = run.certain_snapshot(run.stream_of(node.args[0])) if node.args else run.state.clocks.now()
    run.stream_waits(waiter, until)
    return NONE


def _wait_event(run: Expressions, node: ast.Call, receiver: ast.expr) -> Views:
    run.stream_waits(run.stream_of(receiver), _until(run, next(iter(node.args), None)))
    return NONE


def _record_event(run: Expressions, node: ast.Call, receiver: ast.expr) -> Views:
    run.snapshots[node] = snapshot = run.certain_snapshot(run.stream_of(receiver))
    path = run.path(next(iter(node.args), None))
    if path is not None:
        run.state.events[path] = snapshot
    return NONE


def _record(run: Expressions, node: ast.Call, receiver: ast.expr) -> Views:
    path = run.path(receiver)
    given = next(iter(arguments(node)), None)
    if path is not None:
        stream = run.state.current if given is None else run.stream_of(given)
        run.state.events[path] = run.certain_snapshot(stream)
    return NONE


def _wait(run: Expressions, node: ast.Call, receiver: ast.expr) -> Views:
    """`work.wait()` and `event.wait(stream)`."""
    run.evaluate(receiver)
    until = _until(run, receiver)
    stream = run.stream_of(node.args[0]) if node.args and _is_stream(run, node.args[0]) else run.state.current
    run.stream_waits(stream, until)
    reached = {COLLECTIVES: until.reached[COLLECTIVES]} if COLLECTIVES in until.reached else {}
    run.state.clocks.wait(HOST, Snapshot(reached, until.everything))
    return NONE


def _record_stream(run: Expressions, node: ast.Call, receiver: ast.expr) -> Views:
    stream = run.stream_of(node.args[0]) if node.args else ""
    for view in run.evaluate(receiver):
        view.memory.recorded.add(stream)
        view.memory.escapes = view.memory.escapes or is_uncertain(stream)
    return NONE


def _set_stream(run: Expressions, node: ast.Call, receiver: ast.expr) -> Views:
    run.state.current = run.stream_of(next(iter(node.args), None))
    return NONE


def _replay(run: Expressions, node: ast.Call, receiver: ast.expr) -> Views:
    for view, writes in run.graphs.get(run.path(receiver) or "", ()):
        run.stream_accesses([view], node, writes)
    return NONE


def _backward(run: Expressions, node: ast.Call, receiver: ast.expr) -> Views:
    """Autograd lets the current stream wait for all streams of the backward pass."""
    run.evaluate(receiver)
    run.stream_waits(run.state.current, run.state.clocks.now())
    return NONE


_ORDERING: dict[str, Callable[[Expressions, ast.Call, ast.expr], Views]] = {
    "synchronize": _synchronize,
    "query": _synchronize,
    "is_completed": _synchronize,
    "wait_stream": _wait_stream,
    "wait_event": _wait_event,
    "record_event": _record_event,
    "record": _record,
    "wait": _wait,
    "record_stream": _record_stream,
    "set_stream": _set_stream,
    "replay": _replay,
    "backward": _backward,
}
"""By the last name of a method or function that orders something, its effect."""


# collectives


def _is_asynchronous(run: Expressions, node: ast.Call, name: str) -> bool:
    if name in _ALWAYS_ASYNCHRONOUS:
        return run.context.qualified_name(node.func).startswith("torch.distributed.")
    flag = keyword(node, "async_op")
    return flag is not None and is_constant(flag, True)


def _collective(run: Expressions, node: ast.Call, name: str) -> Views:
    given = positional(node)
    clocks = run.state.clocks
    clocks.wait(COLLECTIVES, run.certain_snapshot(run.state.current))
    for index, role in enumerate(_COLLECTIVES[name]):
        argument = keyword(node, role.name) or (given[index] if index < len(given) else None)
        if argument is not None:
            views = run.operand(argument) or run.operands(argument)
            run.stream_accesses(views, node, role.writes, COLLECTIVES)
    run.snapshots[node] = clocks.snapshot(COLLECTIVES)
    return NONE


# copies


def _flag(node: ast.Call, given: list[ast.expr]) -> bool | None:
    """Whether a copy is `non_blocking`; None if that is not a constant. `given`: where it may be without a name."""
    flag = keyword(node, "non_blocking")
    if flag is None:
        return any(is_constant(one, True) for one in given)
    return flag.value is True if isinstance(flag, ast.Constant) else None


def _is_batch(run: Expressions, node: ast.expr, views: Views) -> bool:
    """Whether an expression is what a loop runs over, of which nothing else is known: a batch, on the host."""
    unknown = all(view.memory.place is Place.UNKNOWN for view in views)
    return unknown and isinstance(node, ast.Name) and node.id in run.function.loop_names


def _copy(run: Expressions, node: ast.expr, target: Views, source: Views, free: bool | None) -> None:
    """Copy memory; `free` says whether it is `non_blocking`."""
    to_host = any(view.memory.place.on_host for view in target)
    from_host = any(view.memory.place.on_host for view in source)
    if to_host and from_host:
        run.host_reads(source, node)
        run.host_writes(target, node)
        return
    pageable = any(view.memory.place is Place.HOST for view in (*target, *source))
    if not to_host and not from_host and not any(view.memory.place is Place.DEVICE for view in (*target, *source)):
        free = None  # nothing is known about either
    run.stream_accesses(source, node, writes=False)
    if to_host or any(view.memory.place is not Place.UNKNOWN for view in (*target, *source)):
        run.stream_accesses(target, node, writes=True)
    if (free is not True and (to_host or from_host)) or free is None or (pageable and to_host):
        run.host_waits_for_current()


def _move(run: Expressions, node: ast.Call, receiver: ast.expr, name: str) -> Views:
    """`.to(...)`, `.cuda()`, `.cpu()`."""
    for argument in arguments(node):
        run.evaluate(argument)
    source = run.operand(receiver)
    target = "cpu" if name == "cpu" else "device" if name == "cuda" else _target(run, node)
    if run.value(receiver).kind is Kind.MODULE:
        return _move_module(run, node, source, target)
    free = _flag(node, positional(node)[1:])
    on_host = bool(source) and all(view.memory.place.on_host for view in source)
    if target == "cpu":
        return source if on_host else _to_host(run, node, source, free)
    if target == "same":
        run.reads(source, node)
        return run.result(node, source)
    if target == "unknown":
        if free is not True:
            run.host_waits_for_current()
            return NONE
        if not any(view.memory.place is Place.PINNED for view in source):
            return NONE
    if all(view.memory.place is Place.DEVICE for view in source) and source:
        return source
    result = run.new(Place.DEVICE, node)
    run.stream_accesses(source, node, writes=False)
    if free is not True:
        run.host_waits_for_current()
    return result


def _to_host(run: Expressions, node: ast.Call, source: Views, free: bool | None) -> Views:
    run.stream_accesses(source, node, writes=False)
    if free is not True:
        run.host_waits_for_current()
        return frozenset({View(run.allocate(Place.HOST, node))})
    copy = frozenset({View(run.allocate(Place.PINNED, node))})
    run.stream_accesses(copy, node, writes=True)
    return copy


def _move_module(run: Expressions, node: ast.Call, module: Views, target: str) -> Views:
    """Move the parameters of a module."""
    path = run.path(node.func.value) if isinstance(node.func, ast.Attribute) else None
    for parameter in [one for one in run.state.views if path is not None and one.startswith(f"{path}.")]:
        del run.state.views[parameter]
    for view in module:
        view.memory.of_module = True
        if target == "cpu" and _flag(node, []) is True:
            view.memory.place = Place.PINNED
            run.stream_accesses([view], node, writes=True)
        else:
            view.memory.place = Place.UNKNOWN
            run.host_waits_for_current()
    return module


def _target(run: Expressions, node: ast.Call) -> str:
    """Where `.to(...)` moves its receiver: `cpu`, `device`, `same` place, or `unknown`."""
    given = keyword(node, "device") or next(iter(positional(node)), None)
    if given is None:
        return "same" if keyword(node, "dtype") is not None else "unknown"
    value = run.value(given)
    if value.kind is Kind.DTYPE:
        return "same"
    if isinstance(value.const, str):
        return "cpu" if value.const.startswith("cpu") else "device"
    if value.kind is Kind.DEVICE and value.device is Device.CPU:
        return "cpu"
    result = run.value(node)
    return "device" if result.kind is Kind.MOVED or result.on_device else "unknown"


# operations of tensors


def _method(run: Expressions, node: ast.Call, func: ast.Attribute, name: str) -> Views:
    """A method of an object that is not a module of Python."""
    receiver = func.value
    value = run.value(receiver)
    if name in ("to", "cuda", "cpu"):
        return _move(run, node, receiver, name)
    views = run.evaluate(receiver)
    is_tensor = bool(views) or value.kind is Kind.TENSOR
    if any(view.memory.of_module for view in views):
        is_tensor = value.kind is Kind.TENSOR
    if is_tensor or (value.kind is Kind.UNKNOWN and name in _TENSOR_METHODS and not run.value(func).definition):
        return _tensor_method(run, node, receiver, views or run.operand(receiver), name)
    if value.kind in _CONTAINERS or (value.kind is Kind.UNKNOWN and name in _CONTAINER_METHODS):
        _keep_arguments(run, node)
        return NONE
    if value.kind is Kind.UNKNOWN and name in python_api.LOGGERS:
        _read_arguments(run, node)
        return NONE
    if value.kind in _OTHER_OBJECTS:
        for argument in arguments(node):
            run.reads(run.operands(argument), node)
        return NONE
    return _other(run, node, name)


def _tensor_method(run: Expressions, node: ast.Call, receiver: ast.expr, views: Views, name: str) -> Views:
    if name == "copy_":
        given = arguments(node)
        source = run.operand(given[0]) if given else NONE
        if given and not source and run.value(given[0]).kind is not Kind.TENSOR:
            source = run.views_at(given[0])
        free = _flag(node, positional(node)[1:])
        if free is False and given and _is_batch(run, given[0], source):
            run.host_writes(views, node)
            return views
        _copy(run, node, views, source, free)
        return views
    operands = [run.operands(argument) for argument in arguments(node)]
    if name in _VIEWS:
        return views if name == "detach" else frozenset(view._replace(is_indexed=False) for view in views)
    if name == "numpy":
        return frozenset(view._replace(array=True) for view in views)
    if name in _NO_ACCESS or name in _NEW_LIKE:
        return run.result(node) if name in _NEW_LIKE else NONE
    for one in operands:
        run.reads(one, node)
    if name.endswith("_") and not name.endswith("__"):
        run.writes(views, node)
        return views
    run.reads(views, node)
    if name in _READ:
        if not any(view.memory.place.on_host for view in views):
            run.host_waits_for_current()
        return NONE
    if name == "pin_memory":
        return frozenset({View(run.allocate(Place.PINNED, node))})
    return run.result(node, views)


def _function(run: Expressions, node: ast.Call, dotted: str) -> Views:
    """A function outside the project, by its dotted name."""
    root, _, rest = dotted.partition(".")
    name = dotted.rpartition(".")[2]
    if isinstance(node.func, ast.Attribute):
        run.evaluate(node.func.value)
    if root == "torch":
        return _torch_function(run, node, rest, name)
    if root == "builtins":
        if name in _READING_BUILTINS:
            _read_arguments(run, node)
        else:
            _keep_arguments(run, node)
        return NONE
    if root in python_api.HOST_MODULES or root in python_api.ARRAY_MODULES:
        if name == "copyto" and node.args:
            run.host_writes(run.evaluate(node.args[0]), node)
        _read_arguments(run, node)
        return NONE
    return _other(run, node, name)


def _torch_function(run: Expressions, node: ast.Call, rest: str, name: str) -> Views:
    of_device = rest.startswith(("cuda.", "accelerator.")) or accelerators.of_module(rest) is not None
    if of_device or name in EVENTS or name in NEW_STREAMS:
        for argument in arguments(node):
            run.evaluate(argument)
        if name in ("synchronize", "empty_cache"):
            run.order_everything()
        return NONE
    if name == "_foreach_copy_" and len(node.args) > 1:
        targets, sources = (one.elts if isinstance(one, (ast.List, ast.Tuple)) else [one] for one in node.args[:2])
        for target, source in zip(targets, sources, strict=False):
            _copy(run, node, run.operand(target), run.operand(source), _flag(node, node.args[2:]))
        return NONE
    if name in ("barrier", "monitored_barrier"):
        run.order_everything()
    if name[:1].isupper():
        _keep_arguments(run, node)
        return NONE
    operands = [run.operands(argument) for argument in arguments(node)]
    if name in ("from_numpy", "as_tensor", "asarray"):
        return operands[0] if operands else NONE
    if name.startswith("is_") or name in _NO_ACCESS:
        return NONE
    writes = (name.endswith("_") and not name.endswith("__")) or (
        rest.startswith("distributed.") and name in _COLLECTIVES
    )
    for index, views in enumerate(operands):
        if writes and index == 0:
            run.writes(views, node)
        else:
            run.reads(views, node)
    out = keyword(node, "out")
    if out is not None:
        run.writes(run.operands(out), node)
        return run.operands(out)
    pinned = keyword(node, "pin_memory")
    if pinned is not None and torch_api.is_factory(rest) and not is_constant(pinned, False):
        return frozenset({View(run.allocate(Place.PINNED, node))})
    return run.result(node, NONE.union(*operands))


# other functions


def _other(run: Expressions, node: ast.Call, name: str) -> Views:
    """A module, a function of the project, or something unknown."""
    called = run.value(node.func)
    operands = NONE.union(*(run.operands(argument) for argument in arguments(node)))
    if called.kind is Kind.MODULE:
        forward = run.context.method_of(called, "forward")
        if forward is None or not run.context.may_wait(forward, ORDERS):
            run.reads(operands, node)
            return run.result(node, operands)
    if called.kind is Kind.FUNCTION:
        returned = run.inline(called.ref, node)
        if returned is not None:
            return returned
    escape(operands)
    is_known = called.kind is Kind.FUNCTION and not run.context.may_wait(called.ref, ORDERS)
    if not is_known:
        run.order_everything()
    return NONE


def _read_arguments(run: Expressions, node: ast.Call) -> None:
    for argument in arguments(node):
        run.host_reads(run.operands(argument), argument)


def _keep_arguments(run: Expressions, node: ast.Call) -> None:
    """Something keeps the arguments; an array that is handed over counts as read."""
    for argument in arguments(node):
        views = run.operands(argument)
        escape(views)
        run.host_reads([view for view in views if view.array], argument)
