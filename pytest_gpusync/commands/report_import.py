"""``gpusync report import``: a trace of another tool as a run file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpusync.commands.report_io import Refusal, deliver, rendered, restricted_sources

if TYPE_CHECKING:
    from argparse import Namespace

_DESCRIPTION = """\
Turn a trace of another tool into a run file, with the waits by line where the trace has Python stacks:

  torch.profiler   a profile of CPU and CUDA with with_stack=True (export_chrome_trace: .json, .json.gz)
  Nsight Systems   nsys profile --trace=cuda,nvtx --python-backtrace=cuda, then nsys export --type sqlite

Run it in the folder of the project, where lines are looked up in the sources. Steps are the ProfilerStep# marks of a
schedule. gpusync lint --observed RUN.json compares the waits with the linter's findings."""

_EPILOG = "exit status: 0, or 2 if the trace cannot be read or the run cannot be written; then nothing is written."


def add_parser(actions: Any) -> None:
    """Add the parser of the action."""
    parser = actions.add_parser(
        "import",
        help="turn a trace of torch.profiler or Nsight Systems into a run file",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="TRACE", help="a .json, .json.gz or .sqlite file")
    parser.add_argument("-o", dest="output", metavar="RUN.json", help="the file to write (default: standard output)")


def run(options: Namespace) -> int:
    """Write the run in the format of the output's ending, and return the exit code.

    Raises:
        Refusal: the trace cannot be imported, or the run cannot be written.
    """
    from pytest_gpusync.imported import TraceError, import_trace

    out = None if options.output is None else Path(options.output)
    if out is not None and os.path.realpath(out) == os.path.realpath(options.file):
        raise Refusal(f"{out} is both the file to write and the trace; give the run another name")
    try:
        with restricted_sources():
            found = import_trace(options.file)
    except TraceError as error:
        raise Refusal(str(error)) from None
    deliver(rendered(found, out, ".json" if out is None else None), out)
    return 0
