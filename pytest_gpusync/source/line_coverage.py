"""Which lines of the user's project ran. `gpusync lint --observed` needs it to distinguish a line that did not wait
from one that did not run.

From Python 3.12 on, a line costs one call, the first time it runs (``sys.monitoring``, PEP 669). Before that, every
line of the project costs one each time it runs (``sys.settrace``): times of such a run mean little, counts of syncs are
the same.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_gpusync.source.attribution import display_path, is_user_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

TOOL_IDS = (3, 4, 1, 2, 0)
"""Tool ids of sys.monitoring, unassigned ones first."""


class CoverageUnavailable(RuntimeError):
    """Lines cannot be recorded here; the message is one line with the cause."""


class LineCoverage:
    """The lines of the user's project that ran, by displayed path."""

    def __init__(self) -> None:
        self._lines_by_path: dict[str, set[int]] = {}
        self._sets_by_filename: dict[str, set[int] | None] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the block runs, on every thread started in it.

        Raises:
            CoverageUnavailable: a debugger or a coverage tool is using the only way to record lines.
        """
        stop = self._monitor() if sys.version_info >= (3, 12) else self._trace()
        try:
            yield
        finally:
            stop()

    def take(self) -> dict[str, list[tuple[int, int]]]:
        """Return the lines that ran since the last call, as inclusive ranges, and forget them."""
        seen = {path: ranges(lines) for path, lines in sorted(self._lines_by_path.items()) if lines}
        for lines in self._lines_by_path.values():
            lines.clear()
        return seen

    def _lines_of(self, code: CodeType) -> set[int] | None:
        """Return the set for the lines of a code object; None if the code is not the user's."""
        filename = code.co_filename
        if filename not in self._sets_by_filename:
            lines = self._lines_by_path.setdefault(display_path(filename), set()) if is_user_code(filename) else None
            self._sets_by_filename[filename] = lines
        return self._sets_by_filename[filename]

    def _monitor(self) -> Callable[[], None]:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        tool = next((number for number in TOOL_IDS if monitoring.get_tool(number) is None), None)
        if tool is None:
            raise CoverageUnavailable("other tools use all tool ids of sys.monitoring")
        monitoring.use_tool_id(tool, "pytest-gpusync")

        def line_ran(code: CodeType, line: int) -> object:
            lines = self._lines_of(code)
            if lines is not None:
                lines.add(line)
            return monitoring.DISABLE

        monitoring.register_callback(tool, monitoring.events.LINE, line_ran)
        monitoring.set_events(tool, monitoring.events.LINE)
        # Enable lines again that an earlier recording disabled.
        monitoring.restart_events()

        def stop() -> None:
            monitoring.set_events(tool, 0)
            monitoring.register_callback(tool, monitoring.events.LINE, None)
            monitoring.free_tool_id(tool)

        return stop

    def _trace(self) -> Callable[[], None]:
        if sys.gettrace() is not None:
            raise CoverageUnavailable(
                "a debugger or a coverage tool traces this process; run without it, or with Python 3.12"
            )

        def entered(frame: FrameType, _event: str, _argument: object) -> Any:
            lines = self._lines_of(frame.f_code)
            if lines is None:
                return None

            def line_ran(frame: FrameType, _event: str, _argument: object) -> Any:
                lines.add(frame.f_lineno)
                return line_ran

            return line_ran

        of_threads = threading.gettrace()
        threading.settrace(entered)
        sys.settrace(entered)

        def stop() -> None:
            sys.settrace(None)
            threading.settrace(of_threads)

        return stop


def ranges(lines: set[int]) -> list[tuple[int, int]]:
    """Return line numbers as inclusive ranges: 1, 2, 3, 7 are 1 to 3 and 7 to 7."""
    found: list[tuple[int, int]] = []
    for line in sorted(lines):
        if found and found[-1][1] == line - 1:
            found[-1] = (found[-1][0], line)
        else:
            found.append((line, line))
    return found


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, list[tuple[int, int]]]:
    """Return the lines that ran in either of two recordings, each a mapping from path to ranges."""
    lines: dict[str, set[int]] = {}
    for recording in (one, other):
        for path, spans in recording.items():
            lines.setdefault(path, set()).update(line for first, last in spans for line in range(first, last + 1))
    return {path: ranges(found) for path, found in sorted(lines.items())}
