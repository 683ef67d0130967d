"""``gpusync trace``: runs a program unmodified and reports where it waits for the GPU."""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
import traceback
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpusync_lint.escaping import escaped

from pytest_gpusync.commands import trace_launcher
from pytest_gpusync.commands.arguments import seconds
from pytest_gpusync.commands.trace_stop import limits
from pytest_gpusync.distributed.rank_exchange import rank
from pytest_gpusync.machine import devices
from pytest_gpusync.measure.region import record
from pytest_gpusync.measure.step_at import StepAt
from pytest_gpusync.model.measurement import MeasurementError
from pytest_gpusync.reporting.files import path_of_rank, why_unavailable
from pytest_gpusync.source.line_coverage import CoverageUnavailable, LineCoverage
from pytest_gpusync.source.line_executions import LineExecutions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType
    from typing import TextIO

    from pytest_gpusync.measure.region import Region
    from pytest_gpusync.model.document import Document
    from pytest_gpusync.model.measurement import Measurement

USAGE_ERROR = 2
INTERRUPTED = 130
TERMINATED = 143

_DESCRIPTION = """\
Run a program as `python SCRIPT` or `python -m MODULE` would, count the calls that made the host wait for the GPU, and
report the lines that made them. The program is not changed. Without a GPU it runs on a simulated CUDA device.

For `torchrun ...` (-m torch.distributed.run) and `accelerate launch ...`, every rank is traced, and the report covers
all of them. If a launcher starts the trace, as in `torchrun -m pytest_gpusync trace SCRIPT`, each rank writes its own
files (run-rank3.json), which `gpusync report merge` merges."""

_EPILOG = """\
exit status: that of the program; 1 if it raised an exception; 2 if it could not be run or nothing could be measured;
130 after Ctrl-C, 143 after SIGTERM.
The report is printed to standard output after the program's own output."""


_ENDINGS = {"--json": ".json", "--html": ".html", "--md": ".md", "--trace": ".trace.json"}
"""The options that write a report, and the ending of each format."""


class _Terminated(BaseException):
    """Raised in the program by SIGTERM."""


class _Output:
    """The command's own standard output and error: the program may replace or close them.

    In a child that the program has forked nothing is printed: the parent reports.
    """

    def __init__(self) -> None:
        self._out, self._err = sys.stdout, sys.stderr
        self._process = os.getpid()

    @property
    def is_forked(self) -> bool:
        """True in a child that the program has forked."""
        return os.getpid() != self._process

    @property
    def color(self) -> bool:
        """True if a report may be colored."""
        from gpusync_lint.messages import wants_color

        return not self._out.closed and wants_color(self._out, os.environ)

    def report(self, rows: Sequence[str]) -> None:
        """Print a report after what the program has printed; to standard error if standard output is closed."""
        with suppress(Exception):  # whatever the program has put there
            sys.stdout.flush()
        if not self._try_print(self._out, "\n" + "\n".join(rows)):
            self.note("standard output was closed by the program; its report:\n" + "\n".join(rows))

    def note(self, message: str) -> None:
        """Print a line for the user to standard error."""
        if not self.is_forked:
            self._try_print(self._err, "\n".join(map(escaped, f"gpusync: {message}".split("\n"))))

    @staticmethod
    def _try_print(stream: TextIO, text: str) -> bool:
        """Print, unless the stream or its file is closed; return whether it was printed."""
        try:
            print(text, file=stream, flush=True)
        except BrokenPipeError:  # the reader has had enough: see cli
            raise
        except ValueError:
            return False
        except OSError:
            # Python would fail at exit when it flushes what could not be written.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            return False
        return True


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = command_parser()
    options = parser.parse_args(_split_module(argv))
    if options.target is None:
        parser.error("the program is missing: give SCRIPT, or -m MODULE")
    target: str = options.target
    if not options.is_module and not Path(target).is_file():
        return _refuse(f"{target}: no such file; give the path of a Python script, or -m MODULE")
    for flag, path in _reports(options):
        if not Path(path).absolute().parent.is_dir():
            return _refuse(f"{flag} {path}: the folder does not exist; create it first")
        if Path(path).is_dir():
            return _refuse(f"{flag} {path} is a folder; name a file")
        if (why := why_unavailable(_ENDINGS[flag])) is not None:
            return _refuse(f"{flag}: {why}")
    # The program may change the working directory before its report is written.
    for flag, path in _reports(options):
        setattr(options, flag.lstrip("-"), str(path_of_rank(Path(path).absolute())))
    output = _Output()
    if trace_launcher.is_launcher(target, options.arguments, is_module=options.is_module):
        return _trace_ranks(options, output)
    try:
        _prepare_device(options.device, options.devices, values=not options.no_values, memory=options.memory)
    except MeasurementError as error:
        return _refuse(str(error))
    name = f"-m {target}" if options.is_module else target
    lines, executions = LineCoverage() if options.lines else None, LineExecutions()
    try:
        with (
            lines.recording() if lines is not None else nullcontext(),
            executions.counting(),
            record(name, all_threads=options.all_threads, step_at=options.step_at) as region,
        ):
            region.count_executions(executions)
            code = _run(options, output, region)
    except CoverageUnavailable as error:
        return _refuse(f"--lines: {error}")
    except MeasurementError as error:
        return _refuse(str(error))
    if output.is_forked:  # a child that ran to the end of the program
        return code
    return _report(region.result(), code, options, output, lines)


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="gpusync trace",
        usage="gpusync trace [OPTION...] SCRIPT [ARG...]\n       gpusync trace [OPTION...] -m MODULE [ARG...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "simulated"),
        default="auto",
        help="auto: a real GPU if there is one, else the simulated device (default)",
    )
    parser.add_argument(
        "--devices",
        type=_device_count,
        metavar="N",
        help="simulate N devices (default: one, or under a launcher one per local process)",
    )
    parser.add_argument(
        "--no-values",
        action="store_true",
        help="compute only shapes on the simulated device, for models that do not fit; stops where a value is needed",
    )
    parser.add_argument(
        "--memory", metavar="SIZE", help='memory of the simulated device, such as "80 GiB" (default: that of the host)'
    )
    parser.add_argument("--json", metavar="FILE", help="write the run to FILE as JSON")
    parser.add_argument("--html", metavar="FILE", help="write the run to FILE as one HTML page")
    parser.add_argument("--md", metavar="FILE", help="write the run to FILE as Markdown")
    parser.add_argument("--trace", metavar="FILE", help="write the run to FILE as a Chrome trace, for Perfetto")
    parser.add_argument(
        "--steps",
        type=_count,
        metavar="N",
        help="stop the program after N steps, not counting warm-up, and report them",
    )
    parser.add_argument(
        "--step-at",
        type=_function,
        metavar="FUNCTION",
        help="end a step whenever FUNCTION returns, or as a generator yields a value: Engine.step, serve.generate; "
        "before Python 3.12 this slows down every call",
    )
    parser.add_argument(
        "--limit",
        type=seconds,
        metavar="SECONDS",
        help="stop the program SECONDS after its first use of the device and report what was seen",
    )
    parser.add_argument(
        "--lines",
        action="store_true",
        help="also record which lines ran, for gpusync lint --observed; before Python 3.12 this slows down every line",
    )
    parser.add_argument(
        "--all-threads", action="store_true", help="count the syncs of all threads, not only of the main thread"
    )
    parser.add_argument("--quiet", action="store_true", help="print no report; only write the requested files")
    parser.add_argument(
        "--all",
        action="store_true",
        help="show every line, including lines that synced only outside the measured steps",
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module, as python -m does")
    parser.add_argument("target", nargs="?", metavar="SCRIPT|MODULE", help="the program")
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="ARG",
        help="its arguments: all that follows the program, also options; the options above go before it",
    )
    return parser


