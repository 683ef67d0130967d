"""Traces the ranks that ``torchrun`` or ``accelerate launch`` start, but not the launcher itself.

A launcher starts each rank as ``sys.executable [-u] SCRIPT``. While it runs under ``gpusync trace``, ``sys.executable``
is a small script that traces the program it is given, and runs everything else with the real interpreter. Each rank
writes its run into a folder; when the launcher has ended, the runs are merged.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpusync.model.document import Document

_MODULES: Final = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})
_RANK: Final = "pytest_gpusync.commands.trace_rank"
"""The module that each rank runs."""
OPTIONS: Final = "GPUSYNC_TRACE_WORKER"
"""Environment variable with the interpreter and the trace options of a worker, as JSON."""
_PYTHON_OF_TORCHRUN: Final = "PYTHON_EXEC"
"""Environment variable in which torchrun looks for an interpreter before it uses ``sys.executable``."""


class Runs(NamedTuple):
    """What the ranks of a launcher wrote."""

    code: int
    """Exit code of the launcher."""
    document: Document | None
    """The runs of all ranks as one; None if no rank wrote one."""
    lost: list[str]
    """Ranks that were started and wrote no run, because they were killed."""


def is_launcher(target: str, arguments: Sequence[str], *, is_module: bool) -> bool:
    """Return whether a program starts the ranks of a distributed run."""
    if is_module:
        return target in _MODULES
    name = Path(target).name
    return name == "torchrun" or (name == "accelerate" and list(arguments[:1]) == ["launch"])


def run(launch: Callable[[], int], options: Sequence[str]) -> Runs:
    """Run a launcher and return what its ranks recorded.

    Args:
        launch: runs the launcher in this process and returns its exit code.
        options: options of ``gpusync trace`` for each rank.
    """
    with tempfile.TemporaryDirectory(prefix="gpusync-") as folder:
        with _trace_workers(Path(folder), options):
            code = launch()
        return _merged(code, Path(folder))


@contextmanager
def _trace_workers(folder: Path, options: Sequence[str]) -> Iterator[None]:
    wrapper = folder / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {_RANK} "$@"\n')
    wrapper.chmod(0o700)
    python = os.environ.get(_PYTHON_OF_TORCHRUN, sys.executable)
    settings = {"python": python, "folder": str(folder), "options": list(options)}
    before = {name: os.environ.get(name) for name in (OPTIONS, _PYTHON_OF_TORCHRUN)}
    executable, sys.executable = sys.executable, str(wrapper)
    os.environ[OPTIONS] = json.dumps(settings)
    os.environ.pop(_PYTHON_OF_TORCHRUN, None)
    try:
        yield
    finally:
        sys.executable = executable
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _merged(code: int, folder: Path) -> Runs:
    from gpusync_lint.files.run_files import RunFileError, check_run, read_json

    from pytest_gpusync.reporting.merging import merge_runs

    runs = []
    for path in sorted(folder.glob("*.json")):
        with suppress(RunFileError):  # the program has the folder's path, and may have damaged a file
            check_run(path.name, document := read_json(str(path)))
            runs.append((path.name, document))
    written = {Path(name).stem for name, _ in runs}
    lost = sorted(_process_name(path.stem) for path in folder.glob("*.started") if path.stem not in written)
    if not runs:
        return Runs(code, None, lost)
    return Runs(code, runs[0][1] if len(runs) == 1 else merge_runs(runs), lost)


def _process_name(stem: str) -> str:
    """Return the name of the process that writes ``run-rank3.json``."""
    name = stem.removeprefix("run").removeprefix("-rank")
    return f"rank {name}" if name else "the process"
