"""The engine: `analyze` takes sources and returns findings.

1. Each file is parsed with `ast`, and its definitions are collected. Imports within the project are resolved.
2. The inference computes the values of expressions.
3. Rules check the nodes of the functions that the inference has run, and report barriers.
4. The heat of a finding is that of its statement, from the call graph of the project.
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
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import Entry, Place
    from gpusync_lint.project.lazy_modules import Component


_RECURSION = 4000
"""The recursion limit, in Python frames. Calls and imports of the analyzed code are followed recursively."""


def analyze(
    sources: Sequence[Source],
    settings: EngineSettings,
    context: Sequence[Source] = (),
    component: Component | None = None,
) -> Analysis:
    """Find the barriers in the files of a project.

    The findings have all codes, heats and confidences, are not suppressed, and are sorted by path and position. Files
    that cannot be parsed are among the errors.

    Args:
        sources: the files.
        settings: the settings of the engine.
        context: other files of the project, which are read and not checked.
        component: the component that the files are a part of. The heat of findings is then final only when
            `Analysis.links` of all parts are combined.
    """
    enabled = gc.isenabled()
    gc.disable()  # syntax trees have no cycles, and the collector would traverse them again and again
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
    entries: dict[Key, Entry] = {}
    if component is not None or any(inference.has_run(fn) for file in files for fn in file.all_functions):
        from gpusync_lint.run.judge import Judge

        heat = FrequencyRecorder(project, inference, files, settings.step_functions)
        judge = Judge(inference, heat, settings)
        for file in files:
            judged = list(judge.findings(file))
            found += zip(numbered(finding for finding, _ in judged), (place for _, place in judged), strict=True)
        judge.close()
        found.sort(key=lambda item: (item[0].path, item[0].span, item[0].code))
        if component is None:
            entries = heat.repeated_entries()
        else:
            places = tuple(place for _, place in found)
            links = PartLinks(heat.own, places, project.lazy.dependencies() if project.lazy is not None else {})
    errors += [FileError(file.path, line, message) for file in files for message, line in file.limits.items()]
    inference.release()
    project.release()
    errors.sort(key=lambda error: error.path)
    return Analysis(tuple(finding for finding, _ in found), tuple(errors), len(sources), links, entries)


def _summaries(context: Sequence[Source]) -> Iterator[ModuleDef]:
    """The definitions of the files of the context. Files that cannot be parsed are left out."""
    for source in context:
        text = normalize(source.text)
        parsed = parse(text)
        if parsed.tree is not None:
            with suppress(RecursionError):
                yield read_symbols(source.path, text, parsed.tree)
