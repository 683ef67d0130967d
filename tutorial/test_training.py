import pytest
from train import train


@pytest.mark.gpu_sync_budget(max=1)
def test_training_waits_at_most_once_a_step():
    train(steps=20, device="cuda")
