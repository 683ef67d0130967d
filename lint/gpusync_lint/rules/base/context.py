"""The base class of rules, the context of the node that a rule checks, and the reports that a rule returns."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from gpusync_lint.catalogue import foreign, registry
from gpusync_lint.domain import python_api, torch_api
from gpusync_lint.domain.training_idioms import is_test_path
from gpusync_lint.domain.values import UNKNOWN, Device, Kind, Value, any_foreign, foreign_value, modules
from gpusync_lint.model.findings import Fix
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.operations import Template
from gpusync_lint.model.spans import Span
from gpusync_lint.project.symbols import ClassDef
from gpusync_lint.rewrite.layout import Layout
from gpusync_lint.rules.base.blocks import around
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpusync_lint.catalogue.schema import Barrier, Catalogue
    from gpusync_lint.heat.frequency import FrequencyRecorder
    from gpusync_lint.inference.fixpoint import Inference
    from gpusync_lint.model.findings import EngineSettings
    from gpusync_lint.model.operations import Operation
    from gpusync_lint.model.placement import Capture
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef
    from gpusync_lint.rules.base.occurrences import Occurrence
    from gpusync_lint.rules.base.tasks import Tasks
    from gpusync_lint.rules.base.timers import Timers

_CLOCKS = python_api.CLOCKS | {"process_time", "elapsed_time", "get_elapsed_time"}
_CLOCK_REACH = 3
_COUNTS = ("builtins.range", "itertools.count", "tqdm.trange", "tqdm.auto.trange")
_KIND = itemgetter(Value._fields.index("kind"))
_CONTAINERS = frozenset({Kind.TUPLE, Kind.LIST, Kind.DICT})
_F_STRINGS_HAVE_POSITIONS = sys.version_info >= (3, 12)


Body = TypeVar("Body", list[ast.stmt], ast.Module)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Report:
    """A barrier that a rule reports."""

    barrier: str
    node: ast.expr
    """The expression to underline."""
    confidence: Confidence
    highlight_name: bool = False
    """Whether to underline only the last name of a call and its arguments."""
    fix: Fix | None = None
    message: str = ""
    """A message for this place, instead of that of the catalogue; empty for none."""
    remedy: str = ""
    """A remedy for this place, instead of that of the catalogue; empty for none."""
    heat_statement: ast.stmt | None = None
    """The statement whose heat counts, where it is not the one that holds the mark."""
    function: FunctionDef | None = None
    """The function that the finding belongs to, and that holds `heat_statement`, where it is not that of the node."""
    heat: Heat | None = None
    """The heat, if it does not depend on step loops."""


class Rule:
    """Checks for one kind of barrier. One instance checks all files of a run, and keeps no state between them."""

    nodes: ClassVar[tuple[type[ast.AST], ...]]
    """The types of `ast` nodes to check. `check` is called for each such node in every function of a project."""
    calls: Iterable[str] = ()
    """For rules that check `ast.Call`, the names of the calls to check; empty for all calls.

    Last names of functions and methods (`item`), qualified names of functions outside the project
    (`torch.cuda.synchronize`), prefixes of them (`numpy.*`), calls of an object by its class
    (`torch.nn.BatchNorm1d.__call__`), or calls of any class of the project (`class.__call__`).
    """
    barriers: ClassVar[tuple[str, ...]] = ()
    """Ids of the catalogue entries that it reports."""
    VALID: ClassVar[Sequence[str]] = ()
    """Bodies of a step loop that the rule must not report."""
    INVALID: ClassVar[Sequence[str]] = ()
    """Bodies of a step loop that the rule must report."""
    after_others: ClassVar[bool] = False
    """Whether it checks a file after the other rules, because it depends on their reports."""

    low_confidence: ClassVar[bool] = False
    """Whether all its reports have low confidence. Such a rule needs no `INVALID` bodies."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings

    def applies_to(self, context: RuleContext) -> bool:
        """Whether the rule can report anything in a file. Called once per file, before `check`."""
        return True

    def applies_after_others(self, context: RuleContext) -> bool:
        """For a rule that checks after the others, whether it can report anything, given their reports on the file."""
        return True

    def check(self, node: Any, context: RuleContext) -> Iterator[Report]:
        """Check one node."""
        raise NotImplementedError


