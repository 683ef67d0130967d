"""Code that runs only until something is there: lazy initialization, and functions that give back what they kept."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOVES = frozenset({"to", "cuda", "cpu", "type_as"})
_REMEMBERS = re.compile(r"lru_cache|memoi[sz]e|^cached?$|^cached_")
_ADDS = frozenset({"add", "append", "setdefault", "update"})
Methods = Mapping[str, "list[ast.stmt]"]
"""The bodies of a class's methods by name."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def fills(statement: ast.If, own: Methods) -> bool:
    """`if self.table is None: self.table = ...`: the block runs until it has filled what its condition asks about.

    Only for what outlives the call: attributes, and containers that are asked for a key. `own` are the methods of the
    class, because the block may leave the filling to one of them.
    """
    asked = {path: how for path, how in _asked(statement.test, True).items() if "." in path or "key" in how}
    return bool(asked) and any(
        path in asked and (not key or "key" in asked[path]) for path, _, key in _filled(statement.body, own)
    )


class Fillings:
    """What the statements of a block fill, gathered once for all of its conditions."""

    def __init__(self, body: list[ast.stmt], own: Methods) -> None:
        self._body = body
        self._own = own
        self._found: list[tuple[int, tuple[str, ast.expr, bool]]] | None = None
        """Each with the place of its statement."""

    def after(self, place: int) -> Iterator[tuple[str, ast.expr, bool]]:
        """What the statements behind a place in the block fill."""
        if self._found is None:
            numbered = enumerate(self._body)
            self._found = [(at, one) for at, statement in numbered for one in _filled([statement], self._own)]
        for index in range(bisect_right(self._found, place, key=lambda found: found[0]), len(self._found)):
            yield self._found[index][1]


class Kept:
    """Which local names the statements of a block read from which container: `hit = self.cache.get(key)`."""

    def __init__(self, body: list[ast.stmt]) -> None:
        self._body = body
        self._found: dict[str, str] = {}
        self._done = 0

    def before(self, place: int) -> dict[str, str]:
        """What those before a place read; the places must come in order."""
        for statement in self._body[self._done : place]:
            self._found.update(kept_names(statement))
        self._done = place
        return self._found


def settles(statement: ast.If, place: int, fillings: Fillings, before: Kept) -> bool:
    """`if self.table is not None: return self.table`, where the rest of the block fills `self.table`.

    The other three are the place of the statement in its block, and what that fills and keeps.
    """
    if statement.orelse:
        return False
    returned, tests = _way_out(statement)
    if returned is None:
        return False
    kept = before.before(place)
    asked: dict[str, set[str]] = {}
    for test in tests:
        for path, how in _asked(test, False).items():
            asked.setdefault(kept.get(path, path), set()).update({"key"} if path in kept else how)
    given = {kept.get(path, path) for path in _paths(returned.value)} if returned.value is not None else set()
    for path, value, key in fillings.after(place):
        manners = asked.get(path, set())
        if key:
            manners = manners & {"key"}
        if "key" in manners or ("." in path and manners - {"truth"}):
            return True
        if path in given and ("compared" in manners or ("." in path and manners)):
            return True  # a parameter that is given back when it is large enough; an attribute
        if manners and "." in path and _says_true(value):
            return True  # `if self.ready: return`, and at the end `self.ready = True`
    return False


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


def remembered(node: ast.AST) -> bool:
    """Whether a decorator keeps a function's results, so that it runs once for each set of arguments."""
    for decorator in getattr(node, "decorator_list", ()):
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        label = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        if _REMEMBERS.search(label):
            return True
    return False


def _asked(test: ast.expr, missing: bool, holds: bool = True) -> dict[str, set[str]]:
    """The paths that a condition finds missing (or, for False, present) where it holds, and how it asks for each.

    How: `truth`, `none`, `key` (whether a container holds a key) or `compared` (an attribute of it with something). Of
    alternatives, only what all of them ask about counts.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _asked(test.operand, not missing, not holds)
    if isinstance(test, ast.Compare):
        return _compared(test, missing)
    if not isinstance(test, ast.BoolOp):
        path = _path(test)
        return {path: {"truth"}} if path is not None and not missing else {}
    parts = [_asked(operand, missing, holds) for operand in test.values]
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
    """A dotted path; also of `getattr(self, "table", None)`, `hasattr(self, "table")` and `(t := self.table)`."""
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


def _filled(body: list[ast.stmt], own: Methods, inner: bool = True) -> Iterator[tuple[str, ast.expr, bool]]:
    """Paths that statements assign anew or fill in place, what they are given, and whether it only adds a key."""
    for statement in body:
        if isinstance(statement, _SCOPES):
            continue
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign):
            targets, value = [statement.target], statement.value
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield from _filled_by_call(statement.value, own, inner)
        if value is not None:
            for target in targets:
                parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
                for part in parts:
                    path = dotted_path(part.value if isinstance(part, ast.Subscript) else part)
                    if path is not None and (isinstance(part, ast.Subscript) or not _carries_on(path, value)):
                        yield path, value, False
        for block in blocks(statement):
            yield from _filled(block, own, inner)


def _filled_by_call(call: ast.Call, own: Methods, inner: bool) -> Iterator[tuple[str, ast.expr, bool]]:
    func = call.func
    if not isinstance(func, ast.Attribute):
        return
    owner = dotted_path(func.value)
    if not owner:
        return
    method = own.get(func.attr) if inner and owner == "self" else None
    if method is not None:
        yield from _filled(method, own, False)
    elif func.attr in ("register_buffer", "__setattr__") and call.args:
        label = call.args[0]
        if isinstance(label, ast.Constant) and isinstance(label.value, str):
            yield f"{owner}.{label.value}", call, False
    elif func.attr.endswith("_") and call.args:
        yield owner.removesuffix(".data"), call.args[0], False
    elif func.attr in _ADDS and call.args:
        yield owner, call.args[0], True


def _carries_on(path: str, value: ast.expr) -> bool:
    """Whether a value is made of the old one (`self.total = self.total + x`), rather than anew or only moved."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _MOVES:
        return False
    return any(found == path or found.startswith(f"{path}.") for found in _paths(value))


def _way_out(statement: ast.If) -> tuple[ast.Return | None, list[ast.expr]]:
    """The return that ends a block, perhaps inside a last `if`, and the conditions on the way to it."""
    tests = [statement.test]
    body = statement.body
    while isinstance(body[-1], ast.If) and not body[-1].orelse:
        tests.append(body[-1].test)
        body = body[-1].body
    last = body[-1]
    return (last if isinstance(last, ast.Return) else None), tests


def _says_true(value: ast.expr) -> bool:
    return any(isinstance(node, ast.Constant) and node.value is True for node in ast.walk(value))
