"""Conventions of training code: the names of data loaders, and the forms of a call of `backward`."""

from __future__ import annotations

import ast
import re

from gpusync_lint.syntax.names import dotted_path

LOADER_NAMES = ("loader", "batches", "dataiter", "data_iter", "dl")
"""Endings of the names of data loaders, in lower case."""
BACKWARD = ("backward", "manual_backward")
"""Methods that run the backward pass."""
_TEST_FILE = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")
_ENGINES = ("accelerator", "fabric", "engine", "strategy")
"""Endings of the names of objects that run the backward pass of the loss that they are passed."""


def backward_of(node: ast.Call) -> ast.expr:
    """The expression that a call of `backward` differentiates: `loss` in each of these forms.

    `loss.backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)`, `self.manual_backward(loss)`.
    """
    func = node.func
    assert isinstance(func, ast.Attribute)
    receiver = func.value
    if node.args:
        is_engine = (dotted_path(receiver) or "").rpartition(".")[2].endswith(_ENGINES)
        if is_engine or func.attr == "manual_backward":
            return node.args[0]
    if isinstance(receiver, ast.Call) and receiver.args and getattr(receiver.func, "attr", "") == "scale":
        return receiver.args[0]
    return receiver


def is_mask_name(name: str) -> bool:
    """Whether an attribute is a mask by its name: `batch.attention_mask`."""
    return name == "mask" or name.endswith("_mask")


def is_test_path(path: str) -> bool:
    """Whether a file contains tests, by the file names that pytest collects."""
    return _TEST_FILE.search(path) is not None
