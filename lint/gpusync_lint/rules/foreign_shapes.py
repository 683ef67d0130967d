"""Barriers of other frameworks that a name alone does not tell: Numba's kernels and MXNet's second wait."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gpusync_lint import catalogue
from gpusync_lint.model import Confidence
from gpusync_lint.rules.base import Look, Report, Rule
from gpusync_lint.rules.places import LOOPS, around, walk
from gpusync_lint.values import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator


class HostArgument(Rule):
    """A Numba kernel called with a numpy array."""

    nodes = (cst.Call,)
    barriers = ("numba.host-argument",)
    VALID: ClassVar = ("print(np.ones(3))",)
    INVALID: ClassVar = ()

    def check(self, node: cst.Call, look: Look) -> Iterator[Report]:
        """Look at a call."""
        called = look.value(node.func)
        if called.kind is not Kind.FOREIGN or called.ref != "numba.launch":
            return
        for arg in node.args:
            if look.value(arg.value).kind is Kind.ARRAY and look.value(arg.value).sure:
                yield Report("numba.host-argument", look.twin(arg.value), Confidence.MEDIUM)
                return


class SecondWait(Rule):
    """A second wait of MXNet in one turn of a loop: the first bounds the queue, as its documentation asks."""

    nodes = (cst.Call,)
    barriers = ("mxnet.second-wait",)
    VALID: ClassVar = ("x.wait_to_read()",)
    INVALID: ClassVar = ()

    def check(self, node: cst.Call, look: Look) -> Iterator[Report]:
        """Look at a call."""
        twin = look.twin(node)
        if not _is_wait(twin, look):
            return
        holders = around(look.pair.fn, look.pair.statement)
        loops = [block[place] for block, place in holders if isinstance(block[place], LOOPS)]
        if not loops:
            return
        place = (twin.lineno, twin.col_offset)
        waits = (other for other in walk(loops[-1].body) if _is_wait(other, look))  # type: ignore[attr-defined]
        if any((other.lineno, other.col_offset) < place for other in waits):  # type: ignore[attr-defined]
            yield Report("mxnet.second-wait", twin, Confidence.MEDIUM)


def _is_wait(node: ast.AST, look: Look) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    barrier = catalogue.all_barriers()["mxnet.second-wait"]
    called, receiver = look.value_of(node.func), look.value_of(node.func.value)
    if called.kind is Kind.NAME:
        return called.ref in barrier.functions
    return node.func.attr in barrier.methods and receiver.kind is Kind.FOREIGN and receiver.ref == "mxnet.array"
