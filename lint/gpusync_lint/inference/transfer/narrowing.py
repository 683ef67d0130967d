"""Narrowing: what a condition shows about the names in it, in the branch where it is true and in the other one."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import join_all
from gpusync_lint.domain.values import (
    ARRAY,
    GUESSED,
    HOST,
    UNKNOWN,
    Device,
    Kind,
    Value,
    alternatives,
    dict_of,
    list_of,
)
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame
    from gpusync_lint.project.symbols import ClassDef

_HOST_TYPES = frozenset({"int", "float", "str", "bool", "bytes", "complex", "Number", "Integral", "Real", "Path"})
_TENSOR_TYPES = frozenset({"Tensor", "Parameter", "FloatTensor", "LongTensor"})
_OF_TENSORS = frozenset({"item", "cpu", "cuda", "detach", "device", "dtype", "numpy", "shape", "tolist"})
"""Attributes of every tensor: what lacks one of them is none."""
_OWN_TYPES = {
    Kind.TENSOR: _TENSOR_TYPES,
    Kind.DICT: frozenset({"dict", "Mapping", "OrderedDict"}),
    Kind.LIST: frozenset({"list", "tuple", "Sequence"}),
    Kind.TUPLE: frozenset({"list", "tuple", "Sequence"}),
}
"""By kind, the names of the classes of such values, of which what is no instance is another value."""
_CONTAINERS = frozenset().union(*(names for kind, names in _OWN_TYPES.items() if kind is not Kind.TENSOR))
_TESTED = frozenset().union(*_OWN_TYPES.values(), _HOST_TYPES, {"ndarray"})
_NO_TYPES: frozenset[str] = frozenset()
_SHOWN = {"ndarray": ARRAY}
"""By the last name of a class outside the project, what an instance of it is."""
_DISTRIBUTIONS = "torch.distributions."
_OF_ARRAYS = {"dict": dict_of((), ARRAY), "Mapping": dict_of((), ARRAY)}
"""What an object that may also be an array is if it is an instance of one of these classes."""
_INSTANCES = frozenset({Kind.INSTANCE, Kind.MODULE, Kind.RECORDS})


def tests_class(test: ast.expr) -> bool:
    """Whether a condition is `isinstance(...)` or `torch.is_tensor(...)`, or the opposite of one."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return tests_class(test.operand)
    return isinstance(test, ast.Call) and dotted_path(test.func) in ("isinstance", "torch.is_tensor")


def is_instance(frame: Frame, test: ast.expr) -> bool | None:
    """The result of `isinstance(x, dict)` for a tensor or a container; None if it is not known."""
    if not isinstance(test, ast.Call) or not tests_class(test):
        return None
    value = frame.values.get(test.args[0], UNKNOWN) if test.args else UNKNOWN
    kind = value.kind
    if kind not in _OWN_TYPES or (kind is Kind.TENSOR and value.elem is not None):
        return None
    if len(test.args) == 1:  # `torch.is_tensor(x)`
        return kind is Kind.TENSOR
    names = _names_of(test.args[1])
    if not names <= _TESTED:
        return None
    return bool(names & _OWN_TYPES[kind])


def _names_of(classes: ast.expr) -> set[str]:
    """The last names of the classes that `isinstance` tests for."""
    each = classes.elts if isinstance(classes, ast.Tuple) else [classes]
    return {(dotted_path(item) or "").rpartition(".")[2] for item in each}


