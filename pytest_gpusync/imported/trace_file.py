"""Reading trace files of any size: JSON is decoded one event at a time, compressed or not."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import zlib
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE_LIMIT: Final = 8 * 2**30
"""Most bytes of a file that are read, after decompression."""
EVENT_LIMIT: Final = 1 << 20
"""Most characters of one event."""
_CHUNK: Final = 1 << 20
_SQLITE: Final = b"SQLite format 3\0"
_GZIP: Final = b"\x1f\x8b"
_SPACES: Final = " \t\r\n"


class TraceError(ValueError):
    """A file is not a trace that can be imported. The message is one line that names it."""


def fail(name: str, problem: str) -> NoReturn:
    """Raise the error of a file."""
    raise TraceError(f"{name}: {problem}")


def is_sqlite(name: str) -> bool:
    """Return whether a file is an SQLite database.

    Raises:
        TraceError: it cannot be read.
    """
    with _opened(name) as file:
        return file.read(len(_SQLITE)) == _SQLITE


def members(name: str) -> Iterator[tuple[str, Any]]:
    """Yield the members of a trace's JSON object, in order; of ``traceEvents`` each event by itself.

    A bare list, which the format allows as well, is one of events.

    Raises:
        TraceError: the file cannot be read, is too large or is not JSON.
    """
    try:
        with _opened(name) as file:
            compressed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            stream: Any = gzip.GzipFile(fileobj=file) if compressed else file
            yield from _Members(name, io.TextIOWrapper(stream, encoding="utf-8", errors="replace"))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        fail(name, f"damaged gzip data ({error}); copy the trace again")
    except OSError as error:
        fail(name, f"cannot be read ({error.strerror or error})")


def _opened(name: str) -> IO[bytes]:
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):  # opening a pipe would block
            fail(name, "not a regular file; give a trace of torch.profiler or an SQLite export of Nsight Systems")
        return open(name, "rb")
    except OSError as error:
        fail(name, f"cannot be read ({error.strerror})")


class _Members:
    """Decodes a trace a chunk at a time."""

    def __init__(self, name: str, text: IO[str]) -> None:
        self._name = name
        self._text = text
        self._decoder = json.JSONDecoder()
        self._buffer = ""
        self._place = 0
        self._read = 0

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        first = self._next()
        if first == "[":
            yield from self._events()
            return
        if first != "{":
            self._refuse("it does not begin with an object")
        if self._peek() == "}":
            return
        while True:
            key = self._value()
            if not isinstance(key, str) or self._next() != ":":
                self._refuse("an object has no key")
            if key == "traceEvents" and self._peek() == "[":
                self._next()
                yield from self._events()
            else:
                yield key, self._value()
            after = self._next()
            if after == "}":
                return
            if after != ",":
                self._refuse("a comma is missing")

    def _events(self) -> Iterator[tuple[str, Any]]:
        if self._peek() == "]":
            self._next()
            return
        while True:
            yield "traceEvents", self._value()
            after = self._next()
            if after == "]":
                return
            if after != ",":
                self._refuse("a comma is missing")

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._place)
            except RecursionError:
                self._refuse("nested too deeply")
            except ValueError as error:
                if len(self._buffer) - self._place > EVENT_LIMIT or not self._fill():
                    self._refuse(str(error).partition(":")[0])
                continue
            if end < len(self._buffer) or not self._fill():  # the digits of a number may go on in the next chunk
                self._place = end
                return value

    def _peek(self) -> str:
        while True:
            while self._place < len(self._buffer) and self._buffer[self._place] in _SPACES:
                self._place += 1
            if self._place < len(self._buffer):
                return self._buffer[self._place]
            if not self._fill():
                self._refuse("it ends in the middle")

    def _next(self) -> str:
        found = self._peek()
        self._place += 1
        return found

    def _fill(self) -> bool:
        chunk = self._text.read(_CHUNK)
        self._read += len(chunk)
        if self._read > SIZE_LIMIT:
            fail(self._name, f"larger than {SIZE_LIMIT >> 30} GiB; profile fewer steps")
        self._buffer = self._buffer[self._place :] + chunk
        self._place = 0
        return bool(chunk)

    def _refuse(self, problem: str) -> NoReturn:
        fail(self._name, f"not a trace in JSON ({problem}); export it again")
