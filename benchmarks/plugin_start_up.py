"""What the installed plugin adds to a start of pytest in a project that does not use it.

    python benchmarks/plugin_start_up.py [--python PYTHON] [--runs 10] [--json OUT.json]

PYTHON is an interpreter with the package installed from a wheel: pytest rewrites the assertions of installed plugins,
not of editable ones. A session with one empty test runs with the plugin and without it (``-p no:gpusync``), in turn:
with bytecode in the cache, and with an empty cache, as on the first start after an installation. Wall time includes
what other programs on the machine do; processor time is the figure to compare on a busy one. Each figure is the median
of the runs, and the cost is the median of the differences between the runs of a pair.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple


class Start(NamedTuple):
    wall_ms: float
    cpu_ms: float


def start(python: str, folder: str, environment: dict[str, str], *arguments: str) -> Start:
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Start(wall * 1e3, used * 1e3)


def compare(python: str, runs: int, *, cached: bool) -> dict[str, object]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with_plugin, without = [], []
    with tempfile.TemporaryDirectory() as project, tempfile.TemporaryDirectory() as caches:
        Path(project, "pytest.ini").write_text("[pytest]\n")
        Path(project, "test_empty.py").write_text("def test_nothing(): pass\n")
        environment["PYTHONPYCACHEPREFIX"] = str(Path(caches, "common"))
        start(python, project, environment)
        for number in range(runs):
            order = [([], with_plugin), (["-p", "no:gpusync"], without)]
            for arguments, found in order if number % 2 else reversed(order):
                if not cached:
                    environment["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(dir=caches)
                found.append(start(python, project, environment, *arguments))
    document: dict[str, object] = {}
    for name in Start._fields:
        have, lack = [getattr(run, name) for run in with_plugin], [getattr(run, name) for run in without]
        document[name] = {
            "with": round(statistics.median(have), 1),
            "without": round(statistics.median(lack), 1),
            "cost": round(statistics.median(a - b for a, b in zip(have, lack, strict=True)), 1),
            "runs_with": [round(one, 1) for one in have],
            "runs_without": [round(one, 1) for one in lack],
        }
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ask = "import platform, pytest; print(platform.python_version(), pytest.__version__)"
    versions = subprocess.run([options.python, "-c", ask], capture_output=True, text=True, check=True).stdout.split()
    document = {
        "python": versions[0],
        "pytest": versions[1],
        "machine": platform.machine(),
        "load": os.getloadavg()[0],
        "cached": compare(options.python, options.runs, cached=True),
        "uncached": compare(options.python, options.runs, cached=False),
    }
    for name in ("cached", "uncached"):
        for field, found in document[name].items():
            figures = "  ".join(f"{kind} {found[kind]:7.1f}" for kind in ("with", "without", "cost"))
            print(f"{name:<9} {field:<8} {figures}")
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
