"""`analyze`: sources in, findings out. The two storeys meet here.

1. Every file is parsed with `ast` and summarized; the project's imports are resolved; files that have nothing to do
   with a framework are dropped. The inference interprets the rest and says which statements hold something of interest.
2. Those statements alone are gone through node by node, and judged by the rules. The heat of a finding is that of its
   statement.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from gpusync_lint.heat.frequency import FrequencyRecorder
from gpusync_lint.inference.fixpoint import Inference
from gpusync_lint.inference.named_barriers import named_by
from gpusync_lint.model.finding_keys import numbered
from gpusync_lint.model.findings import Analysis, FileError, Finding, PartLinks
from gpusync_lint.project.resolution import Project
from gpusync_lint.project.symbols import ModuleDef, read_symbols
from gpusync_lint.syntax.parsing import normalize, parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusync_lint.model.findings import EngineSettings, Source
    from gpusync_lint.model.placement import Place
    from gpusync_lint.project.lazy_modules import Component


_RECURSION = 4000
"""Python frames: functions are interpreted where they are called, and files read where they are asked for."""


def analyze(
    sources: Sequence[Source],
    settings: EngineSettings,
    context: Sequence[Source] = (),
    component: Component | None = None,
) -> Analysis:
    """Find every barrier in a set of files that belong together.

    All codes, all heats and all confidences, unsuppressed, by path, line and column. Files are read as one project:
    what a function returns and how often it is called is known across them. `context` is more of that project, which is
    read and not reported on. `component` is the component of which the files are a part; their heat then follows from
    `Analysis.links` of all its parts. Never raises for what a file contains.
    """
    enabled = gc.isenabled()
    gc.disable()  # trees make no cycles worth collecting, and the collector would walk them over and over
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION))
    try:
        return _analyze(sources, settings, context, component)
    finally:
        sys.setrecursionlimit(limit)
        if enabled:
            gc.enable()


def _analyze(
    sources: Sequence[Source],
    settings: EngineSettings,
    context: Sequence[Source],
    component: Component | None,
) -> Analysis:
    files: list[ModuleDef] = []
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
    named = named_by(settings.barriers)
    project = Project([*files, *_summaries(context)], named.roots, component)
    inference = Inference(project, named)
    inference.run()
    found: list[tuple[Finding, Place | None]] = []
    links: PartLinks | None = None
    if component is not None or any(inference.has_run(fn) for file in files for fn in file.all_functions):
        from gpusync_lint.run.judge import Judge

        heat = FrequencyRecorder(project, inference, files, settings.step_functions)
        judge = Judge(inference, heat, settings)
        for file in files:
            judged = list(judge.findings(file))
            found += zip(numbered(finding for finding, _ in judged), (place for _, place in judged), strict=True)
        judge.close()
        found.sort(key=lambda item: (item[0].path, item[0].span, item[0].code))
        if component is not None:
            places = tuple(place for _, place in found)
            links = PartLinks(heat.own, places, project.lazy.dependencies() if project.lazy is not None else {})
    inference.release()
    project.release()
    errors.sort(key=lambda error: error.path)
    return Analysis(tuple(finding for finding, _ in found), tuple(errors), len(sources), links)


def _summaries(context: Sequence[Source]) -> Iterator[ModuleDef]:
    """What files of the context define; those that cannot be read are not there."""
    for source in context:
        text = normalize(source.text)
        parsed = parse(text)
        if parsed.tree is not None:
            with suppress(RecursionError):
                yield read_symbols(source.path, text, parsed.tree)
