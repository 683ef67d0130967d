"""Fixes that accumulate on the device and read once: `total += loss.item()`, `losses.append(loss.item())`.

The sum or list is needed on the host where the source uses it: after the loop, and in guarded blocks
(`if step % 100 == 0`). The fix inserts a statement before these uses that reads it, so that they get the same Python
numbers as before. There is no fix if every step or another scope uses it, or if its initial value is not known to be a
number or an empty list.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusync_lint.domain.values import Kind
from gpusync_lint.model.operations import InsertAfter, InsertBefore, RenameCalled, ReplaceExpression, Template
from gpusync_lint.rules.base.blocks import LOOPS, around
from gpusync_lint.rules.fixes.number_types import number_of
from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.model.findings import Fix
    from gpusync_lint.model.operations import Operation
    from gpusync_lint.rules.base.context import RuleContext

Path = list[tuple[list[ast.stmt], int]]
"""The blocks around a statement, outermost first, each with the index of the statement in it or around it."""

_SUM_HAZARD = "The sum is rounded to the dtype of the tensor. Errors on the device are raised later."
_LIST_HAZARD = (
    "One small tensor per step stays on the device until the list is read. Errors on the device are raised later."
)
_HALF = re.compile(r"bfloat16|float16|\.half\(|autocast|\bamp\b")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_CHANGES = ("step", "replay")


@dataclass(frozen=True, slots=True)
class _Kept:
    """The sum or list that a statement adds a number to."""

    name: ast.Name
    listed: bool
    """Whether it is a list, and not a sum."""
    plain: bool
    """Whether the number is added without a factor."""
    divided: bool


def defer(call: ast.Call, read: ast.expr, context: RuleContext) -> Fix | None:
    """The fix for a call of `.item()` or `float()` whose number is added to a sum or a list; None if there is none."""
    value = context.value(read)
    statement = context.statement
    kept = _kept(statement, call, context)
    method = isinstance(call.func, ast.Attribute)
    if kept is None or value.kind is not Kind.TENSOR:
        return None
    if (call.args or call.keywords) if method else (kept.listed or not _primary(read)):
        return None
    plan = _Plan(kept, call, read, context)
    if not value.certain and plan.kind is None:
        return None
    settle = plan.settle()
    if settle is None:
        return None
    operations = (plan.keep(), *settle)
    if kept.listed:
        return context.fix("Collect on the device and read once", *operations, hazard=_LIST_HAZARD)
    title = "Add up on the device and read once" if settle else "Add up on the device"
    return context.fix(title, *operations, hazard=_SUM_HAZARD)


def _kept(statement: ast.stmt, call: ast.Call, context: RuleContext) -> _Kept | None:
    """The sum or list to which a statement adds the number that a call returns; None for other statements."""
    extended = _extended(statement, call)
    if extended is not None:
        return _Kept(extended, listed=True, plain=True, divided=False)
    target, added = _summand(statement)
    if target is None or added is None or context.value(target).kind is not Kind.HOST:
        return None
    if not _scaled(added, call, context):
        return None
    is_divided = any(isinstance(node, ast.Div) for node in ast.walk(added))
    return _Kept(target, listed=False, plain=added is call, divided=is_divided)


def _extended(statement: ast.stmt, call: ast.Call) -> ast.Name | None:
    """The list of `losses.append(call)` and `losses += [call]`; None for other statements."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        append, func = statement.value, statement.value.func
        if isinstance(func, ast.Attribute) and func.attr == "append" and isinstance(func.value, ast.Name):
            return func.value if append.args == [call] and not append.keywords else None
    elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        added = statement.value
        if isinstance(statement.target, ast.Name) and isinstance(added, ast.List) and added.elts == [call]:
            return statement.target
    return None


def _summand(statement: ast.stmt) -> tuple[ast.Name | None, ast.expr | None]:
    """The name and the summand of `total += x`, `total = total + x` and `total = x + total`."""
    if isinstance(statement, ast.AugAssign):
        is_sum = isinstance(statement.target, ast.Name) and isinstance(statement.op, ast.Add)
        return (statement.target, statement.value) if is_sum else (None, None)  # type: ignore[return-value]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None, None
    target, whole = statement.targets[0], statement.value
    if not isinstance(target, ast.Name) or not isinstance(whole, ast.BinOp) or not isinstance(whole.op, ast.Add):
        return None, None
    for operand, other in ((whole.left, whole.right), (whole.right, whole.left)):
        if isinstance(operand, ast.Name) and operand.id == target.id:
            return target, other
    return None, None


