"""What the parameters of a function hold when it starts: what call sites pass, or what the function declares itself."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple, Protocol

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
from gpusync_lint.inference.dependencies import Reader
from gpusync_lint.project.framework_callbacks import METRIC_BASES
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusync_lint.inference.annotations import Annotations
    from gpusync_lint.inference.dependencies import Fact, Revisions
    from gpusync_lint.inference.device_policy import DevicePolicy
    from gpusync_lint.inference.summaries import FunctionState
    from gpusync_lint.project.class_hierarchy import ClassHierarchy
    from gpusync_lint.project.symbols import FunctionDef

_STEP_METHODS = ("forward", "training_step", "validation_step", "test_step", "predict_step")
"""Methods of modules whose parameters without annotation are tensors, by convention."""
_SETTING_ENDS = (
    "idx", "index", "size", "_len", "length", "shape", "name", "mode", "type", "kind", "config", "dim", "prefix",
    "_key", "_id", "attentions", "height", "width", "factor", "ratio", "stride",
)  # fmt: skip
_SETTING_STARTS = ("num_", "n_", "max_", "min_", "return_", "use_", "is_", "has_", "do_", "with_")
"""Parameters of these methods with such names are numbers, strings and switches."""
_NO_ARGUMENTS = list_of(None)
_ANY_KEYWORDS = dict_of((), UNKNOWN)


class _Names(Protocol):
    """What defaults ask of the inference."""

    def module_name(self, reader: Reader, name: str) -> Value | None:
        """What a name holds in the module of a reader."""

    def instance(self, method: FunctionDef) -> Value:
        """An instance of the class of a method, as the method itself sees it."""


class Parameter(NamedTuple):
    """What a function declares of one of its parameters."""

    name: str
    passed_as: str
    """Its key in `FunctionState.arguments`; empty where what is passed does not matter."""
    otherwise: Value
    """What it holds where call sites do not show it."""
    on_host: bool = False
    """Whether its annotation is that of a number or a string, whatever is passed."""
    default_name: str = ""
    """The name of the module that is its default, where nothing else is known of it."""


class Declared(NamedTuple):
    """What a function declares of its parameters, and what that was derived from."""

    round: int
    parameters: list[Parameter]
    dependencies: Mapping[Fact, int]
    device: Device | None
    """The device that was assumed; None where it does not matter."""


class _Signature(NamedTuple):
    """Which parameters the arguments of a call go to."""

    names: list[str]
    """The positional ones."""
    known: frozenset[str]
    """All that can be given by name."""
    skip: int
    """How many of the first the caller does not give: `self`."""
    rest: bool
    """Whether there is a `*args`."""


class EntryStates:
    """The parameters of the functions of a project."""

    def __init__(
        self,
        names: _Names,
        classes: ClassHierarchy,
        devices: DevicePolicy,
        annotations: Annotations,
        revisions: Revisions,
    ) -> None:
        self._names = names
        self._classes = classes
        self._devices = devices
        self._annotations = annotations
        self._revisions = revisions
        self._signatures: dict[FunctionDef, _Signature] = {}
        self.round = 0
        """What was declared in an earlier round is kept only if nothing that it was derived from has changed."""

    def of(self, state: FunctionState, arguments: Mapping[str, Value], reader: Reader) -> dict[str, Value]:
        """What the parameters hold, given what is passed; the reader depends on what decides that."""
        if isinstance(state.fn.node, ast.Module):
            return {}
        declared = self._declared(state)
        for fact, revision in declared.dependencies.items():
            reader.dependencies.setdefault(fact, revision)
        start: dict[str, Value] = {}
        for parameter in declared.parameters:
            value = arguments.get(parameter.passed_as)
            start[parameter.name] = self._value(reader, parameter, value)
        return start

    def _value(self, reader: Reader, parameter: Parameter, passed: Value | None) -> Value:
        if parameter.on_host:
            return passed if passed is not None and passed.kind is Kind.HOST else parameter.otherwise
        if passed is not None and passed.kind is not Kind.UNKNOWN and passed.kind is not Kind.NONE:
            return passed
        if parameter.default_name:
            default = (self._names.module_name(reader, parameter.default_name) or UNKNOWN)._replace(const=None)
            if default.kind:
                return default
        return passed if passed is not None and not parameter.otherwise.kind else parameter.otherwise

    def pass_arguments(self, state: FunctionState, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
        """Let the parameters of a function hold what a call passes as well; whether any of that is new."""
        if self.join_arguments(state.fn, state.arguments, args, kwargs):
            state.arguments_revision = self._revisions.advance()
            return True
        return False

    def join_arguments(
        self, fn: FunctionDef, arguments: dict[str, Value], args: Sequence[Value], kwargs: Mapping[str, Value]
    ) -> bool:
        """Join what a call passes into the arguments of a function; whether any of that is new."""
        signature = self._signatures.get(fn)
        if signature is None:
            signature = self._signatures[fn] = _signature(fn)
        names, known, skip, rest = signature
        if not known and not rest:
            return False
        passed = list(zip(names, args, strict=False))[skip:]
        if kwargs:
            passed += [item for item in kwargs.items() if item[0] in known]
            spread = kwargs.get("**")
            if spread is not None:  # `model(**batch)`: every parameter that is left is a tensor of the batch
                taken = {name for name, _ in passed}
                passed.extend((name, spread) for name in names[skip:] if name not in taken)
        if rest and len(args) > len(names):
            passed.append(("*", list_of(join_all(list(args[len(names) :])))))
        grew = False
        for name, value in passed:
            old = arguments.get(name)
            new = value if old is None or old is value else widened(old, value)
            if new is not old and new != old:
                arguments[name] = new
                grew = True
        return grew

    def _declared(self, state: FunctionState) -> Declared:
        known = state.declared
        if known is not None and (known.round == self.round or self._is_valid(state.fn, known)):
            if known.round != self.round:
                known = state.declared = known._replace(round=self.round)
            return known
        reader = Reader(state.fn)
        parameters, device = self._devices.observed(state.fn, lambda: self._parameters(reader))
        known = state.declared = Declared(self.round, parameters, reader.dependencies, device)
        return known

    def _is_valid(self, fn: FunctionDef, declared: Declared) -> bool:
        """Whether nothing has changed that declarations of an earlier round were derived from."""
        if self._revisions.changed_after(declared.dependencies):
            return False
        return declared.device is None or self._devices.assumed_device(fn) is declared.device

    def _parameters(self, reader: Reader) -> list[Parameter]:
        fn = reader.fn
        assert not isinstance(fn.node, ast.Module)
        arguments = fn.node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
        pairs = [
            *zip(positional, defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        is_method = fn.cls is not None and fn.kind != "static"
        is_conventional = self._is_conventional(fn)
        found: list[Parameter] = []
        for position, (arg, default) in enumerate(pairs):
            if position == 0 and is_method:
                found.append(Parameter(arg.arg, "", self._names.instance(fn)))
            else:
                found.append(self._parameter(reader, arg, default, is_conventional))
        if arguments.vararg is not None:
            found.append(Parameter(arguments.vararg.arg, "*", _NO_ARGUMENTS))
        if arguments.kwarg is not None:
            found.append(Parameter(arguments.kwarg.arg, "", _ANY_KEYWORDS))
        return found

    def _is_conventional(self, fn: FunctionDef) -> bool:
        """Whether parameters without annotation are tensors by convention."""
        if fn.cls is None or not self._classes.is_module(fn.cls):
            return False
        if fn.name in _STEP_METHODS:
            return True
        return fn.name == "update" and any(base in METRIC_BASES for base in self._classes.lineage(fn.cls))

    def _parameter(self, reader: Reader, arg: ast.arg, default: ast.expr | None, is_conventional: bool) -> Parameter:
        name = arg.arg
        if arg.annotation is not None:
            declared = self._annotations.of(reader, arg.annotation)
            if declared.kind:
                return Parameter(name, name, declared, on_host=declared.kind is Kind.HOST)
        otherwise = _default(default) if default is not None else UNKNOWN
        if not otherwise.kind and is_conventional and arg.annotation is None and not _is_setting(name):
            otherwise = _conventional(name, self._devices.assumed_device(reader.fn))
        return Parameter(name, name, otherwise, default_name=default.id if isinstance(default, ast.Name) else "")


def _signature(fn: FunctionDef) -> _Signature:
    node = fn.node
    if isinstance(node, ast.Module):
        return _Signature([], frozenset(), 0, rest=False)
    arguments = node.args
    names = [arg.arg for arg in (*arguments.posonlyargs, *arguments.args)]
    known = frozenset({*names, *(arg.arg for arg in arguments.kwonlyargs)})
    skip = 1 if fn.cls is not None and fn.kind != "static" else 0
    return _Signature(names, known, skip, rest=arguments.vararg is not None)


def _default(node: ast.expr) -> Value:
    """What the default of a parameter holds, where that is a constant or a device."""
    if isinstance(node, ast.Constant) and node.value is not None:
        return host(node.value)._replace(const=None)
    if isinstance(node, ast.Call) and dotted_path(node.func) in ("torch.device", "device") and node.args:
        given = getattr(node.args[0], "value", None)
        return CPU_DEVICE if given == "cpu" else GPU_DEVICE if isinstance(given, str) else UNKNOWN
    return UNKNOWN


def _conventional(name: str, device: Device) -> Value:
    """What a parameter of `forward` without annotation holds."""
    tensor = Value(Kind.TENSOR, device, certain=False)
    if name.endswith("dict"):
        return dict_of((), tensor)
    return list_of(tensor) if name.endswith("_list") else tensor


def _is_setting(name: str) -> bool:
    return name.endswith(_SETTING_ENDS) or name.startswith(_SETTING_STARTS)
