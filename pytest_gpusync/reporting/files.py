"""Report files: the format of each file name ending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpusync.model.document import Document

ENDINGS: Final = (".trace.json", ".json", ".md", ".html")
"""Endings of report files. If a name has two of them, the longer one counts."""


def ending_of(name: str) -> str | None:
    """Return which of :data:`ENDINGS` a file name has; None for another one. A name may consist of the ending alone."""
    return next((ending for ending in ENDINGS if name.endswith(ending)), None)


def path_of_rank(path: Path) -> Path:
    """Return the path for this process: with several ranks, each writes a file of its own, ``run-rank3.json``."""
    from pytest_gpusync.distributed.rank_exchange import rank

    number = rank()
    if number is None:
        return path
    ending = ending_of(path.name) or path.suffix
    return path.with_name(f"{path.name.removesuffix(ending)}-rank{number}{ending}")


def render(document: Document, ending: str, folder: Path | None = None) -> str:
    """Return a run object as the text of a file with this ending.

    Args:
        document: the run object.
        ending: one of :data:`ENDINGS`.
        folder: where the file will be, for links to source files; None for the working directory.
    """
    if ending == ".md":
        from pytest_gpusync.reporting.markdown import to_markdown

        return to_markdown(document)
    if ending == ".html":
        from pytest_gpusync.reporting.html_page import to_html

        return to_html(document, folder)
    if ending == ".trace.json":
        from pytest_gpusync.reporting.chrome_trace import to_trace

        return to_trace(document)
    from pytest_gpusync.reporting.run_file import to_text

    return to_text(document)


def write_report(document: Document, path: Path) -> None:
    """Write a run object to `path`, in the format of its ending.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    from pytest_gpusync.reporting.run_file import write_atomic

    write_atomic(path, render(document, ending_of(path.name) or path.suffix, path.parent))


def why_unavailable(ending: str) -> str | None:
    """Return why files with this ending cannot be written here, with the remedy; None if they can."""
    from importlib.util import find_spec

    if ending == ".html" and find_spec("jinja2") is None:
        return 'an HTML page needs jinja2, which is not installed; install it with pip install "pytest-gpusync[html]"'
    return None