class RuleContext:
    """The node that a rule checks, the values of its parts, and its surroundings."""

    def __init__(
        self,
        file: ModuleDef,
        inference: Inference,
        catalogue: Catalogue,
        settings: EngineSettings,
        heat: FrequencyRecorder,
        has_reports: Callable[[FunctionDef], bool],
        definite_waits: Callable[[FunctionDef], Sequence[Report]],
        timers: Timers,
        tasks: Tasks,
    ) -> None:
        self.file = file
        self.catalogue = catalogue
        self.settings = settings
        self.timers = timers
        """What measures time in the project."""
        self.tasks = tasks
        """The coroutines of the project."""
        self.layout = Layout(file.lines)
        self.occurrence: Occurrence
        """The node that is checked, and its position."""
        self.values: dict[ast.expr, Value] = {}
        """The values of the expressions of the file. Missing expressions are unknown."""
        for fn in file.all_functions:
            self.values.update(inference.values(fn))
        self._shown: dict[FunctionDef, dict[str, str]] = {}
        self._computed: dict[tuple[object, int], Any] = {}
        self.reported_lines: set[int] = set()
        """The lines of the file with reports so far."""
        self.waiting: set[ast.expr] = set()
        """The expressions of the file that are reported as waits so far, with any confidence."""
        self.races: dict[ast.expr, list[Any]] | None = None
        """The races of the file, by expression, as `rules.ordering` finds them; None before they are looked for."""
        self._inference = inference
        self._has_reports = has_reports
        self._definite_waits = definite_waits
        self._heat = heat

    def once(self, compute: Callable[[Body], Result], body: Body) -> Result:
        """What a function computes from a part of the tree of the file. It is called once for each part.

        Rules use it for what they look up in a whole block for each of its nodes, which would take quadratic time.
        """
        key = (compute, id(body))
        if key not in self._computed:
            self._computed[key] = compute(body)
        result: Result = self._computed[key]
        return result

    @property
    def function(self) -> FunctionDef:
        """The function, or module body, that contains the node."""
        return self.occurrence.fn

    @property
    def statement(self) -> ast.stmt:
        """The statement that contains the node."""
        return self.occurrence.statement

    def value(self, node: ast.AST | None) -> Value:
        """The value of an expression."""
        return UNKNOWN if node is None else self.values.get(node, UNKNOWN)  # type: ignore[call-overload]

    def qualified_name(self, node: ast.AST | None) -> str:
        """The dotted name of something outside the project that an expression refers to; empty for anything else."""
        return self.value(node).dotted_name

    def unknown_is_probably_tensor(self) -> bool:
        """Whether unknown values are likely to be tensors: the file uses torch and a device, and no similar library."""
        file = self.file
        return file.uses_framework and not file.uses_others and self.uses_device()

    @cached_property
    def uses_foreign_values(self) -> bool:
        """Whether the file imports a framework other than torch, or contains a value of one."""
        values = self.values.values()
        if self.file.uses_foreign or Kind.FOREIGN in map(_KIND, values):
            return True
        if not any(file.uses_foreign for file in self._inference.project.files):
            return False
        return any_foreign(value for value in values if value.kind in _CONTAINERS)

    @cached_property
    def foreign_frameworks(self) -> frozenset[str]:
        """The frameworks other than torch that the file imports."""
        known = foreign.framework_of()
        roots = {dotted.partition(".")[0] for dotted in (*self.file.imports.values(), *self.file.stars)}
        return frozenset(known[root] for root in roots if root in known)

    def foreign_value(self, node: ast.expr) -> Value:
        """What an expression holds; of a name of which nothing is known, what the function shows it to be."""
        value = self.value(node)
        if value.kind is Kind.UNKNOWN and isinstance(node, ast.Name) and self.foreign_frameworks:
            shown = self._shown_names(self.function).get(node.id, "")
            if shown.partition(".")[0] in self.foreign_frameworks:
                return foreign_value(shown)
        return value

    def _shown_names(self, fn: FunctionDef) -> dict[str, str]:
        """The types of the names that a function passes to methods that only take such a value."""
        known = self._shown.get(fn)
        if known is None:
            known = self._shown[fn] = {}
            for node in walk_block(fn.node.body):
                if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name):
                    shown = foreign.shown_by().get(method(node))
                    if shown is not None:
                        known[node.args[0].id] = shown
        return known

    def uses_device(self) -> bool:
        """Whether the function is in code that uses a device."""
        return self._inference.devices.assumed_device(self.function) >= Device.ASSUMED

    def uses_gpu_by_default(self) -> bool:
        """Whether tensors are created on the GPU if no device is given: `torch.set_default_device("cuda")`."""
        return self._inference.devices.uses_gpu_by_default(self.file)

    def in_module_method(self) -> bool:
        """Whether the function is a method of a module."""
        cls = self.function.cls
        return cls is not None and self._inference.project.classes.is_module(cls)

    def derives_from(self, value: Value, prefix: str) -> bool:
        """Whether a value is an instance of a project class with a base outside the project of such a dotted name."""
        cls = value.definition if value.kind is Kind.INSTANCE else None
        if not isinstance(cls, ClassDef):
            return False
        return any(base.startswith(prefix) for base in self._inference.project.classes.external_bases(cls))

    def has_weights(self, module: Value) -> bool:
        """Whether a module that was created on the host has parameters or buffers, as far as its class shows."""
        if self.uses_gpu_by_default():
            return False
        classes = self._inference.project.classes
        for one in modules(module):
            if isinstance(one.ref, str):
                if one.ref.rpartition(".")[2].endswith(torch_api.modules().without_weights):
                    continue
                return True
            if one.definition is not None:
                attributes = [value for base in classes.project_lineage(one.ref) for value in base.attributes.values()]
                if any(value.kind is Kind.TENSOR or value.kind is Kind.MODULE for value in attributes):
                    return True
        return False

    def has_own_init(self, value: Value) -> bool:
        """Whether the class of an instance has an `__init__` in the project, which may pass on other arguments."""
        cls = value.definition
        return isinstance(cls, ClassDef) and self._inference.project.classes.method(cls, "__init__") is not None

    def in_tests(self) -> bool:
        """Whether the file contains tests."""
        return is_test_path(self.file.path)

    def confidence(self, value: Value) -> Confidence | None:
        """The confidence that a value is a tensor on the device; None if it is not."""
        if value.kind is not Kind.TENSOR or value.device is Device.CPU:
            return None
        if value.device is Device.UNKNOWN:
            return Confidence.LOW
        return Confidence.HIGH if value.device > Device.ASSUMED and value.certain else Confidence.MEDIUM

    def truth_confidence(self, value: Value) -> Confidence | None:
        """The confidence that a truth test of a value reads a tensor on the device; None if it does not.

        Only tensors with one element can be tested. So if only a convention says that this is a tensor, and it is not
        known to be 0-dimensional, it is probably a number.
        """
        if value.elem is not None:  # `if items:` asks whether a container is empty
            return None
        confidence = self.confidence(value)
        return (
            Confidence.LOW
            if confidence is not None and not value.certain and value.zero_dim is not True
            else confidence
        )

    def is_mask(self, node: ast.expr) -> bool | None:
        """Whether an index is a boolean mask; None if only its name says so.

        A parameter that is named a mask is one, unless a call passes an argument for it, and so is what a loop over
        something uncertain binds.
        """
        index = self.value(node)
        if index.kind is not Kind.TENSOR or index.boolean:
            return index.kind is Kind.TENSOR
        if index.zero_dim is True or not self.is_called_mask(node):
            return False
        if not index.certain and isinstance(node, ast.Name) and self.is_loop_target(node):
            return True  # `for _, mask in data("train_mask", "val_mask"):`
        label = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        parameters = getattr(self.function.node, "args", None)
        own = parameters is not None and any(
            arg.arg == label for arg in ast.walk(parameters) if isinstance(arg, ast.arg)
        )
        return True if own and not self._inference.is_passed(self.function, label) else None

    def is_called_mask(self, node: ast.expr) -> bool:
        """Whether the name of an index says that it is a mask: `mask`, `batch.valid_mask`."""
        label = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        return label.lower().endswith(("mask", "masks"))

    def is_loop_target(self, node: ast.expr) -> bool:
        """Whether a `for` loop or a comprehension around the node binds a name."""
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        if not isinstance(node, ast.Name):
            return False
        return node.id in self.function.loop_names

    def decorator(self, node: ast.expr) -> FunctionDef | None:
        """The function of the project that a decorator, with or without arguments, is; None for another one."""
        called = node.func if isinstance(node, ast.Call) else node
        value = self._inference.project.static(self.file, called)
        return value.ref if value.kind is Kind.FUNCTION else None

    def barriers_by_name(self, node: ast.Call) -> Sequence[Barrier]:
        """The barriers of libraries, and of the project itself, that a call reaches by its name."""
        receiver = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else UNKNOWN
        inference = self._inference
        return inference.named.barriers(node.func, self.value(node.func), receiver, inference.project.classes)

    def prepares_data(self) -> bool:
        """Whether the function prepares data on the host."""
        return self._inference.devices.prepares_data(self.function)

    def goes_backward(self, fn: FunctionDef, path: str) -> bool:
        """Whether a function calls `backward()` on a dotted path."""
        return path in self._inference.evidence.of(fn).backward

    def is_traced(self) -> bool:
        """Whether another framework traces the function instead of running it line by line."""
        return self._inference.tracing.is_traced(self.function)

    def may_wait(self, fn: FunctionDef, words: re.Pattern[str] | None = None) -> bool:
        """Whether a project function, or one that it calls, may contain a barrier, or contains one of the words."""
        seen = {fn}
        queue = [fn]
        while queue:
            fn = queue.pop()
            effects = self._inference.effects(fn)
            if self._inference.returns(fn) is None or effects.calls_unknown or self._has_reports(fn):
                return True
            if words is not None and words.search(fn.file.source_of(fn.node)):
                return True
            queue += fn.nested.values()
            for site in effects.calls:
                if site.callee not in seen:
                    seen.add(site.callee)
                    queue.append(site.callee)
        return False

    def waits_in(self, fn: FunctionDef) -> Sequence[Report]:
        """The reports on a function of waits that run when it is called, apart from guesses."""
        return self._definite_waits(fn)

    def calls_what_waits(self, node: ast.Call) -> bool:
        """Whether a call runs a project function, no coroutine, that waits, itself or in what it calls."""
        called = self.value(node.func)
        seen: set[FunctionDef] = set()
        queue = [called.ref] if called.kind is Kind.FUNCTION else []
        while queue:
            fn = queue.pop()
            if fn not in seen and not isinstance(fn.node, ast.AsyncFunctionDef):
                seen.add(fn)
                if self._definite_waits(fn):
                    return True
                queue += (site.callee for site in self._inference.effects(fn).calls)
        return False

    def has_understood(self, fn: FunctionDef) -> bool:
        """Whether a project function was interpreted and has no barrier of its own; its expressions are then known."""
        if self._inference.returns(fn) is None or self._has_reports(fn):
            return False
        if fn.file is not self.file:
            self.values.update(self._inference.values(fn))
        return True

    def method_of(self, value: Value, label: str) -> FunctionDef | None:
        """A method of an instance of a project class."""
        return self._inference.project.classes.method(value.ref, label) if isinstance(value.ref, ClassDef) else None

    def waits_on(self, barrier: Barrier) -> bool:
        """Whether a barrier waits in the oldest version of torch that the project supports."""
        return barrier.until_torch is None or self.settings.torch_version < barrier.until_torch

    def heat(self, fn: FunctionDef, statement: ast.stmt) -> Heat:
        """The heat of a statement of a function."""
        return self._heat.heat(fn, statement)

    def capture(self) -> Capture | None:
        """The capture of CUDA graphs that the node runs in, as far as the analyzed files show."""
        one = self.occurrence
        return self._heat.capture_at(self._heat.place(one.fn, one.statement, one.repeated, one.deferred))

    def is_captured(self, fn: FunctionDef) -> bool:
        """Whether a function is called during a capture of CUDA graphs."""
        return self._heat.is_captured(fn)

    def may_be_captured(self, fn: FunctionDef) -> bool:
        """Whether a function is called during a capture of CUDA graphs, or contains one."""
        return self._heat.may_be_captured(fn)

    @property
    def is_part(self) -> bool:
        """Whether the analyzed files are a part of a component, so that functions of other parts may call them."""
        return self._heat.is_part

    @property
    def captures_graphs(self) -> bool:
        """Whether a CUDA graph is captured anywhere in the analyzed files."""
        return self._heat.captures_graphs

    def span(self, node: ast.expr | ast.stmt) -> Span:
        """The span of a node, for the operations of a fix."""
        return self.layout.span(node)

    def template(self, text: str, *parts: ast.expr) -> Template:
        """New source for a fix. Each ``{}`` in the text is replaced by one of the expressions."""
        return Template(text, tuple(self.layout.span(part) for part in parts))

    def fix(self, title: str, *operations: Operation, safe: bool = False, hazard: str | None = None) -> Fix | None:
        """A fix of the node; None if the layout of the source does not allow it."""
        return self.fix_of([self.occurrence], title, operations, safe=safe, hazard=hazard)

    def fix_of(
        self,
        occurrences: Iterable[Occurrence],
        title: str,
        operations: Sequence[Operation],
        *,
        safe: bool = False,
        hazard: str | None = None,
    ) -> Fix | None:
        """A fix of several nodes at once; None if the layout of the source does not allow it."""
        if not all(self._is_placed(occurrence) for occurrence in occurrences):
            return None
        if any(self.layout.obstacle(operation) is not None for operation in operations):
            return None
        return Fix(title, tuple(operations), safe, hazard)

    def _is_placed(self, occurrence: Occurrence) -> bool:
        """Whether this Python reports the position of an expression. Before 3.12, it does not in f-strings."""
        return occurrence.string is None or _F_STRINGS_HAVE_POSITIONS

    def span_of(self, report: Report, site: Occurrence) -> Span:
        """The span that a report underlines."""
        mark = report.node
        if site.string is not None and not self._is_placed(site):
            mark = site.string
        elif report.highlight_name and isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute):
            whole = self.span(mark)
            func = self.span(mark.func)
            return Span(func.end_line, func.end_column - len(mark.func.attr), whole.end_line, whole.end_column)
        return self.span(mark)

    def is_timed(self) -> bool:
        """Whether a clock is read next to the statement, so that the wait is part of a measurement."""
        for block, place in reversed(around(self.function, self.statement)):
            if block[place] is not self.statement and not isinstance(block[place], (ast.If, ast.With)):
                break  # `if device.type == "cuda": torch.cuda.synchronize()` belongs to the clock after it
            near = block[max(0, place - _CLOCK_REACH) : place + _CLOCK_REACH + 1]
            if any(_reads_clock(statement) for statement in near):
                return True
        return False


