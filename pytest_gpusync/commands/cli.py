"""The ``gpusync`` command: passes its arguments to one of its subcommands.

A subcommand's modules are imported only when it is named, so ``gpusync lint`` starts without what ``gpusync trace``
needs.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "lint": (
        "pytest_gpusync.commands.lint",
        "main",
        "command_parser",
        "find the lines that make the host wait for the GPU on every step",
    ),
    "rule": ("gpusync_lint.cli", "rule", "rule_parser", "explain a rule of the linter, or list them all"),
    "server": (
        "gpusync_lint.server",
        "main",
        "server_parser",
        "show findings in an editor as you type (a language server)",
    ),
    "trace": (
        "pytest_gpusync.commands.trace",
        "main",
        "command_parser",
        "run a program unmodified and report where it waits for the GPU",
    ),
    "report": (
        "pytest_gpusync.commands.report",
        "main",
        "command_parser",
        "merge, compare or draw the files of runs, and show their history",
    ),
    "doctor": (
        "pytest_gpusync.commands.doctor",
        "main",
        "command_parser",
        "say what can be measured on this machine, and check that it is seen",
    ),
}
"""Each subcommand: its module, the functions in it that run it and make its parser, and what it does."""

INTERRUPTED = 130
CLOSED_PIPE = 141
"""Exit status that a shell reports for a program ended by SIGPIPE."""

USAGE_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``gpusync`` command and return its exit code. `argv` does not include the program's name."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    output = sys.stdout  # a traced program may replace it, or close it
    try:
        code = _dispatch(arguments)
        if not output.closed:
            output.flush()
    except KeyboardInterrupt:
        print("gpusync: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes standard output again at exit; redirect it to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        return CLOSED_PIPE
    if argv is None and arguments[:1] == ["lint"]:
        gc.freeze()  # the process ends here: do not search its memory for garbage
    return code


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help(), end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else USAGE_ERROR
    name = arguments[0]
    if name in ("-V", "--version"):
        from gpusync_lint import __version__

        print(f"gpusync {__version__}")
        return 0
    if name == "--print-completion":
        from pytest_gpusync.commands.completion import print_completion

        parsers = {
            name: (getattr(import_module(module), parser), purpose)
            for name, (module, _, parser, purpose) in COMMANDS.items()
        }
        return print_completion(arguments[1:], parsers)
    if name not in COMMANDS:
        print(f"gpusync: error: {_unknown(name)}", file=sys.stderr)
        return USAGE_ERROR
    module, function, _, _ = COMMANDS[name]
    result: int = getattr(import_module(module), function)(arguments[1:])
    return result


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = ["usage: gpusync COMMAND [ARGUMENT...]", ""]
    lines += ["Find, count and budget the lines that make a GPU training step wait.", ""]
    lines += [f"  {name:<{width}}  {purpose}" for name, (_, _, _, purpose) in COMMANDS.items()]
    lines += ["", "gpusync COMMAND --help describes a command; gpusync --version (-V) prints the version, and"]
    lines += ["gpusync --print-completion SHELL a script that completes commands in a shell."]
    return "\n".join(lines) + "\n"


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    kind = "option" if name.startswith("-") else "command"
    near = get_close_matches(name, [*COMMANDS, "--help", "--version", "--print-completion"], 1)
    hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(COMMANDS)}"
    return f"unknown {kind} {name!r}; {hint}"
