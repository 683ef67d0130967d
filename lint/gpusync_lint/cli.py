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
from gpusync_lint.escaping import escaped, escaped_lines, masked
from gpusync_lint.files.discovery import Found, discover, display_path
from gpusync_lint.messages import nearest
from gpusync_lint.model import codes
from gpusync_lint.model.findings import EngineSettings, UserError
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.output.base.format import Options, wants_color
from gpusync_lint.run.outcome import Outcome, accept_all
from gpusync_lint.run.runner import Request, run
from gpusync_lint.settings.config import Config, find, load
from gpusync_lint.settings.selection import Layer, Selection, UnknownCodeError, resolve, resolve_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpusync_lint.accept.baseline import Baseline
    from gpusync_lint.files.discovery import Listed
    from gpusync_lint.model.findings import Source
    from gpusync_lint.run.cache import Cache

CLEAN, FINDINGS, FAILED = 0, 1, 2

PROGRESS_AFTER = 1.0
"""Seconds after which a terminal shows progress."""

EPILOG = """\
exit codes: 0 no warnings; 1 warnings; 2 wrong usage or configuration, a file that could not be read or parsed, or an
internal error (other files are still reported).

To accept a warning, put a comment on its statement or above it: # gpusync: allow[GS201] why

Configuration is read from the table [tool.gpusync] of the nearest pyproject.toml that has one. Its keys are select,
ignore, exclude, per-file-ignores, heat, baseline, step-functions, barriers and torch-version.

A warning is a finding at the heat of --heat or hotter. Findings that run less often are notes: json and sarif contain
them, text counts them, and they never fail a run.

--write-baseline writes to --baseline FILE, else to the configured baseline, else to gpusync-baseline.json next to
pyproject.toml (without one: in the current folder). It is used only if --baseline or the configuration names it.

Lines and columns count from 1, columns in characters (sarif: in UTF-16 code units). In a notebook, text and json count
lines within the cell, the other formats within the file; cells are numbered from 1, including those without code.
"""


