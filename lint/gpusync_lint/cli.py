"""``gpusync lint`` and ``gpusync rule``: arguments in, an exit code out."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NoReturn, TextIO

from gpusync_lint import output
from gpusync_lint.files.discovery import Found, discover, shown
from gpusync_lint.model import codes
from gpusync_lint.model.findings import EngineSettings, UserError
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.output.base.format import Options, wants_color
from gpusync_lint.run.runner import Outcome, Request, accept_all, run
from gpusync_lint.settings.config import Config, find, load
from gpusync_lint.settings.selection import Layer, Selection, UnknownCodeError, resolve, resolve_all
from gpusync_lint.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpusync_lint.accept.baseline import Baseline
    from gpusync_lint.files.discovery import Listed
    from gpusync_lint.model.findings import Source
    from gpusync_lint.run.cache import Memory

CLEAN, FINDINGS, FAILED = 0, 1, 2

PROGRESS_AFTER = 1.0
"""Seconds before a terminal is told that something is going on."""

EPILOG = """\
exit codes: 0 no warnings; 1 warnings; 2 wrong usage or configuration, a file that could not be read or parsed, or an
internal error (the other files are still reported).

Lines and columns count from 1, columns in characters (sarif: in UTF-16 code units, as it says). In the JSON document
(gpusync.lint/1) ends are exclusive. In a notebook, text and json count lines within the cell, the others in the file;
cells are numbered from 1 among all cells. Notes (see --heat) are in json and sarif only.

