"""``gpusync lint``: the linter, and ``--verify``, which keeps only the fixes that a command confirms."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from gpusync_lint.cli import CLEAN, FAILED, FINDINGS, lint, requested
from gpusync_lint.cli.arguments import lint_parser
from gpusync_lint.cli.terminal import emit
from gpusync_lint.escaping import escaped
from gpusync_lint.model.findings import UserError

from pytest_gpusync.commands.arguments import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpusync_lint.cli.arguments import Parser
    from gpusync_lint.files.discovery import SourceFile
    from gpusync_lint.run.runner import Request

    from pytest_gpusync.commands.verify_fixes import Trial, Verified

SCHEMA = "gpusync.verified-fixes/1"

_OTHERS = {"verify_patch": "--verify-patch", "verify_mask": "--verify-mask", "verify_tolerance": "--verify-tolerance"}
_OTHERS |= {"verify_timeout": "--verify-timeout", "verify_device": "--verify-device"}
_TIMEOUT = 600.0
_LARGE = 2**30
"""Bytes of a project from which on it is said that each run copies them."""


def command_parser() -> Parser:
    """Return the parser of the command: the linter's, with the options of ``--verify``."""
    parser = lint_parser()
    group = parser.add_argument_group(
        "verifying fixes",
        "With --fix or --diff: run COMMAND on a copy of the current folder before and after each fix, and\nkeep only "
        "the fixes after which it makes fewer syncs, prints the same, ends with the same status,\n"
        "has no new race and, on a GPU, no slower step.",
    )
    add = group.add_argument
    add(
        "--verify",
        metavar="COMMAND",
        help="a script or a target of pytest, with its arguments ('train.py --steps 20', 'tests/test_step.py'); it is "
        "executed",
    )
    add("--verify-patch", metavar="FILE", help="also write the kept fixes to FILE as a unified diff")
    add("--verify-timeout", metavar="SECONDS", type=seconds, help=f"limit of each run (default: {_TIMEOUT:g})")
    add(
        "--verify-mask",
        metavar="REGEX",
        action="append",
        type=_pattern,
        help="do not compare what matches in the output; times, durations and rates never are; may be repeated",
    )
    add(
        "--verify-tolerance",
        metavar="X",
        type=_tolerance,
        help="relative difference up to which printed numbers are equal (default: 0)",
    )
    add(
        "--verify-device",
        choices=("auto", "cuda", "simulated"),
        help="where COMMAND runs; auto: on a GPU if there is one, else on the simulated device (default)",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = command_parser()
    arguments = parser.parse(argv)
    if arguments.verify is None:
        for name, option in _OTHERS.items():
            if getattr(arguments, name) is not None:
                parser.error(f"{option} needs --verify COMMAND")
        return lint(arguments)
    try:
        return _verify(arguments)
    except UserError as error:
        _note(f"error: {error}")
        return FAILED


def _verify(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from pytest_gpusync.commands.verify_fixes import Verifier
    from pytest_gpusync.commands.verify_run import Project, parse_command, terminable

    _check(arguments)
    command = parse_command(arguments.verify)
    found, request = requested(arguments)
    root = Path.cwd()
    outside = [file.source.path for file in found.files if not file.location.is_relative_to(root)]
    if outside:
        raise UserError(
            f"--verify: {outside[0]} is not in the current folder, which is copied; run from a folder above"
        )
    for error in found.errors:
        emit(sys.stderr, f"{escaped(error.path)}: error: {escaped(error.message)}\n")
    project = Project(
        root,
        arguments.verify_mask or (),
        device=arguments.verify_device or "auto",
        timeout=arguments.verify_timeout or _TIMEOUT,
    )
    with terminable():
        try:
            size = project.copy()
            if size > _LARGE:
                _note(f"note: each run copies {size / 2**30:.1f} GiB; data elsewhere, behind a link, is not copied")
            verifier = Verifier(
                found.files,
                request,
                lambda files: project.run(command, files),
                _note,
                arguments.verify_tolerance or 0.0,
            )
            verified = verifier.verify()
        finally:
            project.remove()
    files = [file for file in found.files if file.source.path in verified.raws]
    patch = _patch(files, verified, root)
    if arguments.verify_patch is not None:
        _write_text(arguments.verify_patch, patch)
    problems = [] if arguments.diff else _write(files, verified, request)
    for problem in problems:
        _note(f"error: {problem}")
    report = (
        _json(arguments, verified, patch) if arguments.output_format == "json" else "\n".join(_table(verified)) + "\n"
    )
    if arguments.diff:
        emit(sys.stdout, patch)
        emit(sys.stderr, report)
    elif arguments.output_file is not None:
        _write_text(arguments.output_file, report)
    else:
        emit(sys.stdout, report)
    if problems or found.errors or verified.outcome.errors:
        return FAILED
    if arguments.diff:
        return FINDINGS if files else CLEAN
    return FINDINGS if verified.outcome.warnings and not arguments.exit_zero else CLEAN


def _check(arguments: argparse.Namespace) -> None:
    """Check the combination of options. Raises UserError."""
    with_verify = "cannot be combined with --verify"
    conflicts = {
        "--verify needs --fix or --diff": not (arguments.fix or arguments.diff),
        f"--add-ignores {with_verify}": arguments.add_ignores is not None,
        f"--write-baseline {with_verify}": arguments.write_baseline,
        f"--observed {with_verify}": bool(arguments.observed),
        f"--watch {with_verify}": arguments.watch,
        f"--show-files and --show-settings {with_verify}": arguments.show_files or arguments.show_settings,
        "--verify cannot read standard input": "-" in (arguments.paths or ()),
        f"--output-format {arguments.output_format} {with_verify}; choose text or json": arguments.output_format
        not in ("text", "json"),
    }
    for message, applies in conflicts.items():
        if applies:
            raise UserError(message)


def _write(files: Sequence[SourceFile], verified: Verified, request: Request) -> list[str]:
    """Write the kept fixes; return a line for each file that could not be written."""
    from gpusync_lint.rewrite import apply

    folders = [os.path.realpath(str(folder)) for folder in (*request.folders, ".")]
    problems = []
    for file in files:
        try:
            apply.write(file, verified.raws[file.source.path], folders)
        except apply.WriteError as error:
            problems.append(f"{file.source.path}: not written: {error}")
    return problems


def _patch(files: Sequence[SourceFile], verified: Verified, root: Path) -> str:
    from gpusync_lint.files.discovery import display_path
    from gpusync_lint.rewrite.apply import diff

    return "".join(diff(file.raw, verified.raws[file.source.path], display_path(file.location, root)) for file in files)


def _table(verified: Verified) -> list[str]:
    """The table of fixes, and a summary."""
    rows = [("fix", "result", "syncs", "why")]
    for trial in verified.trials:
        fix = trial.fix
        result = "kept" if trial.kept else "refused" if trial.tried else "not tried"
        syncs = f"{_count(trial.before)} -> {_count(trial.after)}" if trial.tried else ""
        group = f"tried with {trial.group - 1} other fix{'' if trial.group == 2 else 'es'}" if trial.group > 1 else ""
        why = trial.reason or group
        rows.append((f"{fix.path}:{fix.line} {fix.code} {fix.title}", result, syncs, why))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        escaped("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])).rstrip()
        for row in rows
    ]
    kept, tried = sum(one.kept for one in verified.trials), sum(one.tried for one in verified.trials)
    lines = lines if verified.trials else ["No fix to try."]
    lines += [
        "",
        f"{kept} of {tried} tried fixes kept: {verified.first.total} syncs before, {verified.last.total} after.",
    ]
    lines.append(_scope(verified))
    return lines


def _scope(verified: Verified) -> str:
    """What the verification covers."""
    where = "the simulated device" if verified.first.device == "simulated" else "a GPU"
    races = "" if verified.first.races is not None else "; races were not looked for there"
    time = "was compared" if verified.first.step_times else "was not compared"
    return f"Verified on {where} in {verified.runs} runs{races}. Time {time}."


def _count(number: int | None) -> str:
    return "?" if number is None else str(number)


def _json(arguments: argparse.Namespace, verified: Verified, patch: str) -> str:
    import json  # only needed here, and the linter starts without it

    document = {
        "schema": SCHEMA,
        "command": arguments.verify,
        "device": verified.first.device,
        "races_checked": verified.first.races is not None,
        "time_compared": bool(verified.first.step_times),
        "runs": verified.runs,
        "syncs": {"before": verified.first.total, "after": verified.last.total},
        "fixes": [_fix(trial) for trial in verified.trials],
        "patch": patch,
        "written": not arguments.diff,
    }
    return json.dumps(document, indent=2) + "\n"


def _fix(trial: Trial) -> dict[str, Any]:
    fix = trial.fix
    return {
        "path": fix.path,
        "line": fix.line,
        "code": fix.code,
        "title": fix.title,
        "safe": fix.safe,
        "key": fix.key,
        "tried": trial.tried,
        "kept": trial.kept,
        "reason": trial.reason,
        "syncs": {"before": trial.before, "after": trial.after} if trial.tried else None,
        "tried_together": trial.group if trial.tried else None,
    }


def _write_text(path: str, text: str) -> None:
    from pytest_gpusync.reporting.run_file import write_atomic

    try:
        write_atomic(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None


def _note(message: str) -> None:
    emit(sys.stderr, f"gpusync lint: {escaped(message)}\n")


def _tolerance(text: str) -> float:
    try:
        tolerance = float(text)
    except ValueError:
        tolerance = -1.0
    if not 0 <= tolerance < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to below 1")
    return tolerance


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None
    return text
