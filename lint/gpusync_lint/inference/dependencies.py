"""Which facts a run has read, and whether they have changed since: what decides whether a function runs again.

Time is counted in revisions: each change of a fact begins a new one. A run keeps, with each fact that it read, the
revision at which it read it first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import repeat
from operator import gt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusync_lint.project.symbols import ClassDef, FunctionDef

Fact = Any
"""What functions read and others change, as a key. `FunctionDef`: what a function returns. `(FunctionDef, name)`: what
a name in a function, or in the body of a module, holds. `(ClassDef, name)`: what an attribute of instances holds.
`(ClassDef, MOVED)`: whether instances are moved to a device. `BUILT_ON_DEVICE`: whether modules are made on one."""

MOVED = object()
BUILT_ON_DEVICE = object()


@dataclass(eq=False, slots=True)
class Reader:
    """Who reads facts: a run of a function, or what is derived from its signature."""

    fn: FunctionDef
    dependencies: dict[Fact, int] = field(default_factory=dict)
    """The facts that were read, each with the revision at which it was read first."""
    missing: dict[tuple[ClassDef, str], None] = field(default_factory=dict)
    """The attributes of classes that were asked for and that no instance had."""


class Revisions:
    """The changes of facts, in their order."""

    def __init__(self) -> None:
        self.current = 0
        self._changed: dict[Fact, int] = {}
        """The revision of the last change of each fact."""
        self._log: list[Fact] = []
        """The fact that changed in each revision; None for one that is not read by key."""
        self._new_attributes: dict[str, int] = {}
        """The revision in which some class got an attribute of a name last."""

    def change(self, fact: Fact) -> None:
        """Note that a fact has changed."""
        self.current += 1
        self._changed[fact] = self.current
        self._log.append(fact)

    def advance(self) -> int:
        """Begin a revision for a change of something that is not read as a fact; gives its number."""
        self.current += 1
        self._log.append(None)
        return self.current

    def change_attribute(self, cls: ClassDef, name: str, *, is_new: bool) -> None:
        """Note that an attribute of instances holds something else, or is new."""
        self.change((cls, name))
        if is_new:
            self._new_attributes[name] = self.current

    def changed_after(self, dependencies: Mapping[Fact, int], *, since: int = 0) -> bool:
        """Whether any of the facts has changed after it was read; none had until the revision `since`."""
        if self.current - since < len(dependencies) and dependencies.keys().isdisjoint(self._log[since:]):
            return False
        # A loop in Python takes twice as long.
        return any(map(gt, map(self._changed.get, dependencies, repeat(0)), dependencies.values()))

    def new_attribute_since(self, name: str, revision: int) -> bool:
        """Whether some class has got an attribute of a name after a revision."""
        return self._new_attributes.get(name, 0) > revision
