"""Which functions torch.compile compiles, and which findings in them break its graphs.

A function is compiled if a decorator or a call of ``torch.compile`` in the files that are analyzed together names it,
its module or its class, or if a compiled function calls it. Functions that ``torch.compiler.disable`` excludes are not,
nor what only they call.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from gpusync_lint.catalogue import graph_breaks
from gpusync_lint.domain.values import UNKNOWN, Kind
from gpusync_lint.model.findings import GraphBreak
from gpusync_lint.project.symbols import ClassDef, FunctionDef

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.domain.values import Value
    from gpusync_lint.inference.fixpoint import Inference
    from gpusync_lint.project.symbols import ModuleDef

_COMPILE: Final = "torch.compile"
_EXCLUDED: Final = frozenset(
    {"torch.compiler.disable", "torch._dynamo.disable", "torch._disable_dynamo", "torch.jit.ignore"}
)
_IMPORTED: Final = re.compile(r"import[^\n]*\bcompile\b")
_SETTING: Final = re.compile(rf"\b({graph_breaks.SCALARS}|{graph_breaks.SHAPES})\b")


class _Root(NamedTuple):
    """Where a function is compiled."""

    path: str
    line: int
    fullgraph: bool


class CompiledFunctions:
    """The functions of a project that torch.compile compiles. The inference must have finished."""

    def __init__(self, inference: Inference, release: tuple[int, int]) -> None:
        """`release` is the oldest torch that the project runs on."""
        self._inference = inference
        self._release = release
        self._compiled: dict[FunctionDef, _Root] | None = None
        self._settings: frozenset[str] = frozenset()

    def graph_break(self, fn: FunctionDef, barrier: str, node: ast.expr) -> GraphBreak | None:
        """How an expression that waits breaks a graph; None if it does not, or that is not known.

        Args:
            fn: the function that contains it.
            barrier: the barrier that it is.
            node: the expression.
        """
        if self._compiled is None:
            self._compiled = self._find()
        root = self._compiled.get(fn)
        if root is None:
            return None
        effect = graph_breaks.effect(barrier, node, self._release)
        # fullgraph=True enables both settings.
        enabled = graph_breaks.ALL_SETTINGS if root.fullgraph else self._settings
        if effect is None or graph_breaks.is_captured_with(effect, enabled):
            return None
        settings = effect if effect in graph_breaks.SETTINGS.values() else None
        return GraphBreak(root.path, root.line, settings, root.fullgraph)

    def _find(self) -> dict[FunctionDef, _Root]:
        """The compiled functions, each with the place that compiles it or the nearest function that calls it."""
        files = [file for file in self._inference.project.files if _may_compile(file.text)]
        found: dict[FunctionDef, _Root] = {}
        for file in files:
            for fn in file.all_functions:
                for one, root in (*self._decorated(fn), *self._passed(fn)):
                    found.setdefault(one, root)
        if not found:
            return found
        self._settings = frozenset(name for file in self._inference.project.files for name in _enabled(file))
        reached = list(found)
        for fn in reached:
            for site in self._inference.effects(fn).calls:
                if site.callee not in found and not self._is_excluded(site.callee):
                    found[site.callee] = found[fn]
                    reached.append(site.callee)
        return found

    def _decorated(self, fn: FunctionDef) -> Iterator[tuple[FunctionDef, _Root]]:
        for decorator in getattr(fn.node, "decorator_list", ()):
            if self._names(fn, decorator) & {_COMPILE}:
                yield fn, _Root(fn.file.path, decorator.lineno, _is_fullgraph(decorator))

    def _is_excluded(self, fn: FunctionDef) -> bool:
        return any(self._names(fn, one) & _EXCLUDED for one in getattr(fn.node, "decorator_list", ()))

    def _names(self, fn: FunctionDef, decorator: ast.expr) -> set[str]:
        """The dotted names of a decorator: of `@torch.compile(...)`, and of `@partial(torch.compile, ...)`."""
        parts = [decorator]
        if isinstance(decorator, ast.Call):
            parts = [decorator.func, *decorator.args[:1]]
        return {self._inference.project.static(fn.file, part).dotted_name for part in parts}

    def _passed(self, fn: FunctionDef) -> Iterator[tuple[FunctionDef, _Root]]:
        """The functions that calls in a function compile: `torch.compile(model)`, `model.compile()`."""
        values = self._inference.values(fn)
        for node in values:
            if not isinstance(node, ast.Call):
                continue
            func = node.func
            compiled: Value = UNKNOWN
            if values.get(func, UNKNOWN).dotted_name == _COMPILE:
                compiled = values.get(node.args[0], UNKNOWN) if node.args else UNKNOWN
            elif isinstance(func, ast.Attribute) and func.attr == "compile":
                compiled = values.get(func.value, UNKNOWN)
                if compiled.kind is not Kind.MODULE:
                    continue
            root = _Root(fn.file.path, node.lineno, _is_fullgraph(node))
            for one in self._functions(compiled):
                yield one, root

    def _functions(self, value: Value) -> Iterator[FunctionDef]:
        """The functions that a call of a value runs."""
        if value.kind is Kind.UNION:
            for item in value.items or ():
                yield from self._functions(item)
        elif isinstance(value.ref, FunctionDef):
            yield value.ref
        elif isinstance(value.ref, ClassDef) and value.kind in (Kind.MODULE, Kind.INSTANCE):
            name = "forward" if value.kind is Kind.MODULE else "__call__"
            method = self._inference.project.classes.method(value.ref, name)
            if method is not None:
                yield method


def _may_compile(text: str) -> bool:
    """Whether a file may compile something; most files that mention ``compile`` mean ``re.compile``."""
    if "compile" not in text or text.count("compile") == text.count("re.compile("):
        return False
    return ".compile" in text or _IMPORTED.search(text) is not None


def _is_fullgraph(node: ast.expr) -> bool:
    keywords = node.keywords if isinstance(node, ast.Call) else []
    return any(keyword.arg == "fullgraph" and _is_true(keyword.value) for keyword in keywords)


def _enabled(file: ModuleDef) -> Iterator[str]:
    """The settings of Dynamo that a file enables: `torch._dynamo.config.capture_scalar_outputs = True`, or a keyword of
    that name.
    """
    if not any(name in file.text for name in (graph_breaks.SCALARS, graph_breaks.SHAPES)):
        return
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Assign) and _is_true(node.value):
            names = [target.attr for target in node.targets if isinstance(target, ast.Attribute)]
        elif isinstance(node, ast.keyword) and _is_true(node.value) and node.arg is not None:
            names = [node.arg]
        else:
            continue
        yield from (name for name in names if _SETTING.fullmatch(name))


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True
