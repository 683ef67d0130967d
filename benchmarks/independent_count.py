"""Count a program's synchronize calls with torch.profiler, to hold `gpusync trace` against.

usage: independent_count.py [--json OUT] SCRIPT [ARG...]

The profiler makes synchronize calls of its own when it starts and stops; they are counted on an empty profile first and
taken off. The two counts are of two runs: they are equal when the program does the same both times.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

SYNCHRONIZE = {
    "cudaStreamSynchronize": "stream",
    "cudaDeviceSynchronize": "device",
    "cudaEventSynchronize": "event",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    import torch

    torch.zeros(1, device="cuda").item()
    _profile(lambda: None)  # the first profile of a process initialises CUPTI
    own = _profile(lambda: None)

    def program() -> None:
        sys.argv = [options.script, *options.arguments]
        sys.path[0] = str(Path(options.script).resolve().parent)
        with suppress(SystemExit):
            runpy.run_path(options.script, run_name="__main__")

    counts = _profile(program) - own
    result = {"script": options.script, "counts": counts, "total": counts.total(), "profiler_own": own}
    print(json.dumps(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result) + "\n")
    return 0


def _profile(call) -> Counter[str]:
    import torch
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
    return Counter(SYNCHRONIZE[event.name] for event in profiler.events() if event.name in SYNCHRONIZE)


if __name__ == "__main__":
    sys.exit(main())
