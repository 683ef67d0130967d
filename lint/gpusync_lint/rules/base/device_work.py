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
    from collections.abc import Collection

    from gpusync_lint.project.symbols import FunctionDef
    from gpusync_lint.rules.base.context import RuleContext

_WAITING = ("wait", "sync", "block", "barrier", "result")
"""Beginnings of the names of what waits, whoever's method it is."""
_READING = frozenset({"item", "cpu", "numpy", "tolist", "equal", "allclose", "is_nonzero"})
"""Methods and functions of tensors that wait, also where that is not reported: in an assertion of a test."""
_NO_KERNEL = frozenset(
    {
        "as_strided", "detach", "empty", "empty_like", "empty_strided", "expand", "expand_as", "flatten", "narrow",
        "new_empty", "permute", "requires_grad_", "reshape", "select", "squeeze", "t", "transpose", "unbind",
        "unsqueeze", "view", "view_as",
    }
)  # fmt: skip
"""Methods and functions of tensors that give the device nothing to do."""
_SILENT_KINDS = (Kind.HOST, Kind.ARRAY, Kind.LIST, Kind.DICT, Kind.TUPLE, Kind.DTYPE, Kind.SCHEDULER)


_MODEL = re.compile(r"(?:^|_)(?:model|module|net|network|backbone|encoder|decoder|criterion)s?$", re.I)
"""Names of modules, whose calls return before the device is done even where something in them waits."""
_MAX_FUNCTIONS = 64
"""Functions that are gone through for one window, at most."""


class Work(NamedTuple):
    """A statement, or the expression of a lambda, that gives a device work."""

    node: ast.stmt | ast.expr
    framework: str
    """Whose device work it is."""


class _MayWaitError(Exception):
    """Something may wait, or is unknown."""


def device_work(
    window: list[ast.stmt], context: RuleContext, without: Collection[ast.AST] = (), any_loop: bool = False
) -> Work | None:
    """The innermost statement that gives the device work; None when there is none, or something may wait.

    Args:
        window: consecutive statements of a block.
        context: of the node that is judged.
        without: calls that do not count as waits although they are called like one.
        any_loop: whether a loop over something unknown, or over a data loader, is no reason for None.
    """
    try:
        return _Search(context, without, any_loop).in_statements(window)
    except _MayWaitError:
        return None


def work_of_call(called: Value, context: RuleContext) -> Work | None:
    """What in a function of the project, or a lambda of the file, gives the device work; None as for `device_work`."""
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
    """Goes through statements and the functions that they call. Its methods raise _MayWaitError."""

    def __init__(self, context: RuleContext, without: Collection[ast.AST] = (), any_loop: bool = False) -> None:
        self._context = context
        self._without = without
        self._any_loop = any_loop
        self._functions: dict[FunctionDef, Work | None] = {}

    def in_statements(self, statements: list[ast.stmt]) -> Work | None:
        """The innermost statement that gives the device work; None when there is none."""
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
        """Refuse a loop over a data loader, or over something unknown, which may be one."""
        if not self._any_loop and self._context.value(loop.iter).kind in (Kind.LOADER, Kind.UNKNOWN):
            raise _MayWaitError

    def _check_foreign(self, node: ast.AST) -> None:
        """Refuse what waits in another framework, also where one wait is right and not reported."""
        if self._context.uses_foreign_values and next(foreign_calls.found(node, self._context), None) is not None:
            raise _MayWaitError

    def in_function(self, fn: FunctionDef) -> Work | None:
        """A statement of a function of the project that gives the device work; None when there is none."""
        if fn not in self._functions:
            if len(self._functions) == _MAX_FUNCTIONS or not self._context.has_understood(fn):
                raise _MayWaitError
            self._functions[fn] = None  # ends cycles of calls
            self._functions[fn] = self.in_statements(fn.node.body)
        return self._functions[fn]

    def in_expression(self, expression: ast.AST) -> str:
        """Whose device an expression gives work; empty for none."""
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
        """Whose device a call gives work; empty for none."""
        func = node.func
        context = self._context
        label = func.attr if isinstance(func, ast.Attribute) else ""
        if label.startswith(_WAITING):
            raise _MayWaitError
        result = context.value(node)
        if isinstance(func, ast.Attribute):
            receiver = context.value(func.value)
            if receiver.kind is Kind.TENSOR:
                if label in _READING:
                    raise _MayWaitError
                return "torch" if label == "backward" or (has_tensor(result) and label not in _NO_KERNEL) else ""
            if receiver.kind is Kind.OPTIMIZER:
                return "torch" if label == "step" else ""
            if receiver.kind in _SILENT_KINDS:
                return ""
        called = context.value(func)
        if called.kind is Kind.NAME and isinstance(called.ref, str):
            root, _, rest = called.ref.partition(".")
            if root == "torch":
                if rest in _READING:
                    raise _MayWaitError
                return "torch" if has_tensor(result) and rest not in _NO_KERNEL else ""
            if root in python_api.HOST_MODULES or root == "builtins":
                return ""
        if called.kind is Kind.FUNCTION:
            work = self.in_function(called.ref)
            return work.framework if work is not None else ""
        if called.kind is Kind.MODULE:
            forward = context.method_of(called, "forward")
            if forward is not None and context.may_wait(forward):
                raise _MayWaitError
            return "torch" if called.device >= Device.ASSUMED else ""
        if called.kind is Kind.CLASS:
            init = context.method_of(Value(Kind.INSTANCE, ref=called.ref), "__init__")
            if init is not None:
                self.in_function(init)
            return ""
        if called.kind is Kind.UNKNOWN and context.unknown_is_probably_tensor() and _MODEL.search(label or _id(func)):
            return "torch"
        if foreign_calls.may_wait(node, context):
            raise _MayWaitError
        return _framework_of(result)


def _id(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _framework_of(value: Value) -> str:
    """The framework of a value on a device, of those whose operations return before the device has done them."""
    if value.on_device:
        return "torch"
    inside = foreign_inside(value)
    if inside is None:
        return ""
    framework = inside.ref.partition(".")[0]
    return framework if f"{framework}.unsynchronised-timing" in registry.all_barriers() else ""
