"""What the parameters of a function hold when it starts: what call sites pass, or what it says of them itself."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.domain.lattice import (
    CPU_DEVICE,
    GPU_DEVICE,
    UNKNOWN,
    Device,
    Kind,
    Value,
    dict_of,
    host,
    join_all,
    list_of,
    widened,
)
from gpusync_lint.project.framework_callbacks import METRIC_BASES
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from gpusync_lint.inference.fixpoint import Inference
    from gpusync_lint.project.symbols import FunctionInfo

_FORWARD = ("forward", "training_step", "validation_step", "test_step", "predict_step")
_SETTING_ENDS = (
    "idx", "index", "size", "_len", "length", "shape", "name", "mode", "type", "kind", "config", "dim", "prefix",
    "_key", "_id", "attentions", "height", "width", "factor", "ratio", "stride",
)  # fmt: skip
_SETTING_STARTS = ("num_", "n_", "max_", "min_", "return_", "use_", "is_", "has_", "do_", "with_")
"""Parameters of `forward` that are called so are numbers, strings and switches."""
_NO_ARGUMENTS = list_of(None)
_ANY_KEYWORDS = dict_of((), UNKNOWN)


class Parameter(NamedTuple):
    """What a function says of one of its parameters."""

    label: str
    passed_as: str
    """Its key in `FunctionInfo.bound`; empty where what is passed does not matter."""
    otherwise: Value
    """What it holds where call sites tell nothing."""
    on_host: bool = False
    """Whether its annotation is that of a number or a string, whatever is passed."""
    default: str = ""
    """The name of the module that is its default, where nothing else is known of it."""


class Signature(NamedTuple):
    """Which parameters the arguments of a call go to."""

    labels: list[str]
    """The positional ones."""
    known: frozenset[str]
    """All that can be given by name."""
    skip: int
    """How many of the first are not given by the caller: `self`."""
    rest: bool
    """Whether there is a `*args`."""


def entry(inference: Inference, fn: FunctionInfo) -> dict[str, Value]:
    """What the parameters hold when a function starts."""
    node = fn.node
    if node.__class__ is ast.Module:
        return {}
    known = fn.parameters
    if known is None or (known[0] != inference.round and not inference.keeps_parameters(fn)):
        kept, fn.reads = fn.reads, {}
        found, device = inference.asking(fn, lambda: _parameters(inference, fn))
        known = fn.parameters = (inference.round, found, fn.reads, device)
        fn.reads = kept
    if known[2]:
        reads = fn.reads
        for key, read in known[2].items():
            reads.setdefault(key, read)
    bound = fn.bound
    if not bound:
        start = {label: otherwise for label, _, otherwise, _, default in known[1] if not default}
        if len(start) == len(known[1]):
            return start
    start = {}
    for label, passed_as, otherwise, on_host, default in known[1]:
        value = bound.get(passed_as)
        if value is None:
            value = otherwise
            if default and not on_host and (named := _default_name(inference, fn, default)).kind:
                value = named
        elif on_host:
            if value.kind is not Kind.HOST:
                value = otherwise
        elif value.kind is Kind.UNKNOWN or value.kind is Kind.NONE:
            if default and (named := _default_name(inference, fn, default)).kind:
                value = named
            elif otherwise.kind:
                value = otherwise
        start[label] = value
    return start


def bind(inference: Inference, fn: FunctionInfo, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Let the parameters of a function learn what a call passes; whether any of that is new."""
    signature = inference.signatures.get(id(fn))
    if signature is None:
        signature = inference.signatures[id(fn)] = _signature(fn)
    labels, known, skip, rest = signature
    if not labels and not known and not rest:
        return False
    passed = list(zip(labels, args, strict=False))[skip:]
    if kwargs:
        passed += [item for item in kwargs.items() if item[0] in known]
        spread = kwargs.get("**")
        if spread is not None:  # `model(**batch)`: every parameter that is left is a tensor of the batch
            taken = {label for label, _ in passed}
            passed.extend((label, spread) for label in labels[skip:] if label not in taken)
    if rest and len(args) > len(labels):
        passed.append(("*", list_of(join_all(args[len(labels) :]))))
    grew = False
    bound = fn.bound
    for label, value in passed:
        old = bound.get(label)
        new = value if old is None or old is value else widened(old, value)
        if new is not old and new != old:
            bound[label] = new
            grew = True
    if grew:
        inference.note_bound(fn)
    return grew


