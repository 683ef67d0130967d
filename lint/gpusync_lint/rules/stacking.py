"""Several `.item()` in one block: advice to read them at once, told at the first of them."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from gpusync_lint.rules.places import around, bound_names

if TYPE_CHECKING:
    from gpusync_lint.pairing import Pair
    from gpusync_lint.rules.base import Report

Found = list[tuple["Pair", "Report"]]
_AT_MOST = 8


def merge_reads(found: Found) -> None:
    """Let the first of several reads that could be one say so, in its remedy.

    They can be one where all of the values exist before the first is read: no name that a later one reads from is
    bound by a statement in between.
    """
    blocks: dict[int, list[tuple[int, int]]] = {}
    for number, (pair, report) in enumerate(found):
        if (
            report.barrier == "item"
            and not pair.repeated
            and isinstance(pair.statement, (ast.Assign, ast.AugAssign, ast.Expr))
        ):
            holders = around(pair.fn, pair.statement)
            if holders:
                block, place = holders[-1]
                blocks.setdefault(id(block), []).append((place, number))
    for reads in blocks.values():
        reads.sort(key=lambda read: (read[0], found[read[1]][1].mark.lineno, found[read[1]][1].mark.col_offset))
        _merge(reads, found)


def _merge(reads: list[tuple[int, int]], found: Found) -> None:
    while len(reads) > 1:
        first = reads[0]
        pair, report = found[first[1]]
        block = around(pair.fn, pair.statement)[-1][0]
        together = [first]
        for read in reads[1:]:
            bound: set[str] = set()
            for statement in block[first[0] : read[0]]:
                bound |= bound_names(statement)
            mark = found[read[1]][1].mark
            names = {node.id for node in ast.walk(mark) if isinstance(node, ast.Name)}
            if bound & names or read[0] - first[0] > _AT_MOST:
                break
            together.append(read)
        if len(together) > 1:
            last = found[together[-1][1]][1].mark.lineno
            lines = f"up to line {last}" if last != report.mark.lineno else "on this line"
            remedy = (
                f"Keep the values on the device, or read the {len(together)} {lines} with one wait: "
                f"`torch.stack([...]).tolist()`"
            )
            found[first[1]] = (pair, replace(report, remedy=remedy))
        reads = reads[len(together) :]
