"""Runs from the traces of other tools: torch.profiler's (Kineto) and Nsight Systems' SQLite exports.

A trace is read into the calls of the host into the driver, with what is known of the code that made them. What counts
as a wait is decided as for runs of our own, so that the numbers can be compared. Traces are untrusted input: sizes and
numbers of events are limited, and whatever is wrong is one line that names the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpusync.imported.trace_file import TraceError

if TYPE_CHECKING:
    from pytest_gpusync.model.document import Document

__all__ = ["TraceError", "import_trace"]


def import_trace(name: str) -> Document:
    """Return the run object of a trace: a ``.json`` or ``.json.gz`` of torch.profiler, or an export of Nsight Systems.

    Sources are read below the working directory, where lines have to be found.

    Args:
        name: the path of the file, as the user gave it.

    Raises:
        TraceError: it cannot be read, or is no trace of a GPU program; one line that names the file.
    """
    from gpusync_lint.files.run_files import RunFileError, check_run

    from pytest_gpusync.imported import kineto, nsys, trace_file
    from pytest_gpusync.imported.run import run_of
    from pytest_gpusync.imported.sites import forget_sources

    forget_sources()
    read = nsys.read if trace_file.is_sqlite(name) else kineto.read
    document = run_of(read(name), name)
    try:
        check_run(name, document)
    except RunFileError as error:  # numbers that no run has
        raise TraceError(str(error)) from None
    return document
