"""What serving code is made of: handlers that are passed to a server, modules that a pipeline registers, and the
schedule of a denoising loop.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import entry_points
from gpusync_lint.domain.training_idioms import is_test_path
from gpusync_lint.domain.values import UNKNOWN, Device, Kind, Value
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.units import Unit
from gpusync_lint.project.entry_points import registered

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame
    from gpusync_lint.inference.tables import Call

_REGISTERS = "register_modules"
"""The method with which the pipelines of diffusers bind each keyword argument to an attribute of that name."""


def record_serving_call(frame: Frame, call: Call, name: str, path: str | None) -> None:
    """Record what a call passes to a server or binds to attributes.

    Args:
        frame: the run that makes the call.
        call: the call.
        name: the last part of the name of what is called.
        path: the dotted path of the receiver of a method, if it has one.
    """
    if name == _REGISTERS:
        if path is not None:
            for attribute, value in call.kwargs.items():
                frame.store.set(f"{path}.{attribute}", value)
                frame.analysis.instances.set_attribute(call.receiver, attribute, value)
        return
    if name not in entry_points.registrations():
        return
    dotted = call.callee.ref if call.callee.kind is Kind.NAME and isinstance(call.callee.ref, str) else None
    if dotted is not None and "()." in dotted:  # a method of an object outside the project
        dotted = None
    registration = registered(frame.fn.file, name, dotted)
    if registration is None:
        return
    given = call.kwargs.get(registration.keyword)
    if given is None and len(call.args) > registration.position:
        given = call.args[registration.position]
    if given is not None and given.kind is Kind.FUNCTION:
        frame.analysis.record_callback(given.ref, Heat.STEP, Unit.REQUEST)


def bind_schedule(frame: Frame, loop: ast.For) -> None:
    """Bind what the timesteps or the noise levels of a denoising loop are, where nothing else is known of them.

    Pipelines keep them on the device, next to the sample: `scheduler.set_timesteps(steps, device=device)`.
    """
    found = frame.analysis.schedule_of(loop)
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
