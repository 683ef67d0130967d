"""What type annotations promise."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain.lattice import (
    ARRAY,
    HOST,
    LOADER,
    NONE,
    UNKNOWN,
    Device,
    Kind,
    Value,
    dict_of,
    foreign_value,
    join,
    join_all,
    list_of,
    name,
    tuple_of,
)
from gpusync_lint.project.resolution import is_module_name
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from gpusync_lint.inference.fixpoint import Inference
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionInfo

_HOST_TYPES = frozenset({"int", "float", "str", "bool", "bytes", "complex"})


class _Promise(NamedTuple):
    """What a name promises that stands in an annotation."""

    value: Value
    """What the name means."""
    path: str
    asks: bool
    """Whether it depends on where tensors are assumed to lie."""
    made: dict[Device, Value]
    """By that."""


class Annotations:
    """Reads annotations; what a name promises is found once for each file that it stands in."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._promises: dict[tuple[int, str], _Promise] = {}

    def of(self, inference: Inference, fn: FunctionInfo, node: ast.expr) -> Value:
        """What a type annotation of a function promises."""
        if isinstance(node, ast.Constant):
            if node.value is None:
                return NONE
            if not isinstance(node.value, str):
                return UNKNOWN
            try:
                node = ast.parse(node.value, mode="eval").body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return UNKNOWN
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return join(self.of(inference, fn, node.left), self.of(inference, fn, node.right))
        if isinstance(node, ast.Subscript):
            return self._generic(inference, fn, node)
        path = dotted_path(node)
        if path is None:
            return UNKNOWN
        if path in _HOST_TYPES:
            return HOST
        promise = self._promises.get((id(fn.file), path))
        if promise is None:
            value, settled = self._static_name(inference, fn, path)
            promise = _Promise(value, path, self._depends_on_device(value, path), {})
            if settled:
                self._promises[id(fn.file), path] = promise
        device = inference.assumed_device(fn) if promise.asks else Device.UNKNOWN
        made = promise.made.get(device)
        if made is None:
            made = promise.made[device] = self._promised(inference, promise, device)
        return made

    def _depends_on_device(self, value: Value, path: str) -> bool:
        """Whether what a name of a type promises depends on where tensors are assumed to lie."""
        if value.kind is Kind.CLASS:
            return self._project.is_module_class(value.ref)
        return foreign.types().get(_dotted(value, path)) is None

    def _promised(self, inference: Inference, promise: _Promise, assumed: Device) -> Value:
        value = promise.value
        if value.kind is Kind.CLASS:
            if self._project.is_module_class(value.ref):
                return Value(Kind.MODULE, assumed, ref=value.ref)
            return Value(Kind.RECORDS if inference.is_records(value.ref) else Kind.INSTANCE, ref=value.ref)
        return self._outside_type(_dotted(value, promise.path), assumed)

    def _outside_type(self, dotted: str, assumed: Device) -> Value:
        last = dotted.rpartition(".")[2]
        described = foreign.types().get(dotted)
        if described is not None:
            return foreign_value(described)
        if last in ("Tensor", "FloatTensor", "LongTensor", "BoolTensor", "Variable") or dotted.startswith("jaxtyping"):
            return Value(Kind.TENSOR, assumed, boolean=last == "BoolTensor")
        if dotted.startswith("numpy") or last == "ndarray":
            return ARRAY
        if dotted == "torch.device":
            return Value(Kind.DEVICE, assumed)
        if last.endswith("DataLoader"):
            return LOADER
        if dotted.startswith("torch.optim") and "lr_scheduler" not in dotted:
            return Value(Kind.OPTIMIZER)
        if last == "GradScaler":
            return Value(Kind.SCALER)
        return Value(Kind.MODULE, assumed, ref=None) if is_module_name(dotted) else UNKNOWN

    def _generic(self, inference: Inference, fn: FunctionInfo, node: ast.Subscript) -> Value:
        outer = (dotted_path(node.value) or "").rpartition(".")[2]
        inner = node.slice
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if outer == "Optional":
            return self.of(inference, fn, parts[0])
        if outer in ("Tuple", "tuple"):
            if len(parts) == 2 and isinstance(parts[1], ast.Constant):
                return list_of(self.of(inference, fn, parts[0]))
            return tuple_of([self.of(inference, fn, part) for part in parts])
        if outer in ("List", "list", "Sequence", "Iterable", "Iterator", "Set", "set"):
            return list_of(self.of(inference, fn, parts[0]))
        if outer in ("Dict", "dict", "Mapping") and len(parts) == 2:
            return dict_of((), self.of(inference, fn, parts[1]))
        if outer in ("Union",):
            return join_all([self.of(inference, fn, part) for part in parts])
        if outer in ("Float", "Int", "Bool", "Shaped", "Num"):
            return Value(Kind.TENSOR, inference.assumed_device(fn), boolean=outer == "Bool")
        if outer in ("DataLoader",):
            return LOADER
        return UNKNOWN

    def _static_name(self, inference: Inference, fn: FunctionInfo, path: str) -> tuple[Value, bool]:
        """What a name of a type means, and whether it always will: what modules hold may change."""
        first, *rest = path.split(".")
        value = self._project.named(fn.file, first) or UNKNOWN
        settled = True
        for word in rest:
            if value.kind is not Kind.NAME:
                return UNKNOWN, settled
            if isinstance(value.ref, str):
                value = name(f"{value.ref}.{word}")
            else:
                value = inference.member(fn, value.ref, word)
                settled = False
        return value, settled


def _dotted(value: Value, path: str) -> str:
    """The dotted name of an outside type; what its file calls it where that is all that is known."""
    return value.ref if value.kind is Kind.NAME and isinstance(value.ref, str) else path