class UsageError(UserError):
    """A command line that makes no sense, in one line."""


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line, with a suggestion where there is one."""

    def format_help(self) -> str:
        """The help. The output formats are loaded only here, because their descriptions are only needed here."""
        for action in self._actions:
            if action.dest == "output_format":
                action.help = f"{output.described()} (default: %(default)s)"
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        self.exit(FAILED, f"{self.prog}: error: {escaped(message)} (see {self.prog} --help)\n")

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """As `parse_args`, but the error for an unknown option suggests the nearest known one."""
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
    paths_help = "files, notebooks and folders to lint; - reads standard input (default: the current folder)"
    add("paths", nargs="*", metavar="PATH", help=paths_help)
    chosen = parser.add_argument_group("what is reported")
    add = chosen.add_argument
    add("--select", action="append", metavar="CODES", help="report only these codes, prefixes or rule names (GS2,item)")
    add("--ignore", action="append", metavar="CODES", help="do not report these codes, prefixes or rule names")
    heats = [heat.value for heat in Heat]
    add("--heat", choices=heats, help="warn about lines that run at least this often (default: step)")
    confidences = [confidence.value for confidence in Confidence]
    add("--confidence", choices=confidences, default="medium", help="least confidence to report (default: %(default)s)")
    add(
        "--show-suppressed",
        action="store_true",
        help="also report warnings that a comment allows, with its reason, and warnings in the baseline",
    )
    fixing = parser.add_argument_group("changing the files")
    add = fixing.add_argument
    add("--fix", action="store_true", help="apply the fixes that do not change values, types or errors")
    add(
        "--unsafe-fixes",
        action="store_true",
        help="with --fix or --diff, also apply the fixes that may",
    )
    add("--add-ignores", metavar="REASON", help="allow all warnings (after --fix) with comments that give this reason")
    add(
        "--diff",
        action="store_true",
        help="print what --fix or --add-ignores would change, and change nothing; exit 1 if there is a change",
    )
    reporting = parser.add_argument_group("output and configuration")
    add = reporting.add_argument
    add("--output-format", choices=output.names(), default=output.DEFAULT, help="see --help")
    add("--statistics", action="store_true", help="count the warnings of each code (text: do not list them)")
    add("--exit-zero", action="store_true", help="exit 0 even if there are warnings")
    add("--baseline", metavar="FILE", help="accept the warnings listed in FILE; only new warnings fail the run")
    add("--write-baseline", action="store_true", help="accept all current warnings: write the baseline and exit 0")
    add(
        "--observed",
        action="append",
        metavar="RUN.json",
        help="show for each warning what a run measured at its line, most expensive first, and list lines that waited "
        "without a warning; may be repeated",
    )
    add(
        "--no-context",
        action="store_true",
        help="lint files given by name alone: do not read what they import and what imports them",
    )
    add("--config", metavar="FILE", help="read the configuration from this pyproject.toml")
    add(
        "--jobs",
        metavar="N",
        type=_count,
        help="number of processes; files that no import connects are analyzed in parallel (default: one per processor)",
    )
    add(
        "--no-cache",
        action="store_true",
        help="do not read or write the cache (.gpusync_cache/ next to pyproject.toml, or in the current folder)",
    )
    add("--stdin-filename", metavar="FILE", help="lint standard input under this name (.ipynb: as a notebook)")
    add("--verbose", action="store_true", help="show the traceback of an internal error")
    return parser


def _jobs_available() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gpusync lint`` and return its exit code. `argv` does not contain the name of the command."""
    arguments = _parser().parse(argv)
    collects = gc.isenabled()
    gc.disable()  # it would traverse all findings and texts again and again, and there is nothing to collect
    try:
        return _lint(arguments)
    except UserError as error:
        emit(sys.stderr, f"gpusync lint: error: {escaped(str(error))}\n")
        return FAILED
    except BrokenPipeError:
        raise
    except Exception as error:
        from gpusync_lint.run.schedule import internal_error

        emit(sys.stderr, f"gpusync lint: {escaped(internal_error(error))}\n")
        if arguments.verbose:
            import traceback

            emit(sys.stderr, escaped_lines(traceback.format_exc()))
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
    cache: Cache | None = None

    def unneeded(listed: Sequence[Listed]) -> frozenset[str]:
        nonlocal cache
        cache = _cache(arguments, paths, config, request.settings, cwd, listed)
        if cache is not None and cache.note:
            emit(sys.stderr, f"gpusync lint: {escaped(cache.note)}\n")
        return frozenset() if cache is None else cache.unread

    found = discover(
        paths,
        cwd=cwd,
        excludes=config.excludes,
        stdin=lambda: sys.stdin.buffer.read(),
        stdin_filename=arguments.stdin_filename,
        unneeded=unneeded,
    )
    for folder in found.empty:
        emit(sys.stderr, f"gpusync lint: no Python files or notebooks in {escaped(folder)}\n")
    if found.abandoned:
        _clean_up(found.abandoned, removes=(arguments.fix or arguments.add_ignores is not None) and not arguments.diff)
    reference = _baseline(arguments, config, cwd)
    runs = None
    if arguments.observed:
        from gpusync_lint.accept import observed_runs

        runs = observed_runs.load(arguments.observed, cwd)
    context: tuple[Source, ...] = ()
    if not arguments.no_context and any(file.named for file in found.files):
        from gpusync_lint.project.import_context import context_of

        context = context_of(found.files, cwd=cwd, excludes=config.excludes)
    with _progress(len(found.files) + len(found.unread)) as done:
        request = replace(
            request,
            baseline=reference,
            folders=found.folders,
            context=context,
            cache=cache,
            unread=found.unread,
            jobs=arguments.jobs or _jobs_available(),
            progress=done,
        )
        outcome = run(found.files, found.errors, request)
    if cache is not None:
        cache.save()
    if arguments.write_baseline and reference is not None:
        outcome = _write_baseline(arguments, config, reference, outcome)
    if runs is not None:
        from gpusync_lint.accept import observed_runs

        seen = observed_runs.join(outcome.reported, runs, cwd, outcome.texts)
        outcome = replace(outcome, reported=seen.reported, observed=seen)
    _report(arguments, found, outcome, cwd)
    return _exit_code(arguments, outcome)


def _clean_up(abandoned: Sequence[str], *, removes: bool) -> None:
    """Remove the temporary files of a run that was killed while it changed files, or name one of them."""
    from gpusync_lint.files.atomic_write import remove_if_abandoned

    files = f"{len(abandoned)} temporary file{'' if len(abandoned) == 1 else 's'} of an interrupted --fix"
    if not removes:
        emit(sys.stderr, f"gpusync lint: found {files}, such as {escaped(abandoned[0])}; the next --fix removes them\n")
    elif removed := remove_if_abandoned(abandoned):
        emit(sys.stderr, f"gpusync lint: removed {len(removed)} of {files}\n")


