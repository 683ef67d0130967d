"""Facts that functions share, and the dependencies of runs on them.

A fact is a piece of information that one function establishes and another one reads, such as the return value of a
function or the value of an attribute of a class. Each change of a fact begins a new revision of the project. A run
stores, for each fact that it reads, the revision at the first read. It is outdated if one of the facts has changed in a
later revision.
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
"""The key of a fact:

- `FunctionDef`: the return value of a function
- `(FunctionDef, name)`: the value of a name of a function, or of the body of a module
- `(FunctionDef, EXTENDED)`: what functions inside it add to its containers
- `(ClassDef, name)`: the value of an attribute of instances of a class
- `(ClassDef, MOVED)`: whether an instance of a class is moved to a device
- `BUILT_ON_DEVICE`: whether the project creates modules in a `with device:` block
"""

EXTENDED = object()
MOVED = object()
BUILT_ON_DEVICE = object()


@dataclass(eq=False, slots=True)
class Reader:
    """The reads of one run of a function, or of the evaluation of its signature."""

    fn: FunctionDef
    dependencies: dict[Fact, int] = field(default_factory=dict)
    """The facts that were read, each with the revision at the first read."""
    missing: dict[tuple[ClassDef, str], None] = field(default_factory=dict)
    """The attributes of classes that were read and that no instance has, in order."""


class Revisions:
    """The log of the changes of all facts."""

    def __init__(self) -> None:
        self.current = 0
        self._changed: dict[Fact, int] = {}
        """The revision of the last change of each fact."""
        self._log: list[Fact] = []
        """By revision, the fact that changed; None for a change that no run can depend on."""
        self._new_attributes: dict[str, int] = {}
        """By name, the last revision in which a class acquired an attribute of that name."""

    def change(self, fact: Fact) -> None:
        """Record the change of a fact."""
        self.current += 1
        self._changed[fact] = self.current
        self._log.append(fact)

    def advance(self) -> int:
        """Record a change of something that is not a fact. Returns the new revision."""
        self.current += 1
        self._log.append(None)
        return self.current

    def change_attribute(self, cls: ClassDef, name: str, *, is_new: bool) -> None:
        """Record the change of an attribute of instances. `is_new`: whether they had no such attribute before."""
        self.change((cls, name))
        if is_new:
            self._new_attributes[name] = self.current

    def changed_after(self, dependencies: Mapping[Fact, int], *, since: int = 0) -> bool:
        """Whether one of the facts has changed after it was read.

        Args:
            dependencies: facts with the revisions at which they were read.
            since: a revision for which the answer was False.
        """
        if self.current - since < len(dependencies) and dependencies.keys().isdisjoint(self._log[since:]):
            return False
        # `map` takes half the time of a generator expression.
        return any(map(gt, map(self._changed.get, dependencies, repeat(0)), dependencies.values()))

    def new_attribute_since(self, name: str, revision: int) -> bool:
        """Whether a class has acquired an attribute of that name after a revision."""
        return self._new_attributes.get(name, 0) > revision
