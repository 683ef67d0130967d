"""The callers of each function."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusync_lint.project.effects import Effects
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef


class Callers:
    """The callers of each function in the runs so far."""

    def __init__(self, project: Project, effects_of: Callable[[FunctionDef], Effects]) -> None:
        self._project = project
        self._effects_of = effects_of
        self._callers: dict[FunctionDef, list[FunctionDef]] | None = None
        """None if the effects of all functions have to be read again."""

    def of(self, fn: FunctionDef) -> Sequence[FunctionDef]:
        """The functions that call a function, except itself: one entry for each call site."""
        if self._callers is None:
            self._callers = {}
            for file in self._project.files:
                for caller in file.all_functions:
                    for site in self._effects_of(caller).calls:
                        if site.callee is not caller:
                            self._callers.setdefault(site.callee, []).append(caller)
        return self._callers.get(fn, ())

    def invalidate(self) -> None:
        """Read the effects of all functions again when callers are needed next."""
        self._callers = None