def _primary(node: ast.expr) -> bool:
    """Whether an expression needs no parentheses before `.detach()`."""
    return isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))


def _scaled(node: ast.expr, call: ast.Call, context: RuleContext) -> bool:
    """Whether an expression is the call, possibly multiplied or divided by host numbers."""
    if node is call:
        return True
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Mult, ast.Div)):
        return False
    if _number(node.right, context):
        return _scaled(node.left, call, context)
    return isinstance(node.op, ast.Mult) and _number(node.left, context) and _scaled(node.right, call, context)


def _number(node: ast.expr, context: RuleContext) -> bool:
    reads = any(isinstance(one, ast.Attribute) and one.attr == "item" for one in ast.walk(node))
    return context.value(node).kind is Kind.HOST and not reads


class _Plan:
    """Finds where a sum or list is initialized, and where it has to be read."""

    def __init__(self, kept: _Kept, call: ast.Call, read: ast.expr, context: RuleContext) -> None:
        self._kept = kept
        self._context = context
        self._label = kept.name.id
        self._fn = context.function
        self._statement = context.statement
        self._path: Path = around(self._fn, self._statement)
        self._at = -1
        """The level, in the path of the statement, of the outermost loop in which only the statement uses the name."""
        self._call = call
        self._read = read
        self.kind = number_of(read, self._fn, context) if isinstance(call.func, ast.Attribute) else float
        """The type of the number that is read; None if it is unknown."""
        self._uses: list[tuple[Path, ast.Name]] = []

    def keep(self) -> Operation:
        """The operation that makes the statement add the tensor instead of the number."""
        widen = not self._kept.listed and self.kind is float and _HALF.search(self._context.file.text)
        func = self._read.func if isinstance(self._read, ast.Call) else None
        detached = isinstance(func, ast.Attribute) and func.attr == "detach"
        span = self._context.span(self._call)
        if not detached and not widen and isinstance(self._call.func, ast.Attribute):
            return RenameCalled(span, "detach")
        kept = f"{{}}{'' if detached else '.detach()'}{'.float()' if widen else ''}"
        return ReplaceExpression(span, self._context.template(kept, self._read))

    def settle(self) -> list[Operation] | None:
        """The statements to insert; None if the fix would not be correct."""
        uses = _uses(self._fn.node.body, self._label)
        loops = [place for place, (block, at) in enumerate(self._path) if isinstance(block[at], LOOPS)]
        if uses is None or not loops or self._path[-1][0][self._path[-1][1]] is not self._statement:
            return None
        self._uses = [use for use in uses if use[0][-1][0][use[0][-1][1]] is not self._statement]
        if len(uses) - len(self._uses) != (2 if isinstance(self._statement, ast.Assign) else 1):
            return None
        if self._in_orelse(self._path, loops[-1]):
            return None
        self._at = self._climb(loops)
        start = self._start()
        if start is None or (self._kept.listed and not self._may_be_collected()):
            return None
        form = self._form(start)
        return None if form is None else self._insertions(form)

    def _climb(self, loops: list[int]) -> int:
        at = loops[-1]
        for outer in reversed(loops[:-1]):
            if any(_inside(path, self._path, outer) and not _inside(path, self._path, at) for path, _ in self._uses):
                break
            at = outer
        return at

    def _in_orelse(self, path: Path, at: int) -> bool:
        block, place = self._path[at]
        return len(path) > at + 1 and path[at + 1][0] is getattr(block[place], "orelse", None)

    def _start(self) -> ast.expr | None:
        """The literal that the name is bound to before the loop; None if its value is not certain."""
        for level in range(self._at, -1, -1):
            block, place = self._path[level]
            for statement in reversed(block[:place]):
                if any(_is_store(node, self._label) for node in walk_block([statement])):
                    value = _bound_to(statement, self._label)
                    return value if value is not None and self._begins(value) else None
                if self._kept.listed and any(_names(node, self._label) for node in ast.walk(statement)):
                    return None
            if self._kept.listed:
                return None
        return None

    def _begins(self, value: ast.expr) -> bool:
        if self._kept.listed:
            return isinstance(value, ast.List) and not value.elts
        return isinstance(value, ast.Constant) and type(value.value) in (int, float)

    def _form(self, start: ast.expr) -> str | None:
        """The expression that converts the tensor, or the list of tensors, to the original numbers."""
        label = self._label
        torch = self._context.file.imports.get("torch") == "torch"
        if self._kept.listed:
            return f"torch.stack({label}).tolist() if {label} else []" if torch else None
        floats = isinstance(start, ast.Constant) and type(start.value) is float
        if floats or self.kind is float or self._kept.divided:
            return f"float({label})"
        if self._kept.plain and self.kind in (int, bool) and self._only_fresh():
            return f"int({label})"
        return f"torch.as_tensor({label}).item()" if torch else None

    def _only_fresh(self) -> bool:
        """Whether only the statement and integer literals bind the name."""
        stores = [path for path, name in self._uses if not isinstance(name.ctx, ast.Load)]
        values = [_bound_to(path[-1][0][path[-1][1]], self._label) for path in stores]
        return all(isinstance(value, ast.Constant) and type(value.value) is int for value in values)

    def _may_be_collected(self) -> bool:
        """Whether the tensors can be kept: each is 0-dimensional, owns its memory, and is not changed later."""
        if self._context.value(self._read).zero_dim is not True:
            return False
        if isinstance(self._read, ast.Call):
            return True
        if not isinstance(self._read, ast.Name):
            return False
        label, made = self._read.id, False
        block, place = self._path[self._at]
        for node in walk_block([block[place]]):
            if isinstance(node, ast.Assign) and _bound_to(node, label) is not None:
                made = True
                if not isinstance(node.value, (ast.Call, ast.BinOp)):
                    return False
            if isinstance(node, ast.AugAssign) and _names(node.target, label):
                return False
            if isinstance(node, ast.Attribute) and node.attr.endswith("_") and _names(node.value, label):
                return False
        return made

    def _insertions(self, form: str) -> list[Operation] | None:
        anchors: dict[int, ast.stmt] = {}
        after = False
        for path, name in self._uses:
            if not _inside(path, self._path, self._at):
                runs_later = self._runs_after_loop(path)
                if runs_later and self._in_handler(path):
                    return None
                after = after or (runs_later and isinstance(name.ctx, ast.Load))
            elif not self._counts(name, path) and not self._add_anchor(anchors, path, name):
                return None
        reading = Template(f"{self._label} = {form}")
        operations: list[Operation] = [InsertBefore(self._context.span(one), reading) for one in anchors.values()]
        if after:
            block, place = self._path[self._at]
            operations.append(InsertAfter(self._context.span(block[place]), reading))
        return operations

    def _runs_after_loop(self, path: Path) -> bool:
        """Whether a statement outside of the loop runs after it: below it, or in a loop around both."""
        block, place = self._path[self._at]
        return path[-1][0][path[-1][1]].lineno > block[place].lineno or any(
            isinstance(outer[index], LOOPS) and _inside(path, self._path, level)
            for level, (outer, index) in enumerate(self._path[: self._at])
        )

    def _add_anchor(self, anchors: dict[int, ast.stmt], path: Path, name: ast.Name) -> bool:
        """Add the statement before which a use in the loop needs the value. Returns whether the fix is possible."""
        anchor = None if self._kept.listed else self._anchor(path)
        if anchor is None:
            return isinstance(name.ctx, ast.Store) and self._is_fresh(path)
        if isinstance(name.ctx, ast.Load):
            block, place = path[anchor]
            first = anchors.get(id(block))
            if first is None or first.lineno > block[place].lineno:
                anchors[id(block)] = block[place]
        return True

    def _counts(self, name: ast.Name, path: Path) -> bool:
        """Whether a use reads only the length of the list."""
        statement = path[-1][0][path[-1][1]]
        return self._kept.listed and any(
            isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len" and node.args == [name]
            for node in ast.walk(statement)
        )

    def _anchor(self, path: Path) -> int | None:
        """The level in a path of the outermost statement in the loop that does not run in every step, if any."""
        if self._in_orelse(path, self._at):
            return None
        hot = self._context.heat(self._fn, self._statement).rank
        for level in range(self._at + 1, len(path)):
            block, place = path[level]
            if self._context.heat(self._fn, block[place]).rank > hot:
                inside = any(other is block and at == place for other, at in self._path)
                return None if inside else level
        return None

    def _is_fresh(self, path: Path) -> bool:
        """Whether the statement at the end of a path resets the sum or list."""
        value = _bound_to(path[-1][0][path[-1][1]], self._label)
        return value is not None and self._begins(value)

    def _in_handler(self, path: Path) -> bool:
        """Whether an exception in the loop may lead to a use without the statement after the loop being run."""
        for level, (block, place) in enumerate(self._path[: self._at]):
            statement = block[place]
            if not hasattr(statement, "handlers") or not _inside(path, self._path, level) or len(path) == level + 1:
                continue
            if not any(path[level + 1][0] is getattr(statement, name) for name in ("body", "orelse")):
                return True
        return False


