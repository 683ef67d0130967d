"""Memoization: lazy initialization, and functions that return a value that they have stored."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Mapping, Set
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEVICE_METHODS = frozenset({"to", "cuda", "cpu", "type_as"})
_MEMOIZING_DECORATOR = re.compile(r"lru_cache|memoi[sz]e|^cached?$|^cached_")
_ADDING_METHODS = frozenset({"add", "append", "setdefault", "update"})
Methods = Mapping[str, "list[ast.stmt]"]
"""The bodies of a class's methods by name."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def assigns_what_is_missing(
    statement: ast.If, methods: Methods, before: list[ast.stmt], shared: Set[str] = frozenset()
) -> bool:
    """`if self.table is None: self.table = ...`: the block runs until it has assigned what its condition tests.

    Only values that outlive the call count: attributes, containers that are tested for a key, and `shared` names, which
    the function declares as global. `methods` are those of the class: the block may leave the assignment to one of
    them. `before` are the statements before the block: one may read what the condition tests, `hit = cache.get(key)`.
    """
    found = {_read_by(path, methods): how for path, how in _tested(statement.test, True).items()}
    kept = KeptNames(before).before(len(before)) if any("." not in path for path in found) else {}
    tested = {
        kept.get(path, path): {"key"} if path in kept else how
        for path, how in found.items()
        if "." in path or "key" in how or path in kept or path in shared
    }
    return bool(tested) and any(
        one.path in tested
        and (not one.adds_key or "key" in tested[one.path])
        and not _is_other_key(one, statement.test)
        for one in _assignments(statement.body, methods)
    )


def _is_other_key(assignment: Assignment, test: ast.expr) -> bool:
    """Whether a value is stored under a key made from the tested one: `if n not in table: table[f"{n}_{device}"] = x`.

    The test does not find it, so the block runs each time.
    """
    if assignment.key is None:
        return False
    stored = {ast.dump(node) for node in ast.walk(assignment.key)} - {ast.dump(assignment.key)}
    return any(
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.NotIn)
        and _path(node.comparators[0]) == assignment.path
        and ast.dump(node.left) in stored
        for node in ast.walk(test)
    )


def _read_by(path: str, methods: Methods) -> str:
    """The attribute that a property of the class returns: `self._index` for `self.index`; the path for any other."""
    owner, _, name = path.partition(".")
    body = methods.get(name, []) if owner == "self" else []
    if not body or not isinstance(body[-1], ast.Return) or not isinstance(body[-1].value, ast.Attribute):
        return path
    is_alone = all(isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) for one in body[:-1])
    return dotted_path(body[-1].value) or path if is_alone else path


def moves_what_was_kept(body: list[ast.stmt], index: int, methods: Methods) -> bool:
    """`self.table = self.table.to(x)`, after a block that creates the table if it is missing.

    Later calls find it moved. `index` is that of the move in its block.
    """
    statement = body[index]
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Attribute):
        return False
    value = statement.value
    if not isinstance(value, ast.Call) or getattr(value.func, "attr", "") not in _DEVICE_METHODS:
        return False
    path = dotted_path(statement.targets[0])
    if path is None or dotted_path(getattr(value.func, "value", value)) != path:
        return False
    before = body[:index]
    creating = [one for one in before if any(found.path == path for found in _assignments([one], {}))]
    return bool(creating) and all(
        isinstance(one, ast.If) and not one.orelse and assigns_what_is_missing(one, methods, before) for one in creating
    )


class Assignment(NamedTuple):
    """A dotted path that a statement assigns, or fills in place."""

    path: str
    value: ast.expr
    adds_key: bool
    """Whether it only adds a key to a container."""
    key: ast.expr | None = None
    """The key or index under which it stores the value; None if it binds the path itself."""


class Assignments:
    """The assignments in the statements of a block, collected once for all of its conditions."""

    def __init__(self, body: list[ast.stmt], methods: Methods) -> None:
        self._body = body
        self._methods = methods
        self._found: list[tuple[int, Assignment]] | None = None
        """Each with the index of its statement."""

    def after(self, index: int) -> Iterator[Assignment]:
        """Those in the statements after one of the block."""
        if self._found is None:
            numbered = enumerate(self._body)
            self._found = [(at, one) for at, statement in numbered for one in _assignments([statement], self._methods)]
        for number in range(bisect_right(self._found, index, key=lambda found: found[0]), len(self._found)):
            yield self._found[number][1]