def narrow(frame: Frame, test: ast.expr, holds: bool, negated: bool = False) -> None:
    """Narrow `x` by `isinstance(x, float)`.

    Args:
        frame: the run.
        test: the condition.
        holds: whether it is true in this branch.
        negated: whether it stands behind `not`.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        narrow(frame, test.operand, not holds, not negated)
    elif isinstance(test, ast.BoolOp):
        if _decides_operands(test.op, holds):
            for operand in test.values:
                narrow(frame, operand, holds, negated)
        elif either := _either_class(test):
            _narrow_by_class(frame, *either, True, negated is isinstance(test.op, ast.Or))
    elif isinstance(test, ast.Call) and len(test.args) == 2 and dotted_path(test.func) == "isinstance":
        _narrow_by_class(frame, test.args[0], test.args[1], holds, negated)
    elif isinstance(test, ast.Call) and len(test.args) == 2 and dotted_path(test.func) == "hasattr" and not holds:
        _narrow_by_attribute(frame, test.args[0], test.args[1])
    elif isinstance(test, ast.Call) and len(test.args) == 1 and dotted_path(test.func) == "torch.is_tensor":
        _narrow_to_tensor(frame, test.args[0], holds)


def _either_class(test: ast.BoolOp) -> tuple[ast.expr, ast.Tuple] | None:
    """What `isinstance(x, A) or isinstance(x, B)` tests, and for which classes; its opposite has `and` and `not`s."""
    tested: ast.expr | None = None
    classes: list[ast.expr] = []
    for one in test.values:
        if isinstance(test.op, ast.And):
            if not isinstance(one, ast.UnaryOp) or not isinstance(one.op, ast.Not):
                return None
            one = one.operand
        if not isinstance(one, ast.Call) or len(one.args) != 2 or dotted_path(one.func) != "isinstance":
            return None
        if tested is not None and dotted_path(one.args[0]) != dotted_path(tested):
            return None
        tested = one.args[0]
        classes += one.args[1].elts if isinstance(one.args[1], ast.Tuple) else [one.args[1]]
    return None if tested is None else (tested, ast.Tuple(classes, ast.Load()))


def _narrow_by_attribute(frame: Frame, tested: ast.expr, name: ast.expr) -> None:
    """What has no `item` is no tensor."""
    path = dotted_path(tested)
    is_tensor = frame.values.get(tested, UNKNOWN).kind is Kind.TENSOR
    if path is not None and is_tensor and isinstance(name, ast.Constant) and name.value in _OF_TENSORS:
        frame.store.set(path, UNKNOWN)


def _narrow_to_tensor(frame: Frame, tested: ast.expr, holds: bool) -> None:
    path = dotted_path(tested)
    old = frame.values.get(tested, UNKNOWN)
    if path is None:
        return
    if old.kind is Kind.TENSOR and old.elem is not None:
        frame.store.set(path, _tensor_or_container(old, _TENSOR_TYPES, holds))
    elif old.kind is (Kind.UNKNOWN if holds else Kind.TENSOR):
        frame.store.set(path, Value(Kind.TENSOR, frame.assumed_device(), ref=GUESSED) if holds else UNKNOWN)


def _narrow_by_class(frame: Frame, tested: ast.expr, classes: ast.expr, holds: bool, negated: bool) -> None:
    path = dotted_path(tested)
    if path is None:
        return
    each = classes.elts if isinstance(classes, ast.Tuple) else [classes]
    names = _names_of(classes)
    old = frame.values.get(tested, UNKNOWN)
    if old.kind is Kind.TENSOR and old.elem is not None:
        frame.store.set(path, _tensor_or_container(old, names, holds))
        return
    known = [frame.eval(item) for item in each]
    if known and all(value.kind is Kind.CLASS for value in known):
        frame.store.set(path, _of_classes(frame, old, [value.ref for value in known], holds))
        return
    if old.kind is Kind.UNKNOWN and holds and all(value.dotted_name.startswith(_DISTRIBUTIONS) for value in known):
        frame.store.set(path, Value(Kind.DISTRIBUTION, frame.assumed_device()))
        return
    if old.kind is Kind.UNKNOWN and holds and path in frame.evidence.arrays and names <= _OF_ARRAYS.keys():
        frame.store.set(path, join_all([_OF_ARRAYS[name] for name in sorted(names)]))
        return
    value = None
    if holds:
        value = _nested(old, names, negated) or _of_external_types(frame, old, names)
        if value is None and old.kind is Kind.HOST and names <= _CONTAINERS:
            value = _declared(frame, path, names)  # its default is a number, which it is not
    if value is not None:
        frame.store.set(path, value)
    elif not holds and names <= _OWN_TYPES.get(old.kind, _NO_TYPES):
        frame.store.set(path, UNKNOWN)


def _tensor_or_container(old: Value, names: set[str] | frozenset[str], holds: bool) -> Value:
    """What may be a tensor or a container, where it is, or is not, an instance of some classes."""
    tensor, container = old._replace(elem=None), old.elem or UNKNOWN
    is_tensor, is_container = (
        bool(names & _OWN_TYPES.get(one.kind, _CONTAINERS)) is holds for one in (tensor, container)
    )
    return old if is_tensor is is_container else tensor if is_tensor else container


def _declared(frame: Frame, path: str, names: set[str]) -> Value:
    """The container among the types that a parameter is declared with: `alpha: float | tuple[float, Tensor]`."""
    arguments = getattr(frame.fn.node, "args", None)
    found = [one for one in ast.walk(arguments) if isinstance(one, ast.arg)] if arguments is not None else []
    annotation = next((one.annotation for one in found if one.arg == path), None)
    for declared in _alternatives(annotation) if annotation is not None else ():
        value = frame.declared(declared)
        if names <= _OWN_TYPES.get(value.kind, _NO_TYPES):
            return value
    return UNKNOWN


def _alternatives(annotation: ast.expr) -> list[ast.expr]:
    """The types of a union: `float | tuple[float, Tensor]`, `Union[...]`, `Optional[...]`."""
    if isinstance(annotation, ast.BinOp):
        return [*_alternatives(annotation.left), *_alternatives(annotation.right)]
    if isinstance(annotation, ast.Subscript) and (dotted_path(annotation.value) or "").endswith(("Union", "Optional")):
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        return [one for part in parts for one in _alternatives(part)]
    return [annotation]


def _nested(old: Value, names: set[str], negated: bool) -> Value | None:
    """A container of tensors, where something that was taken for a tensor is tested to be one."""
    if old.kind is not Kind.TENSOR or old.certain:
        return None
    if names <= _OWN_TYPES[Kind.LIST]:
        # After `if not isinstance(size, tuple): size = size.tolist()`, it is a tuple of numbers as a rule.
        return list_of(HOST if negated else old)
    if negated:
        return None
    return dict_of((), old) if names <= _OWN_TYPES[Kind.DICT] else None


def _of_external_types(frame: Frame, old: Value, names: set[str]) -> Value | None:
    """An object of one of some types outside the project, given by their last names; None if that shows nothing new."""
    if old.kind is Kind.UNKNOWN and names <= _SHOWN.keys():
        return join_all([_SHOWN[name] for name in sorted(names)])
    if names <= _HOST_TYPES:
        return HOST if old.kind in (Kind.TENSOR, Kind.UNKNOWN) else None
    if names <= _TENSOR_TYPES and old.kind is Kind.UNKNOWN:
        return Value(Kind.TENSOR, frame.assumed_device(), ref=GUESSED)
    return None


def _of_classes(frame: Frame, old: Value, classes: list[ClassDef], holds: bool) -> Value:
    """An object that is, or is not, an instance of one of some classes of the project."""
    hierarchy = frame.analysis.project.classes
    found = [
        one
        for one in alternatives(old)
        if one.kind in _INSTANCES
        and one.definition is not None
        and any(cls in hierarchy.project_lineage(one.ref) for cls in classes) is holds
    ]
    if found:
        return join_all(found)
    if holds and (old.kind is Kind.UNKNOWN or old.kind is Kind.INSTANCE):
        return join_all([frame.analysis.instances.of_class(cls, frame.fn) for cls in classes])
    return old


def put_on_host(frame: Frame, test: ast.expr, holds: bool) -> None:
    """Narrow the devices of tensors that a condition says are on the host: `assert x.device.type == "cpu"`."""
    for path in _paths_on_host(test, holds):
        value = frame.store.get(path)
        if value is not None and value.kind is Kind.TENSOR:
            frame.store.set(path, value._replace(device=Device.CPU, certain=True))


def _paths_on_host(test: ast.expr, holds: bool) -> list[str]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _paths_on_host(test.operand, not holds)
    if isinstance(test, ast.BoolOp):
        operands = test.values if _decides_operands(test.op, holds) else []
        return [path for operand in operands for path in _paths_on_host(operand, holds)]
    owner: ast.expr | None = None
    if isinstance(test, ast.Attribute) and test.attr in ("is_cuda", "is_cpu"):
        owner = test.value if (test.attr == "is_cpu") is holds else None
    elif isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
        owner = _compared_with_cpu(test) if isinstance(test.ops[0], ast.Eq) is holds else None
    path = dotted_path(owner) if owner is not None else None
    return [path] if path is not None else []


def _compared_with_cpu(test: ast.Compare) -> ast.expr | None:
    """`x` of `x.device.type == "cpu"` and of `x.device == torch.device("cpu")`."""
    named = test.comparators[0]
    if isinstance(named, ast.Call) and named.args:
        named = named.args[0]
    if not isinstance(named, ast.Constant) or named.value != "cpu":
        return None
    left = test.left.value if isinstance(test.left, ast.Attribute) and test.left.attr == "type" else test.left
    return left.value if isinstance(left, ast.Attribute) and left.attr == "device" else None


def _decides_operands(operator: ast.boolop, holds: bool) -> bool:
    """Whether the result of `and` or `or` decides that of each operand."""
    return isinstance(operator, ast.And) is holds
