"""Steps that end where a function returns, by the name of the function: ``Engine.step``.

The function is not replaced, so it is followed wherever the program keeps it: in the script itself, as a bound method,
in a class that is defined later. What ends a step depends on the function:

- a function, or a coroutine: each return. Waiting for something (``await``) does not end a step of a coroutine.
- a generator, or an asynchronous generator: each value that it yields, such as a token. What it does between its last
  value and its end belongs to the next step.

A call that raises an exception ends no step.

From Python 3.12 on, ``sys.monitoring`` (PEP 669) reports the calls of this function alone. Before, ``sys.setprofile``
reports every call of the program, which becomes slower by that, and of other threads only those that start later are
followed.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.measure.step_on import StepEndFollower, StepOnError
from pytest_gpusync.model.measurement import RETURN_OF
from pytest_gpusync.source import attribution
from pytest_gpusync.source.line_coverage import TOOL_IDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

_GENERATORS: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_SHOWN: Final = 3
"""Similar names that the message about a function that was not called lists."""


@dataclass(frozen=True)
class StepAt:
    """What ends a step: a function, by its name."""

    function: str
    """As the function names itself, ``step`` or ``Engine.step``, with or without its module: ``serve.Engine.step``."""

    def __post_init__(self) -> None:
        if not isinstance(self.function, str) or not all(part.isidentifier() for part in self.function.split(".")):
            raise StepOnError(
                f'step_at takes the name of a function, such as "generate" or "Engine.step", not {self.function!r}'
            )


class StepAtFollower(StepEndFollower):
    """Ends steps where a function of a name returns."""

    def __init__(self, step_at: StepAt) -> None:
        """Follow nothing yet."""
        self.ends_step = None
        self._function = step_at.function
        self.name = f"{RETURN_OF}{step_at.function}()"
        self._last = step_at.function.rpartition(".")[2]
        self._matches: dict[CodeType, bool] = {}
        """The functions whose last name is the wanted one, and whether they are meant."""
        self._similar: dict[str, None] = {}
        """The names of those that are not."""
        self._called = False
        self._lock = threading.Lock()
        self._mark_step: Callable[[], None] | None = None
        self._entered: Callable[[], None] = lambda: None
        self._tool: int | None = None
        self._profiles = False

    @property
    def why_no_step(self) -> str:
        """Why no step has ended, with the remedy."""
        if self._called:
            return f"{self._function}() was called and did not return"
        similar = list(self._similar)[:_SHOWN]
        hint = f"; {similar[0]} was called: give that name" if similar else ""
        if len(similar) > 1:
            hint = f"; {' and '.join(similar)} were called: give one of these names"
        return f"{self._function}() was not called{hint}"

    def start(self, mark_step: Callable[[], None], entered: Callable[[], None] = lambda: None) -> None:
        """Call `entered` whenever the function is called, and `mark_step` whenever it ends a step.

        Raises:
            StepOnError: another tool occupies what is needed to see calls.
        """
        self._mark_step, self._entered = mark_step, entered
        if sys.version_info >= (3, 12):
            self._monitor()
        else:
            if sys.getprofile() is not None:
                raise StepOnError("step_at cannot see calls while a profiler runs (sys.setprofile); run without it")
            self._profiles = True
            threading.setprofile(self._profile)
            sys.setprofile(self._profile)

    def stop(self) -> None:
        """Follow nothing any more."""
        self._mark_step = None
        if self._tool is not None:
            monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
            for code, matches in self._matches.items():
                if matches:
                    monitoring.set_local_events(self._tool, code, 0)
            monitoring.set_events(self._tool, 0)
            for event in (monitoring.events.PY_START, monitoring.events.PY_RETURN, monitoring.events.PY_YIELD):
                monitoring.register_callback(self._tool, event, None)
            monitoring.free_tool_id(self._tool)
            self._tool = None
        elif self._profiles:
            self._profiles = False
            threading.setprofile(None)
            if sys.getprofile() == self._profile:
                sys.setprofile(None)

    def _monitor(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        tool = next((number for number in TOOL_IDS if monitoring.get_tool(number) is None), None)
        if tool is None:
            raise StepOnError("step_at cannot see calls: other tools occupy sys.monitoring; run without them")
        monitoring.use_tool_id(tool, "pytest-gpusync step_at")
        self._tool = tool
        events = monitoring.events

        def started(code: CodeType, _offset: int) -> object:
            if code.co_name != self._last or not self._is_meant(code, sys._getframe(1)):
                return monitoring.DISABLE
            if not monitoring.get_local_events(tool, code):
                monitoring.set_local_events(tool, code, events.PY_RETURN | events.PY_YIELD)
            self._enter()
            return None

        def returned(code: CodeType, _offset: int, _value: object) -> None:
            if not code.co_flags & _GENERATORS:
                self._end()

        def yielded(code: CodeType, _offset: int, value: object) -> None:
            if _is_value(code, value):
                self._end()

        monitoring.register_callback(tool, events.PY_START, started)
        monitoring.register_callback(tool, events.PY_RETURN, returned)
        monitoring.register_callback(tool, events.PY_YIELD, yielded)
        monitoring.set_events(tool, events.PY_START)
        monitoring.restart_events()  # another tool of that number may have switched some off

    def _profile(self, frame: FrameType, event: str, value: object) -> None:
        if self._mark_step is None:
            sys.setprofile(None)  # in a thread that outlives the region
            return
        if event not in ("call", "return") or frame.f_code.co_name != self._last:
            return
        code = frame.f_code
        if not self._is_meant(code, frame):
            return
        if event == "call":
            self._enter()
        elif code.co_flags & _GENERATORS:
            if _operation(code, frame.f_lasti) == "YIELD_VALUE" and _is_value(code, value):
                self._end()
        elif _operation(code, frame.f_lasti) == "RETURN_VALUE":  # not an exception, nor a coroutine that waits
            self._end()

    def _is_meant(self, code: CodeType, frame: FrameType) -> bool:
        known = self._matches.get(code)
        if known is None:
            own = _qualified_name(code).replace("<locals>.", "")
            module = frame.f_globals.get("__name__", "")
            full = f"{module}.{own}"
            # `step` is a function of that name, not a method of any class.
            known = len(self._function) >= len(own) and f".{full}".endswith(f".{self._function}")
            self._matches[code] = known
            if not known and attribution.is_user_code(code.co_filename):
                self._similar[own if module == "__main__" else full] = None
        return known

    def _enter(self) -> None:
        self._called = True
        self._entered()

    def _end(self) -> None:
        mark_step = self._mark_step
        if mark_step is not None:
            with self._lock:
                mark_step()


def follower_of(step_on: Any) -> StepEndFollower:
    """Return what follows the ends of steps.

    Raises:
        StepOnError: `step_on` ends no step.
    """
    return StepAtFollower(step_on) if isinstance(step_on, StepAt) else StepEndFollower(step_on)


def chosen(step_on: Any, step_at: str | None) -> Any:
    """Return the one of two arguments that was given.

    Raises:
        StepOnError: both were given, or `step_at` is no name of a function.
    """
    if step_at is None:
        return step_on
    if step_on is not None:
        raise StepOnError("give step_on or step_at, not both")
    return StepAt(step_at)


def _is_value(code: CodeType, yielded: object) -> bool:
    """Return whether a generator yields a value; an asynchronous one also yields while it waits."""
    if code.co_flags & inspect.CO_ASYNC_GENERATOR:
        return type(yielded).__name__ == "async_generator_wrapped_value"
    return bool(code.co_flags & inspect.CO_GENERATOR)


def _operation(code: CodeType, offset: int) -> str:
    import dis

    return dis.opname[code.co_code[offset]]


def _qualified_name(code: CodeType) -> str:
    """Return the qualified name of the function of a code object, which knows it from Python 3.11 on."""
    known: str | None = getattr(code, "co_qualname", None)
    if known is not None:
        return known
    owners = (one for one in gc.get_referrers(code) if isinstance(one, FunctionType) and one.__code__ is code)
    function = next(owners, None)
    return code.co_name if function is None else function.__qualname__