def _signature(fn: FunctionInfo) -> Signature:
    node = fn.node
    if isinstance(node, ast.Module):
        return Signature([], frozenset(), 0, rest=False)
    arguments = node.args
    labels = [arg.arg for arg in (*arguments.posonlyargs, *arguments.args)]
    known = frozenset({*labels, *(arg.arg for arg in arguments.kwonlyargs)})
    skip = 1 if fn.cls is not None and fn.kind != "static" else 0
    return Signature(labels, known, skip, rest=arguments.vararg is not None)


def _parameters(inference: Inference, fn: FunctionInfo) -> list[Parameter]:
    assert not isinstance(fn.node, ast.Module)
    arguments = fn.node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    pairs = [
        *zip(positional, defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    method = fn.cls is not None and fn.kind != "static"
    module_class = fn.cls is not None and inference.project.is_module_class(fn.cls)
    conventional = module_class and (fn.name in _FORWARD or (fn.name == "update" and _is_metric(inference, fn)))
    annotations = inference.annotations
    found: list[Parameter] = []
    for position, (arg, default) in enumerate(pairs):
        label = arg.arg
        if position == 0 and method:
            found.append(Parameter(label, "", inference.instance(fn)))
            continue
        if arg.annotation is not None:
            declared = annotations.of(inference, fn, arg.annotation)
            if declared.kind:
                found.append(Parameter(label, label, declared, on_host=declared.kind is Kind.HOST))
                continue
        by_name = default.id if isinstance(default, ast.Name) else ""
        otherwise = _default(default) if default is not None else UNKNOWN
        if not otherwise.kind and conventional and arg.annotation is None and not _looks_like_setting(label):
            otherwise = _conventional(label, inference.assumed_device(fn))
        found.append(Parameter(label, label, otherwise, default=by_name))
    if arguments.vararg is not None:
        found.append(Parameter(arguments.vararg.arg, "*", _NO_ARGUMENTS))
    if arguments.kwarg is not None:
        found.append(Parameter(arguments.kwarg.arg, "", _ANY_KEYWORDS))
    return found


def _is_metric(inference: Inference, fn: FunctionInfo) -> bool:
    return fn.cls is not None and any(base in METRIC_BASES for base in inference.project.lineage(fn.cls))


def _default(node: ast.expr) -> Value:
    """What the default of a parameter holds, where that is a constant or a device."""
    if isinstance(node, ast.Constant) and node.value is not None:
        return host(node.value)._replace(const=None)
    if isinstance(node, ast.Call) and dotted_path(node.func) in ("torch.device", "device") and node.args:
        given = getattr(node.args[0], "value", None)
        return CPU_DEVICE if given == "cpu" else GPU_DEVICE if isinstance(given, str) else UNKNOWN
    return UNKNOWN


def _default_name(inference: Inference, fn: FunctionInfo, label: str) -> Value:
    """What a default holds that is a name of the module; the body of the module may not have been gone through yet."""
    fn.reads.setdefault((id(fn.file.body), label), inference.clock)
    return (inference.global_name(fn.file, label) or UNKNOWN)._replace(const=None)


def _conventional(label: str, device: Device) -> Value:
    """What a parameter of `forward` without annotation holds."""
    tensor = Value(Kind.TENSOR, device, sure=False)
    if label.endswith("dict"):
        return dict_of((), tensor)
    return list_of(tensor) if label.endswith("_list") else tensor


def _looks_like_setting(label: str) -> bool:
    return label.endswith(_SETTING_ENDS) or label.startswith(_SETTING_STARTS)
