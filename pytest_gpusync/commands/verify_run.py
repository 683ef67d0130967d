"""Runs of the command of ``gpusync lint --verify``: on a copy of the project, counted, with a time limit."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree

from gpusync_lint.model.findings import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpusync.reporting.run_figures import Interval

_NOT_COPIED: Final = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".gpusync_cache"})
_NOT_COPIED_CACHES: Final = frozenset({".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox"})

_OUTPUT_LIMIT: Final = 64 << 20
"""Bytes of output that are compared."""

_NUMBER: Final = r"[-+]?\d[\d_,]*(?:\.\d*)?(?:[eE][-+]?\d+)?"
_UNIT: Final = (
    r"(?:[nuµm]?s|secs?|seconds?|mins?|minutes?|hours?|(?:it|iters?|samples?|tok|tokens?|steps?|images?)/s(?:ec)?)"
)
_CLOCK: Final = re.compile(
    r"\d{4}-\d\d-\d\d(?:[-_T ]\d\d[-:]\d\d(?:[-:]\d\d(?:[-.,]\d+)?)?)?|\d{1,2}:\d\d:\d\d(?:[.,]\d+)?|\b\d\d:\d\d\b"
)
_WITH_UNIT: Final = re.compile(rf"(?<![\w.]){_NUMBER}\s?{_UNIT}\b")
_NAMED_TIME: Final = re.compile(
    rf"(\b(?:time|elapsed|duration|took|eta|dt|ms(?:/\w+)?|s/\w+|secs?|seconds|fps|sps|speed|throughput|tok/sec"
    rf"|(?:it|samples)/s)\b\W{{0,4}})(?:{_NUMBER}|(?<=\W)\*)(?:\s*\(\s*{_NUMBER}\s*\))?",
    re.IGNORECASE,
)
"""With the average that the meters of torch's examples show: ``Time 0.52 (0.61)``."""
_LOADING: Final = re.compile(
    rf"(\btime\W{{0,6}}\*\W{{0,6}}data\W{{0,4}}){_NUMBER}(?:\s*\(\s*{_NUMBER}\s*\))?", re.IGNORECASE
)
"""The time to load data, which these meters show after that of the step: ``Time *  Data 0.01 (0.02)``."""
_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]{6,}\b")


class CommandError(UserError):
    """The command cannot be verified with. The message is one line."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command whose waits can be counted: a program of Python, or pytest."""

    is_pytest: bool
    arguments: tuple[str, ...]
    """Those of pytest, or the program (SCRIPT or -m MODULE) with its own."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one run of the command did."""

    status: int
    output: tuple[str, ...]
    """The lines that it printed, or of pytest the outcome and output of each test, with times masked."""
    syncs: Mapping[tuple[str, int], int]
    """How often each line waited: by path, relative to the current folder, and line."""
    races: tuple[str, ...] | None
    """A sentence for each race; None if the device does not report races."""
    device: str | None = None
    problem: str | None = None
    """Why the run says nothing: it was stopped, or nothing was measured."""
    last_error: str = ""
    """The last line that it wrote to standard error."""
    step_times: Mapping[str, Interval] = field(default_factory=dict)
    """Milliseconds of a step of each test or program, in the median. Empty on the simulated device, which has no time,
    and where there are too few steps for an interval."""

    @property
    def total(self) -> int:
        """The number of syncs of the run."""
        return sum(self.syncs.values())


