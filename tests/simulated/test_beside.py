"""Features of torch beside the counting, on the simulated device: right count, right place."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from beside import ROUNDS, WORKLOADS, syncs_by_function

from pytest_gpusync import record, simulated_cuda


@pytest.mark.parametrize("name", [name for name, workload in WORKLOADS.items() if workload.on_simulated])
def test_what_else_is_on_changes_no_count(name):
    workload = WORKLOADS[name]
    with simulated_cuda():
        work = workload.make()
        work()
        with record() as region:
            for _ in range(ROUNDS):
                work()
        counted, background = syncs_by_function(region.result())
    assert counted == {function: ROUNDS * syncs for function, syncs in workload.syncs.items()}
    assert background == ROUNDS * workload.background
