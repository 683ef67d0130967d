"""What the instances of each class are seen to hold, whether they are moved to a device, and which are datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import Kind, Value, widened
from gpusync_lint.inference.dependencies import MOVED

if TYPE_CHECKING:
    from gpusync_lint.inference.dependencies import Reader, Revisions
    from gpusync_lint.project.class_hierarchy import ClassHierarchy
    from gpusync_lint.project.symbols import ClassDef

_RECORD_BASES = ("Dataset", "IterableDataset", "VisionDataset", "DataModule", "InMemoryDataset")
"""Last names of classes outside the project that are collections of host objects."""


class ClassFacts:
    """Facts about the classes of a project that functions read and change."""

    def __init__(self, classes: ClassHierarchy, revisions: Revisions) -> None:
        self._classes = classes
        self._revisions = revisions
        self._moved: set[ClassDef] = set()
        self._records: dict[ClassDef, bool] = {}

    def widen_attribute(self, cls: ClassDef, name: str, value: Value) -> None:
        """Let an attribute of instances hold a value as well."""
        old = cls.attributes.get(name)
        if old is None or value.kind is not Kind.UNKNOWN or old.kind is Kind.UNKNOWN:
            new = value if old is None else widened(old, value)
            if new is not old and new != old:
                cls.attributes[name] = new
                self._revisions.change_attribute(cls, name, is_new=old is None)

    def set_attribute(self, cls: ClassDef, name: str, value: Value) -> None:
        """Let an attribute of instances hold a value, as the body of the class says."""
        old = cls.attributes.get(name)
        cls.attributes[name] = value
        if old != value:
            self._revisions.change_attribute(cls, name, is_new=old is None)

    def is_moved(self, reader: Reader, cls: ClassDef) -> bool:
        """Whether some instance of a class was moved to a device."""
        reader.dependencies.setdefault((cls, MOVED), self._revisions.current)
        return cls in self._moved

    def note_moved(self, cls: ClassDef) -> None:
        """Note that an instance of a class was moved to a device."""
        if cls not in self._moved:
            self._moved.add(cls)
            self._revisions.change((cls, MOVED))

    def is_records(self, cls: ClassDef) -> bool:
        """Whether instances are collections of host objects: datasets."""
        known = self._records.get(cls)
        if known is None:
            bases = self._classes.external_bases(cls)
            known = self._records[cls] = any(base.rpartition(".")[2] in _RECORD_BASES for base in bases)
        return known
