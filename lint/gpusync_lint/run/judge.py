"""The application of rules: each rule checks the nodes that it declares, and its reports become findings."""

from __future__ import annotations

import ast
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import registry
from gpusync_lint.domain.values import UNKNOWN, Kind
from gpusync_lint.heat.capture import FIRST_OTHER_CODE, judged
from gpusync_lint.model.findings import Finding
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.rules import rule_table
from gpusync_lint.rules.base.context import RuleContext
from gpusync_lint.rules.base.evidence import measured_confidence
from gpusync_lint.rules.base.occurrences import occurrences
from gpusync_lint.rules.base.tasks import Tasks
from gpusync_lint.rules.base.timers import Timers
from gpusync_lint.rules.base.wording import accelerator_of, reworded
from gpusync_lint.rules.fixes.batched_reads import merge_reads
from gpusync_lint.run.compiled import CompiledFunctions
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpusync_lint.catalogue.schema import Barrier
    from gpusync_lint.domain.values import Value
    from gpusync_lint.heat.frequency import FrequencyRecorder
    from gpusync_lint.inference.fixpoint import Inference
    from gpusync_lint.model.findings import EngineSettings
    from gpusync_lint.model.placement import Place
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef
    from gpusync_lint.rules.base.context import Report, Rule
    from gpusync_lint.rules.base.occurrences import Occurrence

    Found = list[tuple[Occurrence, Report]]


_TEST_LIBRARIES = frozenset({"pytest", "unittest"})
_WARNING_METHODS = frozenset({"warn", "warning", "warning_once", "error", "exception", "critical"})


def is_wait(code: str) -> bool:
    """Whether findings of a rule are waits of the host for the device."""
    return code < FIRST_OTHER_CODE


