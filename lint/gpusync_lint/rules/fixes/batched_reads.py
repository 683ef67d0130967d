"""Several `.item()` calls in a block: the first report recommends to read all with one wait, and each has the fix."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from gpusync_lint.model.operations import (
    InsertAfter,
    InsertBefore,
    RenameCalled,
    ReplaceExpression,
    ReplaceStatements,
    Template,
)
from gpusync_lint.model.spans import Span
from gpusync_lint.rules.base.blocks import around, bound_names
from gpusync_lint.rules.fixes.number_types import number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusync_lint.model.findings import Fix
    from gpusync_lint.model.operations import Operation
    from gpusync_lint.rules.base.context import Report, RuleContext
    from gpusync_lint.rules.base.occurrences import Occurrence

Found = list[tuple["Occurrence", "Report"]]
_Read = tuple[int, int]
"""The index of a statement in its block, and the index of its report."""

_AT_MOST = 8
_WIDEST = 100
"""The maximum length of a line, in columns, that a fix creates."""
_TITLE = "Read them with one wait"
_HAZARD = "The tensors must be on one device. The numbers are available only after the last read."
_COMBINED = "Compute on the device and read the result"
_ROUNDS = "The result is rounded to the dtype of the tensors. A division by zero returns inf or nan instead of raising."
_CHANGES = frozenset({"step", "replay"})
"""Methods that change tensors which are not among their arguments: `step` of an optimizer, `replay` of a CUDA graph."""


def merge_reads(found: Found, context: RuleContext) -> None:
    """Find reads that can be merged into one: put that in the remedy of the first, and attach the fix to all.

    Reads can be merged if all tensors exist before the first read: no statement in between binds a name that a later
    read uses.
    """
    blocks: dict[int, list[_Read]] = {}
    for number, (site, report) in enumerate(found):
        if (
            report.barrier == "item"
            and not site.repeated
            and isinstance(site.statement, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return))
        ):
            holders = around(site.fn, site.statement)
            if holders:
                block, place = holders[-1]
                blocks.setdefault(id(block), []).append((place, number))
    for reads in blocks.values():
        context.occurrence = found[reads[0][1]][0]
        reads.sort(key=lambda read: (read[0], found[read[1]][1].node.lineno, found[read[1]][1].node.col_offset))
        _advise(reads, found)
        _stack_statements(reads, found, context)
        _stack_displays(reads, found, context)
        _combine_operands(reads, found, context)
        _stack_expressions(reads, found, context)


def _advise(reads: list[_Read], found: Found) -> None:
    while len(reads) > 1:
        first = reads[0]
        site, report = found[first[1]]
        block = around(site.fn, site.statement)[-1][0]
        together = [first]
        for read in reads[1:]:
            bound: set[str] = set()
            for statement in block[first[0] : read[0]]:
                bound |= bound_names(statement)
            mark = found[read[1]][1].node
            names = {node.id for node in ast.walk(mark) if isinstance(node, ast.Name)}
            if bound & names or read[0] - first[0] > _AT_MOST:
                break
            together.append(read)
        if len(together) > 1:
            # No line numbers, since they would be wrong for a cell of a notebook.
            one_line = found[together[-1][1]][1].node.lineno == report.node.lineno
            place = "on this line" if one_line else "in this block, starting with this one,"
            remedy = (
                f"Keep the values on the device, or read the {len(together)} values {place} with one wait: "
                f"`torch.stack([...]).tolist()`"
            )
            found[first[1]] = (site, replace(report, remedy=remedy))
        reads = reads[len(together) :]


def _stack_statements(reads: list[_Read], found: Found, context: RuleContext) -> None:
    """`a = x.item()` and later `b = y.item()`: keep both on the device, and read them after the last statement."""
    wanted = [read for read in reads if _assigned(found[read[1]]) is not None and _scalar(found[read[1]], context)]
    start = 0
    while len(wanted) - start > 1:
        site = found[wanted[start][1]][0]
        group = _Group(around(site.fn, site.statement)[-1][0], found)
        kind = _kind(found[wanted[start][1]], context)
        for read in wanted[start:]:
            if kind is None or _kind(found[read[1]], context) is not kind or not group.add(read):
                break
        together = group.reads or [wanted[start]]
        if len(together) > 1:
            fix = _at_once(together, found, context) or _after_the_last(together, found, context)
            _give(together, found, fix)
        start += len(together)


def _stack_displays(reads: list[_Read], found: Found, context: RuleContext) -> None:
    """`a, b = x.item(), y.item()`, `return x.item(), y.item()`, `[x.item(), y.item()]`."""
    by_node = {found[number][1].node: number for _, number in reads}
    for statement in _statements(reads, found):
        for node in ast.walk(statement):
            if not isinstance(node, (ast.Tuple, ast.List)) or len(node.elts) < 2:
                continue
            numbers = [by_node[element] for element in node.elts if element in by_node]
            if len(numbers) < len(node.elts) or not _can_be_stacked(numbers, found, context):
                continue
            is_unpacked = isinstance(statement, ast.Assign) and statement.value is node and _unpacks(statement)
            stacked = _stacked(numbers, found, context)
            if isinstance(node, ast.Tuple) and not is_unpacked:
                stacked = replace(stacked, text=f"tuple({stacked.text})")
            group = [(0, number) for number in numbers]
            operations = [ReplaceExpression(context.span(node), stacked)]
            _give(group, found, _fix(group, found, context, _TITLE, operations, _HAZARD))


def _statements(reads: list[_Read], found: Found) -> list[ast.stmt]:
    return list(dict.fromkeys(found[number][0].statement for _, number in reads))


def _can_be_stacked(numbers: list[int], found: Found, context: RuleContext) -> bool:
    """Whether the reads have no fix, and their tensors are 0-dimensional and of one type of number."""
    kinds = {_kind(found[number], context) if _scalar(found[number], context) else None for number in numbers}
    return len(kinds) == 1 and None not in kinds


def _stacked(numbers: list[int], found: Found, context: RuleContext) -> Template:
    """An expression that reads several tensors with one wait."""
    receivers = [receiver for number in numbers if (receiver := _receiver(found[number])) is not None]
    return context.template(f"torch.stack([{', '.join('{}' for _ in receivers)}]).tolist()", *receivers)


def _combine_operands(reads: list[_Read], found: Found, context: RuleContext) -> None:
    """`x.item() / y.item()` to `(x / y).item()`: compute on the device and read one number."""
    by_node = {found[number][1].node: number for _, number in reads}
    for statement in _statements(reads, found):
        for node in ast.walk(statement):
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
                continue
            numbers = [by_node[operand] for operand in (node.left, node.right) if operand in by_node]
            if len(numbers) == 2 and node.left.lineno == node.right.end_lineno:
                _combine(node, numbers, found, context)


def _combine(node: ast.BinOp, numbers: list[int], found: Found, context: RuleContext) -> None:
    kinds = {_kind(found[number], context) for number in numbers}
    if len(kinds) > 1 or None in kinds or any(found[number][1].fix is not None for number in numbers):
        return
    operations: list[Operation] = [ReplaceExpression(context.span(node), context.template("({}).item()", node))]
    for number in numbers:
        receiver = _receiver(found[number])
        if receiver is not None:
            span = context.span(found[number][1].node)
            operations.append(ReplaceExpression(span, context.template("{}", receiver)))
    both = [(0, number) for number in numbers]
    _give(both, found, _fix(both, found, context, _COMBINED, operations, _ROUNDS))


def _stack_expressions(reads: list[_Read], found: Found, context: RuleContext) -> None:
    """`print(x.item(), y.item())`: insert a statement that reads both tensors into new names."""
    by_statement: dict[ast.stmt, list[int]] = {}
    for _, number in reads:
        if found[number][1].fix is None:
            by_statement.setdefault(found[number][0].statement, []).append(number)
    for statement, numbers in by_statement.items():
        names = _names_of_receivers(numbers, statement, found) if len(numbers) > 1 else []
        if not names or not _can_be_stacked(numbers, found, context):
            continue
        fresh = [f"{name}_value" for name in names]
        if not context.file.names.isdisjoint(fresh):
            continue
        stacked = f"torch.stack([{', '.join(names)}]).tolist()"
        operations: list[Operation] = [
            InsertBefore(context.span(statement), Template(f"{', '.join(fresh)} = {stacked}")),
            *(
                ReplaceExpression(context.span(found[number][1].node), Template(name))
                for number, name in zip(numbers, fresh, strict=True)
            ),
        ]
        together = [(0, number) for number in numbers]
        _give(together, found, _fix(together, found, context, _TITLE, operations, _HAZARD))


def _names_of_receivers(numbers: list[int], statement: ast.stmt, found: Found) -> list[str]:
    """The names of the tensors, if all have different ones and are read every time the statement runs; else none."""
    always = _always(statement)
    names = []
    for number in numbers:
        receiver = _receiver(found[number])
        if not isinstance(receiver, ast.Name) or found[number][1].node not in always:
            return []
        names.append(receiver.id)
    return names if len(set(names)) == len(names) else []


def _always(statement: ast.stmt) -> set[ast.AST]:
    """The expressions that are evaluated every time the statement runs."""
    found: set[ast.AST] = set()
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        found.add(node)
        if isinstance(node, (ast.BoolOp, ast.IfExp)):
            stack.append(node.values[0] if isinstance(node, ast.BoolOp) else node.test)
        elif not isinstance(
            node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr)
        ):
            stack.extend(ast.iter_child_nodes(node))
    return found


def _fix(
    reads: list[_Read], found: Found, context: RuleContext, title: str, operations: Sequence[Operation], hazard: str
) -> Fix | None:
    return context.fix_of([found[number][0] for _, number in reads], title, operations, hazard=hazard)


def _give(reads: list[_Read], found: Found, fix: Fix | None) -> None:
    if fix is None:
        return
    for _, number in reads:
        site, report = found[number]
        found[number] = (site, replace(report, fix=fix))


def _assigned(one: tuple[Occurrence, Report]) -> str | None:
    """The name that the number is assigned to, if the statement does nothing else."""
    statement, mark = one[0].statement, one[1].node
    if not isinstance(statement, ast.Assign) or statement.value is not mark or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    return target.id if isinstance(target, ast.Name) else None


def _receiver(one: tuple[Occurrence, Report]) -> ast.expr | None:
    mark = one[1].node
    if not isinstance(mark, ast.Call) or not isinstance(mark.func, ast.Attribute) or mark.args or mark.keywords:
        return None
    return mark.func.value


def _scalar(one: tuple[Occurrence, Report], context: RuleContext) -> bool:
    """Whether the tensor is 0-dimensional, and `torch` is imported under its own name."""
    receiver = _receiver(one)
    named = context.file.imports.get("torch") == "torch"
    return one[1].fix is None and receiver is not None and context.value(receiver).zero_dim is True and named


def _kind(one: tuple[Occurrence, Report], context: RuleContext) -> type | None:
    """`float` or `int`, the types that `torch.stack` preserves; None for booleans and unknown types."""
    receiver = _receiver(one)
    kind = number_of(receiver, one[0].fn, context) if receiver is not None else None
    return kind if kind in (float, int) else None


class _Group:
    """Reads of a block that may all be made after the last one: no statement in between uses or changes a tensor."""

    def __init__(self, block: list[ast.stmt], found: Found) -> None:
        self.reads: list[_Read] = []
        self._block = block
        self._found = found
        self._own: set[str | None] = set()
        """The names that the numbers are assigned to."""
        self._watched: set[str] = set()
        """The names in the expressions of the tensors, except those that are computed by a call."""
        self._is_watching = False

    def add(self, read: _Read) -> bool:
        """Add the next read of the block, if possible."""
        place, number = read
        own = _assigned(self._found[number])
        if own in self._own or (self.reads and not self._may_pass(self._block[self.reads[-1][0] + 1 : place + 1])):
            return False
        self.reads.append(read)
        self._own.add(own)
        receiver = _receiver(self._found[number])
        if not isinstance(receiver, ast.Call):
            self._is_watching = True
            self._watched |= set() if receiver is None else _names(receiver)
        return True

    def _may_pass(self, statements: list[ast.stmt]) -> bool:
        """Whether the reads may be made after these statements."""
        for statement in statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and node.id in self._own:
                    return False
                if isinstance(node, (ast.Return, ast.Break, ast.Continue, ast.Raise, ast.Yield, ast.Await)):
                    return False
                if self._is_watching and _changes(node, self._watched):
                    return False
        return True


def _changes(node: ast.AST, names: set[str]) -> bool:
    """Whether a node may change the value of one of these names in place."""
    if isinstance(node, ast.AugAssign):
        return any(isinstance(one, ast.Name) and one.id in names for one in ast.walk(node.target))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    root = node.func.value
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    in_place = node.func.attr.endswith("_") and isinstance(root, ast.Name) and root.id in names
    return in_place or node.func.attr in _CHANGES


def _at_once(group: list[_Read], found: Found, context: RuleContext) -> Fix | None:
    """Replace consecutive statements by one: `a, b = torch.stack([x, y]).tolist()`."""
    statements = [found[number][0].statement for _, number in group]
    if [place for place, _ in group] != list(range(group[0][0], group[0][0] + len(group))):
        return None
    bound: set[str] = set()
    for one, other in pairwise(statements):
        bound |= bound_names(one)
        if other.lineno != (one.end_lineno or one.lineno) + 1 or bound & _names(other):
            return None
    names = ", ".join(str(_assigned(found[number])) for _, number in group)
    stacked = _stacked([number for _, number in group], found, context)
    reading = replace(stacked, text=f"{names} = {stacked.text}")
    first, last = context.span(statements[0]), context.span(statements[-1])
    length = context.layout.length(reading)
    if length is None or first.column + length > _WIDEST:
        return None
    return _fix(group, found, context, _TITLE, [ReplaceStatements(Span(*first[:2], *last[2:]), reading)], _HAZARD)


def _after_the_last(group: list[_Read], found: Found, context: RuleContext) -> Fix | None:
    """Replace each `.item()` by `.detach()`, and read all tensors in a statement after the last one."""
    names = ", ".join(str(_assigned(found[number])) for _, number in group)
    last = found[group[-1][1]][0].statement
    operations: list[Operation] = [
        *(RenameCalled(context.span(found[number][1].node), "detach") for _, number in group),
        InsertAfter(context.span(last), Template(f"{names} = torch.stack([{names}]).tolist()")),
    ]
    return _fix(group, found, context, _TITLE, operations, _HAZARD)


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _unpacks(statement: ast.Assign) -> bool:
    return all(isinstance(target, (ast.Tuple, ast.List)) for target in statement.targets)
