"""How long 40 steps of the tutorial's training take, before and after it; prints go nowhere."""

import contextlib
import io

import after
import before
import pytest


@pytest.mark.parametrize("batch_size", [64, 1024])
def test_time(gpu_elapsed, batch_size):
    def quiet(script):
        with contextlib.redirect_stdout(io.StringIO()):
            script.train(40, "cuda", batch_size=batch_size)

    ratio = gpu_elapsed.ratio(lambda: quiet(before), lambda: quiet(after), calls=1, rounds=24)
    print(f"\nbatch {batch_size}: {ratio}")
    assert ratio.low > 1.0