def parse_command(text: str) -> Command:
    """Parse the command that the user gave: ``pytest ...``, ``python ...``, a script or a target of pytest.

    Raises:
        CommandError: it is none of these.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CommandError(f"--verify {text!r}: {error}") from None
    if not words:
        raise CommandError("--verify: the command is empty; give a script or a target of pytest")
    first, name = words[0], Path(words[0]).name
    if name in ("pytest", "py.test"):
        return Command(is_pytest=True, arguments=tuple(words[1:]))
    if re.fullmatch(r"python(\d(\.\d+)?)?(\.exe)?", name):
        if words[1:3] == ["-m", "pytest"]:
            return Command(is_pytest=True, arguments=tuple(words[3:]))
        if len(words) < 2 or (words[1].startswith("-") and words[1] != "-m") or words[1:] == ["-m"]:
            raise CommandError(
                f"--verify {text!r}: after {first} give SCRIPT or -m MODULE; other options are not passed"
            )
        return Command(is_pytest=False, arguments=tuple(words[1:]))
    path = first.partition("::")[0]
    is_test = "::" in first or Path(path).is_dir() or re.fullmatch(r"test_.*\.py|.*_test\.py", Path(path).name)
    if is_test and Path(path).exists():
        return Command(is_pytest=True, arguments=tuple(words))
    if first.endswith(".py") and Path(first).is_file():
        return Command(is_pytest=False, arguments=tuple(words))
    if first.endswith(".py") or "::" in first:
        raise CommandError(f"--verify: {path}: no such file")
    raise CommandError(
        f"--verify {text!r}: give a Python script, `python ...`, `pytest ...` or a target of pytest; of a shell script "
        "or a launcher, give the Python command that it starts"
    )


class Project:
    """A copy of the current folder. Each run gets a fresh one at the same path, so that no run sees another's files."""

    def __init__(self, root: Path, masks: Sequence[str] = (), *, device: str = "auto", timeout: float) -> None:
        self._root = root
        self._folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="gpusync-verify-")))
        self._pristine = self._folder / "pristine"
        self._work = self._folder / "work"
        self._masks = [re.compile(mask) for mask in masks]
        self._device = device
        self._timeout = timeout

    def copy(self) -> int:
        """Copy the project, and return the size of the copy in bytes.

        Raises:
            CommandError: it cannot be copied.
        """
        try:
            _copy(self._root, self._pristine, self._root)
        except (OSError, shutil.Error) as error:
            problem = f"{len(error.args[0])} files, such as {error.args[0][0][0]}" if _is_list(error) else str(error)
            raise CommandError(
                f"--verify: the current folder cannot be copied to {self._folder.parent}: {problem}; large data can be "
                "elsewhere, behind a link, and TMPDIR names another folder for copies"
            ) from None
        return sum(
            entry.stat().st_size for entry in self._pristine.rglob("*") if entry.is_file() and not entry.is_symlink()
        )

    def remove(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, command: Command, files: Mapping[str, bytes]) -> RunResult:
        """Run the command in a fresh copy in which `files`, by path relative to the current folder, are replaced."""
        shutil.rmtree(self._work, ignore_errors=True)
        _copy(self._pristine, self._work, self._root)
        for path, content in files.items():
            target = self._work / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)  # a link is replaced, not its target
            target.write_bytes(content)
        report, tests = self._folder / "run.json", self._folder / "tests.xml"
        for old in (report, tests):
            old.unlink(missing_ok=True)
        out, err = self._folder / "stdout", self._folder / "stderr"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            status = self._execute(self._argv(command, report, tests), stdout, stderr)
        last = _last_error(_text(err))
        if status is None:
            late = f"the command ran longer than {self._timeout:g} s (--verify-timeout)"
            return RunResult(-1, (), {}, None, None, late, last)
        lines = _tests(tests) if command.is_pytest else _text(out).splitlines()
        if lines is None:
            return RunResult(status, (), {}, None, None, "pytest wrote no results", last)
        syncs, races, device, problem = self._measured(report)
        times = {} if device in (None, "simulated") else step_times(report.read_bytes())
        return RunResult(status, tuple(map(self._masked, lines)), syncs, races, device, problem, last, times)

    def _argv(self, command: Command, report: Path, tests: Path) -> list[str]:
        if not command.is_pytest:
            trace = ["-m", "pytest_gpusync", "trace", "--quiet", "--device", self._device, "--json", str(report)]
            return [sys.executable, *trace, *command.arguments]
        own = [f"--gpu-sync-report={report}", f"--junitxml={tests}", f"--gpu-device={self._device}"]
        own += ["-o", "junit_logging=system-out", "-o", "junit_family=xunit2"]
        return [sys.executable, "-m", "pytest", *own, *command.arguments]

    def _execute(self, argv: list[str], stdout: Any, stderr: Any) -> int | None:
        """Run a program to its end and return its status; None if it ran too long. Ends its children with it."""
        process = subprocess.Popen(
            argv,
            cwd=self._work,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            return process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _environment(self) -> dict[str, str]:
        """The environment, with what Python imports from the project imported from the copy."""
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        folders = []
        for path in dict.fromkeys([*filter(None, given), *filter(None, sys.path[1:])]):
            inside = _below(path, self._root)
            if inside is not None:
                if (self._pristine / inside).is_dir():
                    folders.append(str(self._work / inside))
            elif path in given:
                folders.append(os.path.abspath(path))
        environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
        environment.setdefault("PYTHONHASHSEED", "0")
        if folders:
            environment["PYTHONPATH"] = os.pathsep.join(folders)
        else:
            environment.pop("PYTHONPATH", None)
        return environment

    def _measured(
        self, report: Path
    ) -> tuple[Counter[tuple[str, int]], tuple[str, ...] | None, str | None, str | None]:
        """The syncs and races of a run file, the device, and why the run says nothing."""
        syncs: Counter[tuple[str, int]] = Counter()
        try:
            document = json.loads(report.read_bytes())
        except (OSError, ValueError):
            return syncs, None, None, "nothing was measured: the run ended before its report was written"
        regions = document["regions"]
        races: list[str] | None = []
        for region in regions:
            for site in region["sites"]:
                if _below(site["path"], self._root) is not None and os.path.isabs(site["path"]):
                    raise CommandError(
                        f"--verify: the command runs {site['path']}, not its copy; name files by relative paths, and "
                        "install the project so that PYTHONPATH comes before it"
                    )
                syncs[site["path"], site["line"]] += site["syncs"]
            if races is not None:
                races = None if region["races"] is None else [*races, *(race["message"] for race in region["races"])]
        problem = None
        if not any(region["syncs"] is not None and region["device_used"] for region in regions):
            why = next((region["problem"] for region in regions if region["problem"]), "the command used no device")
            problem = f"nothing was measured: {why}"
        return syncs, None if races is None else tuple(races), document["environment"]["device"], problem

    def _masked(self, line: str) -> str:
        for mask in self._masks:
            line = mask.sub("*", line)
        return masked_times(line)


def step_times(report: bytes) -> dict[str, Interval]:
    """Return the time of a step of each test in a run file, in milliseconds, where it is known with an interval."""
    from gpusync_lint.files.run_files import parse_run

    from pytest_gpusync.reporting.run_figures import figures_of, joined

    run = parse_run("run.json", report)
    if run is None:
        return {}
    times = {name: test.times.get("step time") for name, test in joined(figures_of("run.json", run)).tests.items()}
    return {name: time for name, time in times.items() if time is not None and isfinite(time.low + time.high)}


def masked_times(line: str) -> str:
    """A line of output without what differs between two equal runs: times of day, durations, rates and addresses."""
    line = _CLOCK.sub("*", line)
    line = _LOADING.sub(r"\1*", _NAMED_TIME.sub(r"\1*", line))
    return _ADDRESS.sub("*", _WITH_UNIT.sub("*", line))


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM unwind as Ctrl-C does, so that the copy is removed."""

    def stop(_signal: int, _frame: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _text(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(_OUTPUT_LIMIT).decode("utf-8", "replace").replace("\r", "\n")


def _last_error(text: str) -> str:
    """The first line of the exception with which a program ended, or else the last line that it wrote."""
    before, traceback, after = text.rpartition("Traceback (most recent call last):")
    lines = [line.rstrip() for line in (after if traceback else before or after).splitlines() if line.strip()]
    if traceback:
        lines = [line for line in lines if not line.startswith((" ", "\t"))][:1] or lines
    return lines[-1].strip() if lines else ""


def _tests(path: Path) -> list[str] | None:
    """The outcome and the output of each test; None if pytest wrote no results."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    lines = []
    for case in root.iter("testcase"):
        states = {"failure": "failed", "error": "error", "skipped": "skipped"}
        outcome = [states[child.tag] for child in case if child.tag in states] or ["passed"]
        lines.append(f"{case.get('classname', '')}::{case.get('name', '')} {' '.join(outcome)}")
        for printed in case.iter("system-out"):
            lines += (printed.text or "").splitlines()
    return lines


def _is_list(error: Exception) -> bool:
    """Whether an error of shutil lists the files that it could not copy."""
    return isinstance(error, shutil.Error) and bool(error.args) and isinstance(error.args[0], list)


def _below(path: str, root: Path) -> str | None:
    """The path relative to `root`; None if it is elsewhere."""
    full = os.path.realpath(os.path.join(root, path))
    relative = os.path.relpath(full, os.path.realpath(root))
    return None if relative == os.pardir or relative.startswith(os.pardir + os.sep) else relative


def _copy(source: Path, target: Path, root: Path) -> None:
    """Copy a folder without version control, caches and environments. Relative links out of `root` are kept valid."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        found = {name for name in names if name in _NOT_COPIED or name in _NOT_COPIED_CACHES}
        for name in names:
            path = os.path.join(folder, name)
            if os.path.exists(os.path.join(path, "pyvenv.cfg")):
                found.add(name)
            elif not os.path.islink(path) and not os.path.isdir(path) and not os.path.isfile(path):
                found.add(name)  # a socket, pipe or device
        return found

    shutil.copytree(source, target, symlinks=True, ignore=ignored)
    if source != root:
        return
    for folder, folders, names in os.walk(target):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            if os.path.islink(path) and not os.path.isabs(os.readlink(path)):
                original = os.path.join(source, os.path.relpath(path, target))
                if _below(original, root) is None:
                    os.unlink(path)
                    os.symlink(os.path.realpath(original), path)
