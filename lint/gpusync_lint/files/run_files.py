"""Reading run files (``gpusync.run/1``), which are untrusted input: from a pull request, an artifact, another machine.

Whatever is wrong with a file is an error of one line that names the file and the place. :class:`Run` and the types that
it consists of are docs/schemas/run-1.schema.json for msgspec, which checks types and ranges; ``__post_init__`` checks
what depends on several fields. A file that passes can be merged and rendered without further checks.
"""

from __future__ import annotations

import json
import os
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

import msgspec

from gpusync_lint.escaping import escaped
from gpusync_lint.files.regular_file import NotRegularError, TooLargeError, read_regular
from gpusync_lint.model.findings import UserError

SCHEMA: Final = "gpusync.run/1"

SIZE_LIMIT: Final = 256 * 2**20
"""Largest file that is read, in bytes. A run of 10,000 tests takes about 30 MiB."""

_QUOTE_LIMIT: Final = 120
"""Longest part of a message that quotes the file, in characters."""

_DIGITS: Final = 20
"""Most characters of an integer: those of 2**63, with its sign."""

_REMEDY: Final = "write the file again with gpusync trace --json or pytest --gpu-sync-report"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Line = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""The range of line numbers in CPython."""
Number = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
"""A finite number: JSON text such as 1e999 is read as infinity."""
Code = Annotated[str, msgspec.Meta(pattern=r"^GS[0-9]{3}\Z")]


class RunFileError(UserError):
    """A file is not a run. The message is one line that names it."""


class Environment(msgspec.Struct, gc=False):
    """The ``environment`` object."""

    torch: str | None
    python: str
    device: str | None
    gpu: str | None
    driver: str | None
    recorder: str | None
    coverage: Literal["driver", "torch", "dispatcher", "simulated"] | None
    note: str | None

    def __post_init__(self) -> None:
        """Check that a recorder has a device and a coverage."""
        if self.recorder is not None and (self.device is None or self.coverage is None):
            raise ValueError("there is a recorder, but device or coverage is null")


class Origin(msgspec.Struct, gc=False):
    """The ``origin`` object."""

    command: str | None
    commit: str | None
    date: str | None
    version: str | None
    source_url: Annotated[str, msgspec.Meta(pattern=r"^https://[^\s\"'<>\\]+/\Z")] | None
    labels: dict[str, str] | None = None


class DeviceCount(msgspec.Struct, gc=False):
    """The syncs of one device."""

    device: Count | None
    syncs: Count
    blocked_ms: Number | None


class Site(msgspec.Struct, gc=False):
    """A ``site`` object."""

    path: str
    line: Line
    function: str
    code: Code | None
    kind: str
    direction: str | None
    syncs: Count
    steps: Count
    per_step_max: Count
    blocked_ms: Number | None
    bytes: Count | None
    via: str | None
    phase: str | None
    thread: str
    allowed: str | None
    background: bool
    silent: str | None = None
    cause: str | None = None
    devices: list[DeviceCount] | None = None
    executions: Count | None = None
    source: str | None = None


class Place(msgspec.Struct, gc=False):
    """The earlier access of a race."""

    path: str
    line: Line
    function: str
    stream: str


class Race(msgspec.Struct, gc=False):
    """A ``race`` object."""

    kind: str
    path: str
    line: Line
    function: str
    tensor: str | None
    bytes: Count
    stream: str
    other: Place
    message: str
    times: Count = 1


class EventsPerStep(msgspec.Struct, gc=False):
    """The events of each measured step."""

    graph_breaks: list[Count]
    recompilations: list[Count]


class CompiledLine(msgspec.Struct, gc=False):
    """A line at which a graph of torch.compile broke, or a function that was compiled again."""

    kind: Literal["graph_break", "recompilation"]
    path: str
    line: Line
    function: str
    reason: str
    times: Count
    in_steps: Count
    via: str | None = None
    code: Code | None = None
    name: str | None = None
    effect: str | None = None


class Compilation(msgspec.Struct, gc=False):
    """The ``compilation`` object."""

    graph_breaks: Count
    recompilations: Count
    per_step: EventsPerStep
    lines: list[CompiledLine]


class Order(msgspec.Struct, gc=False):
    """The syncs of a region one by one."""

    sites: list[Count]
    steps: list[Count | None]
    began_ms: list[Number | None] | None
    blocked_ms: list[Number | None] | None
    left_out: Count
    step_ends_ms: list[Number] | None
    closed_ms: Number | None

    def __post_init__(self) -> None:
        """Check that the columns belong together."""
        columns = (self.sites, self.steps, self.began_ms, self.blocked_ms)
        if len({len(column) for column in columns if column is not None}) > 1:
            raise ValueError("the columns sites, steps, began_ms and blocked_ms have different lengths")
        ends = self.step_ends_ms
        if ends is not None:
            if self.closed_ms is None:
                raise ValueError("there is step_ends_ms, but closed_ms is null")
            if any(after < before for before, after in pairwise(ends)):
                raise ValueError("step_ends_ms decreases")


class Estimate(msgspec.Struct, gc=False):
    """A value and its interval."""

    value: Number
    low: Number | None
    high: Number | None
    confidence: Number


class VerdictLine(msgspec.Struct, gc=False):
    """A line that a baseline verdict names."""

    path: str
    line: Line


class Verdict(msgspec.Struct, gc=False):
    """A ``verdict`` object."""

    quantity: str
    outcome: Literal["passed", "failed", "undecided", "not_measured"]
    max: Number | None
    exact: Count | None
    source: str
    measured: Number | None
    sentence: str
    interval: Estimate | None = None
    lines: list[VerdictLine] | None = None


class StepRates(msgspec.Struct, gc=False):
    """The ``syncs_per_step`` object."""

    max: Count
    median: Number


class NotCounted(msgspec.Struct, gc=False):
    """The ``not_counted`` object."""

    allowed: Count
    other_threads: Count
    warm_up: Count
    outside_steps: Count


class Region(msgspec.Struct, gc=False):
    """A ``region`` object. Reports read neither its memory nor its timing."""

    name: str
    outcome: Literal["passed", "failed", "undecided", "not_measured", "measured"]
    problem: str | None
    steps: Count | None
    warmup: Count | None
    step_source: str | None
    device_used: bool | None
    syncs: Count | None
    syncs_per_step: StepRates | None
    sites: list[Site]
    memory: dict[str, Any] | None
    timing: dict[str, Any] | None
    verdicts: list[Verdict]
    test: str | None = None
    process: str | None = None
    per_step: list[Count] | None = None
    devices: list[DeviceCount] | None = None
    not_counted: NotCounted | None = None
    races: list[Race] | None = None
    compilation: Compilation | None = None
    order: Order | None = None
    part: Count | None = None

    def __post_init__(self) -> None:
        """Check what depends on several fields."""
        if self.outcome == "not_measured" and self.problem is None:
            raise ValueError("the outcome is not_measured, but problem is null")
        if (self.syncs_per_step is not None or self.order is not None) and self.warmup is None:
            raise ValueError("syncs were counted, but warmup is null")
        if self.syncs_per_step is not None and (self.steps is None or self.steps < (self.warmup or 0)):
            raise ValueError("there are syncs_per_step, but no steps after warm-up")
        if self.order is not None and max(self.order.sites, default=-1) >= len(self.sites):
            raise ValueError("order.sites has an index that is not one of sites")


Ranges = dict[str, list[tuple[Line, Line]]]
"""Lines by path, as inclusive ranges."""


class Part(msgspec.Struct, gc=False):
    """One of the runs that a merged run is made of."""

    file: str
    label: str
    rank: Count | None
    environment: Environment
    lines: Ranges | None
    origin: Origin | None = None


class Run(msgspec.Struct, gc=False):
    """A run file."""

    schema: Literal["gpusync.run/1"]
    environment: Environment
    regions: list[Region]
    lines: Ranges | None = None
    rank: Count | None = None
    origin: Origin | None = None
    parts: list[Part] | None = None

    def __post_init__(self) -> None:
        """Check that each region of a merged run names its part."""
        if self.parts is None:
            return
        if not self.parts:
            raise ValueError("parts is empty")
        if any(region.part is None or region.part >= len(self.parts) for region in self.regions):
            raise ValueError("a region names none of parts")


def read_json(name: str, cwd: str | os.PathLike[str] = ".") -> Any:
    """Return the value of a JSON file. Each object has distinct keys; numbers are integers or floats, never NaN.

    Args:
        name: the path of the file, as the user gave it; relative to `cwd`.
        cwd: the working directory.

    Raises:
        RunFileError: the file cannot be read, is too large, or is not JSON.
    """
    return _parsed(name, read_bytes(name, cwd))


def read_bytes(name: str, cwd: str | os.PathLike[str] = ".") -> bytes:
    """Return the content of a regular file of at most :data:`SIZE_LIMIT` bytes; see :func:`read_json`.

    Raises:
        RunFileError: the file cannot be read, or is too large.
    """
    try:
        return read_regular(os.path.join(cwd, name), SIZE_LIMIT)
    except TooLargeError as error:
        raise _error(name, f"{error.strerror}; measure fewer tests per file") from None
    except NotRegularError:
        raise _error(name, "not a regular file; save the run to one first") from None
    except OSError as error:
        raise _error(name, f"cannot be read ({error.strerror})") from None


def is_run(document: Any) -> bool:
    """Return whether a JSON value says that it is a run file, of any version."""
    schema = document.get("schema") if isinstance(document, dict) else None
    return isinstance(schema, str) and schema.startswith("gpusync.run/")


def check_run(name: str, document: Any) -> Run:
    """Return the value of a JSON file as a run; unknown keys are ignored.

    Raises:
        RunFileError: it is not a run.
    """
    if not is_run(document):
        raise _error(name, "not a run file; gpusync trace --json and pytest --gpu-sync-report write them")
    if document["schema"] != SCHEMA:
        written = _shortened(document["schema"])
        raise _error(name, f"written as {written}, and this version reads {SCHEMA}; install the version that wrote it")
    try:
        return msgspec.convert(document, Run)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        where = place.rstrip("`").lstrip(".") or "the top level"
        problem = _shortened(problem[:1].lower() + problem[1:])
        raise _error(name, f"not a valid {SCHEMA} file: {problem}, at {where}; {_REMEDY}") from None
    except UnicodeEncodeError:
        raise _error(name, f"not a valid {SCHEMA} file: a key has half of a surrogate pair; {_REMEDY}") from None
    except RecursionError:
        raise _error(name, f"not a valid {SCHEMA} file: nested too deeply; {_REMEDY}") from None


def parse_run(name: str, data: bytes) -> Run | None:
    """Return the run in the content of a file; None if it is JSON of another kind, such as a baseline.

    For many files: a valid run is decoded in one pass, about five times as fast as by :func:`read_run`. What that pass
    refuses is read again by the other functions of this module, so both refuse the same with the same message, except
    that this one takes the last of several equal keys.

    Raises:
        RunFileError: it is not JSON, or not a valid run.
    """
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        document = _parsed(name, data)
        return check_run(name, document) if is_run(document) else None


def read_run(name: str, cwd: str | os.PathLike[str] = ".") -> Run:
    """Return the run in a file; see :func:`read_json` and :func:`check_run`."""
    return check_run(name, read_json(name, cwd))


_DECODER: Final = msgspec.json.Decoder(Run)


def _parsed(name: str, data: bytes) -> Any:
    try:
        return json.loads(data, object_pairs_hook=_distinct, parse_int=_integer, parse_constant=_refuse)
    except RecursionError:
        raise _error(name, "not JSON that can be read: nested too deeply") from None
    except UnicodeDecodeError as error:
        raise _error(name, f"not JSON (not {error.encoding} at byte {error.start})") from None
    except ValueError as error:
        raise _error(name, f"not JSON ({error})") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has the key {_shortened(twice)!r} twice")
    return found


def _integer(text: str) -> int:
    # Python limits the number of digits too, at 4,300; msgspec before 0.22 fails at numbers that no float can hold.
    if len(text) > _DIGITS:
        raise ValueError(f"an integer has {len(text)} digits")
    return int(text)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _error(name: str, problem: str) -> RunFileError:
    return RunFileError(escaped(f"{name}: {problem}"))


def _shortened(text: str) -> str:
    return text if len(text) <= _QUOTE_LIMIT else f"{text[: _QUOTE_LIMIT - 1]}…"
