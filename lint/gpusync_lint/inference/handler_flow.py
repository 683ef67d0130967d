"""The flow of a request through the methods of a handler, which a server calls one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import element
from gpusync_lint.domain.values import Kind, list_of
from gpusync_lint.project.entry_points import flow_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusync_lint.domain.values import Value
    from gpusync_lint.inference.summaries import Interpreter
    from gpusync_lint.project.class_hierarchy import ClassHierarchy
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef

_SEQUENCES = frozenset({Kind.LIST, Kind.TUPLE})


def responses(
    files: Iterable[ModuleDef], classes: ClassHierarchy, interpreter: Interpreter
) -> Iterator[tuple[FunctionDef, Value]]:
    """The methods that are given what another method has returned, each with that value."""
    for file in files:
        for cls in file.classes.values():
            value: Value | None = None
            for stage in flow_of(cls, classes):
                method = cls.methods.get(stage.method)
                if method is None:
                    continue
                if value is not None and value.kind is not Kind.UNKNOWN:
                    if stage.takes == "list":
                        value = list_of(value)
                    elif stage.takes == "item" and value.kind in _SEQUENCES:
                        value = element(value)
                    yield method, value
                value = interpreter.summary(method).returns
