"""GS701: GPU work between two reads of the clock, and nothing that waits for it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gpusync_lint import torch_api
from gpusync_lint.model import Confidence
from gpusync_lint.rules.base import CLOCKS, Look, Report, Rule
from gpusync_lint.rules.places import LOOPS, around, walk
from gpusync_lint.values import Device, Kind, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

_WAITING = ("wait", "sync", "block", "barrier", "result")
"""Beginnings of the names of what waits, whoever's method it is."""
_SILENT_KINDS = (Kind.HOST, Kind.ARRAY, Kind.LIST, Kind.DICT, Kind.TUPLE, Kind.DTYPE, Kind.SCHEDULER)


class UnsynchronisedTiming(Rule):
    """`time.perf_counter() - start` after device work that nothing waited for.

    Both clock reads stand in one block. Every call between them must be understood: one that is not may wait. A loop
    over a data loader is left alone, for what is still in the queue at its end is a small part of an epoch.
    """

    nodes = (cst.BinaryOperation,)
    barriers = ("unsynchronised-timing",)
    late = True
    VALID: ClassVar = (
        "start = time.time()\nmodel(x)\ntorch.cuda.synchronize()\nprint(time.time() - start)",
        "start = time.time()\nmodel(x).sum().item()\nprint(time.time() - start)",
        "start = time.time()\nunknown(model(x))\nprint(time.time() - start)",
        "start = time.time()\nc.sum()\nprint(time.time() - start)",
        "start = time.time()\nfor y in torch.utils.data.DataLoader([]):\n    model(x)\nprint(time.time() - start)",
    )
    INVALID: ClassVar = (
        "start = time.time()\nmodel(x)\nprint(time.time() - start)",
        "start = time.perf_counter()\ny = x @ x2\nend = time.perf_counter()\nspent = end - start",
        "start = time.time()\nfor _ in range(9):\n    torch.mm(x, x2)\nspent = (time.time() - start) / 9",
    )

    def check(self, node: cst.BinaryOperation, look: Look) -> Iterator[Report]:
        """Look at a subtraction."""
        twin = look.twin(node)
        if not look.file.uses_framework:
            return
        if not isinstance(node.operator, cst.Subtract) or not isinstance(twin.right, ast.Name):
            return
        holders = around(look.pair.fn, look.pair.statement)
        if not holders:
            return
        block, stop = holders[-1]
        if isinstance(twin.left, ast.Name):
            stop = _assigned(block, stop, twin.left.id)
        elif not _is_clock(twin.left, look):
            return
        start = _assigned(block, stop, twin.right.id)
        if start < 0 or stop <= start or not _is_clock(getattr(block[start], "value", None), look):
            return
        if isinstance(twin.left, ast.Name) and not _is_clock(getattr(block[stop], "value", None), look):
            return
        window = block[start + 1 : stop]
        lines = range(block[start].lineno, (block[stop].end_lineno or block[stop].lineno) + 1)
        if look.waits.intersection(lines):
            return
        work = self._work(window, look)
        if work is not None:
            yield Report("unsynchronised-timing", twin, Confidence.MEDIUM, about=work)

    def _work(self, window: list[ast.stmt], look: Look) -> ast.stmt | None:
        """The innermost statement that gives the device work; None when there is none, or something may wait."""
        found: ast.stmt | None = None
        stack: list[ast.stmt] = list(window)
        while stack:
            statement = stack.pop()
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            if isinstance(statement, (ast.For, ast.AsyncFor)) and look.value_of(statement.iter).kind in (
                Kind.LOADER,
                Kind.UNKNOWN,
            ):
                return None
            inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
            inner.extend(child for handler in getattr(statement, "handlers", ()) for child in handler.body)
            stack.extend(inner)
            for child in ast.iter_child_nodes(statement):
                if isinstance(child, (ast.stmt, ast.ExceptHandler)):
                    continue
                for node in ast.walk(child):
                    says = self._says(node, look)
                    if says is None:
                        return None
                    if says and (found is None or not isinstance(statement, LOOPS)):
                        found = statement
        return found

    def _says(self, node: ast.AST, look: Look) -> bool | None:
        """Whether an expression gives the device work; None when it may wait, or nobody knows."""
        if isinstance(node, (ast.BinOp, ast.Await, ast.Yield, ast.YieldFrom)):
            return _on_gpu(look.value_of(node)) if isinstance(node, ast.BinOp) else None
        if not isinstance(node, ast.Call):
            return False
        result = look.value_of(node)
        func = node.func
        if isinstance(func, ast.Attribute):
            if func.attr.startswith(_WAITING):
                return None
            receiver = look.value_of(func.value)
            if receiver.kind is Kind.TENSOR:
                return _on_gpu(result) or func.attr == "backward"
            if receiver.kind is Kind.OPTIMIZER:
                return func.attr == "step"
            if receiver.kind in _SILENT_KINDS:
                return False
        called = look.value_of(func)
        if called.kind is Kind.NAME and isinstance(called.ref, str):
            root = called.ref.partition(".")[0]
            if root == "torch":
                return _on_gpu(result)
            return False if root in torch_api.HOST_MODULES or root == "builtins" else None
        if called.kind is Kind.FUNCTION:
            return None if look.waits_inside(called.ref) else _on_gpu(result)
        if called.kind is Kind.MODULE:
            forward = look.method_of(called, "forward")
            if forward is not None and look.waits_inside(forward):
                return None
            return called.device >= Device.ASSUMED
        return None


def _on_gpu(value: Value) -> bool:
    return value.on_device


def _assigned(block: list[ast.stmt], before: int, label: str) -> int:
    """The place of the nearest assignment to a name before a place in a block; -1 for none."""
    for place in range(before - 1, -1, -1):
        statement = block[place]
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == label for target in targets):
            return place
        if any(isinstance(n, ast.Name) and n.id == label and isinstance(n.ctx, ast.Store) for n in walk([statement])):
            return -1
    return -1


def _is_clock(node: ast.expr | None, look: Look) -> bool:
    if not isinstance(node, ast.Call):
        return False
    module, _, label = look.value_of(node.func).ref.rpartition(".") if _is_name(node.func, look) else ("", "", "")
    return module == "time" and label in CLOCKS


def _is_name(node: ast.expr, look: Look) -> bool:
    value = look.value_of(node)
    return value.kind is Kind.NAME and isinstance(value.ref, str)
