"""The instances of the classes of a project, and their attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.domain.values import Device, Kind, Value, alternatives
from gpusync_lint.project.symbols import ClassDef

if TYPE_CHECKING:
    from gpusync_lint.inference.class_facts import ClassFacts
    from gpusync_lint.inference.dependencies import Reader, Revisions
    from gpusync_lint.inference.device_policy import DevicePolicy
    from gpusync_lint.inference.scopes import Scopes
    from gpusync_lint.inference.summaries import Interpreter
    from gpusync_lint.project.class_hierarchy import ClassHierarchy
    from gpusync_lint.project.symbols import FunctionDef

_WITH_ATTRIBUTES = frozenset({Kind.MODULE, Kind.INSTANCE, Kind.RECORDS, Kind.CLASS})


class Instances:
    """Reads and writes attributes of instances, and creates the values of `self`."""

    def __init__(
        self,
        hierarchy: ClassHierarchy,
        facts: ClassFacts,
        devices: DevicePolicy,
        scopes: Scopes,
        interpreter: Interpreter,
        revisions: Revisions,
    ) -> None:
        self._hierarchy = hierarchy
        self._facts = facts
        self._devices = devices
        self._scopes = scopes
        self._interpreter = interpreter
        self._revisions = revisions
        self._selves: dict[tuple[ClassDef | None, Device | None], Value] = {}
        """By class, and for modules by assumed device, the value of `self`."""

    def attribute(self, reader: Reader, cls: ClassDef, name: str) -> Value | None:
        """The value of an attribute of instances, own or inherited; None if nothing assigns it."""
        for base in self._hierarchy.project_lineage(cls):
            if name not in base.attributes and base.file.called_only:
                self._read_attribute(base, name)
            value = base.attributes.get(name)
            if value is not None:
                reader.dependencies.setdefault((base, name), self._revisions.current)
                return value
        reader.missing[cls, name] = None
        return None

    def tensor_attributes(self, reader: Reader, cls: ClassDef) -> dict[str, Value]:
        """The attributes of instances that hold tensors, own or inherited, by name."""
        found: dict[str, Value] = {}
        for base in self._hierarchy.project_lineage(cls):
            for name, value in base.attributes.items():
                if value.kind is Kind.TENSOR and name not in found:
                    reader.dependencies.setdefault((base, name), self._revisions.current)
                    found[name] = value
        return found

    def _read_attribute(self, cls: ClassDef, name: str) -> None:
        """Run the methods that mention an attribute, of a class in a file of which only called functions are run."""
        self._scopes.read_body(cls.file)
        part = cls.file.pieces.get(cls.name)
        if part is not None:
            self._interpreter.run_once(part)
        if not self._interpreter.is_too_deep():
            for method in cls.mentioning(name):
                self._interpreter.run_once(method)

    def set_attribute(self, owner: Value, name: str, value: Value) -> None:
        """Record an assignment to an attribute. Does nothing unless the owner is an instance of a project class."""
        if owner.kind is Kind.UNION:
            for one in alternatives(owner):
                self.set_attribute(one, name, value)
            return
        cls = owner.ref
        if cls.__class__ is not ClassDef or owner.kind not in _WITH_ATTRIBUTES:
            return
        if owner.kind is Kind.MODULE and value.kind is Kind.MODULE and value.device is Device.CPU:
            # A submodule is moved together with its parent.
            value = value._replace(device=self._devices.assumed_device(cls.file.body))
        self._facts.widen_attribute(cls, name, value)

    def self_of(self, method: FunctionDef) -> Value:
        """The value of the first parameter of a method: `self`, or `cls` of a class method."""
        return Value(Kind.CLASS, ref=method.cls) if method.kind == "class" else self.of_class(method.cls, method)

    def of_class(self, cls: ClassDef | None, fn: FunctionDef) -> Value:
        """An instance of a class of which nothing else is known, as a function sees it."""
        device: Device | None = None
        if cls is not None and self._hierarchy.is_module(cls):
            device = self._devices.assumed_device(fn)
        value = self._selves.get((cls, device))
        if value is None:
            if device is not None:
                value = Value(Kind.MODULE, device, ref=cls)
            else:
                is_records = cls is not None and self._facts.is_records(cls)
                value = Value(Kind.RECORDS if is_records else Kind.INSTANCE, ref=cls)
            self._selves[cls, device] = value
        return value
