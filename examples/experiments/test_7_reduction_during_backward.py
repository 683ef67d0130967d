"""DistributedDataParallel reduces gradients while backward computes the next ones, which hides part of
the reduction.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.gpu_only
def test_the_reduction_overlaps_backward(two_gpus, report_result):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = Path(__file__).with_name("ddp_overlap.py")
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=300)
    found = re.search(r"during (\S+) after (\S+) without (\S+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    during, after, without = map(float, found.groups())
    report_result(f"{during:.2f} ms during backward, {after:.2f} ms after it, {without:.2f} ms without")
    # At least 20 % of the reduction's cost is hidden.
    assert during < after - 0.2 * (after - without)
