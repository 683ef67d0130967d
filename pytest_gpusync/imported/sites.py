"""The line of the user's project that a wait is charged to, from a stack of a trace.

Kineto knows the functions of a stack by their first lines. The line in the function is found in its source: the only
line that calls what the function called; the n-th of several, if the function made as many calls and none of them
depends on a condition; or the only one for which the linter has a rule in the same direction. If several lines are
possible, the wait is charged to the first line of the function, and ``via`` names them.
"""

from __future__ import annotations

import ast
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.model.measurement import Site
from pytest_gpusync.reporting.rule_names import rules_for
from pytest_gpusync.reporting.sources import locate, read_source
from pytest_gpusync.source.attribution import package_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpusync.imported.calls import Called, Frame, Stack
    from pytest_gpusync.model.measurement import Direction

NO_STACK: Final = "<no stack>"
_LIBRARY_FOLDERS: Final = ("site-packages", "dist-packages")
_CONDITIONS: Final = (
    ast.For, ast.AsyncFor, ast.While, ast.If, ast.IfExp, ast.Try, ast.BoolOp, ast.Match,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
_NAMED: Final = 3
"""Most lines that are named."""


def site_of(stack: Stack, direction: Direction | None) -> Site:
    """Return the site of a wait."""
    for index in range(len(stack.frames) - 1, -1, -1):
        frame = stack.frames[index]
        path = project_path(frame.path)
        if path is None:
            continue
        inner = stack.frames[index + 1] if index + 1 < len(stack.frames) else None
        via = None if inner is None else f"{package_path(inner.path)}:{inner.line} {inner.function}"
        if stack.exact:
            return Site(path, frame.line, frame.function, via)
        lines = _lines(path, frame, stack.called[index], direction)
        if len(lines) == 1:
            return Site(path, lines[0], frame.function, via)
        return Site(path, frame.line, frame.function, _possible(via or stack.operator, lines))
    if not stack.frames:
        return Site(NO_STACK, 0, stack.operator or "unknown")
    outside = [frame for frame in stack.frames if not package_path(frame.path).startswith(("torch/", "<"))]
    frame = (outside or stack.frames)[-1]
    return Site(package_path(frame.path), frame.line, frame.function, stack.operator)


@lru_cache(maxsize=4096)
def project_path(path: str) -> str | None:
    """Return a path of a trace as one below the working directory; None if it is not of the project.

    Kineto shortens paths by the entries of the program's ``sys.path``, so ``src/`` and the like may be missing.
    """
    if not path.endswith((".py", ".pyw")) or any(folder in Path(path).parts for folder in _LIBRARY_FOLDERS):
        return None
    cwd = os.path.realpath(os.getcwd())
    if os.path.isabs(path):
        relative = os.path.relpath(os.path.realpath(path), cwd)
        inside = not relative.startswith(os.pardir) and not any(
            part in _LIBRARY_FOLDERS for part in Path(relative).parts
        )
        return relative.replace(os.sep, "/") if inside else None
    if os.pardir in Path(path).parts:
        return None
    if os.path.isfile(os.path.join(cwd, path)):
        return path.replace(os.sep, "/")
    try:
        folders = sorted(entry.name for entry in os.scandir(cwd) if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return None
    found = [f"{folder}/{path}" for folder in folders if os.path.isfile(os.path.join(cwd, folder, path))]
    return found[0].replace(os.sep, "/") if len(found) == 1 else None


def _possible(via: str | None, lines: Sequence[int]) -> str | None:
    if not lines:
        return via
    named = ", ".join(map(str, lines[:_NAMED])) + (", …" if len(lines) > _NAMED else "")
    return f"{via or 'a call'}, in one of the lines {named}"


@lru_cache(maxsize=4096)
def _lines(path: str, frame: Frame, called: Called, direction: Direction | None) -> tuple[int, ...]:
    """Return the lines of a function that can have made a call."""
    source = _source(path)
    nodes = None if source is None else _body(source.tree, frame)
    if source is None or nodes is None:
        return ()
    calls = [node for node in nodes if isinstance(node, ast.Call) and called.name and _called(node) == called.name]
    # Arguments are evaluated before the call that they are passed to, and end before it.
    calls.sort(key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))
    if len(calls) == called.total > 1 and not any(id(call) in source.conditional for call in calls):
        return (_line(calls[called.ordinal]),)
    calling = sorted({_line(call) for call in calls})
    if len(calling) == 1:
        return tuple(calling)
    ruled = sorted({node.lineno for node in nodes if isinstance(node, (ast.expr, ast.stmt))})
    ruled = [line for line in ruled if _has_rule(path, line, direction)]
    both = [line for line in calling if line in ruled]
    return tuple(both if len(both) == 1 else calling or ruled)


def _line(call: ast.Call) -> int:
    """Return the line of a call: of a method, that of its name, since a chain may be written over several lines."""
    return (call.func.end_lineno if isinstance(call.func, ast.Attribute) else None) or call.lineno


def _has_rule(path: str, line: int, direction: Direction | None) -> bool:
    found = [rule.code for rule in rules_for(path, line) if rule.code < "GS7"]
    if direction is None:
        return bool(found)
    return any(code.startswith("GS5") == (direction == "H2D") for code in found)


def _called(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _body(tree: ast.Module, frame: Frame) -> list[ast.AST] | None:
    """Return the nodes of a function, without those of functions in it; None if it is not found."""
    if frame.function == "<module>":
        return list(_own(tree))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == frame.function:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if frame.line in (first, node.lineno):
                return list(_own(node))
    return None


def _own(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield from _own(child)


class _Source(NamedTuple):
    """A file of the project."""

    tree: ast.Module
    conditional: frozenset[int]
    """The identities of the nodes that may run several times in a call of their function, or never."""


@lru_cache(maxsize=256)
def _source(path: str) -> _Source | None:
    resolved = locate(path)
    if resolved is None:
        return None
    try:
        tree = ast.parse(read_source(resolved))
        conditions = (node for node in ast.walk(tree) if isinstance(node, _CONDITIONS))
        return _Source(tree, frozenset(id(child) for node in conditions for child in ast.walk(node)))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def forget_sources() -> None:
    """Read sources again from now on: the working directory may be another one."""
    for cache in (project_path, _lines, _source):
        cache.cache_clear()
