"""What a start of pytest costs a project that does not use the plugin."""

from __future__ import annotations

import json

import pytest

LOADED = """
    import json, sys
    def pytest_unconfigure():
        ours = [name for name in sys.modules if name.split(".")[0] in ("pytest_gpusync", "gpusync_lint")]
        others = [name for name in ("torch", "pynvml", "libcst", "numpy") if name in sys.modules]
        print("loaded", json.dumps(sorted(ours + others)))
    """

ENTRY = [
    "gpusync_lint",
    "gpusync_lint._version",
    "pytest_gpusync",
    "pytest_gpusync.machine",
    "pytest_gpusync.machine.import_hooks",
    "pytest_gpusync.plugin",
    "pytest_gpusync.plugin.current_session",
    "pytest_gpusync.plugin.fixture_functions",
    "pytest_gpusync.plugin.messages",
    "pytest_gpusync.plugin.options",
    "pytest_gpusync.plugin.reporter",
    "pytest_gpusync.plugin.stash_keys",
]


def loaded(result):
    line = next(line for line in result.outlines if line.startswith("loaded "))
    return json.loads(line.removeprefix("loaded "))


@pytest.mark.parametrize("arguments", [[], ["--fixtures"], ["--collect-only"], ["--junitxml=junit.xml"]])
def test_a_project_that_does_not_use_the_plugin_loads_its_entry_only(run_apart, arguments):
    result = run_apart("-s", *arguments, conftest=LOADED, test_a="def test_a(): pass\ndef test_b(tmp_path): pass")
    assert loaded(result) == ENTRY


def test_a_test_with_the_marker_loads_what_measures(run_apart):
    pytest.importorskip("torch")
    marked = "import pytest\n@pytest.mark.gpu_sync_budget(max=0)\ndef test_a(): pass"
    assert "pytest_gpusync.plugin.measured_test" in loaded(run_apart("-s", conftest=LOADED, test_a=marked))


def test_a_measured_test_of_a_worker_is_reported_without_any_option(run_apart):
    pytest.importorskip("xdist")
    pytest.importorskip("torch")
    test = """
        import torch
        def test_a(): pass
        def test_reads(gpu_sync):
            with gpu_sync.budget(max=0): torch.ones(3, device="cuda").sum().item()
        """
    result = run_apart("-n1", test_a=test)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["Region made 1 sync, budget 0", "*gpusync*", "1 test measured*"])