def _function(text: str) -> str:
    try:
        return StepAt(text).function
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a function, such as Engine.step") from None


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps of at least 1")
    return count


def _device_count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of devices of at least 1")
    return int(text)


def _split_module(argv: Sequence[str]) -> list[str]:
    """Accept ``-mMODULE`` as Python does."""
    arguments = list(argv)
    for index, argument in enumerate(arguments):
        if argument.startswith("-m") and argument != "-m" and not argument.startswith("--"):
            arguments[index : index + 1] = ["-m", argument[2:]]
            break
        if not argument.startswith("-"):
            break
    return arguments


def _prepare_device(choice: str, count: int | None, *, values: bool, memory: str | None) -> None:
    """Switch the simulated device on if needed, with `count` devices.

    Raises:
        MeasurementError: the requested device is not available.
    """
    if devices.torch_build() is None:
        raise MeasurementError("torch is not installed in this environment; install it next to pytest-gpusync")
    found = devices.detect()
    if choice == "cuda" and found.kind == "none":
        raise MeasurementError(f"--device cuda: no GPU to measure: {found.reason}")
    if choice == "simulated" or found.kind == "none":
        from pytest_gpusync.simulated import SimulationUnavailable, switch_on

        # On a machine with a GPU, hide it before the driver is first called, also from child processes.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        try:
            switch_on(count, values=values, memory=memory)
        except SimulationUnavailable as error:
            raise MeasurementError(str(error)) from error
        except ValueError as error:
            raise MeasurementError(f"--memory: {error}") from error
        why = "" if choice == "simulated" else f" ({found.reason})"
        print(f"gpusync: running on the simulated CUDA device{why}", file=sys.stderr)
    else:
        # Steps and phases are followed through torch's Python code, which must be loaded when the region opens.
        import torch  # noqa: F401


