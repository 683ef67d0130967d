"""Functions that another framework traces or compiles instead of running them line by line: `@jax.jit`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign

if TYPE_CHECKING:
    from gpusync_lint.inference.callers import Callers
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef


class Tracing:
    """Decides which functions are traced."""

    def __init__(self, project: Project, callers: Callers) -> None:
        self._project = project
        self._callers = callers
        self._wrappers: dict[FunctionDef, str] = {}
        self._traced: dict[FunctionDef, bool] = {}

    def wrapper(self, fn: FunctionDef) -> str:
        """The type of the value that a decorator of another framework returns for a function; empty if it has none."""
        type_name = self._wrappers.get(fn)
        if type_name is None:
            type_name = self._wrappers[fn] = self._wrapper(fn)
            if type_name:
                self._traced[fn] = True
        return type_name

    def _wrapper(self, fn: FunctionDef) -> str:
        for decorator in getattr(fn.node, "decorator_list", ()):
            parts = [decorator]
            if isinstance(decorator, ast.Call):  # `@partial(jax.jit, ...)`, `@tf.function(...)`
                parts = [decorator.func, *decorator.args[:1]]
            for part in parts:
                type_name = foreign.wrappers().get(self._project.static(fn.file, part).dotted_name)
                if type_name:
                    return type_name
        return ""

    def record(self, fn: FunctionDef) -> None:
        """Record that a function is passed to something that traces it."""
        self._traced[fn] = True

    def is_traced(self, fn: FunctionDef) -> bool:
        """Whether a function is traced: by its decorator or class, or because all its callers are."""
        if fn.is_module:
            return False
        if self.wrapper(fn) or self._traced.get(fn) or (fn.outer is not None and self.is_traced(fn.outer)):
            return True
        if fn.cls is not None:
            bases = self._project.classes.external_bases(fn.cls)
            if any(base in foreign.traced_bases() for base in bases):
                return True
        callers = self._callers.of(fn)
        if not callers:
            return False
        self._traced[fn] = True  # in a cycle of calls, the callers outside of it decide
        self._traced[fn] = all(map(self.is_traced, callers))
        return self._traced[fn]
