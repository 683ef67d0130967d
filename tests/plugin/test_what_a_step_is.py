"""What a step is: several trainings in one test, several optimizers in a step, steps that a test names, warm-up."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_gpu")


TRAINING = """
    import pytest, torch

    def make(kind=torch.optim.SGD):
        model = torch.nn.Linear(2, 2).cuda()
        return model, kind(model.parameters(), lr=0.1)

    def step(model, optimizer, reads=0):
        x = torch.ones(3, 2, device="cuda")
        for _ in range(reads):
            x.sum().item()
        model(x).sum().backward()
        optimizer.step()

    def train(steps=4, reads=0):
        parts = make()
        for _ in range(steps):
            step(*parts, reads)

    def gan(iterations=3, critic_steps=5, reads=1):
        generator, critic = make(torch.optim.Adam), make()
        for _ in range(iterations):
            for _ in range(critic_steps):
                step(*critic, reads)
            step(*generator)
    """


def test_the_set_up_of_a_second_model_is_no_step_of_the_first(run):
    result = run(
        test_a=TRAINING
        + """
    @pytest.mark.gpu_sync_budget(max=0)
    def test_it():
        train()
        train()
    """
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["not counted:", "  syncs: 2 in warm-up steps, 2 outside of steps*"])


@pytest.mark.parametrize(("second", "sentence"), [(1, "worst of 6 steps"), (0, None)])
def test_the_steps_of_a_second_training_count(run, second, sentence):
    marked = f"@pytest.mark.gpu_sync_budget(max=0)\n    def test_it():\n        train()\n        train(reads={second})"
    result = run(test_a=f"{TRAINING}\n    {marked}")
    result.assert_outcomes(**({"failed": 1} if sentence else {"passed": 1}))
    if sentence:
        result.stdout.fnmatch_lines([f"Training step made 1 sync, budget 0 ({sentence} after warm-up*)"])


def test_with_a_new_optimizer_in_each_step_the_whole_test_is_one_step(run):
    result = run(
        test_a=TRAINING
        + """
    @pytest.mark.gpu_sync_budget(max=0)
    def test_it():
        model, _ = make()
        for _ in range(4):
            step(model, torch.optim.SGD(model.parameters(), lr=0.1), reads=1)
    """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Test made 6 syncs, budget 0"])


STEPS = {
    "class in the marker": "@pytest.mark.gpu_sync_budget(max=5, step_on=torch.optim.Adam)\n    def test_it(): gan()",
    "name in the marker": "@pytest.mark.gpu_sync_budget(max=5, step_on='Adam')\n    def test_it(): gan()",
    "class by path": "@pytest.mark.gpu_sync_budget(max=5, step_on='torch.optim.Adam')\n    def test_it(): gan()",
    "fixture": """@pytest.mark.gpu_sync_budget(max=5)
    def test_it(gpu_sync):
        gpu_sync.step_on(torch.optim.Adam)
        gan()""",
    "budget": """def test_it(gpu_sync):
        with gpu_sync.budget(max=5, step_on="Adam"): gan()""",
    "gpu_train.whole": """def test_it(gpu_train):
        gpu_train.whole(gan, warmup=1, step_on="Adam").assert_syncs(max=5)""",
    "instance": """def test_it(gpu_sync):
        generator, critic = make(), make()
        with gpu_sync.budget(max=5, step_on=generator[1]):
            for _ in range(3):
                for _ in range(5):
                    step(*critic, 1)
                step(*generator)""",
}


@pytest.mark.parametrize("limit", [5, 4])
@pytest.mark.parametrize("test", STEPS.values(), ids=STEPS.keys())
def test_five_steps_of_a_critic_and_one_of_the_generator_are_one_step_if_the_test_says_so(run, test, limit):
    result = run(test_a=f"{TRAINING}\n    {test}".replace("max=5", f"max={limit}"))
    result.assert_outcomes(**({"passed": 1} if limit == 5 else {"failed": 1}))
    if limit == 4:
        result.stdout.fnmatch_lines(["Training step made 5 syncs, budget 4 (worst of 2 steps after warm-up)"])


def test_a_function_can_end_the_steps_of_a_loop_without_an_optimizer(run):
    result = run(
        "--gpu-sync-report=run.json",
        infer="""
            import torch
            def infer(x): return x.sum().item()
            class Engine:
                def step(self, x): return infer(x)
            """,
        test_a="""
            import json, pytest, torch
            from infer import Engine, infer

            def loop(function):
                x = torch.ones(3, device="cuda")
                for _ in range(4):
                    function(x)

            @pytest.mark.gpu_sync_budget(max=0, step_on=infer)
            def test_function(): loop(infer)
            @pytest.mark.gpu_sync_budget(max=0, step_on="infer.infer")
            def test_name(): loop(infer)
            @pytest.mark.gpu_sync_budget(max=0, step_on="infer.Engine.step")
            def test_method(): loop(Engine().step)
            def test_bound_method(gpu_sync):
                engine = Engine()
                with gpu_sync.budget(max=0, step_on=engine.step): loop(lambda x: engine.step(x))
                assert "step" not in vars(engine)
            """,
    )
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(["Training step made 1 sync, budget 0 (worst of 3 steps after warm-up)"] * 4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("'Adagrad'", "Not measured: no step ended: step_on is Adagrad.step(), which was not called"),
        ("'train.step'", "*step_on: there is no 'train.step'*"),
        ("3", "*step_on takes an optimizer, a class of optimizers*not 3*"),
        ("lambda: 1", "*step_on cannot follow <lambda>*"),
    ],
)
def test_what_ends_no_step_fails_the_test_with_the_reason(run, given, message):
    marked = f"@pytest.mark.gpu_sync_budget(max=99, step_on={given})\n    def test_it(): train()"
    result = run(test_a=f"{TRAINING}\n    {marked}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])


@pytest.mark.parametrize("option", ["--gpu-sync-warmup=3", "-ogpu_sync_warmup=3"])
def test_warm_up_has_an_option_for_budgets_of_the_command_line(run, option):
    result = run("--gpu-sync-budget=0", option, test_a=f"{TRAINING}\n    def test_it(): train(5, reads=1)")
    result.stdout.fnmatch_lines(["Training step made 1 sync, budget 0 (worst of 2 steps after warm-up)"])


def test_the_warm_up_of_a_marker_beats_that_of_the_command_line(run):
    marked = "@pytest.mark.gpu_sync_budget(max=0, warmup=2)\n    def test_it(): train(5, reads=1)"
    result = run("--gpu-sync-warmup=3", test_a=f"{TRAINING}\n    {marked}")
    result.stdout.fnmatch_lines(["Training step made 1 sync, budget 0 (worst of 3 steps after warm-up)"])


def test_a_warm_up_that_is_no_number_is_refused(run):
    result = run("--gpu-sync-warmup=few", test_a="def test_it(): pass")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: --gpu-sync-warmup takes a number of steps of at least 0, not 'few'"])
