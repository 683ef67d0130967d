"""Functions of which CUDA graphs are captured: arguments of `make_graphed_callables` and of `torch.compile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.domain.torch_api import CUDAGRAPHS, kind_of_compilation
from gpusync_lint.domain.values import UNKNOWN, Kind, Value, alternatives, modules
from gpusync_lint.inference.tables import CALLS
from gpusync_lint.model.placement import PathKind
from gpusync_lint.project.symbols import ClassDef

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusync_lint.inference.frame import Frame
    from gpusync_lint.inference.tables import Call

_SEQUENCES = frozenset({Kind.TUPLE, Kind.LIST})


def record_graphed(frame: Frame, call: Call) -> None:
    """Record a call of `make_graphed_callables(callables, sample_args)`, which calls each with its arguments."""
    given = call.first
    samples = call.args[1] if len(call.args) > 1 else call.kwargs.get("sample_args", UNKNOWN)
    several = given.kind in _SEQUENCES
    callables = (given.items or ()) if several else (given,)
    arguments = (samples.items or ()) if several and samples.kind in _SEQUENCES else (samples,) * len(callables)
    calls = frame.summary.effects.calls
    for one, args in zip(callables, arguments, strict=False):
        handler = CALLS.get(one.kind)
        if handler is None or one.kind is Kind.NAME:
            continue
        before = len(calls)
        items = list(args.items or ()) if args.kind in _SEQUENCES else [args]
        handler(frame, call._replace(callee=one, args=items, kwargs={}))
        for site in calls[before:]:
            frame.summary.effects.captured.append((site.callee, frame.statement, PathKind.CAPTURE))


def record_compiled(frame: Frame, compiled: Value, options: Mapping[str, Value]) -> None:
    """Record a call of `torch.compile`, or of the method `compile` of a module, with these keyword arguments."""
    kind = kind_of_compilation(
        _constant(options, "mode"), _entry(options.get("options", UNKNOWN), CUDAGRAPHS), _constant(options, "fullgraph")
    )
    if kind is None:
        return
    for one in alternatives(compiled):
        found = [one] if one.kind is Kind.FUNCTION else modules(one) if one.kind is Kind.MODULE else ()
        for value in found:
            fn = value.ref
            if isinstance(fn, ClassDef):
                fn = frame.analysis.project.classes.method(fn, "forward")
            if fn is not None and not isinstance(fn, str):
                frame.summary.effects.captured.append((fn, frame.statement, kind))


def _constant(options: Mapping[str, Value], name: str) -> object:
    value = options.get(name)
    return None if value is None else value.const


def _entry(options: Value, key: str) -> object:
    """The constant for a key of a dict."""
    if options.kind is not Kind.DICT:
        return None
    return next((value.const for name, value in options.items or () if name == key), None)
