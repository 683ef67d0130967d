"""What a launcher under ``gpusync trace`` starts in place of Python: traces a rank of ``torchrun`` or ``accelerate``.

See :mod:`pytest_gpusync.commands.trace_launcher`, which makes the launcher start it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpusync.commands.trace_launcher import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run what a launcher started: a script or module under trace, anything else as Python would."""
    settings = json.loads(os.environ.pop(OPTIONS, "null"))
    arguments = list(argv)
    while arguments[:1] == ["-u"]:
        del arguments[0]
    is_program = arguments[:1] == ["-m"] or bool(arguments and Path(arguments[0]).is_file())
    if settings is None or not is_program:
        python = sys.executable if settings is None else settings["python"]
        os.execv(python, [python, *argv])
    # Imported only here: a process that is not traced must not pay for it.
    from pytest_gpusync.commands import trace
    from pytest_gpusync.reporting.files import path_of_rank

    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    run_file = Path(settings["folder"]) / "run.json"
    path_of_rank(run_file).with_suffix(".started").touch()
    return trace.main(["--quiet", "--json", str(run_file), *settings["options"], *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