def _uses(body: list[ast.stmt], label: str) -> list[tuple[Path, ast.Name]] | None:
    """The uses of a local name, each with the path of its statement; None if another scope uses the name too."""
    found: list[tuple[Path, ast.Name]] = []
    stack: list[Path] = [[(body, place)] for place in range(len(body))]
    while stack:
        path = stack.pop()
        block, place = path[-1]
        statement = block[place]
        if isinstance(statement, (ast.Global, ast.Nonlocal)) and label in statement.names:
            return None
        for node in _header(statement):
            if isinstance(node, _SCOPES):
                if _reaches(node, label):
                    return None
            elif _names(node, label):
                found.append((path, node))  # type: ignore[arg-type]
        if not isinstance(statement, _SCOPES):
            for inner in blocks(statement):
                stack.extend([*path, (inner, at)] for at in range(len(inner)))
    return found


def _header(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement, without those in its blocks and in nested scopes."""
    if isinstance(statement, _SCOPES):
        yield statement
        return
    stack = [
        child
        for child in ast.iter_child_nodes(statement)
        if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
    ]
    for case in getattr(statement, "cases", ()):
        stack += [case.pattern, *([case.guard] if case.guard is not None else [])]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _SCOPES):
            stack.extend(ast.iter_child_nodes(node))


def _reaches(scope: ast.AST, label: str) -> bool:
    """Whether a nested scope uses the name of the outer scope, and not a local name of its own."""
    nodes = list(ast.walk(scope))
    if not any(_names(node, label) for node in nodes):
        return False
    if any(isinstance(node, (ast.Global, ast.Nonlocal)) and label in node.names for node in nodes):
        return True
    if any(isinstance(node, ast.arg) and node.arg == label for node in nodes):
        return False
    return not any(_is_store(node, label) for node in nodes) or isinstance(scope, ast.ClassDef)


def _inside(path: Path, other: Path, level: int) -> bool:
    """Whether two paths contain the same statement at a level."""
    return len(path) > level and path[level][0] is other[level][0] and path[level][1] == other[level][1]


def _names(node: ast.AST, label: str) -> bool:
    return isinstance(node, ast.Name) and node.id == label


def _is_store(node: ast.AST, label: str) -> bool:
    return isinstance(node, ast.Name) and node.id == label and isinstance(node.ctx, (ast.Store, ast.Del))


def _bound_to(statement: ast.stmt, label: str) -> ast.expr | None:
    """The value that an assignment binds a name to: `a = 0`, `a = b = 0`, `a, b = 0, 0`; None for others."""
    if isinstance(statement, ast.AnnAssign):
        return statement.value if _names(statement.target, label) else None
    if not isinstance(statement, ast.Assign):
        return None
    for target in statement.targets:
        if _names(target, label):
            return statement.value
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            for element, value in zip(target.elts, statement.value.elts, strict=False):
                if _names(element, label):
                    return value
    return None
