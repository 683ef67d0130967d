"""How long 20 steps of the tutorial's training take before and after it, at its own size and at a larger one."""

import contextlib
import functools
import io

import after
import before
import pytest
from gpt import GPTConfig

STEPS = 20


@pytest.mark.parametrize(("layers", "width", "batch_size"), [(2, 64, 64), (6, 384, 1024)])
def test_time(gpu_elapsed, monkeypatch, layers, width, batch_size):
    for script in (before, after):
        monkeypatch.setattr(script, "GPTConfig", functools.partial(GPTConfig, layers=layers, width=width))

    def train(script):
        with contextlib.redirect_stdout(io.StringIO()):
            script.train(STEPS, "cuda", batch_size=batch_size)

    ratio = gpu_elapsed.ratio(lambda: train(before), lambda: train(after), calls=1, rounds=16, warmup=1)
    print(f"\n{layers} layers of {width}, batches of {batch_size}, {STEPS} steps: {ratio}")
    assert ratio.low < ratio.high