class KeptNames:
    """The local names that the statements of a block read from containers: `hit = self.cache.get(key)`."""

    def __init__(self, body: list[ast.stmt]) -> None:
        self._body = body
        self._found: dict[str, str] = {}
        self._visited = 0

    def before(self, index: int) -> dict[str, str]:
        """The containers by the names, in the statements before one; each index must be at least the last one."""
        for statement in self._body[self._visited : index]:
            self._found.update(kept_names(statement))
        self._visited = index
        return self._found


def returns_what_was_kept(statement: ast.If, index: int, assignments: Assignments, kept_names: KeptNames) -> bool:
    """`if self.table is not None: return self.table`, where the rest of the block assigns `self.table`.

    `index` is that of the statement in its block; `assignments` and `kept_names` are those of the block.
    """
    if statement.orelse:
        return False
    returned, tests = _final_return(statement)
    if returned is None:
        return False
    kept = kept_names.before(index)
    tested: dict[str, set[str]] = {}
    for test in tests:
        for path, how in _tested(test, False).items():
            tested.setdefault(kept.get(path, path), set()).update({"key"} if path in kept else how)
    returned_paths = {kept.get(path, path) for path in _paths(returned.value)} if returned.value is not None else set()
    return any(
        _stores(assignment, tested.get(assignment.path, set()), assignment.path in returned_paths)
        for assignment in assignments.after(index)
    )


def _stores(assignment: Assignment, how: set[str], is_returned: bool) -> bool:
    """Whether an assignment stores the value that a block returns if its condition finds it.

    Args:
        assignment: the assignment.
        how: how the condition tests the path of the assignment, as in `_tested`.
        is_returned: whether the block returns the path.
    """
    is_attribute = "." in assignment.path
    if assignment.adds_key:
        how = how & {"key"}
    if "key" in how or (is_attribute and how - {"truth"}):
        return True
    # A parameter that is returned if it is large enough, or an attribute.
    if is_returned and ("compared" in how or (is_attribute and how)):
        return True
    # `if self.ready: return`, and at the end `self.ready = True`.
    return bool(how) and is_attribute and _is_true(assignment.value)


def kept_names(statement: ast.stmt) -> dict[str, str]:
    """Local names that a statement reads from a container or an attribute: `hit = self.cache.get(key)`."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return {}
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Name):
        return {}
    source: str | None = None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "get":
        source = dotted_path(value.func.value)
    elif isinstance(value, (ast.Attribute, ast.Call)):
        source = _path(value)
    return {target.id: source} if source else {}


def is_memoized(node: ast.AST) -> bool:
    """Whether a decorator keeps a function's results, so that it runs once for each set of arguments."""
    return any(map(_memoizes, getattr(node, "decorator_list", ())))


def memoized_methods(constructor: list[ast.stmt]) -> frozenset[str]:
    """The methods that a constructor replaces by memoized ones: `self.table = lru_cache(100)(self.table)`."""
    return frozenset(
        one.targets[0].attr
        for one in constructor
        if isinstance(one, ast.Assign)
        and isinstance(one.targets[0], ast.Attribute)
        and isinstance(one.value, ast.Call)
        and _memoizes(one.value.func)
        and [dotted_path(arg) for arg in one.value.args] == [dotted_path(one.targets[0])]
    )


