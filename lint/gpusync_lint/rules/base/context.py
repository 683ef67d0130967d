"""What every rule is given, and what it gives back."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from gpusync_lint.catalogue import registry
from gpusync_lint.domain.training_idioms import is_test_path
from gpusync_lint.domain.values import UNKNOWN, Device, Kind, Value, foreign_inside
from gpusync_lint.model.findings import Fix
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.operations import Template
from gpusync_lint.model.spans import Span
from gpusync_lint.project.symbols import ClassDef
from gpusync_lint.rewrite.layout import Layout
from gpusync_lint.rules.base.blocks import around

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpusync_lint.catalogue.schema import Barrier, Catalogue
    from gpusync_lint.heat.frequency import FrequencyRecorder
    from gpusync_lint.inference.fixpoint import Inference
    from gpusync_lint.model.findings import EngineSettings
    from gpusync_lint.model.operations import Operation
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef
    from gpusync_lint.rules.base.occurrences import Occurrence

CLOCKS = frozenset({"time", "perf_counter", "monotonic", "perf_counter_ns", "time_ns", "monotonic_ns"})
"""Functions of the module `time` that read a clock which goes on while the host waits."""
_CLOCKS = CLOCKS | {"process_time", "elapsed_time", "get_elapsed_time"}
_CLOCK_REACH = 3
_KIND = itemgetter(Value._fields.index("kind"))
_CONTAINERS = frozenset({Kind.TUPLE, Kind.LIST, Kind.DICT})
_F_STRINGS_HAVE_POSITIONS = sys.version_info >= (3, 12)


@dataclass(frozen=True, slots=True)
class Report:
    """A barrier that a rule saw.

    `mark` is the expression to underline; `tail` underlines only the last name of a call, and its arguments.
    """

    barrier: str
    node: ast.expr
    confidence: Confidence
    highlight_name: bool = False
    fix: Fix | None = None
    remedy: str = ""
    """What to do here, where that is more than what the catalogue says."""
    heat_statement: ast.stmt | None = None
    """The statement whose heat counts, where it is not the one that holds the mark."""
    heat: Heat | None = None
    """How often it waits, where that does not depend on step loops."""


class Rule:
    """Judges one kind of barrier. One instance serves all files of a run; it keeps no state of them."""

    nodes: ClassVar[tuple[type[ast.AST], ...]]
    """The types of `ast` nodes that it judges: `check` is called for each of them in every function of a project."""
    calls: Iterable[str] = ()
    """Of calls, the names of those that it judges: last names of functions and methods (`item`), qualified names of
    functions outside the project (`torch.cuda.synchronize`) and beginnings of them (`numpy.*`), and calls of an object
    by its class (`torch.nn.BatchNorm1d.__call__`). Empty: every call."""
    barriers: ClassVar[tuple[str, ...]] = ()
    """Ids of the catalogue entries that it reports."""
    VALID: ClassVar[Sequence[str]] = ()
    """Bodies of a step loop that must stay silent."""
    INVALID: ClassVar[Sequence[str]] = ()
    """Bodies of a step loop that must be reported."""
    after_others: ClassVar[bool] = False
    """Whether it judges a file after the other rules, and depends on what they reported."""

    low_confidence: ClassVar[bool] = False
    """Whether all that it reports is of low confidence, so that it has no `INVALID` bodies."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings

    def applies_to(self, context: RuleContext) -> bool:
        """Whether anything in the file of a context can be reported; asked once per file, before `check`."""
        return True

    def check(self, node: Any, context: RuleContext) -> Iterator[Report]:
        """Judge one node."""
        raise NotImplementedError


