"""Run the examples of the torch catalogue: those said to wait must sync, the others must not.

usage: catalogue_truth.py [--device cuda|simulated] [--json OUT]

Each example runs once unmeasured and twice measured: again as it is, and after its own set-up. It waits if it syncs in
either. Barriers whose wait ends with a version of torch (until_torch) are expected silent from that version on.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections import Counter
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "simulated"), default="cuda")
    parser.add_argument("--json")
    options = parser.parse_args()

    from gpusync_lint import catalogue

    if options.device == "simulated":
        from pytest_gpusync.simulated import switch_on

        switch_on()
    import torch

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    torch_catalogue = catalogue.load("torch")
    shared: dict[str, object] = {}
    exec(torch_catalogue.prelude, shared)
    rows = []
    for barrier in torch_catalogue.barriers.values():
        gone = barrier.until_torch is not None and version >= barrier.until_torch
        for examples, said in ((barrier.waits, not gone), (barrier.silent, False)):
            for example in examples:
                rows.append({"barrier": barrier.id, "run": example.run, "said": said, **outcome(example, shared, said)})
    totals = Counter(row["outcome"] for row in rows)
    for row in rows:
        if row["outcome"] != "as said":
            print(json.dumps(row))
    where = "the simulated device" if options.device == "simulated" else torch.cuda.get_device_name()
    print(f"torch {torch.__version__} on {where}: {dict(totals)}")
    if options.json:
        Path(options.json).write_text(
            json.dumps({"torch": torch.__version__, "totals": totals, "rows": rows}, indent=1)
        )
    return 1 if totals["differs"] else 0


def outcome(example, shared, said: bool) -> dict[str, object]:
    """Run one example and say whether it did what the catalogue says."""
    from pytest_gpusync import record

    scope = dict(shared)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(example.setup, scope)
            code = compile(example.run, "<example>", "exec")
            exec(code, scope)
            with record() as again:
                exec(code, scope)
            exec(example.setup, scope)
            with record() as afresh:
                exec(code, scope)
        syncs = max(again.syncs, afresh.syncs)
    except Exception as error:
        return {"outcome": "not runnable", "why": f"{type(error).__name__}: {error}"[:120]}
    return {"outcome": "as said" if (syncs > 0) == said else "differs", "syncs": syncs}


if __name__ == "__main__":
    sys.exit(main())
