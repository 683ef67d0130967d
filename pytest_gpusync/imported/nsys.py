"""SQLite exports of Nsight Systems: ``nsys export --type sqlite``.

Tables that are read, where they exist: ``CUPTI_ACTIVITY_KIND_RUNTIME`` (calls of the runtime and the driver),
``CUPTI_ACTIVITY_KIND_MEMCPY`` (copies), ``CUDA_CALLCHAINS`` (stacks of calls; Python's with
``--python-backtrace=cuda``), ``NVTX_EVENTS`` (``ProfilerStep#`` marks), ``ThreadNames``, ``TARGET_INFO_GPU`` and
``StringIds``. Times are in nanoseconds.

https://docs.nvidia.com/nsight-systems/UserGuide/index.html#sqlite-schema-reference
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.imported.calls import CALL_LIMIT, Call, Copy, Frame, Stack, Trace, function_name, waits
from pytest_gpusync.imported.trace_file import fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpusync.model.measurement import Direction

_RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_CHAINS: Final = "CUDA_CALLCHAINS"
_DIRECTIONS: Final[dict[int, Direction]] = {1: "H2D", 2: "D2H", 8: "D2D", 10: "D2D"}
"""CUpti_ActivityMemcpyKind."""
_NUMBER_LIMIT: Final = 2**62
_PAGEABLE: Final = 1
"""CUpti_ActivityMemoryKind."""
_PYTHON: Final = re.compile(r"(?:(?P<function>[\w.<>]+)[ @]+)?(?P<path>[^\s():]+\.pyw?)(?::|\()(?P<line>\d{1,9})\)?")
"""A Python frame as a callchain names it."""
_STEPS: Final = "ProfilerStep#%"
_DEPTH: Final = 512
"""Most frames of a callchain."""
_STEPS_OF_SQLITE: Final = 200_000_000
"""Most instructions of SQLite's virtual machine for one file: a crafted one must not run for ever."""


