"""What type annotations declare."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain.external_names import is_module_name
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
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.inference.class_facts import ClassFacts
    from gpusync_lint.inference.dependencies import Reader
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef

_HOST_TYPES = frozenset({"int", "float", "str", "bool", "bytes", "complex"})
_TENSOR_TYPES = frozenset({"Tensor", "FloatTensor", "LongTensor", "BoolTensor", "Variable"})
_SHAPED_TYPES = frozenset({"Float", "Int", "Bool", "Shaped", "Num"})
"""Types of jaxtyping, which are subscripted by a shape."""
_ITERABLES = frozenset({"List", "list", "Sequence", "Iterable", "Iterator", "Set", "set"})
_MAPPINGS = frozenset({"Dict", "dict", "Mapping"})


class _Names(Protocol):
    """What annotations ask of the inference."""

    def member(self, reader: Reader, file: ModuleDef, name: str) -> Value:
        """What a module of the project holds under a name."""

    def assumed_device(self, fn: FunctionDef) -> Device:
        """Where the tensors of a function lie, if its code is conventional."""


class _Declared(NamedTuple):
    """What the name of a type declares."""

    value: Value
    """What the name stands for."""
    path: str
    depends_on_device: bool
    """Whether it depends on where tensors are assumed to lie."""
    by_device: dict[Device, Value]


class Annotations:
    """Reads annotations; what a name declares is found once for each file that it stands in."""

    def __init__(self, project: Project, classes: ClassFacts, names: _Names) -> None:
        self._project = project
        self._classes = classes
        self._names = names
        self._declared: dict[tuple[ModuleDef, str], _Declared] = {}

    def of(self, reader: Reader, node: ast.expr) -> Value:
        """What an annotation in the function of a reader declares."""
        if isinstance(node, ast.Constant):
            return self._of_constant(reader, node.value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return join(self.of(reader, node.left), self.of(reader, node.right))
        if isinstance(node, ast.Subscript):
            return self._of_generic(reader, node)
        path = dotted_path(node)
        if path is None:
            return UNKNOWN
        return HOST if path in _HOST_TYPES else self._of_name(reader, path)

    def _of_constant(self, reader: Reader, value: object) -> Value:
        if value is None:
            return NONE
        if not isinstance(value, str):
            return UNKNOWN
        try:
            node = ast.parse(value, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return UNKNOWN
        return UNKNOWN if isinstance(node, ast.Constant) else self.of(reader, node)

    def _of_name(self, reader: Reader, path: str) -> Value:
        file = reader.fn.file
        declared = self._declared.get((file, path))
        if declared is None:
            value, is_settled = self._static_name(reader, path)
            declared = _Declared(value, path, self._depends_on_device(value, path), {})
            if is_settled:
                self._declared[file, path] = declared
        device = self._names.assumed_device(reader.fn) if declared.depends_on_device else Device.UNKNOWN
        made = declared.by_device.get(device)
        if made is None:
            made = declared.by_device[device] = self._instance(declared, device)
        return made

    def _depends_on_device(self, value: Value, path: str) -> bool:
        if value.kind is Kind.CLASS:
            return self._project.classes.is_module(value.ref)
        return foreign.annotated_types().get(_dotted(value, path)) is None

    def _instance(self, declared: _Declared, assumed: Device) -> Value:
        """An instance of the type that a name declares."""
        value = declared.value
        if value.kind is Kind.CLASS:
            if self._project.classes.is_module(value.ref):
                return Value(Kind.MODULE, assumed, ref=value.ref)
            return Value(Kind.RECORDS if self._classes.is_records(value.ref) else Kind.INSTANCE, ref=value.ref)
        return _external_instance(_dotted(value, declared.path), assumed)

    def _of_generic(self, reader: Reader, node: ast.Subscript) -> Value:
        outer = (dotted_path(node.value) or "").rpartition(".")[2]
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer in ("Tuple", "tuple") and not parts:
            return tuple_of([])
        if outer in _SHAPED_TYPES:
            return Value(Kind.TENSOR, self._names.assumed_device(reader.fn), boolean=outer == "Bool")
        handler = _GENERICS.get(outer)
        return UNKNOWN if handler is None or not parts else handler(self, reader, parts)

    def _optional(self, reader: Reader, parts: list[ast.expr]) -> Value:
        return self.of(reader, parts[0])

    def _tuple(self, reader: Reader, parts: list[ast.expr]) -> Value:
        if len(parts) == 2 and isinstance(parts[1], ast.Constant):
            return list_of(self.of(reader, parts[0]))
        return tuple_of([self.of(reader, part) for part in parts])

    def _list(self, reader: Reader, parts: list[ast.expr]) -> Value:
        return list_of(self.of(reader, parts[0]))

    def _dict(self, reader: Reader, parts: list[ast.expr]) -> Value:
        return dict_of((), self.of(reader, parts[1])) if len(parts) == 2 else UNKNOWN

    def _union(self, reader: Reader, parts: list[ast.expr]) -> Value:
        return join_all([self.of(reader, part) for part in parts])

    def _loader(self, reader: Reader, parts: list[ast.expr]) -> Value:
        return LOADER

    def _static_name(self, reader: Reader, path: str) -> tuple[Value, bool]:
        """What the name of a type stands for, and whether it always will: what modules hold may change."""
        first, *rest = path.split(".")
        value = self._project.named(reader.fn.file, first) or UNKNOWN
        is_settled = True
        for word in rest:
            if value.kind is not Kind.NAME:
                return UNKNOWN, is_settled
            if isinstance(value.ref, str):
                value = name(f"{value.ref}.{word}")
            else:
                value, is_settled = self._names.member(reader, value.ref, word), False
        return value, is_settled


_GENERICS: dict[str, Callable[[Annotations, Reader, list[ast.expr]], Value]] = {
    **dict.fromkeys(_ITERABLES, Annotations._list),
    **dict.fromkeys(_MAPPINGS, Annotations._dict),
    "Optional": Annotations._optional,
    "Tuple": Annotations._tuple,
    "tuple": Annotations._tuple,
    "Union": Annotations._union,
    "DataLoader": Annotations._loader,
}


def _external_instance(dotted: str, assumed: Device) -> Value:
    """An instance of a type outside the project."""
    last = dotted.rpartition(".")[2]
    described = foreign.annotated_types().get(dotted)
    if described is not None:
        return foreign_value(described)
    if last in _TENSOR_TYPES or dotted.startswith("jaxtyping"):
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


def _dotted(value: Value, path: str) -> str:
    return value.ref if value.kind is Kind.NAME and isinstance(value.ref, str) else path
