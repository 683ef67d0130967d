"""The values of parameters at the beginning of a function, from call sites, annotations, defaults or conventions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.domain.lattice import join_elements, widened
from gpusync_lint.domain.values import (
    CPU_DEVICE,
    GPU_DEVICE,
    HOST,
    UNKNOWN,
    Device,
    Kind,
    Value,
    contents,
    dict_of,
    host_constant,
    list_of,
    tensor,
)
from gpusync_lint.inference.dependencies import Reader
from gpusync_lint.inference.summaries import Parameter, Signature
from gpusync_lint.project.framework_callbacks import METRIC_BASES
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.parameters import with_defaults
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusync_lint.inference.annotations import Annotations
    from gpusync_lint.inference.dependencies import Revisions
    from gpusync_lint.inference.device_policy import DevicePolicy
    from gpusync_lint.inference.instances import Instances
    from gpusync_lint.inference.scopes import Scopes
    from gpusync_lint.inference.summaries import FunctionState
    from gpusync_lint.project.class_hierarchy import ClassHierarchy
    from gpusync_lint.project.symbols import FunctionDef

_STEP_METHODS = ("forward", "training_step", "validation_step", "test_step", "predict_step")
"""Methods of modules whose parameters are tensors by convention, unless they are annotated."""
_OF_GRADIENTS = frozenset({"backward", "vjp", "jvp"})
"""Methods of a `torch.autograd.Function` to which autograd passes gradients."""
_SETTING_SUFFIXES = (
    "idx", "index", "size", "_len", "length", "shape", "name", "mode", "type", "kind", "config", "dim", "prefix",
    "_key", "_id", "attentions", "height", "width", "factor", "ratio", "stride",
)  # fmt: skip
_SETTING_PREFIXES = ("num_", "n_", "max_", "min_", "return_", "use_", "is_", "has_", "do_", "with_")
"""Parameters of these methods with such names are numbers, strings or flags."""
MAX_KEYS = 32
"""The largest number of keyword arguments of a `**kwargs` that are told apart."""
_KEPT = frozenset({Kind.TENSOR, Kind.MODULE, Kind.OPTIMIZER, Kind.LOADER, Kind.DEVICE, Kind.INSTANCE, Kind.MOVED})
_CONTAINERS = frozenset({Kind.TUPLE, Kind.LIST, Kind.DICT})
_NO_ARGUMENTS = list_of(None)
_ANY_KEYWORDS = dict_of((), UNKNOWN)


class _Binding(NamedTuple):
    """How the arguments of a call are bound to parameters."""

    positional: list[str]
    """The names of the positional parameters."""
    names: frozenset[str]
    """The names of all parameters that can be passed by name."""
    skip: int
    """The number of leading parameters whose arguments do not count: 1 for `self`."""
    has_rest: bool
    """Whether there is a `*args`."""
    has_keywords: bool
    """Whether there is a `**kwargs`."""
    iterates_keywords: bool
    """Whether the function iterates over them: `for key, value in kwargs.items()`."""

    def arguments(self, args: Sequence[Value], kwargs: Mapping[str, Value]) -> list[tuple[str, Value]]:
        """The arguments of a call, each with the name of its parameter; `*` for additional positional ones."""
        positional, names, skip, has_rest, has_keywords, iterates_keywords = self
        if not names and not has_rest and not has_keywords:
            return []
        passed = list(zip(positional, args, strict=False))[skip:]
        if kwargs:
            passed += [item for item in kwargs.items() if item[0] in names]
            spread = kwargs.get("**")
            if spread is not None:  # `model(**batch)`: all other parameters are tensors of the batch
                bound = {name for name, _ in passed}
                passed.extend((name, spread) for name in positional[skip:] if name not in bound)
        if has_rest and len(args) > len(positional):
            passed.append(("*", list_of(join_elements(list(args[len(positional) :])))))
        if has_keywords and kwargs:
            others = [item for item in kwargs.items() if item[0] not in names]
            kept = tuple(item for item in others if item[0] != "**" and _is_kept(item[1]))
            if kept or (others and iterates_keywords):
                is_host = iterates_keywords and all(
                    value.kind is Kind.HOST or (name != "**" and _is_kept(value)) for name, value in others
                )
                passed.append(("**", dict_of(kept[:MAX_KEYS], HOST if is_host else UNKNOWN)))
        return passed


class EntryStates:
    """Computes the values of the parameters at the beginning of a run."""

    def __init__(
        self,
        classes: ClassHierarchy,
        scopes: Scopes,
        instances: Instances,
        devices: DevicePolicy,
        annotations: Annotations,
        revisions: Revisions,
    ) -> None:
        self._classes = classes
        self._scopes = scopes
        self._instances = instances
        self._devices = devices
        self._annotations = annotations
        self._revisions = revisions
        self._bindings: dict[FunctionDef, _Binding] = {}
        self.round = 0
        """The current round. Signatures of earlier rounds are checked before they are used again."""

    def of(self, state: FunctionState, arguments: Mapping[str, Value], reader: Reader) -> dict[str, Value]:
        """The values of the parameters for some arguments. Records the dependencies of the reader."""
        if isinstance(state.fn.node, ast.Module):
            return {}
        signature = self._signature(state)
        for fact, revision in signature.dependencies.items():
            reader.dependencies.setdefault(fact, revision)
        return {
            parameter.name: CPU_DEVICE
            if parameter.on_cpu and arguments and parameter.argument not in arguments
            else self._value(reader, parameter, arguments.get(parameter.argument))
            for parameter in signature.parameters
        }

    def _value(self, reader: Reader, parameter: Parameter, argument: Value | None) -> Value:
        if parameter.on_host:
            return argument if argument is not None and argument.kind is Kind.HOST else parameter.fallback
        if argument is not None and argument.kind is not Kind.UNKNOWN and argument.kind is not Kind.NONE:
            return parameter.fallback if parameter.is_module and argument.kind is Kind.TENSOR else argument
        if parameter.default_name:
            default = (self._scopes.module_name(reader, parameter.default_name) or UNKNOWN)._replace(const=None)
            if default.kind:
                return default
        return argument if argument is not None and not parameter.fallback.kind else parameter.fallback

    def pass_arguments(self, state: FunctionState, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
        """Join the arguments of a call into those of all calls. Returns whether that changes them."""
        if self.join_arguments(state.fn, state.arguments, args, kwargs):
            state.arguments_revision = self._revisions.advance()
            return True
        return False

    def join_arguments(
        self, fn: FunctionDef, arguments: dict[str, Value], args: Sequence[Value], kwargs: Mapping[str, Value]
    ) -> bool:
        """Join the arguments of a call of a function into `arguments`. Returns whether that changes them."""
        binding = self._bindings.get(fn)
        if binding is None:
            binding = self._bindings[fn] = _binding(fn)
        changed = False
        for name, value in binding.arguments(args, kwargs):
            old = arguments.get(name)
            new = value if old is None or old is value else _of_both_calls(old, value)
            if new is not old and new != old:
                arguments[name] = new
                changed = True
        return changed

    def _signature(self, state: FunctionState) -> Signature:
        signature = state.signature
        if signature is not None and (signature.round == self.round or self._is_valid(state.fn, signature)):
            if signature.round != self.round:
                signature = state.signature = signature._replace(round=self.round)
            return signature
        reader = Reader(state.fn)
        parameters, device = self._devices.observe(state.fn, lambda: self._parameters(reader))
        signature = state.signature = Signature(self.round, parameters, reader.dependencies, device)
        return signature

    def _is_valid(self, fn: FunctionDef, signature: Signature) -> bool:
        """Whether nothing that a signature of an earlier round depends on has changed."""
        if self._revisions.changed_after(signature.dependencies):
            return False
        return signature.device is None or self._devices.assumed_device(fn) is signature.device

    def _parameters(self, reader: Reader) -> list[Parameter]:
        fn = reader.fn
        assert not isinstance(fn.node, ast.Module)
        arguments = fn.node.args
        is_method = (fn.cls is not None and fn.kind != "static") or self._classes.receives_context(fn)
        has_tensors = self._has_tensors_by_convention(fn)
        parameters: list[Parameter] = []
        for position, (arg, default) in enumerate(with_defaults(arguments)):
            if position == 0 and is_method:
                key = arg.arg if fn.kind == "class" else ""
                parameters.append(Parameter(arg.arg, key, self._instances.self_of(fn)))
            else:
                parameters.append(self._parameter(reader, arg, default, has_tensors))
        if arguments.vararg is not None:
            is_gradient = has_tensors and fn.name in _OF_GRADIENTS
            rest = list_of(tensor(self._devices.assumed_device(fn))) if is_gradient else _NO_ARGUMENTS
            parameters.append(Parameter(arguments.vararg.arg, "*", rest))
        if arguments.kwarg is not None:
            parameters.append(Parameter(arguments.kwarg.arg, "**", _ANY_KEYWORDS))
        return parameters

    def _has_tensors_by_convention(self, fn: FunctionDef) -> bool:
        """Whether parameters without annotation are tensors by convention."""
        if fn.cls is None:
            return False
        if self._classes.is_autograd_function(fn.cls):
            return fn.name in _OF_GRADIENTS
        if not self._classes.is_module(fn.cls):
            return False
        if fn.name in _STEP_METHODS:
            return True
        return fn.name == "update" and any(base in METRIC_BASES for base in self._classes.lineage(fn.cls))

    def _parameter(self, reader: Reader, arg: ast.arg, default: ast.expr | None, has_tensors: bool) -> Parameter:
        name = arg.arg
        # A constructor may also be called with keywords that are not known: `Model(size, **config)`.
        on_cpu = reader.fn.cls is None and isinstance(default, ast.Constant) and default.value == "cpu"
        if arg.annotation is not None:
            annotated = self._annotations.of(reader, arg.annotation)
            if annotated.kind:
                on_host, is_module = annotated.kind is Kind.HOST, annotated.kind is Kind.MODULE
                return Parameter(name, name, annotated, on_host, is_module=is_module, on_cpu=on_cpu)
        fallback = _default(default) if default is not None else UNKNOWN
        if not fallback.kind and has_tensors and arg.annotation is None and not _is_setting(name):
            device = self._devices.assumed_device(reader.fn)
            is_gradient = reader.fn.name in _OF_GRADIENTS
            fallback = tensor(device) if is_gradient else _tensor_by_convention(name, device)
        default_name = default.id if isinstance(default, ast.Name) else ""
        return Parameter(name, name, fallback, default_name=default_name, on_cpu=on_cpu)


def _is_kept(value: Value) -> bool:
    """Whether a value in a `**kwargs` is told apart from others: an object, a tensor, or a container of tensors."""
    if value.kind in _CONTAINERS:
        return any(one.kind is Kind.TENSOR for one in contents(value))
    return value.kind in _KEPT


def _binding(fn: FunctionDef) -> _Binding:
    node = fn.node
    if isinstance(node, ast.Module):
        return _Binding([], frozenset(), 0, has_rest=False, has_keywords=False, iterates_keywords=False)
    arguments = node.args
    positional = [arg.arg for arg in (*arguments.posonlyargs, *arguments.args)]
    names = frozenset({*positional, *(arg.arg for arg in arguments.kwonlyargs)})
    skip = 1 if fn.cls is not None and fn.kind not in ("static", "class") else 0
    return _Binding(
        positional,
        names,
        skip,
        has_rest=arguments.vararg is not None,
        has_keywords=arguments.kwarg is not None,
        iterates_keywords=arguments.kwarg is not None and _iterates(fn, arguments.kwarg.arg),
    )


def _iterates(fn: FunctionDef, name: str) -> bool:
    """Whether a function asks for the items or values of its `**kwargs`."""
    text = fn.file.text
    return (f"{name}.items" in text or f"{name}.values" in text) and any(
        isinstance(one, ast.Attribute)
        and one.attr in ("items", "values")
        and isinstance(one.value, ast.Name)
        and one.value.id == name
        for one in walk_block(fn.node.body)
    )


def _default(node: ast.expr) -> Value:
    """The value of a default that is a constant or a device; else unknown."""
    if isinstance(node, ast.Constant) and node.value is not None:
        return host_constant(node.value)._replace(const=None)
    if isinstance(node, ast.Call) and dotted_path(node.func) in ("torch.device", "device") and node.args:
        given = getattr(node.args[0], "value", None)
        return CPU_DEVICE if given == "cpu" else GPU_DEVICE if isinstance(given, str) else UNKNOWN
    return UNKNOWN


def _tensor_by_convention(name: str, device: Device) -> Value:
    """The value of a parameter of `forward` without annotation."""
    tensor = Value(Kind.TENSOR, device, certain=False)
    if name.endswith("dict"):
        return dict_of((), tensor)
    return list_of(tensor) if name.endswith("_list") else tensor


def _of_both_calls(old: Value, new: Value) -> Value:
    """An argument that two calls pass. If one of them passes a mask, the function waits in that call."""
    joined = widened(old, new)
    is_mask = joined.kind is Kind.TENSOR is old.kind is new.kind and not joined.boolean
    if is_mask and (_is_device_mask(old) or _is_device_mask(new)):
        return joined._replace(boolean=True, certain=False)
    return joined


def _is_device_mask(value: Value) -> bool:
    return value.boolean and value.on_device


def _is_setting(name: str) -> bool:
    return name.endswith(_SETTING_SUFFIXES) or name.startswith(_SETTING_PREFIXES)
