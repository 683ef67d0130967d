"""The values of type annotations."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain.external_names import is_module_name
from gpusync_lint.domain.lattice import join, join_all
from gpusync_lint.domain.values import (
    ARRAY,
    HOST,
    LOADER,
    NONE,
    UNKNOWN,
    Device,
    Kind,
    Value,
    dict_of,
    external_name,
    foreign_value,
    list_of,
    tuple_of,
)
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.inference.class_facts import ClassFacts
    from gpusync_lint.inference.dependencies import Reader
    from gpusync_lint.inference.device_policy import DevicePolicy
    from gpusync_lint.inference.scopes import Scopes
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import ModuleDef

_HOST_TYPES = frozenset({"int", "float", "str", "bool", "bytes", "complex"})
_TENSOR_TYPES = frozenset({"Tensor", "FloatTensor", "LongTensor", "BoolTensor", "Variable"})
_SHAPED_TYPES = frozenset({"Float", "Int", "Bool", "Shaped", "Num"})
"""Types of jaxtyping, which are subscripted with a shape: `Float[Tensor, "batch dim"]`."""
_ITERABLES = frozenset({"List", "list", "Sequence", "Iterable", "Iterator", "Set", "set"})
_MAPPINGS = frozenset({"Dict", "dict", "Mapping"})


class _Type(NamedTuple):
    """What the name of a type refers to."""

    definition: Value
    path: str
    depends_on_device: bool
    """Whether its instances depend on the assumed device of tensors."""
    instances: dict[Device, Value]
    """By assumed device, the value of an instance."""


class Annotations:
    """Evaluates annotations. The type that a name refers to is cached by file."""

    def __init__(self, project: Project, classes: ClassFacts, scopes: Scopes, devices: DevicePolicy) -> None:
        self._project = project
        self._classes = classes
        self._scopes = scopes
        self._devices = devices
        self._types: dict[tuple[ModuleDef, str], _Type] = {}

    def of(self, reader: Reader, node: ast.expr) -> Value:
        """The value of an annotation in the function of a reader."""
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
        cls = self._types.get((file, path))
        if cls is None:
            definition, is_final = self._definition(reader, path)
            cls = _Type(definition, path, self._depends_on_device(definition, path), {})
            if is_final:
                self._types[file, path] = cls
        device = self._devices.assumed_device(reader.fn) if cls.depends_on_device else Device.UNKNOWN
        instance = cls.instances.get(device)
        if instance is None:
            instance = cls.instances[device] = self._instance(cls, device)
        return instance

    def _depends_on_device(self, definition: Value, path: str) -> bool:
        if definition.kind is Kind.CLASS:
            return self._project.classes.is_module(definition.ref)
        return foreign.annotated_types().get(_dotted(definition, path)) is None

    def _instance(self, cls: _Type, assumed: Device) -> Value:
        ref = cls.definition.ref
        if cls.definition.kind is Kind.CLASS:
            if self._project.classes.is_module(ref):
                return Value(Kind.MODULE, assumed, ref=ref)
            return Value(Kind.RECORDS if self._classes.is_records(ref) else Kind.INSTANCE, ref=ref)
        return _external_instance(_dotted(cls.definition, cls.path), assumed)

    def _of_generic(self, reader: Reader, node: ast.Subscript) -> Value:
        outer = (dotted_path(node.value) or "").rpartition(".")[2]
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer in ("Tuple", "tuple") and not parts:
            return tuple_of([])
        if outer in _SHAPED_TYPES:
            return Value(Kind.TENSOR, self._devices.assumed_device(reader.fn), boolean=outer == "Bool")
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

    def _definition(self, reader: Reader, path: str) -> tuple[Value, bool]:
        """What the name of a type refers to, and whether that is final: attributes of modules may change."""
        first, *rest = path.split(".")
        value = self._project.named(reader.fn.file, first) or UNKNOWN
        is_final = True
        for word in rest:
            if value.kind is not Kind.NAME:
                return UNKNOWN, is_final
            if isinstance(value.ref, str):
                value = external_name(f"{value.ref}.{word}")
            else:
                value, is_final = self._scopes.member(reader, value.ref, word), False
        return value, is_final


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
    type_name = foreign.annotated_types().get(dotted)
    if type_name is not None:
        return foreign_value(type_name)
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


def _dotted(definition: Value, path: str) -> str:
    return definition.dotted_name or path