class RuleContext:
    """A rule's view of the node it judges: what the inference knows of it and of its surroundings."""

    def __init__(
        self,
        file: ModuleDef,
        inference: Inference,
        catalogue: Catalogue,
        settings: EngineSettings,
        heat: FrequencyRecorder,
        has_reports: Callable[[FunctionDef], bool],
    ) -> None:
        self.file = file
        self.catalogue = catalogue
        self.settings = settings
        self.layout = Layout(file.text.split("\n"))
        self.occurrence: Occurrence
        """The node that is judged, and where it stands."""
        self.values: dict[ast.expr, Value] = {}
        """What is known of the file's expressions."""
        for fn in file.all_functions:
            self.values.update(inference.values(fn))
        self.reported_lines: set[int] = set()
        """Lines of the file on which something was reported so far."""
        self._inference = inference
        self._has_reports = has_reports
        self._heat = heat

    @property
    def function(self) -> FunctionDef:
        """The function, or module body, that the node stands in."""
        return self.occurrence.fn

    @property
    def statement(self) -> ast.stmt:
        """The statement that the node stands in."""
        return self.occurrence.statement

    def value(self, node: ast.AST | None) -> Value:
        """What an expression holds."""
        return UNKNOWN if node is None else self.values.get(node, UNKNOWN)  # type: ignore[call-overload]

    def qualified_name(self, node: ast.AST | None) -> str:
        """The dotted name, outside the project, that an expression stands for; empty when it stands for none."""
        value = self.value(node)
        return value.ref if value.kind is Kind.NAME and isinstance(value.ref, str) else ""

    def unknown_is_probably_tensor(self) -> bool:
        """Whether what nobody explains is likely to be a tensor: the file uses torch, a device, and nothing alike."""
        file = self.file
        return file.uses_framework and not file.uses_others and self.uses_device()

    @cached_property
    def uses_foreign_values(self) -> bool:
        """Whether the file imports a framework other than torch, or any of its expressions holds a value of one."""
        values = self.values.values()
        if self.file.uses_foreign or Kind.FOREIGN in map(_KIND, values):
            return True
        return any(foreign_inside(value) is not None for value in values if value.kind in _CONTAINERS)

    def uses_device(self) -> bool:
        """Whether the function belongs to code that uses a device at all."""
        return self._inference.devices.assumed_device(self.function) >= Device.ASSUMED

    def in_module_method(self) -> bool:
        """Whether the function is a method of a module."""
        cls = self.function.cls
        return cls is not None and self._inference.project.classes.is_module(cls)

    def in_tests(self) -> bool:
        """Whether the file holds tests."""
        return is_test_path(self.file.path)

    def confidence(self, value: Value) -> Confidence | None:
        """How sure it is that a value is a tensor on the device; None when it is not one."""
        if value.kind is not Kind.TENSOR or value.device is Device.CPU:
            return None
        if value.device is Device.UNKNOWN:
            return Confidence.LOW
        return Confidence.HIGH if value.device is Device.GPU and value.certain else Confidence.MEDIUM

    def truth_confidence(self, value: Value) -> Confidence | None:
        """How sure it is that Python's asking for the truth of a value reads a device tensor.

        Only a tensor of one element has a truth value. Where nothing but a convention says that this is a tensor, and
        nothing that it was reduced to one element, that it is asked says that it is a number.
        """
        confidence = self.confidence(value)
        return (
            Confidence.LOW
            if confidence is not None and not value.certain and value.zero_dim is not True
            else confidence
        )

    def is_mask(self, node: ast.expr) -> bool | None:
        """Whether an index is a boolean mask; None for a tensor of unknown type that is called one.

        A parameter that is called a mask is one, unless some caller is known to pass it something else.
        """
        index = self.value(node)
        if index.kind is not Kind.TENSOR or index.boolean:
            return index.kind is Kind.TENSOR
        label = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        if index.zero_dim is True or not label.lower().endswith(("mask", "masks")):
            return False
        parameters = getattr(self.function.node, "args", None)
        own = parameters is not None and any(
            arg.arg == label for arg in ast.walk(parameters) if isinstance(arg, ast.arg)
        )
        return True if own and not self._inference.is_passed(self.function, label) else None

    def is_loop_target(self, node: ast.expr) -> bool:
        """Whether a name is bound by a `for` around the node, or by a comprehension."""
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        if not isinstance(node, ast.Name):
            return False
        return node.id in self.function.loop_names

    def barriers_by_name(self, node: ast.Call) -> Sequence[Barrier]:
        """The barriers of libraries, and of the project itself, that the name of what is called tells."""
        receiver = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else UNKNOWN
        inference = self._inference
        return inference.named.barriers(node.func, self.value(node.func), receiver, inference.project.classes)

    def prepares_data(self) -> bool:
        """Whether the function makes batches on the host."""
        return self._inference.devices.prepares_data(self.function)

    def goes_backward(self, fn: FunctionDef, path: str) -> bool:
        """Whether a function calls `backward()` on what a dotted path names."""
        return path in self._inference.evidence.of(fn).backward

    def is_traced(self) -> bool:
        """Whether another framework traces the function, rather than running it line by line."""
        return self._inference.tracing.is_traced(self.function)

    def may_wait(self, fn: FunctionDef) -> bool:
        """Whether a project function, or one that it calls, may hold a barrier."""
        seen = {fn}
        queue = [fn]
        while queue:
            fn = queue.pop()
            effects = self._inference.effects(fn)
            if self._inference.returns(fn) is None or effects.calls_unknown or self._has_reports(fn):
                return True
            queue += fn.nested.values()
            for site in effects.calls:
                if site.callee not in seen:
                    seen.add(site.callee)
                    queue.append(site.callee)
        return False

    def method_of(self, value: Value, label: str) -> FunctionDef | None:
        """A method of an instance of a project class."""
        return self._inference.project.classes.method(value.ref, label) if isinstance(value.ref, ClassDef) else None

    def waits_on(self, barrier: Barrier) -> bool:
        """Whether a barrier waits on the oldest torch that the project runs on."""
        return barrier.until_torch is None or self.settings.torch_version < barrier.until_torch

    def heat(self, fn: FunctionDef, statement: ast.stmt) -> Heat:
        """How often a statement of a function runs."""
        return self._heat.heat(fn, statement)

    def span(self, node: ast.expr | ast.stmt) -> Span:
        """Where a node stands, for the operations of a fix."""
        return self.layout.span(node)

    def template(self, text: str, *parts: ast.expr) -> Template:
        """New source for a fix; each ``{}`` in the text stands for one of the expressions."""
        return Template(text, tuple(self.layout.span(part) for part in parts))

    def fix(self, title: str, *operations: Operation, safe: bool = False, hazard: str | None = None) -> Fix | None:
        """A fix of the node that is judged; None where the layout of the source does not allow it."""
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
        """A fix of several nodes at once; None where the layout of the source does not allow it."""
        if not all(self._is_placed(occurrence) for occurrence in occurrences):
            return None
        if any(self.layout.obstacle(operation) is not None for operation in operations):
            return None
        return Fix(title, tuple(operations), safe, hazard)

    def _is_placed(self, occurrence: Occurrence) -> bool:
        """Whether this Python knows where an expression stands: before 3.12 not inside an f-string."""
        return occurrence.string is None or _F_STRINGS_HAVE_POSITIONS

    def span_of(self, report: Report, site: Occurrence) -> Span:
        """What a report underlines."""
        mark = report.node
        if site.string is not None and not self._is_placed(site):
            mark = site.string
        elif report.highlight_name and isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute):
            whole = self.span(mark)
            func = self.span(mark.func)
            return Span(func.end_line, func.end_column - len(mark.func.attr), whole.end_line, whole.end_column)
        return self.span(mark)

    def is_timed(self) -> bool:
        """Whether a clock is read next to the statement: then the wait is what its author measures."""
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
    """The functions and methods by which entries of torch's catalogue are called, for `Rule.calls`."""
    entries = [registry.catalogue("torch").barriers[barrier] for barrier in barriers]
    return frozenset(name for entry in entries for name in (*entry.functions, *entry.methods))