class Judge:
    """Applies the rules to the files of a project."""

    def __init__(self, inference: Inference, heat: FrequencyRecorder, settings: EngineSettings) -> None:
        self._inference = inference
        self._heat = heat
        self._settings = settings
        self._timers = Timers(inference.project)
        self._tasks = Tasks(inference)
        self._compiled = CompiledFunctions(inference, settings.torch_version)
        self._barriers = registry.all_barriers() | {barrier.id: barrier for barrier in settings.barriers}
        self._files: dict[ModuleDef, _FileReports] = {}
        """The reports of files whose findings have not been created yet."""
        self._judged: dict[ModuleDef, frozenset[FunctionDef]] = {}
        """The functions with reports, of the files whose findings have been taken."""
        self._waits: dict[ModuleDef, dict[FunctionDef, list[Report]]] = {}
        """The definite waits of those functions."""

    def findings(self, file: ModuleDef) -> Iterator[tuple[Finding, Place | None]]:
        """The findings of a file, each with the place that determines its heat; None if its rule does."""
        reports = self._reports(file)
        found = reports.all()
        self._judged[file] = reports.functions()
        self._waits[file] = {fn: waits for fn in self._judged[file] if (waits := reports.waits(fn))}
        del self._files[file]
        context = reports.context
        merge_reads(found, context)
        seen: set[tuple[str, int]] = set()
        in_tests = context.in_tests()
        for occurrence, report in sorted(found, key=lambda item: (item[1].node.lineno, item[1].node.col_offset)):
            if in_tests and report.heat is not Heat.ANY and _is_assertion(occurrence.statement):
                continue  # a test reads values on purpose
            if (report.barrier, id(report.node)) not in seen:
                seen.add((report.barrier, id(report.node)))
                place: Place | None = None
                if report.heat is None:
                    statement = report.heat_statement or occurrence.statement
                    fn = report.function or occurrence.fn
                    # A program that works does not log warnings in every step. The speed of tests matters less.
                    deferred = _is_warning(occurrence.statement) or (in_tests and _is_test(fn, context))
                    place = self._heat.place(fn, statement, occurrence.repeated, occurrence.deferred or deferred)
                    if occurrence.within is not None and not deferred:
                        place = self._hottest(place, self._inference.lambda_calls(occurrence.within))
                yield self._finding(occurrence, report, place, context), place

    def _hottest(self, written: Place, calls: Mapping[ast.stmt, FunctionDef]) -> Place:
        """The place that determines how often a lambda runs: where it is written, or where it is called."""
        places = [written, *(self._heat.place(fn, statement) for statement, fn in calls.items())]
        if self._heat.is_part:  # decided when the parts are linked; the first call stands for all
            return places[:2][-1]
        return min(places, key=lambda place: self._heat.heat_at(place).rank)

    def _reports(self, file: ModuleDef) -> _FileReports:
        found = self._files.get(file)
        if found is None:
            torch = registry.catalogue("torch")
            context = RuleContext(
                file,
                self._inference,
                torch,
                self._settings,
                self._heat,
                self._has_reports,
                self._definite_waits,
                self._timers,
                self._tasks,
            )
            found = self._files[file] = _FileReports(context, self._inference, self._barriers)
        return found

    def _has_reports(self, fn: FunctionDef) -> bool:
        judged = self._judged.get(fn.file)
        return bool(self._reports(fn.file).of(fn)) if judged is None else fn in judged

    def _definite_waits(self, fn: FunctionDef) -> list[Report]:
        judged = self._waits.get(fn.file)
        return self._reports(fn.file).waits(fn) if judged is None else judged.get(fn, [])

    def close(self) -> None:
        """Break reference cycles, so that no garbage collection is needed."""
        self._files.clear()

    def _finding(self, occurrence: Occurrence, report: Report, place: Place | None, context: RuleContext) -> Finding:
        barrier = self._barriers[report.barrier]
        capture, unit = None, None
        if place is not None:
            heat = Heat.ONCE  # in a part of a component, decided when the parts are linked
            if not self._heat.is_part:
                heat = self._heat.heat_at(place)
                capture = self._heat.capture_at(place)
                unit = self._heat.unit_at(place)
        else:
            assert report.heat is not None
            if report.heat is Heat.CAPTURE:
                fn = report.function or occurrence.fn
                capture = self._heat.capture_at(self._heat.place(fn, occurrence.statement))
            heat = Heat.GUARDED if occurrence.deferred and report.heat is Heat.STEP else report.heat
        rule = registry.rule_doc(barrier.code)
        path = context.file.path
        digest = blake2b(ast.unparse(report.node).encode(), digest_size=5).hexdigest()
        finding = Finding(
            code=barrier.code,
            name=rule.name if rule is not None else barrier.code,
            path=path,
            span=context.span_of(report, occurrence),
            message=report.message or _message(barrier.message, report.node, context.values),
            remedy=report.remedy or barrier.remedy,
            heat=heat,
            confidence=measured_confidence(report, context.values) if _is_measured(barrier) else report.confidence,
            framework=barrier.framework,
            key=f"{path}::{(report.function or occurrence.fn).qualname}::{barrier.code}::{digest}::1",
            fix=report.fix,
            unit=unit,
            graph_break=self._compiled.graph_break(report.function or occurrence.fn, report.barrier, report.node),
        )
        return judged(finding, heat, capture)


def _is_measured(barrier: Barrier) -> bool:
    """Whether public programs show how often findings of a barrier are right: not those of a project's own barriers."""
    return is_wait(barrier.code) and barrier.framework != "project"


def _is_warning(statement: ast.stmt) -> bool:
    """Whether a statement issues a warning: `logger.warning("no token in %s", tokens)`."""
    called = statement.value.func if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr in _WARNING_METHODS


def _is_test(fn: FunctionDef, context: RuleContext) -> bool:
    """Whether a function in a file of tests, or one around it, is a test, and not `test_epoch` of a script."""
    if fn.outer is not None and _is_test(fn.outer, context):
        return True
    if not fn.name.startswith("test_"):
        return False
    imported = fn.file.imports.values()
    is_by_library = any(name.partition(".")[0] in _TEST_LIBRARIES for name in imported)
    return is_by_library or context.once(_asserts, fn.node.body)


def _asserts(body: list[ast.stmt]) -> bool:
    return any(isinstance(node, ast.stmt) and _is_assertion(node) for node in walk_block(body))


def _is_assertion(statement: ast.stmt) -> bool:
    """`assert test`, `self.assertEqual(a, b)`, `torch.testing.assert_close(a, b)`."""
    if isinstance(statement, ast.Assert):
        return True
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return (dotted_path(statement.value.func) or "").rpartition(".")[2].startswith("assert")


