"""Run a program for a few steps, seeded, and print what it learned: the command of ``verified_fixes.py``.

It is copied into the folder of the program, beside a file ``NAME.json`` of the same name with

    {"truth": folder of record.py and stubs.py, "script": path, "args": [...], "before": Python to run first,
     "steps": steps after which the program is stopped}

Programs print rounded figures, and few. So the sum of the weights of each optimizer is printed at the end, with all
digits: results that differ anywhere in training differ there.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    job = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    sys.path.insert(0, job["truth"])
    import record
    import stubs

    script = os.path.abspath(job["script"])
    sys.path[:2] = [os.path.dirname(script)]  # of the program, as Python sets it; stubs are loaded
    import numpy as np
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from pytest_gpusync import allow

    stubs.no_workers()
    exec(compile(job["before"], "<before>", "exec"), {"__name__": "before"})
    optimizers: dict[int, Any] = {}
    register_optimizer_step_post_hook(lambda optimizer, *_: optimizers.setdefault(id(optimizer), optimizer) and None)
    made = 0

    def step_made() -> None:
        nonlocal made
        made += 1
        if made >= job["steps"]:
            raise record.Stop

    record.OptimizerSteps(torch, step_made)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    sys.argv = [script, *job["args"]]
    try:
        runpy.run_path(script, run_name="__main__")
    except record.Stop:
        pass
    except SystemExit as leave:
        if leave.code not in (None, 0):
            raise
    sys.stdout = sys.__stdout__
    with allow("the results are read"):
        for number, optimizer in enumerate(optimizers.values()):
            weights = [
                each.detach().cpu().double().sum() for group in optimizer.param_groups for each in group["params"]
            ]
            print(f"weights of optimizer {number}: {float(sum(weights))!r}")


if __name__ == "__main__":
    main()
