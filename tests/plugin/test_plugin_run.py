"""Whole pytest runs on the simulated device: what is measured, what fails, what is shown."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from pytest_gpusync.machine import devices
from pytest_gpusync.machine.devices import Device
from pytest_gpusync.measure import recording, region_log
from pytest_gpusync.model.measurement import MeasurementError
from pytest_gpusync.plugin import measured_test
from pytest_gpusync.plugin.session_device import SessionDevice

pytestmark = pytest.mark.usefixtures("no_gpu")

torch = pytest.importorskip("torch")

THREE_SYNCS = """
    import pytest, torch
    def test_reads():
        x = torch.ones(3, device="cuda")
        for _ in range(3):
            x.sum().item()
    """

TRAINING = """
    import pytest, torch

    def train(steps, model=None):
        model = torch.nn.Linear(4, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            x = torch.ones(3, 4).cuda()
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item())
    """


@pytest.fixture
def pretended_gpu(monkeypatch):
    monkeypatch.setattr(devices, "detect", lambda: Device("cuda", "NVIDIA H200", "580.159"))


def no_region_is_open():
    return recording.current._regions == () and recording.current._recorder is None


@pytest.mark.parametrize(("budget", "outcome"), [(2, "failed"), (3, "passed"), (4, "passed")])
def test_the_command_line_holds_every_test_to_the_budget(run, budget, outcome):
    run(f"--gpu-sync-budget={budget}", test_a=THREE_SYNCS).assert_outcomes(**{outcome: 1})


@pytest.mark.parametrize(
    ("marker", "outcome"),
    [("2", "failed"), ("3", "passed"), ("exact=2", "failed"), ("exact=3", "passed"), ("exact=4", "failed")],
)
def test_the_marker_holds_its_test_to_the_budget(run, marker, outcome):
    marked = THREE_SYNCS.replace("def test", f"@pytest.mark.gpu_sync_budget({marker})\n    def test")
    run(test_a=marked).assert_outcomes(**{outcome: 1})


def test_the_marker_beats_the_command_line(run):
    marked = THREE_SYNCS.replace("def test", "@pytest.mark.gpu_sync_budget(3)\n    def test")
    run("--gpu-sync-budget=0", test_a=marked).assert_outcomes(passed=1)


def test_a_budget_counts_per_optimizer_step_after_warm_up(run):
    result = run("--gpu-sync-budget=1", test_a=TRAINING + "\n    def test_training(): train(5)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "Training step made 2 syncs, budget 1 (worst of 4 steps after warm-up)",
            "  test_a.py:7   x = torch.ones(3, 4).cuda()*1 per step*",
            "  test_a.py:12  print(loss.item())*1 per step*",
            "  simulated CUDA device, recorder simulated, coverage simulated; budget set by --gpu-sync-budget",
        ],
        consecutive=True,
    )


def test_the_marker_sets_the_warm_up(run):
    marked = TRAINING + "\n    @pytest.mark.gpu_sync_budget(1, warmup=3)\n    def test_training(): train(5)"
    run(test_a=marked).stdout.fnmatch_lines(["Training step made 2 syncs, budget 1 (worst of 2 steps after warm-up)"])


def test_set_up_and_tear_down_are_not_measured(run):
    result = run(
        "--gpu-sync-budget=0",
        test_a="""
            import pytest, torch
            @pytest.fixture
            def ready():
                torch.ones(3, device="cuda").sum().item()
                yield
                torch.ones(3, device="cuda").sum().item()
            def test_it(ready): torch.ones(3, device="cuda")
            """,
    )
    result.assert_outcomes(passed=1)


def test_a_test_that_touches_no_gpu_passes_and_is_not_reported(run, pytester, monkeypatch):
    # Whether CUDA is initialised holds for a process, and earlier tests ran in this one.
    monkeypatch.setattr(devices, "cuda_is_initialized", lambda: False)
    result = run(
        "--gpu-sync-budget=0",
        "--gpu-sync-report=run.json",
        test_a="import torch\ndef test_cpu(): torch.ones(3).sum().item()",
    )
    result.assert_outcomes(passed=1)
    assert json.loads((pytester.path / "run.json").read_text())["regions"] == []


def test_a_failure_of_the_tests_own_stays_and_the_verdict_stands_beside_it(run):
    result = run("--gpu-sync-budget=0", test_a=THREE_SYNCS + "\n        raise ValueError('mine')")
    result.stdout.fnmatch_lines(["E *ValueError: mine", "*- gpusync -*", "Test made 3 syncs, budget 0"])


def test_a_skipped_test_stays_skipped(run):
    run("--gpu-sync-budget=0", test_a=THREE_SYNCS + "\n        pytest.skip()").assert_outcomes(skipped=1)


@pytest.mark.parametrize(
    ("raises", "outcome"), [("BudgetExceeded", "xfailed"), ("AssertionError", "xfailed"), ("ValueError", "failed")]
)
def test_an_expected_failure_may_name_the_broken_budget(run, raises, outcome):
    marked = THREE_SYNCS.replace(
        "def test",
        "from pytest_gpusync import BudgetExceeded\n"
        f"    @pytest.mark.xfail(raises={raises}, strict=True)\n    def test",
    )
    run("--gpu-sync-budget=2", test_a=marked).assert_outcomes(**{outcome: 1})


def test_a_kept_budget_fails_a_strict_expected_failure(run):
    marked = THREE_SYNCS.replace("def test", "@pytest.mark.xfail(strict=True)\n    def test")
    run("--gpu-sync-budget=3", test_a=marked).assert_outcomes(failed=1)


def test_unittest_cases_are_measured(run):
    result = run(
        "--gpu-sync-budget=0",
        test_a="""
            import torch, unittest
            class TestIt(unittest.TestCase):
                def test_reads(self): torch.ones(3, device="cuda").sum().item()
            """,
    )
    result.stdout.fnmatch_lines(["Test made 1 sync, budget 0"])


def test_verbose_shows_every_line(run):
    reads = "\n".join("        x.sum().item()" for _ in range(12))
    many = f'    import torch\n    def test_reads():\n        x = torch.ones(3, device="cuda")\n{reads}'
    run("--gpu-sync-budget=0", test_a=many).stdout.fnmatch_lines(["  and 2 lines more (-v shows all)"])
    run("--gpu-sync-budget=0", "-v").stdout.no_fnmatch_line("*lines more*")


def test_junit_has_the_sentence_and_the_lines(run, pytester):
    run("--gpu-sync-budget=2", "--junitxml=junit.xml", test_a=THREE_SYNCS)
    failure = ElementTree.parse(pytester.path / "junit.xml").find(".//failure")
    assert failure.get("message") == "Test made 3 syncs, budget 2"
    assert "test_a.py:5  x.sum().item()" in failure.text


def test_the_short_summary_has_the_sentence(run):
    result = run("--gpu-sync-budget=2", test_a=THREE_SYNCS)
    result.stdout.fnmatch_lines(["FAILED test_a.py::test_reads - Test made 3 syncs, budget 2"])


def test_header_and_summary_name_device_recorder_and_coverage(run):
    result = run("--gpu-sync-budget=3", test_a=THREE_SYNCS)
    result.stdout.fnmatch_lines(
        [
            "gpusync: simulated CUDA device (no GPU: this machine has none), *, budget 3 syncs per step",
            "*= gpusync =*",
            "simulated CUDA device, recorder simulated, coverage simulated",
            "1 test measured",
            "     3  budget 3  test_a.py::test_reads",
            "  test_a.py:5  x.sum().item()*",
        ]
    )


@pytest.mark.parametrize(("budget", "said"), [(1, "budget 1 sync per step"), (2, "budget 2 syncs per step")])
def test_on_a_gpu_the_header_says_what_each_recorder_can_see(run, monkeypatch, budget, said):
    found = Device("cuda", gpu="NVIDIA H200", driver="580.159")
    monkeypatch.setattr(devices, "detect", lambda: found)
    # Nothing is run: with a CUDA build of torch and no driver, CUPTI would be asked about a GPU in earnest.
    result = run(f"--gpu-sync-budget={budget}", "--collect-only", test_a="def test_a(): pass")
    seen = "recorder cupti, coverage driver (else torch-hooks, coverage torch)"
    result.stdout.fnmatch_lines([f"gpusync: NVIDIA H200 (driver 580.159), {seen}, {said}"])


@pytest.mark.parametrize("quiet", ["-q", "--no-header"])
def test_the_header_is_left_out_on_request(run, quiet):
    run("--gpu-sync-budget=3", quiet, test_a=THREE_SYNCS).stdout.no_fnmatch_line("gpusync: *")


def test_quiet_keeps_the_summary(run):
    run("--gpu-sync-budget=3", "-q", test_a=THREE_SYNCS).stdout.fnmatch_lines(["*= gpusync =*"])


def test_more_than_quiet_leaves_the_summary_out(run):
    run("--gpu-sync-budget=3", "-qq", test_a=THREE_SYNCS).stdout.no_fnmatch_line("*= gpusync =*")


def test_a_conftest_that_asks_for_a_gpu_finds_the_simulated_one(run_apart):
    result = run_apart(
        "--gpu-device=simulated",
        conftest="import torch\nGPU = torch.cuda.is_available()",
        test_a="def test_it(): from conftest import GPU; assert GPU",
    )
    result.assert_outcomes(passed=1)


def test_the_simulated_device_is_off_after_the_session(run):
    run("--gpu-sync-budget=3", test_a=THREE_SYNCS)
    assert not torch.cuda.is_available()


def test_without_option_marker_and_fixture_there_is_no_simulated_device(run):
    run(test_a="import torch\ndef test_it(): assert not torch.cuda.is_available()").assert_outcomes(passed=1)


def test_torch_imported_inside_a_test_is_reported_as_not_measured(run_apart):
    result = run_apart(
        "--gpu-sync-budget=0",
        test_a='def test_it(): import torch; torch.ones(3, device="cuda").sum().item()',
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["0 tests measured, 1 not measured", "  test_a.py::test_it: torch was first imported*"])


def test_a_marked_test_may_import_torch_itself(run_apart):
    result = run_apart(
        test_a="""
            import pytest
            @pytest.mark.gpu_sync_budget(0)
            def test_it(): import torch; torch.ones(3, device="cuda").sum().item()
            """,
    )
    result.stdout.fnmatch_lines(["Test made 1 sync, budget 0"])


def test_where_nothing_can_be_measured_a_budget_fails(run, monkeypatch):
    def refuse(*arguments, **more):
        raise MeasurementError("no recorder can run: CUPTI is held by a profiler")

    monkeypatch.setattr(measured_test, "open_region", refuse)
    result = run("--gpu-sync-budget=9", test_a=THREE_SYNCS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Not measured: no recorder can run: CUPTI is held by a profiler"])


@pytest.fixture
def no_simulation(monkeypatch):
    def refuse(self):
        self.unavailable = "the simulated CUDA device cannot be switched on: torch 1.13 is not supported"

    monkeypatch.setattr(SessionDevice, "switch_on", refuse)


def test_a_budget_asked_for_where_no_device_is_ends_the_session(run, no_simulation):
    result = run("--gpu-sync-budget=9", test_a="def test_cpu(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: nothing can be measured here: the simulated CUDA device cannot be *"])


def test_a_marked_test_where_no_device_is_fails(run, no_simulation):
    result = run(test_a="import pytest\n@pytest.mark.gpu_sync_budget(9)\ndef test_it(): pass")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Not measured: the simulated CUDA device cannot be switched on: torch 1.13 *"])


def test_an_ini_budget_where_no_device_is_leaves_tests_alone_and_says_so(run, no_simulation, pytester):
    pytester.makeini("[pytest]\ngpu_sync_budget = 9")
    result = run(test_a="def test_cpu(): pass\ndef test_too(): pass")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["not measured:", "  test_a.py::test_cpu and 1 more: the simulated CUDA device *"])


def test_a_session_that_used_no_gpu_says_so(run):
    result = run("--gpu-sync-budget=9", test_a="import torch\ndef test_cpu(): pass")
    result.stdout.fnmatch_lines(["nothing was measured: no test used the GPU"])


def test_a_measurement_with_a_problem_keeps_no_budget(run, monkeypatch):
    close = region_log.RegionLog.close

    def close_blind(log, environment, **options):
        log.fail("the recorder saw 0 of 1 planted sync")
        close(log, environment, **options)

    monkeypatch.setattr(region_log.RegionLog, "close", close_blind)
    result = run("--gpu-sync-budget=9", test_a=THREE_SYNCS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Not measured: the recorder saw 0 of 1 planted sync"])


def test_gpu_only_is_skipped_without_a_gpu_and_says_why(run):
    result = run("-rs", test_a="import pytest\n@pytest.mark.gpu_only\ndef test_it(): pass")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * test_a.py:2: needs a real GPU: this machine has none"])


def test_gpu_only_is_skipped_on_a_simulated_device(run, pretended_gpu):
    result = run("--gpu-device=simulated", test_a="import pytest\n@pytest.mark.gpu_only\ndef test_it(): pass")
    result.assert_outcomes(skipped=1)


def test_gpu_only_runs_on_a_gpu(run, pretended_gpu):
    run(test_a="import pytest\n@pytest.mark.gpu_only\ndef test_it(): pass").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--gpu-require"], "--gpu-require: there is no GPU to run on: this machine has none"),
        (["--gpu-device=cuda"], "--gpu-device=cuda: there is no GPU to run on: this machine has none"),
        (["--gpu-require", "--gpu-device=simulated"], "gpu_require needs a real GPU, and gpu_device=simulated *"),
    ],
)
def test_a_session_that_needs_a_gpu_does_not_start_without(run, arguments, complaint):
    result = run(*arguments, test_a="def test_it(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {complaint}"])


def test_collecting_needs_no_gpu(run):
    assert run("--gpu-require", "--collect-only", test_a="def test_it(): pass").ret == 0


def test_gpu_require_fails_a_session_that_measured_nothing(run, pretended_gpu):
    result = run("--gpu-require", test_a="def test_it(): pass")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["--gpu-require: no test ran anything on the GPU under a budget"])


def test_a_report_is_written_when_tests_fail(run, pytester):
    run("--gpu-sync-budget=2", "--gpu-sync-report=deep/run.json", test_a=THREE_SYNCS)
    [region] = json.loads((pytester.path / "deep/run.json").read_text())["regions"]
    assert (region["name"], region["outcome"], region["syncs"]) == ("test_a.py::test_reads", "failed", 3)


def test_an_interrupt_closes_the_region_and_still_writes_the_report(run, pytester):
    interrupted = THREE_SYNCS + "\n    def test_stop(): raise KeyboardInterrupt"
    result = run("--gpu-sync-budget=9", "--gpu-sync-report=run.json", test_a=interrupted)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    regions = json.loads((pytester.path / "run.json").read_text())["regions"]
    assert [region["outcome"] for region in regions] == ["passed", "not_measured"]
    assert no_region_is_open()


def test_a_failing_test_closes_the_region(run):
    run("--gpu-sync-budget=9", test_a=THREE_SYNCS + "\n        assert 0")
    assert no_region_is_open()


def test_a_report_that_cannot_be_written_fails_the_session_and_is_rescued(run, pytester, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (pytester.path / "file").write_text("in the way")
    result = run("--gpu-sync-budget=3", "--gpu-sync-report=file/run.json", test_a=THREE_SYNCS)
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*file/run.json cannot be written (*); the report is in *run.json"])
    [rescued] = tmp_path.glob("gpusync-*/run.json")
    assert json.loads(rescued.read_text())["regions"]


def test_a_test_that_is_run_again_is_reported_once(run, pytester):
    run(
        "--gpu-sync-budget=9",
        "--gpu-sync-report=run.json",
        conftest="""
            from _pytest.runner import runtestprotocol
            def pytest_runtest_protocol(item, nextitem):
                for _ in range(2):
                    item._initrequest()
                    runtestprotocol(item, nextitem=nextitem)
                return True
            """,
        test_a=THREE_SYNCS,
    )
    [region] = json.loads((pytester.path / "run.json").read_text())["regions"]
    assert region["syncs"] == 3


def test_every_report_that_is_asked_for_is_written_in_the_format_of_its_ending(run, pytester):
    reports = [f"--gpu-sync-report=run{ending}" for ending in (".json", ".md", ".html")]
    run("--gpu-sync-budget=2", *reports, test_a=THREE_SYNCS)
    starts = {path.suffix: path.read_text().split("\n")[0] for path in pytester.path.glob("run.*")}
    assert starts == {".json": "{", ".md": "## GPU syncs", ".html": "<!doctype html>"}


def test_an_interrupted_test_shows_what_it_had_shown_and_is_no_measurement(run, tmp_path):
    result = run(
        "--gpu-sync-budget=5",
        "--gpu-sync-report=run.json",
        test_a="""
            import torch
            def test_it():
                torch.ones(3, device="cuda").sum().item()
                raise KeyboardInterrupt
            """,
    )
    result.stdout.fnmatch_lines(
        ["*lines with most syncs:", "*test_a.py:*", "*test_a.py::test_it: the test was interrupted"]
    )
    assert no_region_is_open()


EXEMPT = THREE_SYNCS.replace("def test_", "@pytest.mark.gpu_sync_budget(max=None)\n    def test_")


def test_a_test_that_waits_on_purpose_is_held_to_no_budget(run, pytester):
    result = run("--gpu-sync-budget=1", "--gpu-sync-report=run.json", test_a=EXEMPT)
    result.assert_outcomes(passed=1)
    [region] = json.loads((pytester.path / "run.json").read_text())["regions"]
    assert (region["outcome"], region["syncs_per_step"]["max"], region["verdicts"]) == ("measured", 3, [])
