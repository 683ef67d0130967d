"""``gpusync lint`` and ``gpusync rule``: arguments in, an exit code out."""

from __future__ import annotations

import gc
import os
import stat
import sys
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpusync_lint import output
from gpusync_lint.cli.arguments import lint_parser, rule_parser
from gpusync_lint.cli.terminal import emit, progress
from gpusync_lint.escaping import escaped, escaped_lines, masked
from gpusync_lint.files.discovery import Found, discover, display_path
from gpusync_lint.messages import wants_color
from gpusync_lint.model import codes
from gpusync_lint.model.findings import UserError
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.output.base.format import Options
from gpusync_lint.run.outcome import Outcome, accept_all
from gpusync_lint.run.runner import Request, configured, run
from gpusync_lint.settings.config import Config, find, load
from gpusync_lint.settings.selection import Layer, UnknownCodeError, resolve, resolve_all

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from gpusync_lint.accept.baseline import Baseline
    from gpusync_lint.files.discovery import Listed
    from gpusync_lint.model.findings import EngineSettings, FileError, Source
    from gpusync_lint.run.cache import Cache

CLEAN, FINDINGS, FAILED = 0, 1, 2


class UsageError(UserError):
    """A command line that makes no sense, in one line."""


def _jobs_available() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gpusync lint`` and return its exit code. `argv` does not contain the name of the command."""
    return lint(lint_parser().parse(argv))


def lint(arguments: argparse.Namespace) -> int:
    """Run ``gpusync lint`` with parsed arguments and return its exit code."""
    if arguments.watch:
        from gpusync_lint.cli.watch import watch

        return watch(lambda: _run(arguments), lambda: _watched(arguments))
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    """Lint once, and return the exit code."""
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
    at = _config_path(arguments, paths, cwd)
    config = Config() if at is None else load(at, names)
    request = _request(arguments, config, names, today)
    if arguments.show_settings:
        from gpusync_lint.cli import show

        emit(sys.stdout, show.settings(arguments, at, config, request))
        return CLEAN
    if arguments.show_files:
        return _show_files(_found(arguments, paths, cwd, config, lambda listed: frozenset(one.path for one in listed)))
    cache: Cache | None = None

    def unneeded(listed: Sequence[Listed]) -> frozenset[str]:
        nonlocal cache
        cache = _cache(arguments, paths, config, request.settings, cwd, listed)
        if cache is not None and cache.note:
            emit(sys.stderr, f"gpusync lint: {escaped(cache.note)}\n")
        return frozenset() if cache is None else cache.unread

    found = _found(arguments, paths, cwd, config, unneeded)
    _note_empty(arguments, config, found, cwd)
    if found.abandoned:
        _clean_up(found.abandoned, removes=(arguments.fix or arguments.add_ignores is not None) and not arguments.diff)
    runs = None
    if arguments.observed:
        from gpusync_lint.accept import observed_runs

        runs = observed_runs.load(arguments.observed, cwd)
    with progress(len(found.files) + len(found.unread)) as done:
        request = replace(_completed(arguments, config, request, found, cwd), cache=cache, progress=done)
        outcome = run(found.files, found.errors, request)
    if cache is not None:
        cache.save()
    if arguments.write_baseline and request.baseline is not None:
        outcome = _write_baseline(arguments, config, request.baseline, outcome)
    if runs is not None:
        from gpusync_lint.accept import observed_runs

        seen = observed_runs.join(outcome.reported, runs, cwd, outcome.texts)
        outcome = replace(outcome, reported=seen.reported, observed=seen)
    _report(arguments, found, outcome, cwd)
    return _exit_code(arguments, outcome)


def requested(arguments: argparse.Namespace) -> tuple[Found, Request]:
    """The files that the arguments name, all of them read, and the settings, for a caller that runs the linter itself.

    Raises:
        UserError: the arguments or the configuration cannot be used.
    """
    paths: list[str] = arguments.paths or ["."]
    _check(arguments, paths)
    cwd = Path.cwd()
    names = codes.names()
    at = _config_path(arguments, paths, cwd)
    config = Config() if at is None else load(at, names)
    request = _request(arguments, config, names, datetime.now().astimezone().date())
    found = _found(arguments, paths, cwd, config, lambda listed: frozenset())
    _note_empty(arguments, config, found, cwd)
    return found, _completed(arguments, config, request, found, cwd)


def _note_empty(arguments: argparse.Namespace, config: Config, found: Found, cwd: Path) -> None:
    """Say which of the given folders have no files to lint."""
    for folder in found.empty:
        ignores = _respects_gitignore(arguments, config) and _finds_ignored(folder, cwd, config)
        hint = "; git ignores those that are there, and --no-respect-gitignore lints them" if ignores else ""
        emit(sys.stderr, f"gpusync lint: no Python files or notebooks in {escaped(folder)}{hint}\n")


def _completed(arguments: argparse.Namespace, config: Config, request: Request, found: Found, cwd: Path) -> Request:
    """The settings with what depends on the files."""
    reference = _baseline(arguments, config, cwd)
    context: tuple[Source, ...] = ()
    if not arguments.no_context and any(file.named for file in found.files):
        from gpusync_lint.project.import_context import context_of

        context = context_of(found.files, cwd=cwd, excludes=config.excludes)
    return replace(
        request,
        baseline=reference,
        folders=found.folders,
        context=context,
        unread=found.unread,
        jobs=arguments.jobs or _jobs_available(),
    )


def _found(
    arguments: argparse.Namespace,
    paths: Sequence[str],
    cwd: Path,
    config: Config,
    unneeded: Callable[[Sequence[Listed]], frozenset[str]],
) -> Found:
    """The files to lint. `unneeded` returns the paths of those that need not be read."""
    return discover(
        paths,
        cwd=cwd,
        excludes=config.excludes,
        stdin=lambda: sys.stdin.buffer.read(),
        stdin_filename=arguments.stdin_filename,
        respect_gitignore=_respects_gitignore(arguments, config),
        unneeded=unneeded,
    )


def _respects_gitignore(arguments: argparse.Namespace, config: Config) -> bool:
    given: bool | None = arguments.respect_gitignore
    return config.respect_gitignore if given is None else given


def _finds_ignored(folder: str, cwd: Path, config: Config) -> bool:
    """Whether a folder without files to lint contains some that git ignores."""
    found = discover(
        [folder],
        cwd=cwd,
        excludes=config.excludes,
        stdin=bytes,
        respect_gitignore=False,
        unneeded=lambda listed: frozenset(one.path for one in listed),
    )
    return bool(found.unread)


def _show_files(found: Found) -> int:
    """Print the paths of the files, and return the exit code."""
    paths = sorted({one.path for one in found.unread} | {file.source.path for file in found.files})
    emit(sys.stdout, "".join(f"{escaped(path)}\n" for path in paths))
    _report_errors(found.errors)
    return FAILED if found.errors else CLEAN


def _watched(arguments: argparse.Namespace) -> frozenset[tuple[str, int, int]]:
    """What the result depends on: the path, size and time of each file to lint, and of the files of settings."""
    paths: list[str] = arguments.paths or ["."]
    cwd = Path.cwd()
    config, extra = Config(), [arguments.baseline, *(arguments.observed or ())]
    try:
        at = _config_path(arguments, paths, cwd)
        extra.append(at)
        config = Config() if at is None else load(at, codes.names())
        extra.append(config.baseline)
    except UserError:  # reported when the files are linted
        extra += [folder / "pyproject.toml" for folder in (cwd, *cwd.parents)]
    found = _found(arguments, paths, cwd, config, lambda listed: frozenset(one.path for one in listed))
    watched = {(one.at, one.size, one.mtime) for one in found.unread}
    for path in filter(None, extra):
        try:
            status = os.stat(path)
        except OSError:
            continue
        watched.add((str(path), status.st_size, status.st_mtime_ns))
    return frozenset(watched)


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
    changes = arguments.fix or arguments.diff or arguments.add_ignores is not None or arguments.write_baseline
    conflicts |= {
        "--watch lints again after each change, so it cannot be combined with an option that changes files": changes
        and arguments.watch,
        "--watch watches files, so it cannot read standard input": arguments.watch and "-" in paths,
        "--watch cannot be combined with --show-settings or --show-files": arguments.watch
        and (arguments.show_settings or arguments.show_files),
        "--diff prints to standard output, so it cannot be combined with --output-file": arguments.diff
        and arguments.output_file is not None,
    }
    for message, applies in conflicts.items():
        if applies:
            raise UsageError(message)
    if arguments.output_file is not None:
        target = Path(arguments.output_file)
        if target.is_dir():
            raise UsageError(f"--output-file {target} is a folder; name a file")
        if not target.absolute().parent.is_dir():
            raise UsageError(f"--output-file {target}: the folder does not exist; create it first")


def _config_path(arguments: argparse.Namespace, paths: list[str], cwd: Path) -> Path | None:
    """The file with the configuration; None if there is none."""
    if arguments.config is not None:
        return Path(arguments.config)
    first = paths[0] if paths[0] != "-" else arguments.stdin_filename or "."
    start = Path(os.path.normpath(cwd / first))
    return find(start if start.is_dir() else start.parent)


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
    extended = resolve_all(arguments.extend_select or (), names)
    base = configured(config, names, today)
    return replace(
        base,
        selection=replace(base.selection, layers=(config.codes, Layer(select, ignore, extended))),
        heat=config.heat if arguments.heat is None else Heat(arguments.heat),
        confidence=Confidence(arguments.confidence),
        fix=arguments.fix or (arguments.diff and arguments.add_ignores is None),
        allow_reason=arguments.add_ignores,
        unsafe=arguments.unsafe_fixes,
        write=not arguments.diff,
        edits=output.named(arguments.output_format).shows_edits,
    )


def _report_errors(errors: Sequence[FileError]) -> None:
    for error in errors:
        cell = "" if error.cell is None else f":cell {error.cell}"
        place = f"{error.path}{cell}{'' if error.line is None else f':{error.line}'}"
        emit(sys.stderr, f"{escaped(place)}: error: {escaped(error.message)}\n")


def _report(arguments: argparse.Namespace, found: Found, outcome: Outcome, cwd: Path) -> None:
    _report_errors(outcome.errors)
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
        color=arguments.output_file is None and wants_color(stream, os.environ),
    )
    text = output.named(arguments.output_format).render(outcome, options)
    if arguments.output_file is None:
        emit(stream, text)
    else:
        _write_output(Path(arguments.output_file), text)


def _write_output(path: Path, text: str) -> None:
    from gpusync_lint.files.atomic_write import replace_file

    data = text.encode("utf-8", "backslashreplace")
    try:
        if path.exists() and not path.is_file():  # a pipe or a terminal, such as /dev/stderr
            path.write_bytes(data)
        else:
            target = Path(os.path.realpath(path))
            replace_file(target, data, stat.S_IMODE(target.stat().st_mode) if target.exists() else None)
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be written: {error.strerror or error}") from None


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
    word = rule_parser().parse(argv).rule
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
