"""Which coroutines share their event loop with other tasks, as far as the source of a project shows."""

from __future__ import annotations

import ast
from functools import cached_property
from typing import TYPE_CHECKING

from gpusync_lint.domain.values import Kind
from gpusync_lint.syntax.traversal import walk, walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.inference.fixpoint import Inference
    from gpusync_lint.project.symbols import FunctionDef

_STARTS = frozenset(
    {"as_completed", "create_task", "ensure_future", "gather", "run_coroutine_threadsafe", "start_soon", "wait"}
)
"""Functions of asyncio, and methods of task groups (anyio's and Trio's too), that run coroutines beside others."""
_ROUTES = frozenset({"api_route", "delete", "get", "head", "patch", "post", "put", "route", "websocket"})
"""Decorators of web frameworks for coroutines that handle requests."""
_DEPLOYMENTS = frozenset({"deployment", "ingress"})
"""Decorators of Ray Serve for classes whose methods handle requests."""


class Tasks:
    """The coroutines of one project. The inference must have finished."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    def is_shared(self, fn: FunctionDef) -> bool:
        """Whether other tasks share the event loop of a coroutine."""
        return fn in self._shared

    @cached_property
    def _shared(self) -> frozenset[FunctionDef]:
        found: set[FunctionDef] = set()
        queue: list[FunctionDef] = []
        for file in self._inference.project.files:
            if "async def" in file.text or "asyncio" in file.text:
                may_start = any(name in file.text for name in _STARTS)
                for fn in file.all_functions:
                    if is_coroutine(fn) and _handles_requests(fn):
                        queue.append(fn)
                    if may_start:
                        queue += self._started_by(fn)
        while queue:
            fn = queue.pop()
            if fn not in found:
                found.add(fn)
                queue += (site.callee for site in self._inference.effects(fn).calls if is_coroutine(site.callee))
        return frozenset(found)

    def _started_by(self, fn: FunctionDef) -> Iterator[FunctionDef]:
        """The coroutines that a function starts as tasks: `gather(f(x), ...)`, also through a list with a name."""
        values = self._inference.values(fn)
        for node in walk_block(fn.node.body):
            if not isinstance(node, ast.Call) or _last_name(node.func) not in _STARTS:
                continue
            for arg in node.args:
                for given in (arg, *_assigned(arg, fn)):
                    for inner in walk(given):
                        value = values.get(inner.func if isinstance(inner, ast.Call) else inner)  # type: ignore[call-overload]
                        if value is not None and value.kind is Kind.FUNCTION and is_coroutine(value.ref):
                            yield value.ref


def is_coroutine(fn: FunctionDef) -> bool:
    """Whether a function is an `async def`."""
    return isinstance(fn.node, ast.AsyncFunctionDef)


def _handles_requests(fn: FunctionDef) -> bool:
    """Whether a web framework calls a coroutine, by its decorators or those of its class."""
    own = (each.func for each in fn.node.decorator_list if isinstance(each, ast.Call))  # type: ignore[union-attr]
    if any(isinstance(each, ast.Attribute) and each.attr in _ROUTES for each in own):
        return True
    of_class = () if fn.cls is None else fn.cls.node.decorator_list
    return any(_last_name(each.func if isinstance(each, ast.Call) else each) in _DEPLOYMENTS for each in of_class)


def _assigned(node: ast.expr, fn: FunctionDef) -> list[ast.expr]:
    """The values that a function assigns to a name; none for another expression."""
    inner = node.value if isinstance(node, ast.Starred) else node
    return fn.assignments.get(inner.id, (0, []))[1] if isinstance(inner, ast.Name) else []


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