def _memoizes(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return _is_memoizing(called.id if isinstance(called, ast.Name) else getattr(called, "attr", ""))


@lru_cache(maxsize=4096)
def _is_memoizing(label: str) -> bool:
    return _MEMOIZING_DECORATOR.search(label) is not None


def _tested(test: ast.expr, missing: bool, holds: bool = True) -> dict[str, set[str]]:
    """The paths that a condition finds missing (or present, if `missing` is False), and how it tests each.

    How: `truth`, `none`, `key` (whether a container holds a key) or `compared` (an attribute of it is compared). Of
    the operands of an `or`, only the paths that all of them test count.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _tested(test.operand, not missing, not holds)
    if isinstance(test, ast.Compare):
        return _compared(test, missing)
    if not isinstance(test, ast.BoolOp):
        path = _path(test)
        return {path: {"truth"}} if path is not None and not missing else {}
    parts = [_tested(operand, missing, holds) for operand in test.values]
    paths = set().union(*parts) if isinstance(test.op, ast.And) is holds else set(parts[0]).intersection(*parts[1:])
    return {path: set().union(*(part.get(path, set()) for part in parts)) for path in paths}


def _compared(test: ast.Compare, missing: bool) -> dict[str, set[str]]:
    operator, left, right = test.ops[0], test.left, test.comparators[0]
    if isinstance(operator, (ast.Is, ast.IsNot)):
        path = _path(left)
        return {path: {"none"}} if path is not None and isinstance(operator, ast.Is) is missing else {}
    if isinstance(operator, (ast.In, ast.NotIn)):
        path = _path(right)
        return {path: {"key"}} if path is not None and isinstance(operator, ast.NotIn) is missing else {}
    found: dict[str, set[str]] = {}
    for side in (left, right):
        for path in _paths(side):
            while path:
                found[path] = {"compared"}
                path = path.rpartition(".")[0]
    return found


def _path(node: ast.expr) -> str | None:
    """The dotted path of `self.table`, `getattr(self, "table", None)` or `(t := self.table)`."""
    if isinstance(node, ast.NamedExpr):
        return _path(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) >= 2:
        label = node.args[1]
        if node.func.id in ("getattr", "hasattr") and isinstance(label, ast.Constant) and isinstance(label.value, str):
            owner = dotted_path(node.args[0])
            return f"{owner}.{label.value}" if owner else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys":
        return dotted_path(node.func.value)
    return dotted_path(node)


def _paths(node: ast.AST) -> Iterator[str]:
    """The longest dotted paths in an expression."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        path = dotted_path(node)
        if path is not None:
            yield path
            return
    for child in ast.iter_child_nodes(node):
        yield from _paths(child)


def _assignments(body: list[ast.stmt], methods: Methods, inner: bool = True) -> Iterator[Assignment]:
    """The assignments in statements, and in the methods of the same object that they call unless `inner` is False."""
    for statement in body:
        if isinstance(statement, _SCOPES):
            continue
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            yield from _assigned(statement)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield from _assignments_by_call(statement.value, methods, inner)
        for block in blocks(statement):
            yield from _assignments(block, methods, inner)


def _assigned(statement: ast.Assign | ast.AnnAssign) -> Iterator[Assignment]:
    value = statement.value
    if value is None:
        return
    for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
        for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
            key = part.slice if isinstance(part, ast.Subscript) else None
            path = dotted_path(part.value if isinstance(part, ast.Subscript) else part)
            if path is not None and (key is not None or not _updates(path, value)):
                yield Assignment(path, value, False, key)


def _assignments_by_call(call: ast.Call, methods: Methods, inner: bool) -> Iterator[Assignment]:
    func = call.func
    if not isinstance(func, ast.Attribute):
        return
    owner = dotted_path(func.value)
    if not owner:
        return
    method = methods.get(func.attr) if inner and owner == "self" else None
    if method is not None:
        yield from _assignments(method, methods, False)
    elif func.attr in ("register_buffer", "__setattr__") and call.args:
        label = call.args[0]
        if isinstance(label, ast.Constant) and isinstance(label.value, str):
            yield Assignment(f"{owner}.{label.value}", call, False)
    elif func.attr.endswith("_") and call.args:
        yield Assignment(owner.removesuffix(".data"), call.args[0], False)
    elif func.attr in _ADDING_METHODS and call.args:
        yield Assignment(owner, call.args[0], True)


def _updates(path: str, value: ast.expr) -> bool:
    """Whether a value is computed from the old one (`self.total = self.total + x`); a move to a device is not."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _DEVICE_METHODS:
        return False
    return any(found == path or found.startswith(f"{path}.") for found in _paths(value))


def _final_return(statement: ast.If) -> tuple[ast.Return | None, list[ast.expr]]:
    """The return that ends a block, perhaps inside a last `if`, and the conditions for reaching it."""
    tests = [statement.test]
    body = statement.body
    while isinstance(body[-1], ast.If) and not body[-1].orelse:
        tests.append(body[-1].test)
        body = body[-1].body
    last = body[-1]
    return (last if isinstance(last, ast.Return) else None), tests


def _is_true(value: ast.expr) -> bool:
    """Whether a value contains the constant `True`."""
    return any(isinstance(node, ast.Constant) and node.value is True for node in ast.walk(value))
