"""Which functions another framework traces or compiles, rather than running them line by line: `@jax.jit`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain.lattice import Kind

if TYPE_CHECKING:
    from gpusync_lint.inference.callers import Callers
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef


class Tracing:
    """What is known of traced functions."""

    def __init__(self, project: Project, callers: Callers) -> None:
        self._project = project
        self._callers = callers
        self._wrappers: dict[FunctionDef, str] = {}
        self._traced: dict[FunctionDef, bool] = {}

    def wrapper(self, fn: FunctionDef) -> str:
        """The type of value that a decorator of another framework makes of a function; empty for none."""
        known = self._wrappers.get(fn)
        if known is None:
            known = self._wrappers[fn] = self._wrapper(fn)
            if known:
                self._traced[fn] = True
        return known

    def _wrapper(self, fn: FunctionDef) -> str:
        for decorator in getattr(fn.node, "decorator_list", ()):
            parts = [decorator]
            if isinstance(decorator, ast.Call):  # `@partial(jax.jit, ...)`, `@tf.function(...)`
                parts = [decorator.func, *decorator.args[:1]]
            for part in parts:
                value = self._project.static(fn.file, part)
                if value.kind is Kind.NAME and isinstance(value.ref, str):
                    found = foreign.wrappers().get(value.ref, "")
                    if found:
                        return found
        return ""

    def note(self, fn: FunctionDef) -> None:
        """Note that a function is handed to something that traces it."""
        self._traced[fn] = True

    def is_traced(self, fn: FunctionDef) -> bool:
        """Whether a function is traced: by itself, in a class of its own, or through all its callers."""
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
        self._traced[fn] = True  # in a cycle of calls, those from outside decide
        self._traced[fn] = all(map(self.is_traced, callers))
        return self._traced[fn]
