"""The two trainings of the example: one that waits ten times a step, and the same put right."""

import train_fast
import train_slow


def test_slow_training():
    train_slow.train(20, "cuda")


def test_fast_training():
    train_fast.train(20, "cuda")
