"""Which lines of the user's project ran: what `gpusync lint --observed` needs to tell a line that did not wait from one
that was never reached.

From Python 3.12 on a line costs one call, the first time it runs (``sys.monitoring``, PEP 669). Before that every line
of the project costs one each time (``sys.settrace``), so times of such a run mean little; counts of syncs are the same.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_gpusync.source.attribution import is_users, shown_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

_TOOL_IDS = (3, 4, 1, 2, 0)
"""Identifiers of sys.monitoring, those that no kind of tool is meant for first."""


class RecordingUnavailable(RuntimeError):
    """Lines cannot be recorded here; one line that says why."""


class LinesRan:
    """The lines of the user's project that ran, by shown path."""

    def __init__(self) -> None:
        self._seen: dict[str, set[int]] = {}
        self._wanted: dict[str, set[int] | None] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the block runs, on every thread that starts in it.

        Raises:
            RecordingUnavailable: a debugger or a coverage tool is recording lines in a way that leaves no room.
        """
        stop = self._monitor() if sys.version_info >= (3, 12) else self._trace()
        try:
            yield
        finally:
            stop()

    def take(self) -> dict[str, list[tuple[int, int]]]:
        """Return the lines seen since the last call, as ranges with both ends, and forget them."""
        seen = {path: ranges(lines) for path, lines in sorted(self._seen.items()) if lines}
        for lines in self._seen.values():
            lines.clear()
        return seen

    def _lines_of(self, code: CodeType) -> set[int] | None:
        """The set that lines of a code object belong in; None for code that is not the user's."""
        filename = code.co_filename
        if filename not in self._wanted:
            mine = is_users(filename)
            self._wanted[filename] = self._seen.setdefault(shown_path(filename), set()) if mine else None
        return self._wanted[filename]

    def _monitor(self) -> Callable[[], None]:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        tool = next((number for number in _TOOL_IDS if monitoring.get_tool(number) is None), None)
        if tool is None:
            raise RecordingUnavailable("other tools hold every place that sys.monitoring has")
        monitoring.use_tool_id(tool, "pytest-gpusync")

        def line_ran(code: CodeType, line: int) -> object:
            lines = self._lines_of(code)
            if lines is not None:
                lines.add(line)
            return monitoring.DISABLE

        monitoring.register_callback(tool, monitoring.events.LINE, line_ran)
        monitoring.set_events(tool, monitoring.events.LINE)
        # Lines that an earlier recording has switched off are heard of again.
        monitoring.restart_events()

        def stop() -> None:
            monitoring.set_events(tool, 0)
            monitoring.register_callback(tool, monitoring.events.LINE, None)
            monitoring.free_tool_id(tool)

        return stop

    def _trace(self) -> Callable[[], None]:
        if sys.gettrace() is not None:
            raise RecordingUnavailable(
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
    """Return line numbers as ranges with both ends: 1, 2, 3, 7 are 1 to 3 and 7 to 7."""
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
