"""The loops of a function that generate tokens, denoise or serve, with what each of them repeats."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain import serving_loops
from gpusync_lint.model.units import Unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusync_lint.domain.serving_loops import Loop
    from gpusync_lint.project.symbols import FunctionDef


def unit_loops(fn: FunctionDef) -> Mapping[Loop, Unit]:
    """The loops of a function that are recognized by their form."""
    if not any(serving_loops.words_of_file(fn.file.text)):
        return {}
    node = fn.node
    return serving_loops.units(node.body, fn.file.source_of(node), is_async=isinstance(node, ast.AsyncFunctionDef))


def shows_steps(fn: FunctionDef, unit: Unit) -> bool:
    """Whether the form of a loop alone shows that it is a loop of steps.

    A loop of a thread that takes work from a queue may as well copy, log or write files, and is the place for waits.
    """
    return unit is not Unit.REQUEST or isinstance(fn.node, ast.AsyncFunctionDef)
