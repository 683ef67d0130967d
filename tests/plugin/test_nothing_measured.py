"""A test that carries a budget and gives the device no work is not green; what other threads did is named."""

from __future__ import annotations

import pytest

from pytest_gpusync.machine import devices
from pytest_gpusync.machine.devices import Device

pytestmark = pytest.mark.usefixtures("no_gpu")

torch = pytest.importorskip("torch")

CPU_AND_GPU = """
    import pytest, torch

    def train(device, steps=4):
        model = torch.nn.Linear(2, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            model(torch.ones(3, 2, device=device)).sum().backward()
            optimizer.step()

    def test_first_uses_the_device():
        torch.ones(1, device="cuda")
    """


ON_THE_CPU = {
    "marker": "@pytest.mark.gpu_sync_budget(max=0)\n    def test_it(): train('cpu')",
    "memory marker": "@pytest.mark.gpu_memory_growth('1 MiB')\n    def test_it(): train('cpu', 12)",
    "gpu_sync.budget": "def test_it(gpu_sync):\n        with gpu_sync.budget(max=0): train('cpu')",
    "gpu_train": "def test_it(gpu_train): gpu_train(lambda: train('cpu', 1), steps=6).assert_syncs(max=0)",
    "gpu_train.whole": "def test_it(gpu_train): gpu_train.whole(train, 'cpu', warmup=1).assert_syncs(max=0)",
    "gpu_memory.budget": "def test_it(gpu_memory):\n        with gpu_memory.budget(max='1 MiB'): train('cpu', 12)",
}


@pytest.mark.parametrize("budget", ON_THE_CPU.values(), ids=ON_THE_CPU.keys())
def test_a_budget_over_work_on_the_cpu_fails_although_an_earlier_test_used_the_device(run, budget):
    result = run(test_a=f"{CPU_AND_GPU}\n    {budget}")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["Not measured: nothing ran on the device*"])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_budget_from_the_command_line_leaves_tests_on_the_cpu_alone(run, device):
    source = f"{CPU_AND_GPU}\n    def test_it(): train({device!r})"
    result = run("--gpu-sync-budget=9", "-k", "test_it", test_a=source)
    result.assert_outcomes(passed=1)
    measured = "1 test measured" if device == "cuda" else "nothing was measured: no test used the GPU"
    result.stdout.fnmatch_lines([measured])


WORK = {
    "in place": "x.add_(1)",
    "view and fill": "x[0].fill_(2)",
    "copy from the host": "x.copy_(torch.ones(3))",
    "wait alone": "torch.cuda.synchronize()",
    "graph": "graph.replay()",
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK.keys())
def test_work_that_makes_no_tensor_is_a_use_of_the_device(run, work):
    source = f"""
        import torch
        x = torch.ones(3, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): x.mul_(2)

        def test_it(gpu_sync):
            with gpu_sync.budget(max=1): {work}
        """
    run(test_a=source).assert_outcomes(passed=1)


@pytest.mark.parametrize("option", ["--gpu-require-measured", "-ogpu_require_measured=true"])
@pytest.mark.parametrize(("body", "code"), [("torch.ones(1, device='cuda')", 0), ("torch.ones(1)", 1)])
def test_a_session_can_be_required_to_measure_something_without_a_gpu(run, option, body, code):
    result = run(option, "--gpu-sync-budget=0", test_a=f"import torch\ndef test_it(): {body}")
    assert result.ret == code
    if code:
        result.stdout.fnmatch_lines(
            ["--gpu-require-measured: no test ran anything on the device under a budget"],
        )


def test_what_is_required_to_be_measured_needs_no_real_gpu_for_times(run):
    result = run(
        "--gpu-require-measured",
        test_a="""
            import torch
            def test_time(gpu_elapsed): gpu_elapsed.ratio(lambda: None, lambda: None)
            def test_count(gpu_sync):
                with gpu_sync.budget(max=0): torch.ones(1, device="cuda")
            """,
    )
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == 0


