"""gpu_sync and gpu_train inside tests, on the simulated device."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from pytest_gpusync.plugin.repetitions import EXAMPLE, ROUND, repetitions_are_steps
from pytest_gpusync.plugin.training import _adapted, _as_in_training

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_gpu")

STEPS = """
    import pytest, torch
    from pytest_gpusync.model.budgets import BudgetExceeded, NotMeasured

    def reads(times=1):
        def step(batch=None):
            for _ in range(times):
                torch.ones(3, device="cuda").sum().item()
        return step

    def test_it(gpu_train, gpu_sync):
"""


@pytest.fixture
def inside(run):
    """Run one test whose body is given, with the steps above at hand."""

    def inside(body, *arguments):
        lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
        return run(*arguments, test_a=STEPS + lines)

    return inside


@pytest.mark.parametrize(("limit", "outcome"), [(1, "failed"), (2, "passed"), (3, "passed")])
def test_assert_syncs_holds_the_worst_step_to_the_limit(inside, limit, outcome):
    inside(f"gpu_train(reads(2), steps=5).assert_syncs(max={limit})").assert_outcomes(**{outcome: 1})


@pytest.mark.parametrize(("number", "outcome"), [(1, "failed"), (2, "passed"), (3, "failed")])
def test_assert_syncs_exact_admits_only_the_number(inside, number, outcome):
    inside(f"gpu_train(reads(2), steps=5).assert_syncs(exact={number})").assert_outcomes(**{outcome: 1})


def test_the_failure_names_the_lines_and_the_assertion(inside):
    result = inside("run = gpu_train(reads(2), steps=20)\nrun.assert_syncs(max=1)")
    result.stdout.fnmatch_lines(
        [
            "Training step made 2 syncs, budget 1 (worst of 17 steps after warm-up)",
            '  test_a.py:7  torch.ones(3, device="cuda").sum().item()*2 per step*',
            "  simulated CUDA device, recorder simulated, coverage simulated",
            "test_a.py:12: BudgetExceeded",
        ],
    )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("assert gpu_train(reads(), steps=5).syncs_per_step == [1, 1]", id="without batches"),
        pytest.param("assert gpu_train(reads(), [1, 2, 3, 4]).syncs_per_step == [1]", id="one pass over batches"),
        pytest.param("assert gpu_train(reads(), [1], steps=5).syncs_per_step == [1, 1]", id="a short list again"),
        pytest.param(
            "run = gpu_train(reads(), (n for n in range(5)), steps=9)\n"
            "assert (run.steps, run.note) == (5, '5 of 9 steps ran: the batches ran out')",
            id="a generator that ends",
        ),
        pytest.param(
            "got = []\ngpu_train(got.append, [7, 8], steps=4)\nassert got == [7, 8, 7, 8]", id="batches in order"
        ),
        pytest.param(
            "loader = torch.utils.data.DataLoader(list(range(6)), batch_size=2)\n"
            "assert gpu_train(reads(), loader, steps=5).steps == 5",
            id="a DataLoader",
        ),
        pytest.param("assert gpu_train(reads(), steps=2, warmup=0).syncs_per_step == [1, 1]", id="no warm-up"),
        pytest.param(
            "[site] = gpu_train(reads(), steps=5).sites\nassert (site.site.line, site.syncs) == (7, 5)", id="sites"
        ),
        pytest.param(
            "assert gpu_train(reads(), steps=5).measurement.environment.coverage == 'simulated'", id="measurement"
        ),
    ],
)
def test_gpu_train_runs_the_steps_it_is_asked_for(inside, body):
    inside(body).assert_outcomes(passed=1)


def test_an_optimizer_inside_does_not_end_the_steps_of_gpu_train(inside):
    inside(
        """
