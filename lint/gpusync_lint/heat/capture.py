"""Which code runs while CUDA graphs are captured, from the call graph of a project.

A path contains the capture around a statement (`PathKind.CAPTURE` and the like), so this is reachability: what a
captured statement calls is captured, and what that calls. A call in a block that does not run during a capture
(`PathKind.EAGER`), or that only runs before an exception, does not count. Neither does one in a block that stands in
for an argument (`PathKind.DEFAULT`), if every captured call passes that argument.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from gpusync_lint.model.levels import Heat
from gpusync_lint.model.placement import CAPTURES, Capture, PathKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusync_lint.model.findings import Finding
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.placement import Call, CallGraph, FunctionHeat, Path, Place

_NOT_CAPTURED = frozenset({PathKind.EAGER, PathKind.ERROR})
_STRICTEST = (PathKind.CAPTURE, PathKind.FULL_GRAPH, PathKind.COMPILED)
"""The kinds of captures, those first in which a wait is an error."""
FIRST_OTHER_CODE = "GS7"
"""The first codes of findings that are no wait of the host for the device."""
_FIRST_CODE_NOT_COMPILED = "GS5"
"""The first codes of findings that `torch.compile` need not break the graph at: copies to the device, for example."""
_CODES_OF_CAPTURES = frozenset({"GS721", "GS722", "GS723", "GS724", "GS725"})
"""The codes of findings about captures of `torch.cuda.graph`, which are none anywhere else."""
_CALLS_SHOWN = 6
"""The maximum number of calls of a path that a message shows."""
_SENTENCES = {
    PathKind.CAPTURE: "an error during the capture of a CUDA graph",
    PathKind.FULL_GRAPH: "an error under `torch.compile(fullgraph=True)`, or its CUDA graph is skipped",
    PathKind.COMPILED: "`torch.compile` breaks the graph here or skips its CUDA graph",
}


def reached(graph: CallGraph) -> dict[Key, Capture]:
    """The functions that run during a capture, each with the capture from which it is reached by the fewest calls."""
    found: dict[Key, Capture] = {}
    roots = [
        (capture, call)
        for key, node in graph.items()
        for call in node.calls
        if (capture := _around(key, call.path)) is not None and _is_entered(graph, call.callee)
    ]
    for kind in _STRICTEST:
        queue: deque[Key] = deque()
        for capture, call in roots:
            if capture.kind is kind:
                _enter(capture, call, found, queue)
        while queue:
            key = queue.popleft()
            capture = found[key]
            for call in graph[key].calls:
                if _is_entered(graph, call.callee) and not _is_left(call.path, capture.given):
                    _enter(capture, call, found, queue)
    return found


def _enter(capture: Capture, call: Call, found: dict[Key, Capture], queue: deque[Key]) -> None:
    """Record that a captured call enters a function, and look at what it calls if that may be more than before."""
    given = frozenset(name for name, passed_on in call.given if not passed_on or passed_on in capture.given)
    known = found.get(call.callee)
    if known is None:
        found[call.callee] = capture._replace(calls=(*capture.calls, call.callee[1]), given=given)
    elif known.kind is capture.kind and not known.given <= given:
        found[call.callee] = known._replace(given=known.given & given)
    else:
        return
    queue.append(call.callee)


def _is_entered(graph: CallGraph, callee: Key) -> bool:
    """Whether a call runs the body of a function of the graph, and does not return a result that was kept."""
    node = graph.get(callee)
    return node is not None and not node.memoized


def _is_left(path: Path, given: frozenset[str] = frozenset()) -> bool:
    """Whether a path does not run during a capture, in a function that is given some of its parameters."""
    return any(
        node.kind in _NOT_CAPTURED or (node.kind is PathKind.DEFAULT and node.parameter in given) for node in path
    )


def _around(function: Key, path: Path) -> Capture | None:
    """The capture on a path through a function."""
    node = next((node for node in path if node.kind in CAPTURES), None)
    return None if node is None or _is_left(path) else Capture(node.kind, function[0], node.line)


def capture_at(place: Place, heats: Mapping[Key, FunctionHeat]) -> Capture | None:
    """The capture that a place runs in; None if it does not run in one."""
    if place.deferred or _is_left(place.path):
        return None
    own = _around(place.function, place.path)
    if own is not None:
        return own
    function = heats.get(place.function)
    capture = None if function is None else function.capture
    return None if capture is None or _is_left(place.path, capture.given) else capture


def is_outside(finding: Finding) -> bool:
    """Whether a finding is about captures and its line does not run in one.

    Parts of a component have such findings: whether they count follows from the call graphs of all parts.
    """
    return finding.capture is None and finding.code in _CODES_OF_CAPTURES


def judged(finding: Finding, heat: Heat, capture: Capture | None) -> Finding:
    """The finding with its heat: that of its line, or `capture` for a wait during a capture, which the message says."""
    is_about_captures = finding.code in _CODES_OF_CAPTURES
    if capture is not None:
        is_strict = capture.kind is PathKind.CAPTURE
        if not (is_about_captures and is_strict) and finding.code >= (
            FIRST_OTHER_CODE if is_strict else _FIRST_CODE_NOT_COMPILED
        ):
            capture = None
    if is_about_captures and capture is None:
        heat = Heat.ONCE
    if finding.capture is None and capture is None:
        return finding if finding.heat is heat else replace(finding, heat=heat)
    message = finding.message.removesuffix(_suffix(finding, finding.capture)) + _suffix(finding, capture)
    return replace(finding, heat=heat if capture is None else Heat.CAPTURE, capture=capture, message=message)


def _suffix(finding: Finding, capture: Capture | None) -> str:
    """What a message says about a capture. Findings of other codes than those of waits are about captures anyway."""
    if capture is None:
        return ""
    consequence = f": {_SENTENCES[capture.kind]}" if finding.code < FIRST_OTHER_CODE else ""
    return f"{consequence} (captured at {described(capture)})"


def described(capture: Capture) -> str:
    """Where a capture is, and the calls from it: `train.py:12, step() > Net.forward()`."""
    calls = list(capture.calls)
    if len(calls) > _CALLS_SHOWN:
        calls[1 : len(calls) - _CALLS_SHOWN + 2] = ["..."]
    via = " > ".join(one if one == "..." else f"{one}()" for one in calls)
    return f"{capture.path}:{capture.line}{f', {via}' if via else ''}"
