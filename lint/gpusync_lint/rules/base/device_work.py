"""Statements that launch work on the device, for code in which every call is understood."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.catalogue import registry
from gpusync_lint.domain import python_api
from gpusync_lint.domain.values import Device, Kind, Value, foreign_inside, has_tensor
from gpusync_lint.rules.base import foreign_calls
from gpusync_lint.rules.base.blocks import LOOPS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpusync_lint.project.symbols import FunctionDef
    from gpusync_lint.rules.base.context import RuleContext

_WAITING = ("wait", "sync", "block", "barrier", "result")
"""Prefixes of the names of functions and methods that wait, of any receiver."""
_READING = frozenset({"item", "cpu", "numpy", "tolist", "equal", "allclose", "is_nonzero"})
"""Methods and functions of tensors that wait, even if that is not reported, as in an assertion of a test."""
_NO_KERNEL = frozenset(
    {
        "as_strided", "detach", "empty", "empty_like", "empty_strided", "expand", "expand_as", "flatten", "narrow",
        "new_empty", "permute", "requires_grad_", "reshape", "select", "squeeze", "t", "transpose", "unbind",
        "unsqueeze", "view", "view_as",
    }
)  # fmt: skip
"""Methods and functions of tensors that launch no work on the device."""
_SILENT_KINDS = (Kind.HOST, Kind.ARRAY, Kind.LIST, Kind.DICT, Kind.TUPLE, Kind.DTYPE, Kind.SCHEDULER)


_MODEL = re.compile(
    r"(?!(?:build|compile|create|get|init|load|make|prepare|save|setup|wrap)_)(?:\w+_)?"
    r"(?:model|net|network|backbone|encoder|decoder|criterion)$"
)
"""Names of modules. Their calls return before the device has finished, even if something in them waits."""
_MAX_FUNCTIONS = 64
"""The maximum number of functions that are searched for a window of statements."""


class Work(NamedTuple):
    """A statement, or the expression of a lambda, that launches work on a device."""

    node: ast.stmt | ast.expr
    framework: str
    """The framework of the device."""


class _MayWaitError(Exception):
    """Something may wait, or is unknown."""


def device_work(
    window: list[ast.stmt], context: RuleContext, without: Collection[ast.AST] = (), any_loop: bool = False
) -> Work | None:
    """The innermost statement that launches work on the device; None if there is none, or if something may wait.

    Args:
        window: consecutive statements of a block.
        context: the context of the node that is checked.
        without: calls that do not count as waits in spite of their names.
        any_loop: whether loops over something unknown, or over a data loader, are allowed.
    """
    try:
        return _Search(context, without, any_loop).in_statements(window)
    except _MayWaitError:
        return None


def work_of_call(called: Value, context: RuleContext) -> Work | None:
    """The statement of a function, or the expression of a lambda, that launches work; None as for `device_work`."""
    search = _Search(context)
    try:
        if called.kind is Kind.LAMBDA:
            body = called.ref[0].body
            framework = search.in_expression(body)
            return Work(body, framework) if framework else None
        return search.in_function(called.ref) if called.kind is Kind.FUNCTION else None
    except _MayWaitError:
        return None


class _Search:
    """Searches statements, and the functions that they call. Its methods raise _MayWaitError."""

    def __init__(self, context: RuleContext, without: Collection[ast.AST] = (), any_loop: bool = False) -> None:
        self._context = context
        self._without = without
        self._any_loop = any_loop
        self._functions: dict[FunctionDef, Work | None] = {}

    def in_statements(self, statements: list[ast.stmt]) -> Work | None:
        """The innermost statement that launches work on the device; None if there is none."""
        found: Work | None = None
        stack: list[ast.stmt] = list(statements)
        while stack:
            statement = stack.pop()
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            if isinstance(statement, (ast.For, ast.AsyncFor)):
                self._check_loop(statement)
            self._check_foreign(statement)
            inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
            inner.extend(child for handler in getattr(statement, "handlers", ()) for child in handler.body)
            stack.extend(inner)
            for child in ast.iter_child_nodes(statement):
                if not isinstance(child, (ast.stmt, ast.ExceptHandler)):
                    framework = self.in_expression(child)
                    if framework and (found is None or not isinstance(statement, LOOPS)):
                        found = Work(statement, framework)
        return found

    def _check_loop(self, loop: ast.For | ast.AsyncFor) -> None:
        """Raise for a loop over a data loader, or over something unknown, which may be one."""
        if not self._any_loop and self._context.value(loop.iter).kind in (Kind.LOADER, Kind.UNKNOWN):
            raise _MayWaitError

    def _check_foreign(self, node: ast.AST) -> None:
        """Raise for a wait of another framework, even if it is not reported because one wait per step is right."""
        if self._context.uses_foreign_values and next(foreign_calls.found(node, self._context), None) is not None:
            raise _MayWaitError

    def in_function(self, fn: FunctionDef) -> Work | None:
        """A statement of a function of the project that launches work on the device; None if there is none."""
        if fn not in self._functions:
            if len(self._functions) == _MAX_FUNCTIONS or not self._context.has_understood(fn):
                raise _MayWaitError
            self._functions[fn] = None  # stops at cycles of calls
            self._functions[fn] = self.in_statements(fn.node.body)
        return self._functions[fn]

    def in_expression(self, expression: ast.AST) -> str:
        """The framework on whose device an expression launches work; empty for none."""
        framework = ""
        for node in ast.walk(expression):
            self._check_foreign(node)
            if isinstance(node, ast.Call) and node not in self._without:
                framework = self._of_call(node) or framework
            elif isinstance(node, ast.BinOp):
                framework = _framework_of(self._context.value(node)) or framework
            elif isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom)):
                raise _MayWaitError
        return framework

    def _of_call(self, node: ast.Call) -> str:
        """The framework on whose device a call launches work; empty for none."""
        func = node.func
        if isinstance(func, ast.Attribute):
            if func.attr.startswith(_WAITING):
                raise _MayWaitError
            receiver = self._context.value(func.value)
            if receiver.kind is Kind.TENSOR:
                return "torch" if func.attr == "backward" else self._of_torch(func.attr, node)
            if receiver.kind is Kind.OPTIMIZER:
                return "torch" if func.attr == "step" else ""
            if receiver.kind in _SILENT_KINDS:
                return ""
            if receiver.kind is Kind.MODULE and func.attr == "forward":
                return self._of_module(receiver)
        called = self._context.value(func)
        root, _, rest = called.dotted_name.partition(".")
        if root == "torch":
            return self._of_torch(rest, node)
        if root in python_api.HOST_MODULES or root == "builtins":
            return ""
        of_kind = _BY_KIND.get(called.kind)
        return self._of_other(node) if of_kind is None else of_kind(self, called)

    def _of_torch(self, name: str, node: ast.Call) -> str:
        """Of a method of tensors, or a function of torch."""
        if name in _READING or name.startswith("ops."):  # custom operators may wait
            raise _MayWaitError
        return "torch" if has_tensor(self._context.value(node)) and name not in _NO_KERNEL else ""

    def _of_project_function(self, called: Value) -> str:
        work = self.in_function(called.ref)
        return work.framework if work is not None else ""

    def _of_module(self, called: Value) -> str:
        forward = self._context.method_of(called, "forward")
        if forward is not None and self._context.may_wait(forward):
            raise _MayWaitError
        return "torch" if called.device >= Device.ASSUMED else ""

    def _of_class(self, called: Value) -> str:
        init = self._context.method_of(Value(Kind.INSTANCE, ref=called.ref), "__init__")
        if init is not None:
            self.in_function(init)
        return ""

    def _of_other(self, node: ast.Call) -> str:
        """Of something unknown, which may be a model by its name, or of another framework."""
        func, context = node.func, self._context
        name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        if context.value(func).kind is Kind.UNKNOWN and context.unknown_is_probably_tensor() and _MODEL.match(name):
            return "torch"
        if foreign_calls.may_wait(node, context):
            raise _MayWaitError
        return _framework_of(context.value(node))


_BY_KIND: dict[Kind, Callable[[_Search, Value], str]] = {
    Kind.FUNCTION: _Search._of_project_function,
    Kind.MODULE: _Search._of_module,
    Kind.CLASS: _Search._of_class,
}


def _framework_of(value: Value) -> str:
    """The framework of a value on a device, if its operations return before the device has finished."""
    if value.on_device:
        return "torch"
    inside = foreign_inside(value)
    if inside is None:
        return ""
    framework = inside.ref.partition(".")[0]
    return framework if f"{framework}.unsynchronised-timing" in registry.all_barriers() else ""
