"""One rule for fixtures, ``setUp`` and ``setup_method``: only the test's call is measured, and the rest is named."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_gpu")


SET_UP = {
    "fixture": """
        @pytest.fixture
        def ready(): wait()
        @pytest.mark.gpu_sync_budget(max=0)
        def test_it(ready): BODY
        """,
    "module fixture": """
        @pytest.fixture(scope="module")
        def ready():
            wait()
            yield
        @pytest.mark.gpu_sync_budget(max=0)
        def test_it(ready): BODY
        """,
    "setup_method": """
        class TestIt:
            def setup_method(self): wait()
            @pytest.mark.gpu_sync_budget(max=0)
            def test_it(self): BODY
        """,
    "setUp": """
        class TestIt(unittest.TestCase):
            def setUp(self): wait()
            @pytest.mark.gpu_sync_budget(max=0)
            def test_it(self): BODY
        """,
    "setUpClass": """
        class TestIt(unittest.TestCase):
            @classmethod
            def setUpClass(cls): wait()
            @pytest.mark.gpu_sync_budget(max=0)
            def test_it(self): BODY
        """,
    "asyncSetUp": """
        class TestIt(unittest.IsolatedAsyncioTestCase):
            async def asyncSetUp(self): wait()
            @pytest.mark.gpu_sync_budget(max=0)
            async def test_it(self): BODY
        """,
    "tearDown": """
        class TestIt(unittest.TestCase):
            def tearDown(self): wait()
            @pytest.mark.gpu_sync_budget(max=0)
            def test_it(self): BODY
        """,
    "end of a fixture": """
        @pytest.fixture
        def ready():
            yield
            wait()
        @pytest.mark.gpu_sync_budget(max=0)
        def test_it(ready): BODY
        """,
}

HEAD = """
        import pytest, torch, unittest
        def wait(): torch.ones(1, device="cuda").item()
        """


def source(shape, body):
    return (HEAD.rstrip() + SET_UP[shape]).replace("BODY", body)


@pytest.mark.parametrize("shape", SET_UP)
def test_what_runs_outside_of_the_call_is_named_and_not_counted(run, shape):
    result = run(test_a=source(shape, "torch.ones(1, device='cuda')"))
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["1 test measured", "not counted:", "  test_a.py:2 *1 sync   in set-up or tear-down"], consecutive=True
    )


@pytest.mark.parametrize("shape", SET_UP)
def test_the_call_is_held_to_the_budget_whatever_runs_before_and_after_it(run, shape):
    result = run(test_a=source(shape, "wait(); wait()"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Test made 2 syncs, budget 0"])


@pytest.mark.parametrize("shape", [shape for shape in SET_UP if shape not in ("tearDown", "end of a fixture")])
def test_a_test_whose_only_work_on_the_device_is_in_set_up_fails_and_says_so(run, shape):
    result = run(test_a=source(shape, "pass"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Not measured: nothing ran on the device in the test's call, only in its set-up*"])


def test_set_up_is_a_region_of_the_report_without_a_verdict(run, pytester):
    run("--gpu-sync-report=run.json", test_a=source("fixture", "torch.ones(1, device='cuda')"))
    call, set_up = json.loads((pytester.path / "run.json").read_text())["regions"]
    assert (call["name"], call["outcome"], call["syncs"]) == ("test_a.py::test_it", "passed", 0)
    assert (set_up["name"], set_up["step_source"]) == ("test_a.py::test_it set-up", "set-up")
    assert (set_up["outcome"], set_up["syncs"], set_up["verdicts"]) == ("measured", 1, [])


EXPECTED = """
    import pytest, torch, unittest
    class TestIt(unittest.TestCase):
        @unittest.expectedFailure
        @pytest.mark.gpu_sync_budget(max=0)
        def test_it(self): {body}
    """


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("torch.ones(1, device='cuda').item()", {"xfailed": 1}),
        ("torch.ones(1)", {"xfailed": 1}),
        ("torch.ones(1, device='cuda')", {"failed": 1}),
    ],
)
def test_unittest_expects_a_broken_budget_as_it_expects_any_failure(run, body, outcome):
    run(test_a=EXPECTED.format(body=body)).assert_outcomes(**outcome)


def test_a_budget_of_the_command_line_applies_to_the_methods_of_unittest(run):
    result = run(
        "--gpu-sync-budget=0", test_a=source("setUp", "wait()").replace("@pytest.mark.gpu_sync_budget(max=0)", "")
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Test made 1 sync, budget 0"])
