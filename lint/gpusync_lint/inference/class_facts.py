"""Facts about classes of the project: the attributes of instances, and whether instances are moved to a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import widened
from gpusync_lint.domain.values import Kind
from gpusync_lint.inference.dependencies import MOVED

if TYPE_CHECKING:
    from gpusync_lint.domain.values import Value
    from gpusync_lint.inference.dependencies import Reader, Revisions
    from gpusync_lint.project.class_hierarchy import ClassHierarchy
    from gpusync_lint.project.symbols import ClassDef

_DATASET_BASES = ("Dataset", "IterableDataset", "VisionDataset", "DataModule", "InMemoryDataset")
"""Last names of base classes of datasets, wherever they are imported from."""


_FILLED_LATER = frozenset({Kind.LIST, Kind.DICT})
"""Kinds of objects that a class may create empty for its methods, or those of its subclasses, to fill."""


class ClassFacts:
    """Facts about classes that functions read and change."""

    def __init__(self, classes: ClassHierarchy, revisions: Revisions) -> None:
        self._classes = classes
        self._revisions = revisions
        self._moved: set[ClassDef] = set()
        self._records: dict[ClassDef, bool] = {}

    def attribute(self, cls: ClassDef, name: str) -> Value | None:
        """The value of an attribute of instances, own or inherited; None if no run has assigned it."""
        lineage = self._classes.project_lineage(cls)
        return next((base.attributes[name] for base in lineage if name in base.attributes), None)

    def widen_attribute(self, cls: ClassDef, name: str, value: Value) -> None:
        """Record an assignment to an attribute of an instance, in addition to earlier ones."""
        old = cls.attributes.get(name)
        if old is None or value.kind or not old.kind:
            new = value if old is None else widened(old, value)
            if new is not old and new != old:
                cls.attributes[name] = new
                self._revisions.change_attribute(cls, name, is_new=old is None)

    def set_attribute(self, cls: ClassDef, name: str, value: Value) -> None:
        """Record an assignment in the body of a class, which replaces earlier values."""
        old = cls.attributes.get(name)
        if old is not None and value.kind in _FILLED_LATER:
            value = widened(old, value)
        cls.attributes[name] = value
        if old != value:
            self._revisions.change_attribute(cls, name, is_new=old is None)

    def is_moved(self, reader: Reader, cls: ClassDef) -> bool:
        """Whether an instance of a class is moved to a device."""
        reader.dependencies.setdefault((cls, MOVED), self._revisions.current)
        return cls in self._moved

    def record_move(self, cls: ClassDef) -> None:
        """Record that an instance of a class is moved to a device."""
        if cls not in self._moved:
            self._moved.add(cls)
            self._revisions.change((cls, MOVED))

    def is_records(self, cls: ClassDef) -> bool:
        """Whether a class is a dataset."""
        result = self._records.get(cls)
        if result is None:
            bases = self._classes.external_bases(cls)
            result = self._records[cls] = any(base.rpartition(".")[2] in _DATASET_BASES for base in bases)
        return result
