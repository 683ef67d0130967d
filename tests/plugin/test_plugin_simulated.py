"""Options of the simulated device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def run(run, no_gpu):
    source = "import torch\n\ndef test_it(gpu_sync):\n    {}\n"
    return lambda body, *arguments: run("--gpu-device=simulated", *arguments, test_it=source.format(body))


def test_the_memory_of_the_device_is_an_option(run):
    run("assert torch.cuda.mem_get_info()[1] == 80 << 30", "--gpu-simulated-memory=80 GiB").assert_outcomes(passed=1)


def test_a_memory_that_is_no_size_is_a_usage_error(run):
    result = run("pass", "--gpu-simulated-memory=much")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--gpu-simulated-memory: a size is *"])


def test_without_values_a_line_that_needs_one_fails(run):
    result = run("assert torch.ones(2, device='cuda').sum().item() == 2", "--gpu-no-values")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*test_*.py:4: a comparison needs a value*"])


def test_without_values_what_only_prints_passes(run):
    run("print(torch.ones(2, device='cuda').sum().item())", "--gpu-no-values").assert_outcomes(passed=1)


@pytest.mark.parametrize(("arguments", "outcome"), [((), {"passed": 1}), (("--gpu-sync-all-threads",), {"failed": 1})])
def test_other_threads_are_held_to_the_budget_where_that_is_asked_for(run, arguments, outcome):
    body = (
        "import threading\n"
        "    x = torch.ones(2, device='cuda')\n"
        "    with gpu_sync.budget(max=0):\n"
        "        x * 2\n"
        "        thread = threading.Thread(target=x.cpu)\n"
        "        thread.start()\n"
        "        thread.join()"
    )
    run(body, *arguments).assert_outcomes(**outcome)


def test_the_number_of_devices_is_an_option(run):
    body = "assert torch.cuda.device_count() == 2; torch.zeros(1, device='cuda:1')"
    result = run(body, "--gpu-simulated-devices=2")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["gpusync: 2 simulated CUDA devices, *"])


@pytest.mark.parametrize("number", ["0", "two", "-1"])
def test_a_number_of_devices_that_is_none_is_a_usage_error(run, number):
    result = run("pass", f"--gpu-simulated-devices={number}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--gpu-simulated-devices takes a number of devices of at least 1, not '{number}'*"])


def test_a_test_that_needs_another_device_fails_with_the_option_that_simulates_it(run):
    result = run("torch.zeros(1, device='cuda:1')")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*invalid device ordinal*--gpu-simulated-devices=2*"])


def test_a_broken_budget_names_the_devices(run):
    body = "with gpu_sync.budget(max=1):\n        torch.cuda.synchronize(0); torch.cuda.synchronize(1)"
    result = run(body, "--gpu-simulated-devices=2")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*1 on cuda:0, 1 on cuda:1*"])
