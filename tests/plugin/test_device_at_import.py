"""Test modules choose their device while they are imported: the simulated device is on by then if a test needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpusync.machine import devices
from pytest_gpusync.plugin.options import BUDGET_MARKER, GPU_FIXTURES, GROWTH_MARKER
from pytest_gpusync.plugin.usage_scan import UsageScan

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def no_gpu():
    if devices.detect().kind == "cuda":
        pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")


CHOOSES = """
    import pytest, torch
    DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
    MADE_AT_IMPORT = torch.ones(3, device=DEVICE)

    @pytest.mark.gpu_sync_budget(max=0)
    def test_chosen():
        MADE_AT_IMPORT.sum().item()

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    def test_skipped_without(gpu_sync):
        with gpu_sync.budget(max=0):
            torch.ones(1, device="cuda").item()

    @pytest.mark.parametrize("device", ["cuda"] if torch.cuda.is_available() else [])
    @pytest.mark.gpu_sync_budget(max=0)
    def test_for_each_device(device):
        torch.ones(1, device=device).item()
    """


def test_tests_that_choose_their_device_at_import_are_measured_without_any_option(run_apart):
    result = run_apart(test_a=CHOOSES)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["3 tests measured, 3 over budget"])


def test_a_conftest_may_choose_the_device_for_a_marker_in_a_test_file(run_apart):
    result = run_apart(
        conftest='import torch\nDEVICE = "cuda" if torch.cuda.is_available() else "cpu"',
        test_a="""
            import pytest, torch
            from conftest import DEVICE
            @pytest.mark.gpu_sync_budget(max=0)
            def test_it(): torch.ones(1, device=DEVICE).item()
            """,
    )
    result.assert_outcomes(failed=1)


def test_a_project_that_does_not_use_the_plugin_sees_no_device(run_apart):
    result = run_apart(
        test_a="""
            import torch
            MEMORY = {"gpu_memory": 1}
            def test_it(): assert not torch.cuda.is_available()
            """
    )
    result.assert_outcomes(passed=1)


def test_a_use_that_no_source_shows_fails_the_session_with_the_remedy(run_apart):
    result = run_apart(
        conftest="""
            import pytest
            def pytest_collection_modifyitems(items):
                for item in items:
                    item.add_marker(getattr(pytest.mark, "gpu_sync_" + "budget")(max=0))
            """,
        test_a="import torch\ndef test_it(): torch.ones(1, device='cuda' if torch.cuda.is_available() else 'cpu')",
    )
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: test_a.py::test_it asks to be measured*Add --gpu-device=simulated*"])


def scan(tmp_path: Path, **files: str) -> bool:
    for name, text in files.items():
        path = tmp_path / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = UsageScan((BUDGET_MARKER, GROWTH_MARKER), GPU_FIXTURES, ["check_*"])
    return found.finds_use([tmp_path / "tests"], tmp_path, [".*", "build"])


USES = {
    "marker": "@pytest.mark.gpu_sync_budget(max=0)\ndef test_it(): ...",
    "marker of a module": "pytestmark = [pytest.mark.gpu_memory_growth('1 MiB')]",
    "marker of a parameter": "CASES = [pytest.param(1, marks=pytest.mark.gpu_sync_budget(max=0))]",
    "marker by name": "MARK = getattr(pytest.mark, 'gpu_sync_budget')",
    "fixture": "def test_it(gpu_train): ...",
    "fixture of a method": "class TestIt:\n    async def test_it(self, *, gpu_sync): ...",
    "fixture of a fixture": "@pytest.fixture(scope='function')\ndef trained(gpu_train): ...",
    "fixture by mark": "@pytest.mark.usefixtures('gpu_sync')\ndef test_it(): ...",
    "fixture by request": "def test_it(request): request.getfixturevalue('gpu_memory')",
    "fixture of a doctest": "def f():\n    '''\n    >>> seen = getfixture('gpu_sync')\n    '''",
    "function named by python_functions": "def check_it(gpu_elapsed): ...",
}


@pytest.mark.parametrize("source", USES.values(), ids=USES.keys())
@pytest.mark.parametrize("file", ["tests__test_a", "tests__unit__conftest", "conftest", "tests__helpers"])
def test_a_use_is_found_in_source(tmp_path, source, file):
    assert scan(tmp_path, **{file: source, "tests__other": "import torch"})


NO_USES = {
    "string": "def test_it(): log['gpu_memory'] = 1",
    "comment": "# gpu_sync_budget",
    "helper": "def plot(gpu_memory): ...",
    "fixture of the project": "@pytest.fixture\ndef gpu_memory(): ...\ndef test_it(gpu_memory): ...",
    "unreadable": "def test_it(gpu_sync: ...",
}


@pytest.mark.parametrize("source", NO_USES.values(), ids=NO_USES.keys())
def test_what_only_looks_like_a_use_is_none(tmp_path, source):
    assert not scan(tmp_path, tests__test_a=source)


@pytest.mark.parametrize("folder", ["elsewhere", "tests__.hidden", "tests__build"])
def test_folders_in_which_pytest_does_not_look_are_not_read(tmp_path, folder):
    assert not scan(tmp_path, **{f"{folder}__test_a": USES["marker"], "tests__test_b": "import torch"})