model = torch.nn.Linear(2, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    for _ in range(2):
        model(torch.ones(1, 2, device="cuda")).sum().backward()
        optimizer.step()
        print(float(model.bias))
assert gpu_train(step, steps=5).syncs_per_step == [2, 2]
"""
    ).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (
            "gpu_train(reads(), steps=3)",
            "gpu_train: steps=3 are all warm-up (warmup=3): give more steps or a smaller warmup",
        ),
        ("gpu_train(reads())", "gpu_train needs steps=..., because there are no batches"),
        ("gpu_train(reads(), steps=-1)", "gpu_train: steps must be an integer of at least 0, not -1"),
        ("gpu_train(reads(), steps=5).assert_syncs()", "assert_syncs: a sync budget takes either max or exact*"),
        ("gpu_sync.budget()", "gpu_sync.budget: a sync budget takes either max or exact, not neither"),
        ("gpu_sync.allow('')", "*allow() takes the reason*"),
    ],
)
def test_wrong_arguments_are_told_at_the_line_that_gave_them(inside, body, complaint):
    result = inside(body if "allow" not in body else f"with {body}: pass")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E *ValueError: {complaint}"])


def test_batches_that_end_in_warm_up_measure_nothing_and_fail(inside):
    result = inside("gpu_train(reads(), iter([1, 2]), steps=9)")
    result.stdout.fnmatch_lines(
        ["Not measured: 2 of 9 steps ran: the batches ran out, and the first 3 are warm-up", "*: NotMeasured"]
    )


def test_a_step_that_raises_is_the_failure_and_its_steps_are_kept(inside, pytester):
    result = inside(
        """
def step(number):
    reads()()
    if number == 5: raise RuntimeError("out of luck")
gpu_train(step, range(9))
""",
        "--gpu-sync-report=run.json",
    )
    result.stdout.fnmatch_lines(["E *RuntimeError: out of luck"])
    [region] = json.loads((pytester.path / "run.json").read_text())["regions"]
    assert (region["name"], region["steps"]) == ("test_a.py::test_it gpu_train", 5)


def test_the_budget_of_a_test_with_gpu_train_is_held_against_its_steps(inside):
    body = "for _ in range(9): reads()()\ngpu_train(reads(), steps=9)"
    inside(body, "--gpu-sync-budget=1").assert_outcomes(passed=1)
    result = inside(body, "--gpu-sync-budget=0")
    result.stdout.fnmatch_lines(["Training step made 1 sync, budget 0 (worst of 6 steps after warm-up)"])


@pytest.mark.parametrize(("limit", "outcome"), [(1, "failed"), (2, "passed")])
def test_a_budget_block_counts_only_what_is_in_it(inside, limit, outcome):
    body = f"reads(9)()\nwith gpu_sync.budget(max={limit}): reads(2)()\nreads(9)()"
    inside(body).assert_outcomes(**{outcome: 1})


def test_a_budget_block_counts_the_steps_in_it(inside):
    result = inside(
        """
model = torch.nn.Linear(2, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with gpu_sync.budget(max=0, warmup=2):
    for _ in range(5):
        model(torch.ones(1, 2, device="cuda")).sum().backward()
        optimizer.step()
        print(float(model.bias))
"""
    )
    result.stdout.fnmatch_lines(["Training step made 1 sync, budget 0 (worst of 3 steps after warm-up)"])


def test_a_named_block_is_told_by_its_name(inside):
    result = inside("with gpu_sync.budget(max=0, name='forward'): reads()()")
    result.stdout.fnmatch_lines(["Region 'forward' made 1 sync, budget 0", "test_a.py:11: BudgetExceeded"])


def test_a_block_that_raises_keeps_its_own_error(inside):
    result = inside("with gpu_sync.budget(max=0):\n    reads()()\n    raise KeyError('mine')")
    result.stdout.fnmatch_lines(["E *KeyError: 'mine'"])


def test_allowed_syncs_are_reported_and_not_counted(inside, pytester):
    result = inside(
        "with gpu_sync.budget(max=0):\n    with gpu_sync.allow('early stop'): reads()()",
        "--gpu-sync-report=run.json",
    )
    result.assert_outcomes(passed=1)
    regions = json.loads((pytester.path / "run.json").read_text())["regions"]
    assert regions[-1]["syncs"] == 0
    assert [site["allowed"] for site in regions[-1]["sites"]] == ["early stop"]


def test_record_only_looks(inside):
    inside(
        "with gpu_sync.record() as seen: reads(3)()\nassert seen.syncs == 3\nassert seen.sites[0].site.line == 7"
    ).assert_outcomes(passed=1)


def test_a_broken_budget_can_be_caught_as_what_it_is(inside):
    inside(
        "with pytest.raises(BudgetExceeded, match='Region made 1 sync, budget 0'):\n"
        "    with gpu_sync.budget(max=0): reads()()"
    ).assert_outcomes(passed=1)


def test_regions_of_a_test_have_names_of_their_own(inside, pytester):
    inside(
        "for _ in range(2):\n    with gpu_sync.record(): reads()()\ngpu_train(reads(), steps=5)",
        "--gpu-sync-report=run.json",
    )
    regions = json.loads((pytester.path / "run.json").read_text())["regions"]
    assert [region["name"] for region in regions] == [
        "test_a.py::test_it gpu_sync.record",
        "test_a.py::test_it gpu_sync.record 2",
        "test_a.py::test_it gpu_train",
    ]


def test_a_fixture_can_be_requested_while_the_test_runs(run, pytester):
    test = """
        import pytest, torch
        @pytest.fixture
        def counted(request): return request.getfixturevalue("gpu_sync")
        def test_in_the_test(request):
            with request.getfixturevalue("gpu_sync").record() as seen:
                torch.ones(1, device="cuda").item()
            assert seen.syncs == 1
        def test_in_a_fixture(counted):
            with counted.budget(max=0): torch.ones(1, device="cuda").item()
        """
    result = run("--gpu-sync-report=run.json", test_a=test)
    result.assert_outcomes(passed=1, failed=1)
    names = {region["name"] for region in json.loads((pytester.path / "run.json").read_text())["regions"]}
    assert {"test_a.py::test_in_the_test gpu_sync.record", "test_a.py::test_in_a_fixture gpu_sync.budget"} <= names


def test_a_doctest_can_request_a_fixture(run, pytester):
    pytester.makepyfile(
        doc="""
        def reads():
            '''
            >>> import torch
            >>> with getfixture("gpu_sync").record() as seen:
            ...     _ = torch.ones(1, device="cuda").item()
            >>> seen.syncs
            1
            '''
        """
    )
    run("--doctest-modules", "doc.py").assert_outcomes(passed=1)


def test_a_run_that_was_shorter_than_requested_keeps_no_budget(inside):
    result = inside("gpu_train(reads(0), iter(range(6)), steps=20).assert_syncs(max=9)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Not measured: 6 of 20 steps ran: the batches ran out; give more batches, or steps=6"])


def test_a_step_that_raises_shows_no_frame_of_the_plugin(inside):
    result = inside("gpu_train(lambda: 1 / 0, steps=9)")
    result.stdout.no_fnmatch_line("*training.py*")
    result.stdout.fnmatch_lines(["E*ZeroDivisionError*"])


@pytest.mark.parametrize(("arguments", "outcome"), [("over='1 in 4'", "passed"), ("percentile=95", "failed")])
def test_some_steps_may_exceed_an_asserted_budget(inside, arguments, outcome):
    body = f"""
number = iter(range(99))
def logs(): reads(int(next(number) % 4 == 0))()
gpu_train(logs, steps=13, warmup=1).assert_syncs(max=0, {arguments})
"""
    inside(body).assert_outcomes(**{outcome: 1})


def test_a_broken_budget_that_the_test_catches_is_named(inside):
    result = inside(
        """
with pytest.raises(AssertionError):
    with gpu_sync.budget(max=0): reads(2)()
"""
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["caught by the test, which passed:", "  test_a.py::test_it gpu_sync.budget: Region made 2 syncs, budget 0"],
        consecutive=True,
    )


def test_a_budget_of_a_test_that_skips_itself_was_not_measured_because_of_that(run):
    test = """
        import pytest, torch
        @pytest.mark.gpu_sync_budget(max=0)
        def test_it():
            torch.ones(1, device="cuda")
            pytest.skip("later")
        """
    result = run(test_a=test)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*the test skipped itself"])


class Trainer:
    """Stands for that of Hugging Face: one attribute of ``training_step`` is set by ``train`` only."""

    args = SimpleNamespace(gradient_accumulation_steps=2)
    model = None

    def training_step(self, model, inputs):
        self.seen = self.current_gradient_accumulation_steps


def test_the_step_of_a_trainer_that_has_not_trained_can_be_run():
    trainer = Trainer()
    with _as_in_training(trainer.training_step):
        _adapted(trainer.training_step)(0, "batch")
    assert trainer.seen == 2
    assert not hasattr(trainer, "current_gradient_accumulation_steps")


def test_each_example_of_hypothesis_is_a_step(run):
    pytest.importorskip("hypothesis")
    test = """
        import pytest, torch
        from hypothesis import given, settings, strategies
        @pytest.mark.gpu_sync_budget(max=1)
        @settings(max_examples=20, deadline=None)
        @given(strategies.integers(0, 9))
        def test_it(number):
            torch.ones(3, device="cuda").sum().item()
        """
    run(test_a=test).assert_outcomes(passed=1)
    result = run(test_a=test.replace("max=1", "max=0"))
    result.stdout.fnmatch_lines(["Training step made 1 sync, budget 0 (worst of 9 steps after warm-up)"])


def test_each_round_of_a_benchmark_is_a_step(run):
    pytest.importorskip("pytest_benchmark")
    test = """
        import pytest, torch
        @pytest.mark.gpu_sync_budget(max=1)
        def test_it(benchmark):
            x = torch.ones(3, device="cuda")
            benchmark.pedantic(lambda: x.sum().item(), rounds=20)
        """
    run(test_a=test).assert_outcomes(passed=1)
    result = run(test_a=test.replace("max=1", "max=0"))
    result.stdout.fnmatch_lines(["Training step made 1 sync, budget 0 (worst of 19 steps after warm-up)"])


def test_examples_and_rounds_end_steps_and_are_restored():
    ended = []
    inner = lambda number: number + 1  # noqa: E731
    make = lambda function: lambda rounds: function(rounds)  # noqa: E731
    handle, benchmark = SimpleNamespace(inner_test=inner), SimpleNamespace(_make_runner=make)
    item = SimpleNamespace(obj=SimpleNamespace(hypothesis=handle), funcargs={"benchmark": benchmark})
    with repetitions_are_steps(item, ended.append):
        assert handle.inner_test(1) == 2
        assert benchmark._make_runner(str)(7) == "7"
    assert ended == [EXAMPLE, ROUND]
    assert (handle.inner_test, benchmark._make_runner) == (inner, make)


SHARED = """
    import pytest, torch
    @pytest.fixture(scope="module")
    def trained(gpu_sync_module):
        with gpu_sync_module.{region} as seen:
            torch.ones(3, device="cuda").sum().item()
        return seen
    def test_one(trained): assert trained.syncs == 1
    def test_two(trained): assert trained.steps == 1
    """


def test_what_the_tests_of_a_module_share_is_recorded_once(run, pytester):
    result = run("--gpu-sync-report=run.json", test_a=SHARED.format(region="record('training')"))
    result.assert_outcomes(passed=2)
    regions = json.loads((pytester.path / "run.json").read_text())["regions"]
    assert [(one["name"], one["syncs"]) for one in regions if "training" in one["name"]] == [("test_a.py training", 1)]


def test_a_budget_of_what_a_module_shares_fails_in_set_up_and_is_reported(run, pytester):
    result = run("--gpu-sync-report=run.json", test_a=SHARED.format(region="budget(max=0)"))
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["Region made 1 sync, budget 0"])
    regions = json.loads((pytester.path / "run.json").read_text())["regions"]
    assert "failed" in [one["outcome"] for one in regions if one["name"] == "test_a.py gpu_sync.budget"]


def test_a_region_prints_its_lines(inside):
    result = inside(
        """
with gpu_sync.record() as seen:
    reads(2)()
    print(seen)
print(seen)
""",
        "-s",
    )
    assert len([line for line in result.outlines if line.endswith("2 syncs")]) == 2
    result.stdout.fnmatch_lines(["  test_a.py:7*2 syncs*", "*coverage simulated*"])
