"""DistributedDataParallel reduces gradients while backward makes the next ones: less of the reduction shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.gpu_only
def test_the_reduction_hides_behind_backward(two_gpus, figure):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = Path(__file__).with_name("ddp_overlap.py")
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=300)
    found = re.search(r"beside (\S+) after (\S+) alone (\S+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    beside, after, alone = map(float, found.groups())
    figure(f"{beside:.2f} ms beside backward, {after:.2f} ms after it, {alone:.2f} ms without")
    # Of what the reduction costs after backward, a good part hides beside it.
    assert beside < after - 0.2 * (after - alone)
