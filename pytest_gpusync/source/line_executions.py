"""How often the lines that waited were executed: a line that waits 10 times in 10 executions differs from one that
waits 10 times in 10,000.

From Python 3.12 on, ``sys.monitoring`` (PEP 669) reports the lines of chosen code objects alone. Those in which a line
has waited are chosen, and their other lines are switched off when they run next, so the rest of the program runs as
fast as before. Earlier versions of Python could only report every line of the program, so nothing is counted there.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_gpusync.source import attribution
from pytest_gpusync.source.line_coverage import TOOL_IDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import CodeType, FrameType

    from pytest_gpusync.model.measurement import Site


class LineExecutions:
    """Counts the executions of each line from its first wait on."""

    def __init__(self) -> None:
        self._tool: int | None = None
        self._lines: dict[int, dict[int, int]] = {}
        """Executions by line number, by the identity of the code object."""
        self._known: dict[tuple[int, int], tuple[CodeType, str]] = {}
        """The code object, which is kept, and the displayed path of each line that waited."""
        self._counted = False

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count while the block runs. Nothing is counted where Python, or another tool in it, makes that impossible."""
        if sys.version_info >= (3, 12):
            self._start()
        try:
            yield
        finally:
            self._stop()

    def waited(self, frame: FrameType | None, site: Site) -> None:
        """Count the line of `site` from now on, which has waited; `frame` is the innermost frame of the wait."""
        if self._tool is None:
            return
        found = attribution.user_instruction(frame)
        if found is None:
            return
        user, code, _ = found
        line = user.f_lineno
        if (id(code), line) in self._known or line != site.line:
            return
        self._known[id(code), line] = code, site.path
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        lines = self._lines.get(id(code))
        if lines is None:
            self._lines[id(code)] = {line: 1}
            monitoring.set_local_events(self._tool, code, monitoring.events.LINE)
        else:
            lines[line] = 1
            monitoring.restart_events()  # the line may have been switched off

    def counts(self) -> Mapping[tuple[str, int], int] | None:
        """Return the executions of each line that waited, by displayed path and line; None if nothing was counted."""
        if not self._counted:
            return None
        counts: dict[tuple[str, int], int] = {}
        for (code, line), (_, path) in self._known.items():
            counts[path, line] = counts.get((path, line), 0) + self._lines[code][line]
        return counts

    def _start(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        tool = next((number for number in TOOL_IDS if monitoring.get_tool(number) is None), None)
        if tool is None:
            return
        monitoring.use_tool_id(tool, "pytest-gpusync executions")

        def line_ran(code: CodeType, line: int) -> object:
            lines = self._lines.get(id(code))
            if lines is None or line not in lines:
                return monitoring.DISABLE
            lines[line] += 1
            return None

        monitoring.register_callback(tool, monitoring.events.LINE, line_ran)
        self._tool, self._counted = tool, True

    def _stop(self) -> None:
        if self._tool is None:
            return
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        for code in {id(code): code for code, _ in self._known.values()}.values():
            monitoring.set_local_events(self._tool, code, 0)
        monitoring.register_callback(self._tool, monitoring.events.LINE, None)
        monitoring.free_tool_id(self._tool)
        self._tool = None
