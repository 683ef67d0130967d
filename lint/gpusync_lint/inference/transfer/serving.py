"""What serving code is made of: handlers that are passed to a server, modules that a pipeline registers, and the
schedule of a denoising loop.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import entry_points
from gpusync_lint.domain.serving_loops import words_of_file
from gpusync_lint.domain.training_idioms import is_test_path
from gpusync_lint.domain.values import UNKNOWN, Device, Kind, Value
from gpusync_lint.inference.handler_flow import called_of
from gpusync_lint.inference.tables import CALLS
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.units import Unit
from gpusync_lint.project.entry_points import registered
from gpusync_lint.syntax.traversal import walk

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame
    from gpusync_lint.inference.tables import Call

_DELEGATES = {
    "asyncio.to_thread": 0,
    "anyio.to_thread.run_sync": 0,
    "starlette.concurrency.run_in_threadpool": 0,
    "fastapi.concurrency.run_in_threadpool": 0,
    "starlette.background.BackgroundTask": 0,
}
"""Functions that have a function called once, in a thread or after the response, with its position."""
_DELEGATING_METHODS = {"run_in_executor": 1, "submit": 0, "add_task": 0}
"""The same for methods: of an event loop, an executor and FastAPI's background tasks."""
_MAY_DELEGATE = frozenset({Kind.UNKNOWN, Kind.NAME})
"""The kinds of objects that may be one of those."""
_REGISTERS = "register_modules"
"""The method with which the pipelines of diffusers bind each keyword argument to an attribute of that name."""


def call_in_server(frame: Frame, call: Call, name: str, path: str | None) -> Value | None:
    """Record what a call passes to a server or binds to attributes.

    Args:
        frame: the run that makes the call.
        call: the call.
        name: the last part of the name of what is called.
        path: the dotted path of the receiver of a method, if it has one.

    Returns:
        the result of a call that makes a library call a function; None for any other call.
    """
    if name in entry_points.registrations():
        _record_handler(frame, call, name)
    elif name == _REGISTERS and path is not None:
        for attribute, value in call.kwargs.items():
            frame.store.set(f"{path}.{attribute}", value)
            frame.analysis.instances.set_attribute(call.receiver, attribute, value)
    position = _DELEGATES.get(call.callee.ref) if call.callee.kind is Kind.NAME else None
    if position is None and call.receiver.kind in _MAY_DELEGATE:
        position = _DELEGATING_METHODS.get(call.method)
    return None if position is None else _call_delegated(frame, call, position)


def _record_handler(frame: Frame, call: Call, name: str) -> None:
    """Record the handler that a call passes to a server, if it does."""
    dotted = call.callee.ref if call.callee.kind is Kind.NAME and isinstance(call.callee.ref, str) else None
    if dotted is not None and "()." in dotted:  # a method of an object outside the project
        dotted = None
    registration = registered(frame.fn.file, name, dotted)
    if registration is None:
        return
    given = call.kwargs.get(registration.keyword)
    if given is None and len(call.args) > registration.position:
        given = call.args[registration.position]
    if given is None:
        return
    if given.kind is Kind.LAMBDA:
        passed = [
            frame.values.get(node.func, UNKNOWN) for node in walk(given.ref[0].body) if isinstance(node, ast.Call)
        ]
    else:
        passed = [given]
    for one in passed:
        called = called_of(one, frame.analysis.project.classes, registration.method)
        if called is not None:
            frame.analysis.record_callback(called, Heat.STEP, Unit.REQUEST)


def _call_delegated(frame: Frame, call: Call, position: int) -> Value | None:
    """The result of a call that makes a library call its argument at a position: `asyncio.to_thread(read, x)`.

    None if that is no function of the project.
    """
    if len(call.args) <= position:
        return None
    callee, args, kwargs = call.args[position], call.args[position + 1 :], call.kwargs
    node = call.node.args[position] if len(call.node.args) > position else None
    if isinstance(node, ast.Call) and frame.values.get(node.func, UNKNOWN).dotted_name == "functools.partial":
        callee, *bound = [frame.values.get(one, UNKNOWN) for one in node.args] or [UNKNOWN]
        args = [*bound, *args]
    handler = CALLS.get(callee.kind)
    if handler is None or called_of(callee, frame.analysis.project.classes) is None:
        return None
    return handler(frame, call._replace(callee=callee, args=args, kwargs=kwargs))


def bind_schedule(frame: Frame, loop: ast.For) -> None:
    """Bind what the timesteps or the noise levels of a denoising loop are, where nothing else is known of them.

    Pipelines keep them on the device, next to the sample: `scheduler.set_timesteps(steps, device=device)`.
    """
    found = frame.analysis.schedule_of(loop) if words_of_file(frame.fn.file.text).schedules else None
    if found is None or frame.names.get(found.name, UNKNOWN).kind is not Kind.UNKNOWN:
        return
    if is_test_path(frame.fn.file.path) or _is_on_host(frame.fn.node, loop.iter):
        return
    device = max(frame.assumed_device(), Device.ASSUMED)
    frame.store.set_name(found.name, Value(Kind.TENSOR, device, certain=False, zero_dim=found.is_element or None))


def _is_on_host(fn: ast.AST, iterable: ast.expr) -> bool:
    """Whether the schedule is on the host: a function that sets it does not say where, or one that reads it from a
    scheduler does not set it, so it is as the scheduler was created.
    """
    calls = [
        node
        for node in ast.walk(fn)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "set_timesteps"
    ]
    if calls:
        return not any(
            len(node.args) > 1 or any(word.arg in ("device", None) for word in node.keywords) for node in calls
        )
    return any(isinstance(node, ast.Attribute) and node.attr == "timesteps" for node in ast.walk(iterable))