def _trace_ranks(options: argparse.Namespace, output: _Output) -> int:
    """Trace the ranks that a launcher starts, and report them as one run."""
    passed = ["--device", options.device]
    if options.devices is not None:
        passed += ["--devices", str(options.devices)]
    if options.limit is not None:
        passed += ["--limit", str(options.limit)]
    if options.steps is not None:
        passed += ["--steps", str(options.steps)]
    if options.step_at is not None:
        passed += ["--step-at", options.step_at]
    if options.lines:
        passed.append("--lines")
    if options.all_threads:
        passed.append("--all-threads")
    runs = trace_launcher.run(lambda: _run(options, output, None), passed)
    for lost in runs.lost:
        output.note(f"{lost} was started but wrote no run: it was killed")
    if runs.document is None:
        output.note("no rank wrote a run")
        return runs.code or USAGE_ERROR
    code = _write_reports(runs.document, options, output, runs.code)
    if not options.quiet:
        from pytest_gpusync.reporting.summary import document_lines

        output.report(document_lines(runs.document))
    return code


def _run(options: argparse.Namespace, output: _Output, region: Region | None) -> int:
    """Run the program to its end, or to the limits for `region`, and return its exit code."""
    seconds, steps = (options.limit, options.steps) if region is not None else (None, None)
    stops = None
    try:
        with _terminable(), _as_main_program(options), limits(region, seconds, steps) as stops:
            if options.is_module:
                runpy.run_module(options.target, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(options.target, run_name="__main__")
    except SystemExit as leave:
        if stops is None or stops.reason is None:
            code = _exit_code(leave)
            if code == USAGE_ERROR and (misplaced := _own_options(options.arguments)):
                output.note(f"passed to the program: {misplaced}; an option of gpusync trace goes before the program")
            return code
        output.note(f"stopped the program {stops.reason}")
        return 0
    except KeyboardInterrupt:
        output.note("interrupted; reporting what was seen")
        return INTERRUPTED
    except _Terminated:
        output.note("terminated; reporting what was seen")
        return TERMINATED
    except BaseException as error:
        _print_as_python_would(error)
        return 1
    if stops is not None and stops.ended_early:
        output.note(f"--steps: {stops.ended_early}")
    return 0


def _own_options(arguments: Sequence[str]) -> str:
    """The options among a program's arguments that this command has, too."""
    known = command_parser()._option_string_actions
    words = (argument.partition("=")[0] for argument in arguments if argument.startswith("--"))
    return " and ".join(dict.fromkeys(word for word in words if word in known))


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the program so that its report is written, unless the program handles it itself."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _Terminated

    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _as_main_program(options: argparse.Namespace) -> Iterator[None]:
    """Set argv and the import path as Python would for the program."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [options.target, *options.arguments]
    # Python puts the script's folder first; for -m, the working directory, where the console script's folder is now.
    sys.path[0] = os.getcwd() if options.is_module else str(Path(options.target).resolve().parent)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def _exit_code(leave: SystemExit) -> int:
    if leave.code is None:
        return 0
    if isinstance(leave.code, int):
        return leave.code
    print(leave.code, file=sys.stderr)
    return 1


def _print_as_python_would(error: BaseException) -> None:
    """Print the traceback of the program, starting at its own first frame."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>", runpy.__file__):
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames or error.__traceback__)


def _report(
    measurement: Measurement, code: int, options: argparse.Namespace, output: _Output, lines: LineCoverage | None
) -> int:
    """Write and print the report; return the exit code. Files come first: they outlast a terminal that is gone."""
    if _reports(options):
        from pytest_gpusync.reporting.run_file import region_document, run_document

        ran = lines.take() if lines is not None else None
        document = run_document(measurement.environment, [region_document(measurement)], ran)
        code = _write_reports(document, options, output, code)
    # With several ranks, which share one terminal, only the first prints.
    if not options.quiet and rank() in (None, 0):
        output.report(_rows(measurement, options, color=output.color))
    if measurement.problem is not None:
        code = code or USAGE_ERROR
    elif not measurement.device_used:
        output.note("the program did not use the device")
    return code


def _rows(measurement: Measurement, options: argparse.Namespace, *, color: bool) -> list[str]:
    from shutil import get_terminal_size

    from pytest_gpusync.reporting.terminal import render_measurement

    return render_measurement(
        measurement,
        verbose=options.all,
        width=get_terminal_size((110, 24)).columns,
        color=color,
        limit=30,
        hint="--all shows all",
    )


def _write_reports(document: Document, options: argparse.Namespace, output: _Output, code: int) -> int:
    """Write the requested report files; return the exit code, which is not 0 if one could not be written."""
    from pytest_gpusync.reporting.files import render
    from pytest_gpusync.reporting.run_file import write_atomic

    for flag, path in _reports(options):
        try:
            write_atomic(path, render(document, _ENDINGS[flag], Path(path).parent))
        except OSError as error:
            output.note(f"{flag} {path}: cannot be written ({error.strerror})")
            code = code or USAGE_ERROR
    return code


def _reports(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the requested report files, each with its option."""
    asked = [(flag, getattr(options, flag.lstrip("-"))) for flag in _ENDINGS]
    return [(flag, path) for flag, path in asked if path is not None]


def _refuse(message: str) -> int:
    print(escaped(f"gpusync trace: {message}"), file=sys.stderr)
    return USAGE_ERROR
