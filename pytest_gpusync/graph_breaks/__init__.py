"""``assert_graph_breaks()``: limits the graph breaks of the functions that ``torch.compile`` compiles in a block.

Dynamo traces Python, and where it cannot go on it ends the graph, runs the line eagerly and begins another graph. Each
such break costs the optimizations across it, a launch of the compiled code, and the guards of one more function; with
``mode="reduce-overhead"`` also a CUDA graph. No GPU is needed to see them: Dynamo decides while it traces.
"""

from __future__ import annotations

import threading
from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.machine.devices import simulation_is_on
from pytest_gpusync.model.budgets import NotMeasured
from pytest_gpusync.model.compilation import CompiledLine, graph_breaks
from pytest_gpusync.recorders import compiler_events

if TYPE_CHECKING:
    from pytest_gpusync.model.measurement import CompilerEvent

__all__ = ["GraphBreaks", "GraphBreaksExceeded", "assert_graph_breaks"]


_SIMULATED: Final = (
    "torch.compile runs eagerly on the simulated CUDA device, so there are no graphs; run this test in a session "
    "without GPU budgets, which leaves that device off"
)
_NOTHING: Final = (
    "torch.compile compiled nothing in the block; call the compiled function inside it (a function that only makes a "
    "generator, or that torch skips, is not compiled)"
)


class GraphBreaksExceeded(AssertionError):
    """Graphs broke at more lines than allowed. The text is the sentence and the lines, each with the reason."""

    def __init__(self, text: str, lines: tuple[CompiledLine, ...]) -> None:
        super().__init__(text)
        self.lines = lines
        """The lines at which graphs broke, by file and line."""


class GraphBreaks:
    """What Dynamo has done in a block so far."""

    def __init__(self) -> None:
        self._events: list[CompilerEvent] = []

    @property
    def events(self) -> tuple[CompilerEvent, ...]:
        """Every graph break and recompilation, in order."""
        return tuple(self._events)

    @property
    def lines(self) -> tuple[CompiledLine, ...]:
        """The lines at which graphs broke, by file and line."""
        return tuple(graph_breaks(self._events))

    @property
    def recompilations(self) -> int:
        """How often a function was compiled again because a guard had failed."""
        return sum(1 for event in self._events if event.kind == "recompilation")

    def __str__(self) -> str:
        from pytest_gpusync.reporting.compiler_rows import break_rows

        return "\n".join([_sentence(len(self.lines)), *break_rows(self.lines)])


class assert_graph_breaks(ContextDecorator):  # noqa: N801 (used like a function)
    """Fail if ``torch.compile`` breaks graphs at more than `max` lines in the ``with`` block or decorated function.

    The compiled functions must be called inside the block. On entry compiled code is discarded, as
    ``torch.compiler.reset()`` does, because a function that was compiled before would not be traced again. No device is
    needed, and ``backend="eager"`` is enough: the backend sees graphs after Dynamo has made them.

    Args:
        max: most source lines at which a graph may break.
        reset: discard compiled code on entry. Without it, only what is compiled in the block is seen.

    The value of the ``with`` statement is a :class:`GraphBreaks`.

    Raises:
        GraphBreaksExceeded: with each line, Dynamo's reason, and the linter's rule for it.
        NotMeasured: nothing was compiled in the block, or the simulated CUDA device is on, where torch.compile runs
            eagerly. Not measured is not zero.
        ValueError: `max` is not a number of lines.
    """

    def __init__(self, max: int = 0, *, reset: bool = True) -> None:
        if isinstance(max, bool) or not isinstance(max, int) or max < 0:
            raise ValueError(f"max of assert_graph_breaks must be an integer of at least 0, not {max!r}")
        self._max = max
        self._reset = reset
        self._open = threading.local()

    def __enter__(self) -> GraphBreaks:
        __tracebackhide__ = True
        if simulation_is_on():
            raise NotMeasured(f"Not measured: {_SIMULATED}")
        torch = _torch()
        if self._reset:
            torch.compiler.reset()
        seen = GraphBreaks()
        listener = seen._events.append
        stack = vars(self._open).setdefault("stack", [])
        stack.append((seen, listener, compiler_events.compilations() or 0))
        compiler_events.listen(listener)
        return seen

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        __tracebackhide__ = True
        seen, listener, before = self._open.stack.pop()
        problem = compiler_events.problem()
        compiler_events.stop_listening(listener)
        if kind is not None:
            return
        if problem is None and not seen.events and (compiler_events.compilations() or 0) == before:
            problem = _NOTHING
        if problem is not None:
            raise NotMeasured(f"Not measured: {problem}")
        lines = seen.lines
        if len(lines) > self._max:
            from pytest_gpusync.reporting.compiler_rows import break_rows

            text = "\n".join([f"{_sentence(len(lines))}, budget {self._max}", *break_rows(lines)])
            raise GraphBreaksExceeded(text, lines)


def _sentence(lines: int) -> str:
    return f"torch.compile broke its graphs at {lines} line{'' if lines == 1 else 's'}"


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise NotMeasured("Not measured: torch is not installed here; install the build that you use") from None
    return torch
