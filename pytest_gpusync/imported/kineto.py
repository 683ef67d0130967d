"""Traces of torch.profiler: Chrome trace events as Kineto writes them.

Events that are read, by category: ``cuda_runtime`` and ``cuda_driver`` (calls of the host, if CUDA was profiled),
``gpu_memcpy`` (copies on the device, with the correlation of their call), ``cpu_op`` (operators), ``python_function``
(with ``with_stack=True``: Python and C functions, each with its first line, nested by time) and ``user_annotation``
(``ProfilerStep#`` marks). Times are in microseconds.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from pytest_gpusync.imported.calls import (
    CALL_LIMIT,
    Call,
    Called,
    Copy,
    Frame,
    Stack,
    Trace,
    Wait,
    function_name,
    waits,
)
from pytest_gpusync.imported.trace_file import fail, members

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpusync.model.measurement import Direction

_STEP: Final = re.compile(r"ProfilerStep#\d+\Z")
_PYTHON: Final = re.compile(r"(?P<path>.+)\((?P<line>\d+)\): (?P<function>.+)\Z", re.DOTALL)
_BUILT_IN: Final = re.compile(r"<(?:built-in )?(?:method|function) '?(?P<name>\w+)'?")
_COPY: Final = re.compile(r"Memcpy (?P<direction>HtoD|DtoH|DtoD)(?: \((?P<source>\w+) -> (?P<target>\w+)\))?")
_DIRECTIONS: Final[dict[str, Direction]] = {"HtoD": "H2D", "DtoH": "D2H", "DtoD": "D2D"}
_BACKWARD: Final = "_engine_run_backward"
_COUNT_LIMIT: Final = 2**53
"""Most that a run file counts."""
_NS: Final = 1000
"""Nanoseconds in a microsecond."""

_END: Final = 2**63
"""After every time."""

_Span = tuple[int, int, int]
"""Start, end, and the number of a name."""


def read(name: str) -> Trace:
    """Read a trace.

    Raises:
        TraceError: it cannot be read, or is no trace of torch.profiler.
    """
    reader = _Reader(name)
    for key, value in members(name):
        if key == "traceEvents":
            reader.event(value)
        else:
            reader.member(key, value)
    return reader.trace()


class _Reader:
    def __init__(self, name: str) -> None:
        self._name = name
        self._trace = Trace("torch.profiler")
        self._calls: dict[int, list[Call]] = {}
        self._python: dict[int, list[_Span]] = {}
        self._operators: dict[int, list[_Span]] = {}
        self._names: dict[str, int] = {}
        self._kept = 0
        self._events = 0
        self._with_stack: bool | None = None

    def member(self, key: str, value: Any) -> None:
        """Read a member of the trace beside its events."""
        trace = self._trace
        if key == "deviceProperties" and isinstance(value, list) and value and isinstance(value[0], dict):
            gpu = value[0].get("name")
            trace.gpu = gpu if isinstance(gpu, str) else None
        elif key == "schemaVersion" and isinstance(value, (int, str)):
            trace.version = str(value)
        elif key == "with_stack":
            self._with_stack = bool(value)
        elif key == "distributedInfo" and isinstance(value, dict) and _is_count(value.get("rank")):
            trace.rank = value["rank"]

    def event(self, event: Any) -> None:
        """Read an event."""
        if not isinstance(event, dict):
            fail(self._name, "not a trace of torch.profiler (an event is no object)")
        self._events += 1
        phase, category = event.get("ph"), event.get("cat")
        if phase == "M":
            self._metadata(event)
        elif phase == "X" and isinstance(category, str) and category in _READERS:
            name, start, duration = event.get("name"), event.get("ts"), event.get("dur")
            if not isinstance(name, str) or not _is_number(start) or not _is_number(duration):
                fail(self._name, f"not a trace of torch.profiler (event {self._events} has no name, ts or dur)")
            begin = round(start * _NS)
            end = begin + round(duration * _NS)
            details = event.get("args")
            _READERS[category](self, name, begin, end, event.get("tid"), details if isinstance(details, dict) else {})

    def trace(self) -> Trace:
        """Return what was read."""
        trace = self._trace
        if not self._events:
            fail(self._name, "not a trace of torch.profiler (it has no events)")
        for thread, calls in self._calls.items():
            calls.sort(key=lambda call: (call.start, -call.end))
            trace.calls += [call._replace(thread=thread) for call in calls]
        stacks = _Stacks(self._python, self._operators, list(self._names))
        trace.stacks = stacks.at((position, call.thread, wait.began) for position, call, wait in _numbered(trace))
        trace.calls = [call._replace(key=position) for position, call in enumerate(trace.calls)]
        trace.steps.sort()
        starts = [span[0] for spans in (*self._python.values(), *self._operators.values()) for span in spans[:1]]
        starts += [call.start for call in trace.calls] + [begin for begin, _ in trace.steps]
        trace.began = min(starts, default=0)
        if not self._python:
            trace.notes.append("it has no Python stacks: profile with with_stack=True")
        else:
            trace.notes.append("it has functions and not lines: a wait is at the line of its function that can make it")
        return trace

    def _call(self, name: str, begin: int, end: int, thread: Any, details: dict[str, Any]) -> None:
        if _is_count(thread):
            correlation = details.get("correlation")
            call = Call(function_name(name), begin, end, thread, correlation if _is_count(correlation) else None)
            self._calls.setdefault(thread, []).append(call)
            self._keep()

    def _copied(self, name: str, begin: int, end: int, thread: Any, details: dict[str, Any]) -> None:
        found, correlation = _COPY.match(name), details.get("correlation")
        if found is not None and _is_count(correlation):
            pageable = "Pageable" in (found["source"], found["target"])
            nbytes, device, stream = (_count(details.get(key)) for key in ("bytes", "device", "stream"))
            self._trace.copies[correlation] = Copy(_DIRECTIONS[found["direction"]], nbytes, pageable, device, stream)
            self._keep()

    def _function(self, name: str, begin: int, end: int, thread: Any, details: dict[str, Any]) -> None:
        self._span(self._python, name, begin, end, thread)

    def _operator(self, name: str, begin: int, end: int, thread: Any, details: dict[str, Any]) -> None:
        self._span(self._operators, name, begin, end, thread)

    def _annotation(self, name: str, begin: int, end: int, thread: Any, details: dict[str, Any]) -> None:
        if _STEP.match(name):
            self._trace.steps.append((begin, end))
            self._trace.step_threads.add(thread if _is_count(thread) else -1)
            self._keep()

    def _span(self, spans: dict[int, list[_Span]], name: str, begin: int, end: int, thread: Any) -> None:
        if _is_count(thread):
            number = self._names.setdefault(name, len(self._names))
            spans.setdefault(thread, []).append((begin, end, number))
            self._keep()

    def _metadata(self, event: dict[str, Any]) -> None:
        details, thread = event.get("args"), event.get("tid")
        if event.get("name") == "thread_name" and isinstance(details, dict) and _is_count(thread):
            label = details.get("name")
            if isinstance(label, str):
                self._trace.threads[thread] = "MainThread" if thread == event.get("pid") else label

    def _keep(self) -> None:
        self._kept += 1
        if self._kept > CALL_LIMIT:
            fail(self._name, f"more than {CALL_LIMIT:,} events; profile fewer steps")


_READERS: Final = {
    "cuda_runtime": _Reader._call,
    "cuda_driver": _Reader._call,
    "gpu_memcpy": _Reader._copied,
    "python_function": _Reader._function,
    "cpu_op": _Reader._operator,
    "user_annotation": _Reader._annotation,
}


def _numbered(trace: Trace) -> Iterator[tuple[int, Call, Wait]]:
    """Yield the waits of a trace with the number of the call that each is known by."""
    numbers = {id(call): number for number, call in enumerate(trace.calls)}
    by_thread: dict[int, list[Call]] = {}
    for call in trace.calls:
        by_thread.setdefault(call.thread, []).append(call)
    for calls in by_thread.values():
        for wait in waits(calls, trace.copies):
            yield numbers[id(wait.call)], wait.call, wait


class _Stacks:
    """The Python functions and operators that were running at given times."""

    def __init__(self, python: dict[int, list[_Span]], operators: dict[int, list[_Span]], names: list[str]) -> None:
        self._python, self._operators = python, operators
        self._names = names
        self._functions = [_function_name(name) for name in names]

    def at(self, moments: Iterable[tuple[int, int, int]]) -> dict[int, Stack]:
        """Return the stacks at moments, each given by a key, a thread and a time."""
        asked: dict[int, list[tuple[int, int]]] = {}
        for key, thread, time in moments:
            asked.setdefault(thread, []).append((time, key))
        found: dict[int, Stack] = {}
        orphans: list[tuple[int, int]] = []
        for thread, times in asked.items():
            times.sort()
            operators = _Nesting(self._operators.get(thread, []), times)
            names = [self._names[spans[-1].name] if spans else None for spans in operators.found]
            python = _Nesting(self._python.get(thread, []), times, self._functions)
            for (time, key), spans, operator in zip(times, python.found, names, strict=True):
                found[key] = self._stack(python, spans, operator)
                if not spans:
                    orphans.append((time, key))
        orphans.sort()
        for every in self._python.values() if orphans else ():
            # A thread of autograd runs no Python: what waits for it does.
            python = _Nesting(every, orphans, self._functions)
            for (_, key), spans in zip(orphans, python.found, strict=True):
                inside = [index for index, span in enumerate(spans) if self._functions[span.name] == _BACKWARD]
                if inside:
                    stack = self._stack(python, spans[: inside[-1] + 1], found[key].operator)
                    found[key] = stack._replace(of_backward=True)
        return found

    def _stack(self, nesting: _Nesting, spans: list[_Open], operator: str | None) -> Stack:
        frames: list[Frame] = []
        called: list[Called] = []
        for index, span in enumerate(spans):
            if (python := _PYTHON.match(self._names[span.name])) is None:
                continue
            frames.append(Frame(python["path"], int(python["line"][:9]), python["function"]))
            inner = next((one for one in spans[index + 1 :] if self._functions[one.name]), None)
            name = "" if inner is None else self._functions[inner.name]
            called.append(
                Called("") if inner is None else Called(name, inner.ordinal, nesting.totals[span.number, name])
            )
        return Stack(tuple(frames), tuple(called), operator)


class _Open(NamedTuple):
    """A span that was open at a moment."""

    end: int
    name: int
    number: int
    ordinal: int
    """How many functions of that name the function around it had called before."""


class _Nesting:
    """The spans around moments, and how often each function called others.

    Attributes:
        found: for each moment the spans around it, from the outermost to the innermost.
        totals: by the number of a span and the name of a function, how often it called it.
    """

    def __init__(self, spans: list[_Span], times: list[tuple[int, int]], functions: list[str] | None = None) -> None:
        spans.sort(key=lambda span: (span[0], -span[1]))
        self.totals: Counter[tuple[int, str]] = Counter()
        self.found: list[list[_Open]] = []
        stack: list[_Open] = []
        callers: list[int] = []
        """For each open span the number of the innermost function at or around it; -1 for none."""
        place = 0
        for time, _ in [*times, (_END, 0)]:
            while place < len(spans) and spans[place][0] <= time:
                begin, end, name = spans[place]
                while stack and stack[-1].end < begin:
                    stack.pop()
                    callers.pop()
                ordinal, caller = 0, callers[-1] if callers else -1
                function = functions[name] if functions is not None else ""
                if function:
                    ordinal = self.totals[caller, function]
                    self.totals[caller, function] += 1
                    caller = place
                stack.append(_Open(end, name, place, ordinal))
                callers.append(caller)
                place += 1
            if time != _END:
                self.found.append([span for span in stack if span.end >= time])


def _function_name(name: str) -> str:
    """Return the name of the function that an event is about; empty for a module, ``nn.Module: Linear_0``."""
    if (python := _PYTHON.match(name)) is not None:
        return python["function"]
    built_in = _BUILT_IN.match(name)
    return "" if built_in is None else built_in["name"]


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18


def _count(value: Any) -> int | None:
    return value if _is_count(value) else None


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _COUNT_LIMIT