@pytest.mark.parametrize("option", ["--gpu-sync-budget=0", "--gpu-device=simulated", "--gpu-require-measured"])
def test_without_torch_an_option_that_needs_it_is_an_error(run, monkeypatch, option):
    monkeypatch.setattr(devices, "torch_build", lambda: None)
    monkeypatch.setattr(devices, "detect", lambda: Device("none", reason="torch is not installed"))
    result = run(option, test_a="def test_it(): pass")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: nothing can be measured here: torch is not installed*pip install torch*"])


def test_work_in_set_up_alone_is_not_enough_where_something_has_to_be_measured(run):
    result = run(
        "--gpu-require-measured",
        "--gpu-sync-budget=0",
        test_a="""
            import pytest, torch
            @pytest.fixture
            def ready(): torch.ones(1, device="cuda").item()
            def test_it(ready): pass
            """,
    )
    assert result.ret == 1
    result.stdout.fnmatch_lines(["--gpu-require-measured: no test ran anything on the device under a budget"])


THREADS = """
    import asyncio, concurrent.futures, pytest, threading, torch

    def train(steps=4):
        model = torch.nn.Linear(2, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(3, 2, device="cuda")
        for _ in range(steps):
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            loss.item()

    def infer():
        torch.ones(3, device="cuda").sum().item()

    def in_a_pool(work):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()

    def in_a_pool_of_a_pool(work):
        in_a_pool(lambda: in_a_pool(work))

    def in_asyncio(work):
        asyncio.run(asyncio.to_thread(work))

    def in_an_executor(work):
        async def main():
            await asyncio.get_running_loop().run_in_executor(None, work)
        asyncio.run(main())

    def in_a_thread(work):
        thread = threading.Thread(target=work, name="worker")
        thread.start()
        thread.join()

    @pytest.mark.gpu_sync_budget(max=0)
    def test_it(): {call}
    """


@pytest.mark.parametrize("call", ["in_a_pool", "in_a_pool_of_a_pool", "in_asyncio", "in_an_executor", "in_a_thread"])
def test_a_thread_that_steps_the_optimizer_belongs_to_the_test(run, call):
    result = run(test_a=THREADS.format(call=f"{call}(train)"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Training step made 1 sync, budget 0 (worst of 3 steps after warm-up)"])


@pytest.mark.parametrize("call", ["in_a_pool", "in_a_pool_of_a_pool", "in_asyncio", "in_an_executor"])
def test_work_handed_to_a_thread_pool_belongs_to_the_test(run, call):
    result = run(test_a=THREADS.format(call=f"{call}(infer)"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Test made 1 sync, budget 0"])


def test_the_syncs_of_another_thread_are_printed_as_not_counted(run):
    result = run(test_a=THREADS.format(call="torch.ones(1, device='cuda'); in_a_thread(infer)"))
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["not counted:", "  test_a.py:14 *.sum().item()*1 sync   on thread worker"])


def test_a_test_whose_only_work_on_the_device_is_in_another_thread_fails_and_names_it(run):
    result = run(test_a=THREADS.format(call="in_a_thread(infer)"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Not measured: the device was used only by other threads (worker), whose syncs*"])
    result.stdout.fnmatch_lines(["  test_a.py:14 *on thread worker"])


def test_allowed_syncs_and_those_of_warm_up_are_printed_as_not_counted(run):
    result = run(
        test_a="""
            import pytest, torch
            def train(gpu_sync):
                model = torch.nn.Linear(2, 2).cuda()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for _ in range(3):
                    with gpu_sync.allow("meant"): torch.ones(1, device="cuda").item()
                    model(torch.ones(2, device="cuda")).sum().backward()
                    optimizer.step()
                torch.ones(1, device="cuda").item()
            @pytest.mark.gpu_sync_budget(max=0)
            def test_it(gpu_sync): train(gpu_sync)
            """
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["not counted:", "  syncs: 3 allowed, 2 in warm-up steps, 1 outside of steps*"])