class _FileReports:
    """The reports of the rules on a file, by function."""

    def __init__(self, context: RuleContext, inference: Inference, barriers: Mapping[str, Barrier]) -> None:
        self.context = context
        self._barriers = barriers
        self._inference = inference
        self._table = rule_table(context)
        self._reports: dict[FunctionDef, Found] = {}
        self._waiting: list[tuple[Occurrence, Rule]] = []
        """The nodes for rules that check after the other rules, with these rules."""

    def all(self) -> Found:
        """The reports on the file. Those of rules that check after the others come last."""
        found = [one for fn in self.context.file.all_functions for one in self.of(fn)]
        self.context.reported_lines.update(report.node.lineno for _, report in found)
        self.context.waiting.update(report.node for _, report in found if self._is_wait(report))
        needed = {rule for rule in {rule for _, rule in self._waiting} if rule.applies_after_others(self.context)}
        for occurrence, rule in self._waiting:
            if rule in needed:
                self._check(rule, occurrence, found)
        return found

    def of(self, fn: FunctionDef) -> Found:
        """The reports on a function, without those of rules that check after the others."""
        found = self._reports.get(fn)
        if found is None:
            found = self._reports[fn] = []
            if self._inference.has_run(fn):
                for occurrence, rules in occurrences(
                    fn, self._select, self._table.nodes, self._inference.effects(fn).dead
                ):
                    for rule in rules:
                        if rule.after_others:
                            self._waiting.append((occurrence, rule))
                        else:
                            self._check(rule, occurrence, found)
        return found

    def waits(self, fn: FunctionDef) -> list[Report]:
        """The reports on a function of operations that wait, without guesses and without what is called later."""
        return [
            report
            for occurrence, report in self.of(fn)
            if report.confidence is not Confidence.LOW and not occurrence.deferred and self._is_wait(report)
        ]

    def _is_wait(self, report: Report) -> bool:
        """Whether a report is one of a wait of the host for the device."""
        return is_wait(self._barriers[report.barrier].code)

    def functions(self) -> frozenset[FunctionDef]:
        """The functions with reports, without those of rules that check after the others."""
        return frozenset(fn for fn, found in self._reports.items() if found)

    def _select(self, node: ast.AST) -> tuple[Rule, ...] | None:
        return self._table.judging(node, self.context.values)

    def _check(self, rule: Rule, occurrence: Occurrence, found: Found) -> None:
        """Add the reports of a rule on a node."""
        self.context.occurrence = occurrence
        for report in rule.check(occurrence.node, self.context):
            worded = self._worded(report)
            if worded is not None:
                found.append((occurrence, worded))

    def _worded(self, report: Report) -> Report | None:
        """A report in the words of the accelerator that it is about; None if it does not wait there."""
        accelerator = accelerator_of(report, self.context)
        if accelerator is None:
            return report
        worded = reworded(report, self._barriers[report.barrier], accelerator)
        if worded is None:
            return None
        message = report.message and worded.message
        return replace(worded, message=message or _message(worded.message, report.node, self.context.values))


def _message(template: str, mark: ast.expr, values: dict[ast.expr, Value]) -> str:
    """The message of a finding. `{call}` is replaced by the callee as it is written in the source."""
    called = _called(mark, values)
    if not called:
        called = "this comparison" if isinstance(mark, ast.Compare) else "this"
        message = template.replace("`{call}`", called).replace("{call}", called)
        return message[:1].upper() + message[1:]
    return template.replace("{call}", called)


def _called(mark: ast.expr, values: dict[ast.expr, Value]) -> str:
    """The callee of a call: `torch.equal()`, `float()`, for a method `.cpu()`; empty for other expressions."""
    if isinstance(mark, ast.Call):
        func = mark.func
        if isinstance(func, ast.Name):
            return f"{func.id}()"
        if isinstance(func, ast.Attribute):
            called = values.get(func, UNKNOWN)
            if called.kind is Kind.NAME and isinstance(called.ref, str) and "()" not in called.ref:
                return f"{dotted_path(func) or called.ref}()"
            return f".{func.attr}()"
    return ""