def read(name: str) -> Trace:
    """Read an export.

    Raises:
        TraceError: it cannot be read, or has no calls of CUDA.
    """
    try:
        with closing(sqlite3.connect(f"{Path(name).resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            return _Export(name, database).trace()
    except (sqlite3.Error, OverflowError, TypeError, UnicodeDecodeError) as error:
        fail(name, f"not an export of Nsight Systems that can be read ({error}); export it again")


class _Export:
    def __init__(self, name: str, database: sqlite3.Connection) -> None:
        self._name = name
        self._database = database
        database.text_factory = lambda data: data.decode("utf-8", "replace")
        database.execute("PRAGMA trusted_schema = OFF")
        budget = iter(range(_STEPS_OF_SQLITE // 10_000))
        database.set_progress_handler(lambda: next(budget, None) is None, 10_000)
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._tables: dict[str, set[str]] = {}
        for (table,) in rows.fetchall():
            if isinstance(table, str) and re.fullmatch(r"\w+", table):
                self._tables[table] = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}

    def trace(self) -> Trace:
        """Return what the tables say."""
        if not self._has(_RUNTIME, "start", "end", "globalTid", "nameId") or not self._has("StringIds", "id", "value"):
            fail(self._name, "it has no calls of CUDA; profile with nsys profile --trace=cuda,nvtx and export it again")
        trace = Trace("nsys")
        chains: dict[int, int] = {}
        names = self._strings("nameId", _RUNTIME)
        chain = "coalesce(callchainId, 0)" if "callchainId" in self._tables[_RUNTIME] else "0"
        query = (
            f'SELECT start, "end", coalesce(globalTid, 0), coalesce(correlationId, -1), nameId, {chain} '
            f"FROM {_RUNTIME} ORDER BY globalTid, start"
        )
        for start, end, thread, correlation, number, callchain in self._rows(query):
            key = len(trace.calls)
            name = function_name(names.get(number, ""))
            trace.calls.append(Call(name, start, end, thread, _key(thread, correlation), key))
            if callchain:
                chains[key] = callchain
        trace.copies = dict(self._copies())
        trace.steps = sorted(self._steps())
        trace.threads = dict(self._threads())
        trace.gpu = self._gpu()
        trace.stacks = self._stacks(trace, chains)
        trace.began = min([call.start for call in trace.calls] + [start for start, _ in trace.steps], default=0)
        if not any(stack.frames for stack in trace.stacks.values()):
            trace.notes.append("it has no Python stacks: profile with --python-backtrace=cuda --cudabacktrace=all")
        return trace

    def _copies(self) -> Iterator[tuple[int, Copy]]:
        needed = ("correlationId", "globalPid", "bytes", "copyKind", "srcKind", "dstKind", "deviceId", "streamId")
        if not self._has(_COPIES, *needed):
            return
        columns = ", ".join(f"coalesce({column}, 0)" for column in needed)
        for correlation, process, nbytes, kind, source, target, device, stream in self._rows(
            f"SELECT {columns} FROM {_COPIES} WHERE correlationId IS NOT NULL"
        ):
            if kind in _DIRECTIONS:
                pageable = _PAGEABLE in (source, target)
                copy = Copy(_DIRECTIONS[kind], max(nbytes, 0), pageable, max(device, 0), max(stream, 0))
                yield _key(process, correlation), copy

    def _steps(self) -> Iterator[tuple[int, int]]:
        if not self._has("NVTX_EVENTS", "start", "end", "text"):
            return
        by_id = ""
        if "textId" in self._tables["NVTX_EVENTS"]:
            by_id = f" OR textId IN (SELECT id FROM StringIds WHERE value LIKE '{_STEPS}')"
        query = f'SELECT start, "end" FROM NVTX_EVENTS WHERE "end" IS NOT NULL AND (text LIKE \'{_STEPS}\'{by_id})'
        yield from self._rows(query)

    def _threads(self) -> Iterator[tuple[int, str]]:
        threads = {thread for (thread,) in self._rows(f"SELECT DISTINCT coalesce(globalTid, 0) FROM {_RUNTIME}")}
        named: dict[int, str] = {}
        if self._has("ThreadNames", "nameId", "globalTid"):
            names = self._strings("nameId", "ThreadNames")
            rows = self._rows("SELECT globalTid, nameId FROM ThreadNames")
            named = {thread: names[number] for thread, number in rows if number in names}
        several = len({thread >> 24 for thread in threads}) > 1
        for thread in threads:
            process, number = (thread >> 24) & 0xFFFFFF, thread & 0xFFFFFF
            label = "MainThread" if process == number else named.get(thread, f"thread {number}")
            yield thread, f"{label} of process {process}" if several else label

    def _gpu(self) -> str | None:
        if not self._has("TARGET_INFO_GPU", "name"):
            return None
        found = self._database.execute("SELECT name FROM TARGET_INFO_GPU LIMIT 1").fetchone()
        return found[0] if found and isinstance(found[0], str) else None

    def _stacks(self, trace: Trace, chains: dict[int, int]) -> dict[int, Stack]:
        if not chains or not self._has(_CHAINS, "id", "symbol", "stackDepth"):
            return {}
        by_thread: dict[int, list[Call]] = {}
        for call in trace.calls:
            by_thread.setdefault(call.thread, []).append(call)
        found: dict[int, Stack] = {}
        known: dict[int, Stack] = {}
        for calls in by_thread.values():
            for wait in waits(calls, trace.copies):
                chain = chains.get(wait.call.key)
                if chain is not None:
                    if chain not in known:
                        known[chain] = self._stack(chain)
                    found[wait.call.key] = known[chain]
        return found

    def _stack(self, chain: int) -> Stack:
        module = "module" if "module" in self._tables[_CHAINS] else "NULL"
        rows = self._database.execute(
            f"SELECT s.value, m.value FROM {_CHAINS} AS c LEFT JOIN StringIds AS s ON s.id = c.symbol "
            f"LEFT JOIN StringIds AS m ON m.id = {module} WHERE c.id = ? ORDER BY c.stackDepth DESC LIMIT {_DEPTH}",
            (chain,),
        )
        frames = []
        for symbol, place in rows:
            for text in (symbol, place):
                if isinstance(text, str) and (python := _PYTHON.search(text)) is not None:
                    function = python["function"] or (symbol if text is place and isinstance(symbol, str) else "")
                    frames.append(Frame(python["path"], int(python["line"]), function))
                    break
        return Stack(tuple(frames), exact=True)

    def _strings(self, column: str, table: str) -> dict[int, str]:
        query = f"SELECT id, value FROM StringIds WHERE id IN (SELECT DISTINCT {column} FROM {table})"
        found = self._database.execute(query).fetchmany(CALL_LIMIT)
        return {number: value for number, value in found if isinstance(number, int) and isinstance(value, str)}

    def _rows(self, query: str) -> Iterator[Any]:
        """Yield rows of integers; columns of SQLite hold any type, and another one is damage."""
        for count, row in enumerate(self._database.execute(query)):
            if count >= CALL_LIMIT:
                fail(self._name, f"more than {CALL_LIMIT:,} rows; profile fewer steps")
            if not all(isinstance(value, int) and abs(value) <= _NUMBER_LIMIT for value in row):
                fail(
                    self._name,
                    "not an export of Nsight Systems that can be read (a column has no number); export it again",
                )
            yield row

    def _has(self, table: str, *columns: str) -> bool:
        return self._tables.get(table, set()).issuperset(columns)


def _key(process: int, correlation: int) -> int:
    """Return a correlation that is unique among the processes of an export; the number of a process is part of that of
    its threads.
    """
    return (process >> 24 << 32) + correlation
