"""The statements of a function that run while a CUDA graph is captured, and those that do not run then.

`with torch.cuda.graph(...)`, what is between `capture_begin()` and `capture_end()`, and what a condition on
`torch.cuda.is_current_stream_capturing()` excludes. Functions that are passed to `make_graphed_callables` or
`torch.compile` are found by the inference, except for decorators.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.domain.torch_api import CUDAGRAPHS, kind_of_compilation
from gpusync_lint.domain.values import Kind
from gpusync_lint.model.placement import PathKind, PathNode
from gpusync_lint.syntax.traversal import walk, walk_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef

_CONTEXTS = frozenset({"torch.cuda.graph", "torch.cuda.graphs.graph"})
_WORDS = ("graph(", "captur", "is_compiling")
"""A function without these words neither captures anything nor asks whether something is captured."""
_TESTS = frozenset({"is_current_stream_capturing", "is_capturing", "is_compiling", "is_dynamo_compiling"})
"""Functions that are true during a capture, or while a function is compiled."""


class _Region(NamedTuple):
    start: tuple[int, int]
    end: tuple[int, int]
    """The line and column before which it ends."""
    node: PathNode


class CaptureRegions:
    """The captures in the functions of a project."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._may_capture: dict[ModuleDef, bool] = {}
        self._regions: dict[FunctionDef, Sequence[_Region]] = {}

    def around(self, fn: FunctionDef, statement: ast.stmt) -> tuple[PathNode, ...]:
        """The nodes for the captures and exclusions that a statement is in."""
        regions = self._of(fn)
        if not regions:
            return ()
        position = statement.lineno, statement.col_offset
        return tuple(region.node for region in regions if region.start <= position < region.end)

    def has_capture(self, fn: FunctionDef) -> bool:
        """Whether a function contains a capture."""
        return any(region.node.kind is PathKind.CAPTURE for region in self._of(fn))

    def _of(self, fn: FunctionDef) -> Sequence[_Region]:
        regions = self._regions.get(fn)
        if regions is None:
            self._regions[fn] = ()  # what it finds in itself while it is looked through
            regions = self._regions[fn] = self._find(fn) if self._is_candidate(fn) else ()
        return regions

    def _is_candidate(self, fn: FunctionDef) -> bool:
        """Whether the source of a function has one of the words."""
        in_file = self._may_capture.get(fn.file)
        if in_file is None:
            in_file = self._may_capture[fn.file] = any(word in fn.file.text for word in _WORDS)
        if not in_file or fn.is_module:
            return in_file
        source = fn.file.source_of(fn.node)
        return any(word in source for word in _WORDS)

    def _find(self, fn: FunctionDef) -> list[_Region]:
        found: list[_Region] = []
        begins: list[int] = []
        ends: list[int] = []
        for node in walk_block(fn.node.body):
            if isinstance(node, (ast.With, ast.AsyncWith)):
                if any(self._captures(fn, item.context_expr) for item in node.items):
                    found.append(_region(node.body, PathNode(PathKind.CAPTURE, node.lineno)))
            elif isinstance(node, ast.If):
                found += [_region(block, PathNode(PathKind.EAGER)) for block in _excluded(node)]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "capture_begin":
                    begins.append(node.lineno)
                elif node.func.attr == "capture_end":
                    ends.append(node.lineno)
        if fn.name not in ("capture_begin", "__enter__"):  # a wrapper: the caller's statements are captured
            for begin in begins:
                end = min((line for line in ends if line > begin), default=None)
                if end is not None:
                    found.append(_Region((begin + 1, 0), (end, 0), PathNode(PathKind.CAPTURE, begin)))
        return found

    def _captures(self, fn: FunctionDef, context: ast.expr) -> bool:
        """Whether what a `with` statement enters may be a capture: `torch.cuda.graph(g) if on else nullcontext()`."""
        if isinstance(context, ast.Name):
            _, values = fn.assignments.get(context.id, (0, []))
            return any(self._captures(fn, value) for value in values if not isinstance(value, ast.Name))
        for node in walk(context):
            if isinstance(node, ast.Call):
                called = self._project.static(fn.file, node.func)
                if called.dotted_name in _CONTEXTS or (called.kind is Kind.FUNCTION and self._yields(called.ref)):
                    return True
        return False

    def _yields(self, fn: FunctionDef) -> bool:
        """Whether a context manager of the project yields during a capture."""
        captures = [region for region in self._of(fn) if region.node.kind is PathKind.CAPTURE]
        return any(
            region.start <= (node.lineno, node.col_offset) < region.end
            for region in captures
            for node in walk_block(fn.node.body)
            if isinstance(node, ast.Yield)
        )

    def compiled(self, fn: FunctionDef) -> PathNode | None:
        """The capture by a decorator of a function: `@torch.compile(mode="reduce-overhead")`."""
        for decorator in getattr(fn.node, "decorator_list", ()):
            if not isinstance(decorator, ast.Call) or "compile" not in fn.file.text:
                continue
            names = [decorator.func, *decorator.args[:1]]  # `@partial(torch.compile, mode=...)`
            if any(self._project.static(fn.file, name).dotted_name == "torch.compile" for name in names):
                given = {one.arg: _constant(one.value) for one in decorator.keywords if one.arg is not None}
                options = given.get("options")
                cudagraphs = options.get(CUDAGRAPHS) if isinstance(options, dict) else None
                kind = kind_of_compilation(given.get("mode"), cudagraphs, given.get("fullgraph"))
                if kind is not None:
                    return PathNode(kind, decorator.lineno)
        return None


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _region(body: list[ast.stmt], node: PathNode) -> _Region:
    first, last = body[0], body[-1]
    end = (last.end_lineno or last.lineno, last.end_col_offset or 0)
    return _Region((first.lineno, first.col_offset), end, node)


def _excluded(node: ast.If) -> Iterable[list[ast.stmt]]:
    """The blocks of an `if` that do not run during a capture."""
    test, negated = node.test, False
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):  # `if not capturing() and step % 10 == 0:`
        parts = [one for one in test.values if isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.Not)]
        test = parts[0] if parts else test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, negated = test.operand, True
    if not isinstance(test, ast.Call) or _last_name(test.func) not in _TESTS:
        return
    if negated:
        yield node.body
    elif node.orelse:
        yield node.orelse


def _last_name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
