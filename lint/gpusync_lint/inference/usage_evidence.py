"""Evidence about names from how a function uses them: `backward()` is called on a loss, `unsqueeze()` on a tensor."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING

from gpusync_lint.domain import torch_api
from gpusync_lint.domain.training_idioms import BACKWARD, backward_of, tests_for_tensor
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import SCOPES, children, walk_block

if TYPE_CHECKING:
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef


@dataclass(frozen=True)
class Evidence:
    """The dotted paths of a function on which telling methods are called."""

    fn: FunctionDef | None = None
    """The function; None where there is no evidence."""

    backward: frozenset[str] = frozenset()
    """Those on which `backward()` is called."""
    modules: frozenset[str] = frozenset()
    """Those on which methods are called that only modules have."""
    distributions: frozenset[str] = frozenset()
    """Those on which methods are called that only distributions have."""
    arrays: frozenset[str] = frozenset()
    """Those that are tested for a NumPy array."""
    batch_loops: frozenset[ast.stmt] = frozenset()
    """The loops with a backward pass, not inside another loop in it, that use what they iterate over like batches."""
    used: dict[str, int] = field(default_factory=dict)
    """The first line of a use as a tensor, by path: with methods that only tensors have, or reduced along `dim=`."""

    def shows_tensor(self, path: str) -> bool:
        """Whether a path is used as a tensor, and holds one throughout the function, or until that use."""
        return path in self.used and path in self._tensors

    @cached_property
    def _tensors(self) -> frozenset[str]:
        return frozenset() if self.fn is None else _tensors(self.fn, self.used)


_DISTRIBUTION_METHODS = frozenset({"log_prob", "rsample"})
_OF_BATCHES = frozenset({"cuda", "float", "items", "keys", "long", "size", "to", "type", "values", "view"})
"""Methods of batches: of tensors, and of dicts of them."""
_NONE = Evidence()


class UsageEvidence:
    """The evidence in each function, cached."""

    def __init__(self) -> None:
        self._evidence: dict[FunctionDef, Evidence] = {}
        self._lines: dict[ModuleDef, list[int]] = {}
        """By file, the lines with such calls, as far as a text search can tell."""

    def of(self, fn: FunctionDef) -> Evidence:
        """The evidence in a function."""
        evidence = self._evidence.get(fn)
        if evidence is None:
            # The text is searched first: few functions contain any, and to traverse all functions takes longer.
            lines = self._lines_of(fn)
            evidence = self._evidence[fn] = _collect(fn, lines) if lines else _NONE
        return evidence

    def _lines_of(self, fn: FunctionDef) -> list[int]:
        """The lines of a function that may contain evidence."""
        lines = self._lines.get(fn.file)
        if lines is None:
            lines = self._lines[fn.file] = _lines(fn.file.text)
        if isinstance(fn.node, ast.Module):
            return lines
        first = bisect_left(lines, fn.node.lineno)
        return lines[first : bisect_right(lines, fn.node.end_lineno or fn.node.lineno, first)]


def _collect(fn: FunctionDef, lines: list[int]) -> Evidence:
    """The evidence in a function. `lines` are those that may contain evidence, in ascending order."""
    backward: set[str] = set()
    modules: set[str] = set()
    distributions: set[str] = set()
    arrays: set[str] = set()
    tensors: dict[str, int] = {}
    """By path that is used as a tensor, the first line of such a use, outside of functions inside this one."""
    module_methods = torch_api.modules().evidence
    stack: list[ast.AST] = list(fn.node.body)
    inside: list[ast.AST] = []
    """What is in functions inside this one, which is looked at last."""
    is_inside = False
    while stack or inside:
        if not stack:
            stack, inside, is_inside = inside, [], True
        node = stack.pop()
        if isinstance(node, ast.stmt):
            first = bisect_left(lines, node.lineno)
            if first == len(lines) or lines[first] > (node.end_lineno or node.lineno):
                continue
        if isinstance(node, SCOPES):
            if not fn.is_module or isinstance(node, ast.Lambda):
                inside += children(node)
            continue
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                name = node.func.attr
                found = modules if name in module_methods else distributions if name in _DISTRIBUTION_METHODS else None
                if found is not None:
                    _add(found, node.func.value)
                elif name in BACKWARD:
                    _add(backward, backward_of(node))
                if not is_inside and _needs_tensor(node, name):
                    path = dotted_path(node.func.value)
                    if path is not None:
                        tensors[path] = min(node.lineno, tensors.get(path, node.lineno))
            elif _tests_for_array(node):
                _add(arrays, node.args[0])
        stack += children(node)
    if not (backward or modules or tensors or distributions or arrays):
        return _NONE
    return Evidence(
        fn,
        frozenset(backward),
        frozenset(modules),
        frozenset(distributions),
        frozenset(arrays),
        _batch_loops(fn) if backward else frozenset(),
        tensors,
    )


def _add(paths: set[str], node: ast.expr) -> None:
    path = dotted_path(node)
    if path is not None:
        paths.add(path)


def _needs_tensor(call: ast.Call, method: str) -> bool:
    """Whether only a tensor has a method, or is reduced along `dim=` by it."""
    known = torch_api.tensors()
    if method in known.evidence:
        return True
    return method in known.reduces and any(word.arg == "dim" for word in call.keywords)


def _batch_loops(fn: FunctionDef) -> frozenset[ast.stmt]:
    found: list[ast.stmt] = []
    stack: list[tuple[ast.AST, ast.For | None]] = [(statement, None) for statement in fn.node.body]
    while stack:
        node, loop = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, ast.For):
            loop = node
        elif isinstance(node, (ast.While, ast.AsyncFor)):
            loop = None
        elif loop is not None and isinstance(node, ast.Call) and getattr(node.func, "attr", "") in BACKWARD:
            found.append(loop)
        stack += [(child, loop) for child in children(node)]
    return frozenset(loop for loop in found if isinstance(loop, ast.For) and _uses_batches(loop))


def _uses_batches(loop: ast.For) -> bool:
    """Whether a loop uses its targets like batches: no other methods are called on them."""
    targets = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    for statement in loop.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
                owner = node.func if isinstance(node.func, ast.Name) else node.func.value
                is_target = isinstance(owner, ast.Name) and owner.id in targets
                if is_target and getattr(node.func, "attr", "") not in _OF_BATCHES:
                    return False
    return True


def _tests_for_array(node: ast.Call) -> bool:
    """Whether this is `isinstance(x, np.ndarray)`."""
    if len(node.args) != 2 or not isinstance(node.func, ast.Name) or node.func.id != "isinstance":
        return False
    return (dotted_path(node.args[1]) or "").rpartition(".")[2] == "ndarray"


def _tensors(fn: FunctionDef, used: dict[str, int]) -> frozenset[str]:
    """The dotted paths that a function uses as tensors before it binds another value to their first name.

    `used` holds the first line of such a use, by path.
    """
    bound: dict[str, list[int]] = {}
    tested: set[str] = set()
    """What may also be something else: a use in one branch says nothing about the others."""
    for node in walk_block(fn.node.body):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                bound.setdefault(node.id, []).append(node.lineno)
        elif isinstance(node, ast.Call) and tests_for_tensor(node):
            _add(tested, node.args[0])
    parameters = _parameters(fn)
    return frozenset(
        path for path, line in used.items() if path not in tested and _is_bound_once(path, line, bound, parameters)
    )


def _parameters(fn: FunctionDef) -> frozenset[str]:
    if isinstance(fn.node, ast.Module):
        return frozenset()
    arguments = fn.node.args
    return frozenset(arg.arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


def _is_bound_once(path: str, line: int, bound: dict[str, list[int]], parameters: frozenset[str]) -> bool:
    """Whether a use at a line shows what the first name of a path holds throughout the function, or until that use."""
    root = path.partition(".")[0]
    lines = bound.get(root, [])
    return line <= min(lines, default=line) if root in parameters else len(lines) <= 1


def _lines(text: str) -> list[int]:
    """The lines of a text that may contain evidence."""
    lines = []
    position, line = 0, 1
    for start in sorted({match.start() for pattern in _patterns() for match in pattern.finditer(text)}):
        line += text.count("\n", position, start)
        position = start
        lines.append(line)
    return lines


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    """What evidence contains. One pattern for each beginning: those that begin with text are fast."""
    evidence = {*torch_api.modules().evidence, *torch_api.tensors().evidence, *_DISTRIBUTION_METHODS, *BACKWARD}
    names = "|".join(sorted(evidence))
    return re.compile(rf"\.[\s\\]*(?:{names})[\s\\]*\("), re.compile(r"dim(?<!\wdim)[\s\\]*="), re.compile("ndarray")
