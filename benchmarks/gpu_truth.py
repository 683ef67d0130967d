"""Hold the counts of a recorder against a file of statements that were measured on a GPU.

usage: gpu_truth.py TRUTH.json [--recorder cupti] [--json OUT]

TRUTH.json has "env" (set-up that the rows share) and "rows" with "setup", "stmt" and "syncs" by kind. Each statement
runs twice unmeasured, then once in a region. A blocking copy is an asynchronous copy and a stream synchronize, so the
kinds stream, device, event and free compare one to one; copies that wait by themselves (kinds copy and pageable) have
no counterpart in such a file and are listed apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth")
    parser.add_argument("--recorder", default="cupti")
    parser.add_argument("--json")
    options = parser.parse_args()
    truth = json.loads(Path(options.truth).read_text())

    import torch

    from pytest_gpusync import record

    shared: dict[str, object] = {}
    exec(compile(truth["env"], "<env>", "exec"), shared)
    rows = []
    for row in truth["rows"]:
        scope = dict(shared)
        try:
            exec(row["setup"], scope)
            code = compile(row["stmt"], "<stmt>", "exec")
            for _ in range(2):
                exec(code, scope)
            torch.cuda.synchronize()
            with record(row["id"], recorder=options.recorder) as seen:
                exec(code, scope)
            result = seen.result()
        except Exception as error:
            rows.append({"id": row["id"], "outcome": "not runnable", "why": f"{type(error).__name__}: {error}"[:160]})
            continue
        if result.problem:
            rows.append({"id": row["id"], "outcome": "not measured", "why": result.problem})
            continue
        counts = Counter(sync.kind for sync in result.all_syncs)
        by_itself = {kind: counts.pop(kind) for kind in ("copy", "pageable") if kind in counts}
        exact = dict(counts) == row["syncs"]
        outcome = "equal" if exact else "differs"
        if exact and by_itself:
            outcome = "equal, and a copy that waits by itself"
        rows.append({"id": row["id"], "outcome": outcome, "truth": row["syncs"], "seen": dict(counts), **by_itself})
        rows[-1]["blocks_host"] = row["blocks_host"]
    totals = Counter(row["outcome"] for row in rows)
    for row in rows:
        if row["outcome"] != "equal":
            print(json.dumps(row))
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, recorder {options.recorder}: {dict(totals)}")
    if options.json:
        Path(options.json).write_text(
            json.dumps({"torch": torch.__version__, "totals": totals, "rows": rows}, indent=1)
        )
    return 0 if not totals["differs"] and not totals["not measured"] else 1


if __name__ == "__main__":
    sys.exit(main())
