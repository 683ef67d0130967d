"""``gpusync --print-completion SHELL``: a script that completes commands, options and files in a shell."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

USAGE_ERROR: Final = 2

_FILES: Final = {"FILE", "PATH", "RUN.json", "BEFORE.json", "AFTER.json", "OUT", "SCRIPT|MODULE"}
"""The metavars of arguments that are files."""

INSTALL: Final = 'pip install "pytest-gpusync[completion]"'


def print_completion(
    arguments: list[str], commands: Mapping[str, tuple[Callable[[], argparse.ArgumentParser], str]]
) -> int:
    """Print the script and return the exit code.

    Args:
        arguments: the name of the shell.
        commands: for each command, what makes its parser, and what the command does.
    """
    try:
        import shtab
    except ModuleNotFoundError:
        return _refuse(f"--print-completion needs shtab; {INSTALL}")
    shells = shtab.SUPPORTED_SHELLS
    if len(arguments) != 1 or arguments[0] not in shells:
        given = f", not {' '.join(arguments)}" if arguments else ""
        return _refuse(f"--print-completion takes one of {', '.join(shells)}{given}")
    parser = _whole(commands)
    for action in _actions(parser):
        names = {action.metavar} if isinstance(action.metavar, str) else set()
        if names & _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # how shtab is told
        elif action.metavar == "CODE":
            from gpusync_lint.model import codes

            action.choices = [word for rule in codes.names().items() for word in rule]
    print(shtab.complete(parser, shell=arguments[0]))
    return 0


def _whole(commands: Mapping[str, tuple[Callable[[], argparse.ArgumentParser], str]]) -> argparse.ArgumentParser:
    """One parser for all commands. The command itself reads only the parser of the command that is named."""
    parser = argparse.ArgumentParser(prog="gpusync", allow_abbrev=False)
    parser.add_argument("-V", "--version", action="version", version="", help="print the version")
    parser.add_argument("--print-completion", metavar="SHELL", help="print a script that completes commands in a shell")
    makers = iter([make for make, _ in commands.values()])
    actions = parser.add_subparsers(parser_class=lambda **ignored: next(makers)())  # type: ignore[call-overload]
    for name, (_, purpose) in commands.items():
        actions.add_parser(name, help=purpose)
    return parser


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The actions of a parser and of the parsers of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)


def _refuse(message: str) -> int:
    print(f"gpusync: error: {message}", file=sys.stderr)
    return USAGE_ERROR