def _reads_clock(statement: ast.stmt) -> bool:
    if hasattr(statement, "body"):
        return False
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            func = node.func
            label = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
            if label in _CLOCKS:
                return True
    return False


def called_names(*barriers: str) -> frozenset[str]:
    """The functions and methods of entries of the catalogues, for `Rule.calls`."""
    entries = [registry.all_barriers()[barrier] for barrier in barriers]
    return frozenset(name for entry in entries for name in (*entry.functions, *entry.methods))


def method(node: ast.Call) -> str:
    """The name of the method that is called; empty for a plain function."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def is_count(node: ast.expr, context: RuleContext) -> bool:
    """Whether what a loop runs over only counts: `range(n)`."""
    return isinstance(node, ast.Call) and context.qualified_name(node.func) in _COUNTS


def arguments(node: ast.Call) -> list[ast.expr]:
    """All arguments of a call: positional, starred and keyword arguments."""
    given = [arg.value if isinstance(arg, ast.Starred) else arg for arg in node.args]
    return given + [argument.value for argument in node.keywords]


def positional(node: ast.Call) -> list[ast.expr]:
    """The positional arguments of a call, without starred ones."""
    return [arg for arg in node.args if not isinstance(arg, ast.Starred)]


def keyword(node: ast.Call, label: str) -> ast.expr | None:
    """The value of a keyword argument."""
    for argument in node.keywords:
        if argument.arg == label:
            return argument.value
    return None


def keyword_is(node: ast.Call, label: str, const: bool) -> bool:
    """Whether a keyword argument is this constant."""
    value = keyword(node, label)
    return value is not None and is_constant(value, const)


def is_constant(node: ast.expr, const: bool) -> bool:
    """Whether an expression is this constant, of the same type."""
    return isinstance(node, ast.Constant) and node.value is const


def stored_value(node: ast.Subscript, context: RuleContext) -> Value | None:
    """The value that an assignment stores in a subscript; None if the subscript is not a target of it."""
    statement = context.statement
    if not isinstance(node.ctx, ast.Store) or not isinstance(statement, ast.Assign):
        return None
    value = context.value(statement.value)
    if node in statement.targets:
        return value
    for target in statement.targets:  # `x[mask], y[mask] = spline(z)`
        if isinstance(target, (ast.Tuple, ast.List)) and node in target.elts:
            items = value.items if value.kind is Kind.TUPLE else None
            return items[target.elts.index(node)] if items and len(items) == len(target.elts) else value.elem
    return None


def indices(node: ast.Subscript) -> list[ast.expr]:
    """The indices and slices of a subscript, one for each dimension.

    `x[(a, b)]` is `x[a, b]`.
    """
    index = node.slice
    if not isinstance(index, ast.Tuple) or not index.elts:
        return [index]
    return [part.value if isinstance(part, ast.Starred) else part for part in index.elts]
