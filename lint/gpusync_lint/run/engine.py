"""`analyze`: sources in, findings out. The two storeys meet here.

1. Every file is parsed with `ast` and summarized; the project's imports are resolved; files that have nothing to do
   with a framework are dropped. The inference interprets the rest and says which statements hold something of interest.
2. Those statements alone are gone through node by node, and judged by the rules. The heat of a finding is that of its
   statement.
"""

from __future__ import annotations

import ast
import gc
import sys
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import registry
from gpusync_lint.domain.lattice import UNKNOWN, Kind
from gpusync_lint.heat.frequency import Recorder
from gpusync_lint.inference.fixpoint import Inference
from gpusync_lint.inference.named_barriers import named_by
from gpusync_lint.model.finding_keys import numbered
from gpusync_lint.model.findings import Analysis, FileError, Finding, Running
from gpusync_lint.model.levels import Heat
from gpusync_lint.project.resolution import Project
from gpusync_lint.project.symbols import FileInfo, read_symbols
from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.parsing import normalize, parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusync_lint.catalogue.schema import Catalogue
    from gpusync_lint.domain.lattice import Value
    from gpusync_lint.model.findings import EngineSettings, Source
    from gpusync_lint.model.placement import Place
    from gpusync_lint.project.lazy_modules import Surroundings
    from gpusync_lint.project.symbols import FunctionInfo
    from gpusync_lint.rules.base.context import Report, RuleContext
    from gpusync_lint.rules.base.occurrences import Occurrence


_RECURSION = 4000
"""Python frames: functions are interpreted where they are called, and files read where they are asked for."""


def analyze(
    sources: Sequence[Source],
    settings: EngineSettings,
    context: Sequence[Source] = (),
    around: Surroundings | None = None,
) -> Analysis:
    """Find every barrier in a set of files that belong together.

    All codes, all heats and all confidences, unsuppressed, by path, line and column. Files are read as one project:
    what a function returns and how often it is called is known across them. `context` is more of that project, which is
    read and not reported on. `around` is the project that they are a part of: then how often things run is known only
    with `Analysis.running` of the other parts. Never raises for what a file contains.
    """
    enabled = gc.isenabled()
    gc.disable()  # trees make no cycles worth collecting, and the collector would walk them over and over
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION))
    try:
        return _analyze(sources, settings, context, around)
    finally:
        sys.setrecursionlimit(limit)
        if enabled:
            gc.enable()


def _analyze(
    sources: Sequence[Source],
    settings: EngineSettings,
    context: Sequence[Source],
    around: Surroundings | None,
) -> Analysis:
    files: list[FileInfo] = []
    errors: list[FileError] = []
    for source in sources:
        text = normalize(source.text)
        parsed = parse(text)
        if parsed.tree is None:
            errors.append(FileError(source.path, parsed.line, parsed.message))
            continue
        try:
            files.append(read_symbols(source.path, text, parsed.tree))
        except RecursionError:
            errors.append(FileError(source.path, None, "nested too deeply to analyze"))
    torch = registry.catalogue("torch")
    named = named_by(settings.barriers)
    project = Project([*files, *_summaries(context)], named.roots, around)
    inference = Inference(project, *_names(), named)
    inference.run()
    found: list[tuple[Finding, Place | None]] = []
    running: Running | None = None
    if around is not None or any(fn.spots for file in files for fn in file.all_functions):
        heat = Recorder(project, files, settings.step_functions)
        for file in files:
            judged = list(_Judge(file, inference, heat, torch, settings).findings())
            found += zip(numbered(finding for finding, _ in judged), (place for _, place in judged), strict=True)
        found.sort(key=lambda item: (item[0].path, item[0].span, item[0].code))
        if around is not None:
            places = tuple(place for _, place in found)
            running = Running(heat.own, places, project.beside.depends() if project.beside is not None else {})
    project.take_apart()
    errors.sort(key=lambda error: error.path)
    return Analysis(tuple(finding for finding, _ in found), tuple(errors), len(sources), running)


@cache
def _names() -> tuple[frozenset[str], frozenset[str]]:
    """Methods of torch, and functions by dotted name, that may wait; what is known by its operator alone is both."""
    torch = registry.catalogue("torch")
    bare = {
        name for entry in torch.barriers.values() if not (entry.methods or entry.functions) for name in entry.operators
    }
    functions = {f"torch.{name}" for name in bare}
    return frozenset(torch.by_method) | bare, frozenset(torch.by_function) | functions


def _summaries(context: Sequence[Source]) -> Iterator[FileInfo]:
    """What files of the context define; those that cannot be read are not there."""
    for source in context:
        text = normalize(source.text)
        parsed = parse(text)
        if parsed.tree is not None:
            with suppress(RecursionError):
                yield read_symbols(source.path, text, parsed.tree)


