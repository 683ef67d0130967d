"""Memory growth and time inside tests, on the simulated device: fixtures, marker, option, outcomes."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from measurements import stepped

from pytest_gpusync.elapsed.paired import Pair, ratio_of
from pytest_gpusync.model.budgets import GrowthBudget, NotMeasured, judge_growth
from pytest_gpusync.model.measurement import MemorySample
from pytest_gpusync.plugin.measured_test import MeasuredTest, RegionRecord
from pytest_gpusync.plugin.session_device import SessionDevice

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_gpu")

PARTS = """
    import pytest, torch

    kept = []

    def leak(nbytes):
        def step():
            kept.append(torch.empty(nbytes, dtype=torch.uint8, device="cuda"))
            torch.ones(1000, device="cuda") * 2
        return step

    def train(step, steps=20):
        weight = torch.ones(3, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(steps):
            step()
            (weight * 2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.fixture
def inside(run):
    """Run one test whose body is given, with the parts above at hand."""

    def inside(body, *arguments, marker=None):
        lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
        decorator = f"    @pytest.mark.{marker}\n" if marker else ""
        head = f"{decorator}    def test_it(gpu_train, gpu_memory, gpu_elapsed):\n"
        if marker or arguments[:1] == ("plain",):
            head = f"{decorator}    def test_it():\n"
        return run(*(a for a in arguments if a != "plain"), test_a=f"{PARTS}\n{head}{lines}")

    return inside


@pytest.mark.parametrize("nbytes", [1 << 10, 10_000, 1 << 20, 10 << 20])
def test_a_leak_is_found_within_thirty_steps(inside, nbytes):
    result = inside(f"gpu_train(leak({nbytes}), steps=30).assert_memory_growth(max={nbytes - 1024})")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Allocated memory grew * per step, budget * (slope over 27 steps after warm-up, *"])


def test_a_leak_within_the_budget_is_none(inside):
    inside('gpu_train(leak(1024), steps=30).assert_memory_growth(max="1 KiB")').assert_outcomes(passed=1)


CLEAN = {
    "tensors that die": "gpu_train(lambda: torch.ones(10_000, device='cuda') * 2, steps=60)",
    "training": """
model = torch.nn.Linear(100, 100).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def step():
    model(torch.ones(8, 100, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
gpu_train(step, steps=30)""",
    "a buffer that fills and empties": """
def step():
    if len(kept) == 5:
        kept.clear()
    leak(1 << 20)()
gpu_train(step, steps=60)""",
    "two late buffers": """
sizes = iter([0] * 20 + [1 << 20] + [0] * 20 + [1 << 20] + [0] * 60)
def step():
    leak(next(sizes))()
gpu_train(step, steps=100)""",
    "batches of varying size": """
import random
random.seed(4)
def step():
    kept[:] = [torch.ones(random.randrange(100_000), device="cuda")]
gpu_train(step, steps=60)""",
}


@pytest.mark.parametrize("name", CLEAN)
def test_what_does_not_leak_keeps_a_budget_of_nothing(inside, name):
    inside(f"{CLEAN[name].strip()}.assert_memory_growth(max=0)").assert_outcomes(passed=1)


def test_what_cannot_be_told_does_not_fail_and_is_in_the_summary(inside):
    result = inside(f"{CLEAN['batches of varying size'].strip()}.assert_memory_growth(max=0)")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["undecided:", "*: Too noisy to tell: allocated memory *, budget 0 B *"])


def test_growth_that_is_asserted_and_not_measured_fails(inside):
    result = inside("gpu_train(leak(9), steps=10).assert_memory_growth(max=1)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Not measured: *", "*: NotMeasured"])


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('gpu_train(leak(9), steps=30).assert_memory_growth(max="lots")', "assert_memory_growth: a size is *'lots'"),
        ('gpu_train(leak(9), steps=30).assert_memory_growth(1, of="gpu")', "assert_memory_growth: of must be *'gpu'"),
        ('with gpu_memory.budget(max="-1"): pass', "gpu_memory.budget: a size is *'-1'"),
        ("gpu_train(leak(9), steps=30).assert_dispatch_ratio(max=0)", "assert_dispatch_ratio: max *not 0"),
        ("gpu_elapsed.ratio(print, print, rounds=3)", "gpu_elapsed.ratio: rounds must be *at least 12, not 3"),
        ("gpu_elapsed.ratio(print, print, tolerance=2)", "gpu_elapsed.ratio: tolerance must *not 2"),
        ("gpu_elapsed.overlap(print, print, print, calls=0)", "gpu_elapsed.overlap: calls must be *at least 1, not 0"),
        ("gpu_elapsed.decompose(print, print, steps=0)", "gpu_elapsed.decompose: steps must be *at least 1, not 0"),
        ("gpu_train(leak(9), steps=9).assert_max_in_flight(max=0)", "assert_max_in_flight: max *at least 1, not 0"),
        ("gpu_train(leak(9), steps=9, in_flight=0)", "gpu_train: in_flight: *at least 1, not 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(inside, body, complaint):
    result = inside(body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E*ValueError: {complaint}"])


@pytest.mark.parametrize(("must_decide", "raised"), [(False, nullcontext()), (True, pytest.raises(NotMeasured))])
def test_what_cannot_be_told_fails_only_where_a_gpu_is_required(must_decide, raised):
    samples = tuple(MemorySample(nbytes, None, None, None) for nbytes in [0] * 10 + [64 << 20] * 10)
    measurement = stepped([0] * 20, memory=samples)
    with raised:
        MeasuredTest("test_a", SessionDevice("cuda"), must_decide=must_decide).apply_verdict(
            RegionRecord(measurement), judge_growth(measurement, GrowthBudget(0))
        )


def test_time_that_is_required_fails_where_there_is_none():
    run = MeasuredTest("test_a", SessionDevice("simulated"), must_decide=True)
    with pytest.raises(NotMeasured, match="time is not simulated"):
        run.skip_untimed()


def test_a_ratio_is_a_region_of_the_run_file_without_counts():
    run = MeasuredTest("test_a", SessionDevice("cuda"))
    run.keep_elapsed("ratio", ratio_of([Pair(3.0, 2.0)] * 12, calls=3, tolerance=0.02))
    [region] = run.document()["regions"]
    assert (region["name"], region["outcome"], region["syncs"]) == ("test_a gpu_elapsed.ratio", "measured", None)
    assert region["timing"]["ratio"]["value"] == 1.5


@pytest.mark.parametrize(
    "body",
    [
        "gpu_train(leak(9), steps=30).assert_dispatch_ratio(max=0.5)",
        "gpu_train(leak(9), steps=30).assert_max_in_flight(max=2)",
        "gpu_elapsed.ratio(print, print)",
        "gpu_elapsed.overlap(print, print, print)",
        "gpu_elapsed.decompose(print, print)",
    ],
)
def test_time_is_skipped_with_the_reason(inside, body):
    result = inside(body, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*test_a.py*: time is not simulated: times need a real GPU"])


def test_a_ring_of_steps_adds_no_sync_to_them(inside):
    inside("gpu_train(leak(9), steps=30, in_flight=2).assert_syncs(exact=0)").assert_outcomes(passed=1)


def test_steps_on_the_simulated_device_have_no_time(inside):
    inside("assert gpu_train(leak(9), steps=30).measurement.timing is None").assert_outcomes(passed=1)


@pytest.mark.parametrize(("limit", "outcome"), [("1 MiB", "failed"), ("2 MiB", "passed")])
def test_gpu_memory_holds_a_block_to_a_budget(inside, limit, outcome):
    body = f"with gpu_memory.budget(max={limit!r}):\n    train(leak(2 << 20))"
    inside(body).assert_outcomes(**{outcome: 1})


def test_a_failure_inside_the_block_stays_its_own(inside):
    result = inside("with gpu_memory.budget(max=0):\n    train(leak(2 << 20))\n    raise KeyError('mine')")
    result.stdout.fnmatch_lines(["E*KeyError: 'mine'"])


def test_gpu_memory_record_samples_each_step(inside):
    inside(
        """
with gpu_memory.record() as seen:
    for _ in range(4):
        leak(1 << 20)()
        seen.mark_step()
allocated = [sample.allocated for sample in seen.result().memory]
assert [after - before for before, after in zip(allocated, allocated[1:])] == [1 << 20] * 3
"""
    ).assert_outcomes(passed=1)


@pytest.mark.parametrize(("limit", "outcome"), [("1 MiB", "failed"), ("2 MiB", "passed")])
@pytest.mark.parametrize("way", ["marker", "option", "ini"])
def test_marker_option_and_ini_key_hold_the_steps_of_a_test(inside, pytester, way, limit, outcome):
    if way == "marker":
        result = inside("train(leak(2 << 20))", marker=f"gpu_memory_growth({limit!r})")
    elif way == "option":
        result = inside("train(leak(2 << 20))", "plain", f"--gpu-memory-growth={limit}")
    else:
        pytester.makeini(f"[pytest]\ngpu_memory_growth = {limit}")
        result = inside("train(leak(2 << 20))", "plain")
    result.assert_outcomes(**{outcome: 1})


def test_the_marker_beats_the_option(inside):
    result = inside("train(leak(2 << 20))", "--gpu-memory-growth=1KiB", marker='gpu_memory_growth(max="2 MiB")')
    result.assert_outcomes(passed=1)


def test_the_option_holds_the_steps_of_gpu_train(inside):
    inside("gpu_train(leak(2 << 20), steps=20)", "--gpu-memory-growth=1MiB").assert_outcomes(failed=1)


@pytest.mark.parametrize("steps", [1, 5])
def test_the_option_asks_nothing_of_a_test_with_few_steps(inside, steps):
    inside(f"train(leak(2 << 20), steps={steps})", "plain", "--gpu-memory-growth=0").assert_outcomes(passed=1)


def test_the_marker_asks_for_enough_steps(inside):
    result = inside("train(leak(0), steps=5)", marker="gpu_memory_growth(0)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Not measured: memory growth needs 8 steps after warm-up, and 4 ran*"])


@pytest.mark.parametrize("arguments", ["", "1, 2", "min=1", "'lots'", "max=None"])
def test_a_marker_that_cannot_be_meant_is_refused(inside, arguments):
    result = inside("pass", marker=f"gpu_memory_growth({arguments})")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["test_a.py::test_it: the marker gpu_memory_growth*"])


@pytest.mark.parametrize(
    ("argument", "ini", "complaint"),
    [
        ("--gpu-memory-growth=lots", "", "*--gpu-memory-growth: a size is a number of bytes*'lots'"),
        ("-v", "gpu_memory_growth = 1 MiBs", "*gpu_memory_growth in tox.ini: a size is*'1 MiBs'"),
    ],
)
def test_a_size_that_there_is_not_is_an_error_of_usage(run, pytester, argument, ini, complaint):
    pytester.makeini(f"[pytest]\n{ini}")
    result = run(argument, test_a="def test_it(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([complaint])


def test_the_run_file_has_the_growth_and_its_verdict(inside, tmp_path):
    path = tmp_path / "run.json"
    inside("gpu_train(leak(2 << 20), steps=20).assert_memory_growth('4 MiB')", f"--gpu-sync-report={path}")
    [region] = json.loads(path.read_text())["regions"]
    assert region["memory"]["allocated"]["growth"]["value"] == 2 << 20
    assert region["memory"]["reserved"]["last"] % (2 << 20) == 0
    assert region["memory"]["device_mallocs_per_step"] == {"median": 0.0, "max": 1}
    assert region["timing"] is None
    [verdict] = region["verdicts"]
    assert (verdict["quantity"], verdict["outcome"], verdict["max"]) == ("allocated_growth", "passed", 4 << 20)


def test_a_budget_of_syncs_alone_samples_no_memory(inside, tmp_path):
    path = tmp_path / "run.json"
    inside("train(leak(9))", "plain", "--gpu-sync-budget=5", f"--gpu-sync-report={path}")
    assert [region["memory"] for region in json.loads(path.read_text())["regions"]] == [None]


def test_the_lines_that_allocated_what_grew_are_in_the_failure(inside):
    result = inside("gpu_train(leak(2 << 20), steps=20).assert_memory_growth(max=0)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "Allocated memory grew 2.0 MiB per step*",
            "  allocated by:",
            '  test_a.py:*  kept.append(torch.empty(nbytes, dtype=torch.uint8, device="cuda"))  2 MiB per step',
        ]
    )


def test_lines_that_grew_are_told_of_a_region_that_marks_its_steps(inside):
    result = inside(
        """
with gpu_memory.budget(max=0) as region:
    for _ in range(20):
        leak(1 << 20)()
        region.mark_step()
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["  allocated by:", "  test_a.py:*1 MiB per step"])


def test_what_each_step_replaces_is_no_line_that_grew(inside):
    inside(
        """
held = {}

def step():
    held["last"] = torch.ones(1 << 20, device="cuda")
    leak(1 << 10)()

[line] = gpu_train(step, steps=20).grown
assert line.bytes_per_step == 1 << 10
assert gpu_train(lambda: held.update(last=torch.ones(1 << 20, device="cuda")), steps=20).grown is None
"""
    ).assert_outcomes(passed=1)


def test_a_whole_training_is_measured_by_its_optimizer_steps(inside):
    inside(
        """
run = gpu_train.whole(train, leak(1 << 20), steps=20)
assert (run.steps, len(run.per_step)) == (20, 17)
assert run.measurement.step_source == "optimizer.step()"
run.assert_syncs(max=0)
assert run.memory_growth().value == 1 << 20
assert [step.allocated - before.allocated for before, step in zip(run.per_step, run.per_step[1:])] == [1 << 20] * 16
assert run.peak_over_baseline() == 17 << 20
"""
    ).assert_outcomes(passed=1)


def test_a_training_without_enough_steps_is_not_measured(inside):
    result = inside("gpu_train.whole(train, leak(0), steps=3)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*Not measured: 3 calls of optimizer.step() were seen, and the first 3 steps are warm-up*"]
    )


def test_the_steps_of_trainers_are_called_as_their_trainers_do(inside):
    inside(
        """
class Module:
    def training_step(self, batch, batch_idx):
        seen.append((batch, batch_idx))

class Trainer:
    model = "model"

    def training_step(self, model, inputs, num_items_in_batch=None):
        seen.append((model, inputs))

seen = []
gpu_train(Module().training_step, ["a", "b"], steps=4, warmup=1)
assert seen == [("a", 0), ("b", 1), ("a", 2), ("b", 3)]
seen = []
gpu_train(Trainer().training_step, ["a", "b"], steps=2, warmup=1)
assert seen == [("model", "a"), ("model", "b")]
"""
    ).assert_outcomes(passed=1)


def test_each_step_has_its_figures(inside):
    inside(
        """
value = torch.ones(1, device="cuda")

def step():
    leak(1 << 20)()
    value.item()

figures = gpu_train(step, steps=20, process=True, trace=2)
assert figures.busy_ms is None
first = figures.per_step[0]
assert first.syncs == 1
assert {first.blocked_ms, first.issue_ms, first.complete_ms, first.in_flight, first.process} == {None}
assert first.reserved >= first.allocated > 3 << 20
assert (first.device_mallocs, first.device_frees) in [(0, 0), (1, 0)]
"""
    ).assert_outcomes(passed=1)


@pytest.mark.parametrize("steps", [9, 10, 12, 20])
def test_what_a_line_allocates_after_the_end_of_each_step_is_shown_as_it_is(run, steps):
    test = f"""
        import torch
        def test_leak(gpu_memory):
            x = torch.ones(1, device="cuda", requires_grad=True)
            optimizer = torch.optim.SGD([x], lr=0.1)
            kept = []
            with gpu_memory.record() as region:
                for _ in range({steps}):
                    x.sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    kept.append(torch.zeros(1 << 18, device="cuda"))
            (line,) = region.result().grown
            assert (line.line, line.bytes_per_step) == (11, 1 << 20)
        """
    run(test_a=test).assert_outcomes(passed=1)


def test_a_size_that_is_none_is_refused_at_the_line_that_gave_it(run):
    test = """
        import torch
        def test_wrong(gpu_memory):
            with gpu_memory.budget(max="1 MiBB"):
                pass
        """
    result = run(test_a=test)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*ValueError: gpu_memory.budget: a size is*", "test_a.py:3: ValueError"])
    result.stdout.no_fnmatch_line("*contextlib*")
