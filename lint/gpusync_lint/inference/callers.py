"""Which functions call a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusync_lint.project.effects import Effects
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef


class Callers:
    """The callers of each function, as far as the runs so far have found calls."""

    def __init__(self, project: Project, effects_of: Callable[[FunctionDef], Effects]) -> None:
        self._project = project
        self._effects_of = effects_of
        self._known: dict[FunctionDef, list[FunctionDef]] | None = None

    def of(self, fn: FunctionDef) -> Sequence[FunctionDef]:
        """The functions that call a function, without itself; one that calls it twice is there twice."""
        if self._known is None:
            self._known = {}
            for file in self._project.files:
                for caller in file.all_functions:
                    for site in self._effects_of(caller).calls:
                        if site.callee is not caller:
                            self._known.setdefault(site.callee, []).append(caller)
        return self._known.get(fn, ())

    def forget(self) -> None:
        """Ask the runs anew when callers are asked for next."""
        self._known = None