class _Judge:
    """Lets the rules look at the pieces of one file that the inference pointed out."""

    def __init__(
        self, file: FileInfo, inference: Inference, heat: Recorder, torch: Catalogue, settings: EngineSettings
    ) -> None:
        self._file = file
        self._inference = inference
        self._heat = heat
        self._torch = torch
        self._settings = settings
        self._barriers = registry.all_barriers() | {barrier.id: barrier for barrier in settings.barriers}

    def findings(self) -> Iterator[tuple[Finding, Place | None]]:
        """The findings of the file, in no particular order, each with the place that its heat depends on."""
        spots = self._spots()
        if not spots:
            return
        from gpusync_lint.rules import by_node
        from gpusync_lint.rules.base.context import RuleContext
        from gpusync_lint.rules.base.occurrences import sites
        from gpusync_lint.rules.fixes.batched_reads import merge_reads

        lines = self._file.text.split("\n")
        context = RuleContext(self._file, self._inference, self._torch, self._settings, lines, self._heat)
        seen_by = by_node(), by_node(after_others=True)
        shown = sites(spots, seen_by[0].keys() | seen_by[1].keys())
        found: list[tuple[Occurrence, Report]] = []
        for rules in seen_by:
            for site in shown:
                if type(site.node) in rules:
                    context.occurrence = site
                    for rule in rules[type(site.node)]:
                        for report in rule.check(site.node, context):
                            found.append((site, report))
            context.reported_lines.update(report.node.lineno for _, report in found)
        merge_reads(found, context)
        seen: set[tuple[str, int]] = set()
        for site, report in sorted(found, key=lambda item: (item[1].node.lineno, item[1].node.col_offset)):
            if (report.barrier, id(report.node)) not in seen:
                seen.add((report.barrier, id(report.node)))
                place: Place | None = None
                if report.heat is None:
                    about = report.heat_statement or site.statement
                    place = self._heat.place(site.fn, about, site.repeated, site.deferred)
                yield self._finding(site, report, place, context), place

    def _spots(self) -> list[tuple[ast.stmt, FunctionInfo]]:
        """The statements to judge, in source order, without those that run only where there is no GPU."""
        spots: list[tuple[ast.stmt, FunctionInfo]] = []
        dead: set[int] = set()
        for fn in self._file.all_functions:
            if fn.trace.dead:
                dead |= _inside(fn.node.body, fn.trace.dead)
            spots += [(statement, fn) for statement in fn.spots.values()]
        spots = [spot for spot in spots if id(spot[0]) not in dead]
        return sorted(spots, key=lambda spot: (spot[0].lineno, spot[0].col_offset))

    def _finding(self, site: Occurrence, report: Report, place: Place | None, context: RuleContext) -> Finding:
        barrier = self._barriers[report.barrier]
        if place is not None:
            heat = self._heat.heat_at(place)
        else:
            assert report.heat is not None
            heat = Heat.GUARDED if site.deferred and report.heat is Heat.STEP else report.heat
        rule = registry.rule_doc(barrier.code)
        source = ast.unparse(report.node)
        digest = blake2b(source.encode(), digest_size=5).hexdigest()
        return Finding(
            code=barrier.code,
            name=rule.name if rule is not None else barrier.code,
            path=self._file.path,
            span=context.span_of(report, site),
            message=barrier.message.replace("{call}", _called(report.node, context.values)),
            remedy=report.remedy or barrier.remedy,
            heat=heat,
            confidence=report.confidence,
            framework=barrier.framework,
            key=f"{self._file.path}::{site.fn.qualname}::{barrier.code}::{digest}::1",
            fix=report.fix,
        )


def _inside(body: list[ast.stmt], dead: set[int]) -> set[int]:
    """`id` of every statement in a block that is dead, or stands in a dead one."""
    found: set[int] = set()
    stack = [(statement, False) for statement in body]
    while stack:
        statement, below = stack.pop()
        below = below or id(statement) in dead
        if below:
            found.add(id(statement))
        stack += [(inner, below) for block in blocks(statement) for inner in block]
    return found


def _called(mark: ast.expr, values: dict[int, Value]) -> str:
    """What is called, as its author wrote it: `torch.equal()`, `float()`; of a method the name, `.cpu()`."""
    if isinstance(mark, ast.Call):
        func = mark.func
        if isinstance(func, ast.Name):
            return f"{func.id}()"
        if isinstance(func, ast.Attribute):
            called = values.get(id(func), UNKNOWN)
            if called.kind is Kind.NAME and isinstance(called.ref, str) and "()" not in called.ref:
                return f"{dotted_path(func) or called.ref}()"
            return f".{func.attr}()"
    return "This comparison" if isinstance(mark, ast.Compare) else "This"