def _cache(
    arguments: argparse.Namespace,
    paths: Sequence[str],
    config: Config,
    settings: EngineSettings,
    cwd: Path,
    listed: Sequence[Listed],
) -> Cache | None:
    """The cache; None for a run that changes files, needs all of their texts, or lints files given by name."""
    if arguments.no_cache or arguments.fix or arguments.diff or arguments.observed or arguments.add_ignores is not None:
        return None
    if "-" in paths or not listed or any(one.named for one in listed):
        return None
    from gpusync_lint.run.cache import open_cache

    return open_cache(config.root or cwd, [str(cwd), *paths], settings, listed)


def _check(arguments: argparse.Namespace, paths: list[str]) -> None:
    """Check the combination of options. Raises UsageError."""
    shows = output.named(arguments.output_format).shows
    conflicts = {
        "--diff prints a diff, so it cannot be combined with --output-format": arguments.diff
        and arguments.output_format != output.DEFAULT,
        "--add-ignores and --write-baseline both accept all warnings; choose one": arguments.add_ignores is not None
        and arguments.write_baseline,
        "--diff changes nothing, so it cannot be combined with --write-baseline": arguments.diff
        and arguments.write_baseline,
        f"--observed: the format {arguments.output_format} cannot contain what was observed": arguments.observed
        and not shows.observed,
        f"--statistics: the format {arguments.output_format} cannot contain counts": arguments.statistics
        and not shows.statistics,
        "--unsafe-fixes needs --fix or --diff": arguments.unsafe_fixes and not (arguments.fix or arguments.diff),
        "--stdin-filename is the name of standard input, so - must be among the paths": "-" not in paths
        and arguments.stdin_filename is not None,
    }
    for message, applies in conflicts.items():
        if applies:
            raise UsageError(message)


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
    """The baseline of the run; an empty one if it is still to be written."""
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

    name = display_path(location, cwd)
    if arguments.write_baseline and not location.exists():
        return baseline.empty(location, name)
    return baseline.load(location, name)


def _write_baseline(arguments: argparse.Namespace, config: Config, reference: Baseline, outcome: Outcome) -> Outcome:
    from gpusync_lint.accept import baseline

    entries = outcome.accepting or ()
    baseline.write(reference, entries)
    how = ""
    if arguments.baseline is None and config.baseline is None:
        how = f'; use it with --baseline, or with baseline = "{reference.location.name}" in [tool.gpusync]'
    emit(sys.stderr, f"Wrote {_warnings(len({entry.key for entry in entries}))} to {escaped(reference.name + how)}.\n")
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
        emit(sys.stderr, f"{escaped(place)}: error: {escaped(error.message)}\n")
    if arguments.verbose:
        for trace in outcome.tracebacks:
            emit(sys.stderr, escaped_lines(trace))
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
        text = diff(document(file, file.raw), document(file, change.raw), display_path(file.location, cwd))
        # `patch` needs the diff as it is; a terminal shows what a control character would hide.
        emit(sys.stdout, "\n".join(map(masked, text.split("\n"))) if sys.stdout.isatty() else text)
    for verb, count in (("fix", outcome.fixed), ("allow", outcome.allowed)):
        if count:
            emit(sys.stderr, f"Would {verb} {_warnings(count)}.\n")


def _print_fixed_stdin(found: Found, outcome: Outcome) -> bool:
    """Write standard input, with its changes, to standard output. False if it was not among the files."""
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
    """Run ``gpusync rule`` and return its exit code. `argv` does not contain the name of the command."""
    parser = _Parser(
        prog="gpusync rule",
        description="Explain a rule: what it reports, why, and what to write instead. Without a code, list all rules.",
        allow_abbrev=False,
    )
    parser.add_argument("rule", nargs="?", metavar="CODE", help="a code (GS201), a prefix (GS2) or a name (item)")
    word = parser.parse(argv).rule
    names = codes.names()
    try:
        prefix = "GS" if word is None else resolve(word, names)
    except UnknownCodeError as error:
        emit(sys.stderr, f"gpusync rule: error: {escaped(str(error))}\n")
        return FAILED
    if prefix in names:
        from gpusync_lint import rule_pages

        emit(sys.stdout, rule_pages.render(rule_pages.docs()[prefix]))
    else:
        emit(sys.stdout, "".join(f"{code}  {name}\n" for code, name in names.items() if code.startswith(prefix)))
    return CLEAN


def emit(stream: TextIO, text: str) -> None:
    """Write text to a stream; characters that its encoding lacks are written as escapes."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


@contextmanager
def _progress(files: int) -> Iterator[Callable[[int], None]]:
    """Show progress on a terminal if a run takes more than a second; yields a function that counts finished files."""
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