Accept a warning with a comment on its statement or above it: # gpusync: allow[GS201] why
Configuration: [tool.gpusync] in the nearest pyproject.toml that has it, with the keys select, ignore, exclude,
per-file-ignores, heat, baseline, step-functions and torch-version.
A baseline is written to --baseline FILE, or to the configured one, or to gpusync-baseline.json beside pyproject.toml
(without one: in the current folder), and is used when --baseline or the configuration names it.
"""


class UsageError(UserError):
    """A command line that cannot be obeyed, in one line."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and suggests."""

    def format_help(self) -> str:
        """The help; the output formats are loaded only for it."""
        for action in self._actions:
            if action.dest == "output_format":
                action.help = f"{output.described()} (default: %(default)s)"
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        self.exit(FAILED, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """`parse_args`, but an unknown option is answered with the nearest known one."""
        parsed, unknown = self.parse_known_args(argv)
        if unknown:
            option = unknown[0].partition("=")[0]
            if not option.startswith("-"):
                self.error(f"unexpected argument {option!r}")
            near = nearest(option, self._option_string_actions)
            hint = f"; did you mean {near}?" if near else ""
            self.error(f"unknown option {option}{hint}")
        return parsed


def _parser() -> _Parser:
    parser = _Parser(
        prog="gpusync lint",
        description="Find the lines that make the host wait for the GPU on every step.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="files, notebooks, folders; - is standard input; default: this folder")
    chosen = parser.add_argument_group("what is reported")
    add = chosen.add_argument
    add("--select", action="append", metavar="CODES", help="only these codes, prefixes or rule names (GS2,item-read)")
    add("--ignore", action="append", metavar="CODES", help="not these codes, prefixes or rule names")
    heats = [heat.value for heat in Heat]
    add("--heat", choices=heats, help="warn about lines that run this often or oftener (default: step)")
    confidences = [confidence.value for confidence in Confidence]
    add("--confidence", choices=confidences, default="medium", help="how sure a finding must be (default: %(default)s)")
    add(
        "--show-suppressed",
        action="store_true",
        help="also list what comments allow, with their reasons, and what is in the baseline",
    )
    fixing = parser.add_argument_group("changing the files")
    add = fixing.add_argument
    add("--fix", action="store_true", help="apply the fixes that change no value, type or error")
    add("--unsafe-fixes", action="store_true", help="with --fix or --diff: also those that may; each names its hazard")
    add("--add-ignores", metavar="REASON", help="allow every warning by a comment that gives this reason; after --fix")
    add(
        "--diff",
        action="store_true",
        help="print what --fix or --add-ignores would change, change nothing; exit 1 if so",
    )
    reporting = parser.add_argument_group("output and configuration")
    add = reporting.add_argument
    add("--output-format", choices=output.names(), default=output.DEFAULT, help="see --help")
    add("--statistics", action="store_true", help="count the warnings of each code (text: instead of listing them)")
    add("--exit-zero", action="store_true", help="exit 0 also with warnings")
    add("--baseline", metavar="FILE", help="accept the warnings listed in FILE; only new ones count")
    add("--write-baseline", action="store_true", help="accept every warning from now on: write the baseline and exit 0")
    add(
        "--observed",
        action="append",
        metavar="RUN.json",
        help="put beside each warning what a run saw of its line, the costliest first, and name lines that waited "
        "without one; may be given several times",
    )
    add(
        "--no-context",
        action="store_true",
        help="judge files given by name alone, without reading what they import and what imports them",
    )
    add("--config", metavar="FILE", help="the pyproject.toml to use")
    add(
        "--jobs",
        metavar="N",
        type=_count,
        help="processes to analyze with; files that no import connects are shared out (default: one per processor)",
    )
    add(
        "--no-cache",
        action="store_true",
        help="neither use nor keep what was found before (.gpusync_cache/ beside pyproject.toml, or in this folder)",
    )
    add("--stdin-filename", metavar="FILE", help="the name under which standard input is linted (.ipynb: a notebook)")
    add("--verbose", action="store_true", help="show the traceback of an internal error")
    return parser


def _jobs_available() -> int:
    """As many processes as there are processors for this one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gpusync lint`` and return its exit code. `argv` leaves out the command's name."""
    arguments = _parser().parse(argv)
    collects = gc.isenabled()
    gc.disable()  # it would go over all findings, texts and names again and again, and find nothing
    try:
        return _lint(arguments)
    except UserError as error:
        emit(sys.stderr, f"gpusync lint: error: {error}\n")
        return FAILED
    except BrokenPipeError:
        raise
    except Exception as error:
        from gpusync_lint.run.schedule import internal_error

        emit(sys.stderr, f"gpusync lint: {internal_error(error)}\n")
        if arguments.verbose:
            import traceback

            traceback.print_exc()
        return FAILED
    finally:
        if collects:
            gc.enable()


def _lint(arguments: argparse.Namespace) -> int:
    paths: list[str] = arguments.paths or ["."]
    _check(arguments, paths)
    cwd = Path.cwd()
    names = codes.names()
    today = datetime.now().astimezone().date()
    if arguments.add_ignores is not None:
        _check_reason(arguments.add_ignores, names, today)
    config = _config(arguments, paths, cwd, names)
    request = _request(arguments, config, names, today)
    memory: Memory | None = None

    def remembered(listed: Sequence[Listed]) -> frozenset[str]:
        nonlocal memory
        memory = _memory(arguments, paths, config, request.settings, cwd, listed)
        return frozenset() if memory is None else memory.quiet

    found = discover(
        paths,
        cwd=cwd,
        excludes=config.excludes,
        stdin=lambda: sys.stdin.buffer.read(),
        stdin_filename=arguments.stdin_filename,
        unneeded=remembered,
    )
    for folder in found.empty:
        emit(sys.stderr, f"gpusync lint: no Python files or notebooks in {folder}\n")
    reference = _baseline(arguments, config, cwd)
    runs = None
    if arguments.observed:
        from gpusync_lint.accept import observed_runs

        runs = observed_runs.load(arguments.observed, cwd)
    context: tuple[Source, ...] = ()
    if not arguments.no_context and any(file.named for file in found.files):
        from gpusync_lint.project.import_context import around

        context = around(found.files, cwd=cwd, excludes=config.excludes)
    with _progress(len(found.files) + len(found.quiet)) as done:
        request = replace(
            request,
            baseline=reference,
            folders=found.folders,
            context=context,
            memory=memory,
            quiet=found.quiet,
            jobs=arguments.jobs or _jobs_available(),
            progress=done,
        )
        outcome = run(found.files, found.errors, request)
    if memory is not None:
        memory.save()
    if arguments.write_baseline and reference is not None:
        outcome = _write_baseline(arguments, config, reference, outcome)
    if runs is not None:
        from gpusync_lint.accept import observed_runs

        seen = observed_runs.join(outcome.reported, runs, cwd, outcome.texts)
        outcome = replace(outcome, reported=seen.reported, observed=seen)
    _report(arguments, found, outcome, cwd)
    return _exit_code(arguments, outcome)


def _memory(
    arguments: argparse.Namespace,
    paths: Sequence[str],
    config: Config,
    settings: EngineSettings,
    cwd: Path,
    listed: Sequence[Listed],
) -> Memory | None:
    """What is remembered; None for runs that change files, look at all of them, or are of files given by name."""
    looks = arguments.no_cache or arguments.fix or arguments.diff or arguments.observed
    if looks or arguments.add_ignores is not None or "-" in paths or not listed or any(one.named for one in listed):
        return None
    from gpusync_lint.run.cache import open_memory

    return open_memory(config.root or cwd, [str(cwd), *paths], settings, listed)


def _check(arguments: argparse.Namespace, paths: list[str]) -> None:
    if arguments.diff and arguments.output_format != output.DEFAULT:
        raise UsageError("--diff prints a diff, so it cannot be combined with --output-format")
    if arguments.add_ignores is not None and arguments.write_baseline:
        raise UsageError("--add-ignores and --write-baseline both accept every warning; choose one")
    if arguments.diff and arguments.write_baseline:
        raise UsageError("--diff changes nothing, so it cannot be combined with --write-baseline")
    if arguments.observed and not output.named(arguments.output_format).shows.observed:
        raise UsageError(f"--observed: the format {arguments.output_format} has no place for what was observed")
    if arguments.statistics and not output.named(arguments.output_format).shows.statistics:
        raise UsageError(f"--statistics: the format {arguments.output_format} has no place for counts")
    if arguments.unsafe_fixes and not (arguments.fix or arguments.diff):
        raise UsageError("--unsafe-fixes needs --fix or --diff")
    if arguments.stdin_filename is not None and "-" not in paths:
        raise UsageError("--stdin-filename names standard input, so it needs - among the paths")


def _config(arguments: argparse.Namespace, paths: list[str], cwd: Path, names: dict[str, str]) -> Config:
    if arguments.config is not None:
        return load(Path(arguments.config), names)
    first = paths[0] if paths[0] != "-" else arguments.stdin_filename or "."
    start = Path(os.path.normpath(cwd / first))
    path = find(start if start.is_dir() else start.parent)
    return Config() if path is None else load(path, names)


def _check_reason(reason: str, names: dict[str, str], today: date) -> None:
    from gpusync_lint.accept import add_comments

    try:
        add_comments.check_reason(reason, names, today)
    except add_comments.ReasonError as error:
        raise UsageError(f"--add-ignores: {error}") from None


def _baseline(arguments: argparse.Namespace, config: Config, cwd: Path) -> Baseline | None:
    """The baseline that the run is held against; one that is yet to be written is empty."""
    if arguments.baseline is not None:
        location = Path(os.path.normpath(cwd / arguments.baseline))
    elif config.baseline is not None:
        location = Path(os.path.normpath(config.baseline))
    elif arguments.write_baseline:
        from gpusync_lint.accept.baseline import DEFAULT_NAME

        location = (config.root or cwd) / DEFAULT_NAME
    else:
        return None
    from gpusync_lint.accept import baseline

    name = shown(location, cwd)
    if arguments.write_baseline and not location.exists():
        return baseline.empty(location, name)
    return baseline.load(location, name)


def _write_baseline(arguments: argparse.Namespace, config: Config, reference: Baseline, outcome: Outcome) -> Outcome:
    from gpusync_lint.accept import baseline

    entries = outcome.accepting or ()
    baseline.write(reference, entries)
    how = ""
    if arguments.baseline is None and config.baseline is None:
        how = f'; name it with --baseline, or with baseline = "{reference.location.name}" in [tool.gpusync]'
    emit(sys.stderr, f"Wrote {_warnings(len({entry.key for entry in entries}))} to {reference.shown}{how}.\n")
    return accept_all(outcome)


def _request(arguments: argparse.Namespace, config: Config, names: dict[str, str], today: date) -> Request:
    select = None if arguments.select is None else resolve_all(arguments.select, names)
    ignore = resolve_all(arguments.ignore or (), names)
    settings = EngineSettings(step_functions=config.step_functions, barriers=config.barriers)
    if config.torch_version is not None:
        settings = replace(settings, torch_version=config.torch_version)
    return Request(
        names=names,
        selection=Selection(
            layers=(config.codes, Layer(select, ignore)),
            per_file=config.per_file_ignores,
            root=None if config.root is None else PurePosixPath(config.root.as_posix()),
        ),
        settings=settings,
        today=today,
        heat=config.heat if arguments.heat is None else Heat(arguments.heat),
        confidence=Confidence(arguments.confidence),
        fix=arguments.fix or (arguments.diff and arguments.add_ignores is None),
        allow_reason=arguments.add_ignores,
        unsafe=arguments.unsafe_fixes,
        write=not arguments.diff,
        edits=output.named(arguments.output_format).shows_edits,
    )


def _report(arguments: argparse.Namespace, found: Found, outcome: Outcome, cwd: Path) -> None:
    for error in outcome.errors:
        cell = "" if error.cell is None else f":cell {error.cell}"
        place = f"{error.path}{cell}{'' if error.line is None else f':{error.line}'}"
        emit(sys.stderr, f"{place}: error: {error.message}\n")
    if arguments.verbose:
        for trace in outcome.tracebacks:
            emit(sys.stderr, trace)
    if arguments.diff:
        _print_diff(outcome, cwd)
        return
    if arguments.add_ignores is not None:
        files = f"{outcome.allowed_files} file{'' if outcome.allowed_files == 1 else 's'}"
        emit(sys.stderr, f"Added comments that allow {_warnings(outcome.allowed)} in {files}.\n")
    fixed_stdin = (arguments.fix or arguments.add_ignores is not None) and _print_fixed_stdin(found, outcome)
    stream = sys.stderr if fixed_stdin else sys.stdout
    options = Options(
        show_suppressed=arguments.show_suppressed,
        statistics=arguments.statistics,
        fixed=arguments.fix,
        color=wants_color(stream, os.environ),
    )
    emit(stream, output.named(arguments.output_format).render(outcome, options))


def _warnings(count: int) -> str:
    return f"{count} warning{'' if count == 1 else 's'}"


def _print_diff(outcome: Outcome, cwd: Path) -> None:
    from gpusync_lint.rewrite.apply import diff, document

    for change in outcome.changes:
        file = change.file
        emit(sys.stdout, diff(document(file, file.raw), document(file, change.raw), shown(file.location, cwd)))
    for verb, count in (("fix", outcome.fixed), ("allow", outcome.allowed)):
        if count:
            emit(sys.stderr, f"Would {verb} {_warnings(count)}.\n")


def _print_fixed_stdin(found: Found, outcome: Outcome) -> bool:
    """Put standard input, as it is now, on standard output. False when it was not among the files."""
    from gpusync_lint.rewrite.apply import encode

    texts = {change.file.source.path: change.raw for change in outcome.changes}
    for file in found.files:
        if file.stdin:
            sys.stdout.flush()
            sys.stdout.buffer.write(encode(file, texts.get(file.source.path, file.raw)))
            return True
    return False


def _exit_code(arguments: argparse.Namespace, outcome: Outcome) -> int:
    if outcome.errors:
        return FAILED
    if arguments.diff:
        return FINDINGS if outcome.changes else CLEAN
    return FINDINGS if outcome.warnings and not arguments.exit_zero else CLEAN


def rule(argv: Sequence[str] | None = None) -> int:
    """Run ``gpusync rule`` and return its exit code. `argv` leaves out the command's name."""
    parser = _Parser(
        prog="gpusync rule",
        description="Explain a rule: what it finds, what it costs and what to write instead. Without a code: list all.",
        allow_abbrev=False,
    )
    parser.add_argument("rule", nargs="?", metavar="CODE", help="a code (GS201), a prefix (GS2) or a name (item-read)")
    word = parser.parse(argv).rule
    names = codes.names()
    try:
        prefix = "GS" if word is None else resolve(word, names)
    except UnknownCodeError as error:
        emit(sys.stderr, f"gpusync rule: error: {error}\n")
        return FAILED
    if prefix in names:
        from gpusync_lint import rule_pages

        emit(sys.stdout, rule_pages.render(rule_pages.docs()[prefix]))
    else:
        emit(sys.stdout, "".join(f"{code}  {name}\n" for code, name in names.items() if code.startswith(prefix)))
    return CLEAN


def emit(stream: TextIO, text: str) -> None:
    """Write text that the stream's encoding may not hold; what it does not hold is written as an escape."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


@contextmanager
def _progress(files: int) -> Iterator[Callable[[int], None]]:
    """A line on the terminal for a run of more than a second, gone when it ends; it is told of files that are done."""
    if not sys.stderr.isatty():
        yield lambda number: None
        return
    import threading

    shown = threading.Event()
    finished = 0

    def show() -> None:
        of = f"{finished:,} of " if finished else ""
        emit(sys.stderr, f"Linting {of}{files:,} file{'' if files == 1 else 's'} ...\x1b[K\r")
        shown.set()

    def done(number: int) -> None:
        nonlocal finished
        finished += number
        if number and shown.is_set():
            show()

    timer = threading.Timer(PROGRESS_AFTER, show)
    timer.daemon = True
    timer.start()
    try:
        yield done
    finally:
        timer.cancel()
        timer.join()
        if shown.is_set():
            emit(sys.stderr, "\x1b[K")
