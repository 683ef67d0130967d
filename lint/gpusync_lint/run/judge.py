"""Judging: every rule is shown every node that it declares, and what it reports becomes findings."""

from __future__ import annotations

import ast
from hashlib import blake2b
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import registry
from gpusync_lint.domain.values import UNKNOWN, Kind
from gpusync_lint.model.findings import Finding
from gpusync_lint.model.levels import Heat
from gpusync_lint.rules import rule_table
from gpusync_lint.rules.base.context import RuleContext
from gpusync_lint.rules.base.occurrences import occurrences
from gpusync_lint.rules.fixes.batched_reads import merge_reads
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.domain.values import Value
    from gpusync_lint.heat.frequency import FrequencyRecorder
    from gpusync_lint.inference.fixpoint import Inference
    from gpusync_lint.model.findings import EngineSettings
    from gpusync_lint.model.placement import Place
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef
    from gpusync_lint.rules.base.context import Report, Rule
    from gpusync_lint.rules.base.occurrences import Occurrence

    Found = list[tuple[Occurrence, Report]]


class Judge:
    """Asks the rules about the files of a project."""

    def __init__(self, inference: Inference, heat: FrequencyRecorder, settings: EngineSettings) -> None:
        self._inference = inference
        self._heat = heat
        self._settings = settings
        self._barriers = registry.all_barriers() | {barrier.id: barrier for barrier in settings.barriers}
        self._files: dict[ModuleDef, _FileReports] = {}
        """The files that some rule was asked about, until their findings have been taken."""
        self._judged: dict[ModuleDef, frozenset[FunctionDef]] = {}
        """The functions with reports, of the files whose findings have been taken."""

    def findings(self, file: ModuleDef) -> Iterator[tuple[Finding, Place | None]]:
        """The findings of a file, in no particular order, each with the place that its heat depends on."""
        reports = self._reports(file)
        found = reports.all()
        self._judged[file] = reports.functions()
        del self._files[file]
        context = reports.context
        merge_reads(found, context)
        seen: set[tuple[str, int]] = set()
        in_tests = context.in_tests()
        for occurrence, report in sorted(found, key=lambda item: (item[1].node.lineno, item[1].node.col_offset)):
            if in_tests and _is_assertion(occurrence.statement):
                continue  # a test reads values on purpose
            if (report.barrier, id(report.node)) not in seen:
                seen.add((report.barrier, id(report.node)))
                place: Place | None = None
                if report.heat is None:
                    statement = report.heat_statement or occurrence.statement
                    place = self._heat.place(occurrence.fn, statement, occurrence.repeated, occurrence.deferred)
                yield self._finding(occurrence, report, place, context), place

    def _reports(self, file: ModuleDef) -> _FileReports:
        found = self._files.get(file)
        if found is None:
            torch = registry.catalogue("torch")
            context = RuleContext(file, self._inference, torch, self._settings, self._heat, self._has_reports)
            found = self._files[file] = _FileReports(context, self._inference)
        return found

    def _has_reports(self, fn: FunctionDef) -> bool:
        judged = self._judged.get(fn.file)
        return bool(self._reports(fn.file).of(fn)) if judged is None else fn in judged

    def close(self) -> None:
        """Forget everything: what is left refers to itself, and would wait for the garbage collector."""
        self._files.clear()

    def _finding(self, occurrence: Occurrence, report: Report, place: Place | None, context: RuleContext) -> Finding:
        barrier = self._barriers[report.barrier]
        if place is not None:
            heat = self._heat.heat_at(place)
        else:
            assert report.heat is not None
            heat = Heat.GUARDED if occurrence.deferred and report.heat is Heat.STEP else report.heat
        rule = registry.rule_doc(barrier.code)
        path = context.file.path
        digest = blake2b(ast.unparse(report.node).encode(), digest_size=5).hexdigest()
        return Finding(
            code=barrier.code,
            name=rule.name if rule is not None else barrier.code,
            path=path,
            span=context.span_of(report, occurrence),
            message=_message(barrier.message, report.node, context.values),
            remedy=report.remedy or barrier.remedy,
            heat=heat,
            confidence=report.confidence,
            framework=barrier.framework,
            key=f"{path}::{occurrence.fn.qualname}::{barrier.code}::{digest}::1",
            fix=report.fix,
        )


def _is_assertion(statement: ast.stmt) -> bool:
    """`assert test`, `self.assertEqual(a, b)`, `torch.testing.assert_close(a, b)`."""
    if isinstance(statement, ast.Assert):
        return True
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return (dotted_path(statement.value.func) or "").rpartition(".")[2].startswith("assert")


class _FileReports:
    """What the rules report on one file, function by function."""

    def __init__(self, context: RuleContext, inference: Inference) -> None:
        self.context = context
        self._inference = inference
        self._table = rule_table(context)
        self._reports: dict[FunctionDef, Found] = {}
        self._waiting: list[tuple[Occurrence, Rule]] = []
        """The occurrences that a rule judges after the other rules."""

    def all(self) -> Found:
        """The reports on every function of the file, those of the rules that come after the others last."""
        found = [one for fn in self.context.file.all_functions for one in self.of(fn)]
        self.context.reported_lines.update(report.node.lineno for _, report in found)
        for occurrence, rule in self._waiting:
            found += self._asked(rule, occurrence)
        return found

    def of(self, fn: FunctionDef) -> Found:
        """The reports on one function, without those of the rules that come after the others."""
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
                            found += self._asked(rule, occurrence)
        return found

    def functions(self) -> frozenset[FunctionDef]:
        """The functions with reports of rules that do not come after the others."""
        return frozenset(fn for fn, found in self._reports.items() if found)

    def _select(self, node: ast.AST) -> tuple[Rule, ...] | None:
        return self._table.judging(node, self.context.values)

    def _asked(self, rule: Rule, occurrence: Occurrence) -> Iterator[tuple[Occurrence, Report]]:
        self.context.occurrence = occurrence
        for report in rule.check(occurrence.node, self.context):
            yield occurrence, report


def _message(template: str, mark: ast.expr, values: dict[ast.expr, Value]) -> str:
    """The message of a finding: `{call}` stands for what is called, as its author wrote it."""
    called = _called(mark, values)
    if not called:
        called = "this comparison" if isinstance(mark, ast.Compare) else "this"
        message = template.replace("`{call}`", called).replace("{call}", called)
        return message[:1].upper() + message[1:]
    return template.replace("{call}", called)


def _called(mark: ast.expr, values: dict[ast.expr, Value]) -> str:
    """What a call calls: `torch.equal()`, `float()`; of a method the name, `.cpu()`; empty for another expression."""
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
