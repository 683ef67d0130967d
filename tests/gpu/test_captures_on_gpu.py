"""CUDA graph captures on a GPU: torch's own errors beside what the linter and the simulated device find."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pytest_gpusync import NotCapturable, assert_capturable, record_captures

pytestmark = pytest.mark.gpu_only

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What benchmarks/captures.py finds, in processes of its own: a capture that fails ends a process's."""
    out = tmp_path_factory.mktemp("captures") / "captures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "captures.py"), "--device", "cuda", "--json", str(out)]
    subprocess.run(command, check=True, timeout=900)
    return {one["name"]: one for one in json.loads(out.read_text(encoding="utf-8"))}


@pytest.mark.timeout(960)
def test_torch_stops_at_a_line_that_is_found_without_a_gpu(found):
    stopped = {name: one for name, one in found.items() if one["torch_error"]}
    assert stopped
    assert {name for name, one in stopped.items() if not one["torch_line"]} <= {"fork_without_join"}
    for name, one in stopped.items():
        if one["torch_line"]:  # the end of the capture has none
            assert one["torch_line"] in one["simulated"], (name, one["torch_error"])
            found_lines = {line for own in one["offenders"].values() if set(own) & set(one["static"]) for line in own}
            assert one["torch_line"] in found_lines, (name, one["torch_error"])


def test_what_is_found_to_be_capturable_is_captured_and_replayed(found):
    for name, one in found.items():
        if not one["offenders"]:
            assert one["torch_error"] is None, name
            assert "differs" not in one["torch_replays"], (name, one["torch_replays"])


def test_the_error_of_each_line_alone_is_that_of_the_simulated_device(found):
    for name, one in found.items():
        for own in one["offenders"].values():  # one offender may have several lines, with an error at one of them
            of_torch = {error for line, error in one["torch_errors"].items() if int(line) in own}
            simulated = {error for line, error in one["simulated_errors"].items() if int(line) in own}
            assert not of_torch or any(text in error for error in of_torch for text in simulated), (name, own)


def test_a_function_that_can_be_captured_is_replayed_like_eager_code():
    model = torch.nn.Linear(16, 16).cuda()
    report = assert_capturable(lambda x: torch.relu(model(x)), torch.randn(4, 16, device="cuda"))
    assert report.device == "cuda"
    assert report.replays == 2


def _in_child(program: str) -> str:
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_gpu_names_the_first_offender_and_how_to_see_the_others():
    text = _in_child(
        "import torch\nfrom pytest_gpusync import check_capture\n"
        "def step(x):\n    if x.sum() > 0:\n        x = x + 1\n    return x.nonzero()\n"
        "report = check_capture(step, torch.ones(4, device='cuda'))\nprint(report)\nassert len(report.offenders) == 1\n"
    )
    assert "operation not permitted when stream is capturing" in text
    assert "simulated_cuda()" in text


def test_a_block_keeps_the_first_error_which_is_raised_as_usual():
    text = _in_child(
        "import torch\nfrom pytest_gpusync import record_captures\nx = torch.ones(4, device='cuda')\n"
        "try:\n    with record_captures() as seen, torch.cuda.graph(torch.cuda.CUDAGraph()):\n        x.sum().item()\n"
        "except RuntimeError:\n    print(seen)\n"
    )
    assert "cannot be captured" in text


def test_a_number_of_python_is_found_in_the_replays():
    steps = []

    def step(x):
        steps.append(1)
        return x * len(steps)

    with pytest.raises(NotCapturable, match="Output 0 differs"):
        assert_capturable(step, torch.ones(4, device="cuda"))


def test_captures_that_succeed_leave_nothing_in_a_block():
    x = torch.ones(4, device="cuda")
    with record_captures() as seen, torch.cuda.graph(torch.cuda.CUDAGraph()):
        x + 1
    assert seen.offenders == ()
    seen.assert_none()
