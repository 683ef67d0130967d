"""``gpusync server``: a language server, which shows the findings of the linter in an editor while one types.

It speaks the Language Server Protocol over standard input and output. pygls and lsprotocol, which the extra ``server``
installs, are imported only here.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gpusync_lint.cli.arguments import Parser
from gpusync_lint.cli.terminal import emit

if TYPE_CHECKING:
    from collections.abc import Sequence

FAILED = 2
INSTALL = 'pip install "pytest-gpusync[server]"'
_EPILOG = """\
An editor starts it and talks to it over standard input and output; docs/how-to/editors.md says how to set up each one.
Settings are those of [tool.gpusync] in the nearest pyproject.toml of each workspace folder, as for gpusync lint.

exit codes: 0 shut down by the editor; 1 the editor ended without shutting it down; 2 wrong usage, or pygls is missing.
"""


def server_parser() -> Parser:
    """The parser of ``gpusync server``."""
    parser = Parser(
        prog="gpusync server",
        description="Show the findings of gpusync lint in an editor while one types (a language server).",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--observed",
        action="append",
        default=[],
        metavar="RUN.json",
        help="show in hovers and lenses what a run measured there; relative to each workspace folder; may be repeated",
    )
    parser.add_argument(
        "--stdio", action="store_true", help="talk over standard input and output (always; editors add it)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gpusync server`` and return its exit code. `argv` does not contain the name of the command."""
    arguments = server_parser().parse(argv)
    missing = [name for name in ("pygls", "lsprotocol") if find_spec(name) is None]
    if missing:
        emit(sys.stderr, f"gpusync server: error: it needs {' and '.join(missing)}; {INSTALL}\n")
        return FAILED
    if sys.stdin.isatty():
        emit(sys.stderr, "gpusync server: error: an editor starts it, with pipes; see gpusync server --help\n")
        return FAILED
    from gpusync_lint.server.language_server import Server

    protocol = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed must not become part of the protocol
    server = Server(arguments.observed)
    try:
        server.client.start_io(sys.stdin.buffer, protocol)
    finally:
        server.close()
    return 0 if server.was_shut_down else 1