def method(node: ast.Call) -> str:
    """The name of the method that a call calls; empty for a plain function."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def arguments(node: ast.Call) -> list[ast.expr]:
    """All that a call is given, with or without a name or a star."""
    given = [arg.value if isinstance(arg, ast.Starred) else arg for arg in node.args]
    return given + [argument.value for argument in node.keywords]


def positional(node: ast.Call) -> list[ast.expr]:
    """The positional arguments without a star."""
    return [arg for arg in node.args if not isinstance(arg, ast.Starred)]


def keyword(node: ast.Call, label: str) -> ast.expr | None:
    """The value of a keyword argument."""
    for argument in node.keywords:
        if argument.arg == label:
            return argument.value
    return None


def keyword_is(node: ast.Call, label: str, const: bool) -> bool:
    """Whether a keyword argument is given as exactly this constant."""
    value = keyword(node, label)
    return value is not None and is_constant(value, const)


def is_constant(node: ast.expr, const: bool) -> bool:
    """Whether an expression is exactly this constant."""
    return isinstance(node, ast.Constant) and node.value is const


def stored_value(node: ast.Subscript, context: RuleContext) -> ast.expr | None:
    """The value that an assignment stores under a subscript; None for a subscript that is not a target of one."""
    statement = context.statement
    return statement.value if isinstance(statement, ast.Assign) and node in statement.targets else None


def indices(node: ast.Subscript) -> list[ast.expr]:
    """What stands between the brackets of a subscript: an index or a slice for each dimension.

    `x[(a, b)]` is `x[a, b]`.
    """
    index = node.slice
    if not isinstance(index, ast.Tuple) or not index.elts:
        return [index]
    return [part.value if isinstance(part, ast.Starred) else part for part in index.elts]
