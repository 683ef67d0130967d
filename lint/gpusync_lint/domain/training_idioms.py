"""How training code is written by convention: what is named a loader, what goes backward."""

from __future__ import annotations

import ast
import re

from gpusync_lint.syntax.names import dotted_path

LOADER_NAMES = ("loader", "batches", "dataiter", "data_iter", "dl")
"""Ends of the names of data loaders, in lower case."""
BACKWARD = ("backward", "manual_backward")
"""Methods that run the backward pass."""
_TEST_FILE = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")
_ENGINES = ("accelerator", "fabric", "engine", "strategy")
"""Ends of the names of objects that run the backward pass for others."""


def backward_of(node: ast.Call) -> ast.expr:
    """What a call of `backward` goes backward from: `loss`, in each form that says so.

    `loss.backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)`, `self.manual_backward(loss)`.
    """
    func = node.func
    assert isinstance(func, ast.Attribute)
    receiver = func.value
    if node.args:
        engine = (dotted_path(receiver) or "").rpartition(".")[2].endswith(_ENGINES)
        if engine or func.attr == "manual_backward":
            return node.args[0]
    if isinstance(receiver, ast.Call) and receiver.args and getattr(receiver.func, "attr", "") == "scale":
        return receiver.args[0]
    return receiver


def is_test_path(path: str) -> bool:
    """Whether a file holds tests, by the names that pytest collects."""
    return _TEST_FILE.search(path) is not None
