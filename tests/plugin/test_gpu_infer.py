"""``gpu_infer``: requests and tokens under budgets, and steps that end at a function of a name."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_gpu")


ENGINE = """
    import asyncio, pytest, torch

    class Engine:
        def __init__(self):
            self.head = torch.nn.Linear(4, 4).cuda()
        def step(self, x):
            return self.head(x).softmax(-1)
        def generate(self, x, tokens=4):
            for _ in range(tokens):
                x = self.step(x)
                yield x.argmax().item()
        async def answer(self, x):
            await asyncio.sleep(0)
            return self.step(x).cpu()
        async def stream(self, x):
            for _ in range(4):
                await asyncio.sleep(0)
                x = self.step(x)
                yield x.cpu()

    @pytest.fixture
    def engine(): return Engine()
    @pytest.fixture
    def requests(): return [torch.ones(1, 4, device="cuda")]
    """
KEPT = """
    def test_request(gpu_infer, engine, requests):
        run = gpu_infer(engine.generate, requests, steps=6)
        assert run.syncs_per_step == [4, 4, 4]
        run.assert_syncs(exact=4)
    def test_token(gpu_infer, engine, requests):
        run = gpu_infer(engine.generate, requests, steps=6, per="token")
        assert run.syncs_per_step == [1] * 21
    def test_coroutine(gpu_infer, engine, requests):
        gpu_infer(engine.answer, requests, steps=6).assert_syncs(exact=1)
    def test_asynchronous_generator(gpu_infer, engine, requests):
        gpu_infer(engine.stream, requests, steps=6).assert_syncs(exact=4)
        gpu_infer(engine.stream, requests, steps=2, per="token").assert_syncs(exact=1)
    def test_function_of_a_name(gpu_infer, engine, requests):
        run = gpu_infer(engine.generate, requests, steps=2, step_at="Engine.step")
        assert run.steps == 8
        run.assert_syncs(max=1)
    def test_module(gpu_infer):
        seen = []
        class Model(torch.nn.Module):
            def forward(self, x, scale):
                seen.append((self.training, torch.is_inference_mode_enabled()))
                return self.inner(x) * scale
        model = Model()
        model.inner = torch.nn.Dropout()
        model.inner.eval()
        run = gpu_infer(model, [{"x": torch.ones(2, device="cuda"), "scale": 2}], steps=12)
        run.assert_syncs(max=0)
        run.assert_memory_growth(max="1 KiB")
        assert set(seen) == {(False, True)} and model.training and not model.inner.training
    def test_latency_needs_a_gpu(gpu_infer, engine, requests):
        gpu_infer(engine.step, requests, steps=12).assert_latency(max=5)
    @pytest.mark.gpu_sync_budget(max=1, step_at="Engine.step")
    def test_marker(engine, requests):
        list(engine.generate(requests[0]))
    def test_region(gpu_sync, engine, requests):
        with gpu_sync.budget(max=1, step_at="Engine.generate"):
            list(engine.generate(requests[0]))
    """
BROKEN = {
    "gpu_infer(engine.generate, requests, steps=6).assert_syncs(max=3)": "Request made 4 syncs, budget 3 (worst of 3 "
    "requests after warm-up)",
    'gpu_infer(engine.generate, requests, steps=6, per="token").assert_syncs(max=0)': "Token made 1 sync, budget 0 "
    "(worst of 21 tokens after warm-up)",
    'gpu_infer(engine.generate, requests, steps=6, step_at="Engine.step").assert_syncs(max=0)': "Step made 1 sync, "
    "budget 0 (worst of 21 steps after warm-up)",
    'gpu_infer(engine.step, requests, steps=6, step_at="Engine.run")': "Not measured: no step ended: Engine.run() was "
    "not called",
    "gpu_infer(engine.step, iter(requests * 2), steps=6)": "Not measured: 2 of 6 requests were answered: the requests "
    "ran out*",
    'gpu_infer(engine.step, requests, steps=6, per="token")': '*ValueError: gpu_infer: per="token" needs a model that '
    "yields its tokens, and it returned Tensor; *",
    "gpu_infer(engine.step, requests, steps=3)": "*ValueError: gpu_infer: steps=3 are all warm-up (warmup=3)*",
    "gpu_infer(engine.step, steps=None)": "*ValueError: gpu_infer needs steps=..., because there are no requests",
}


def test_what_keeps_its_budget_passes(run):
    result = run(test_a=ENGINE + KEPT)
    result.assert_outcomes(passed=8, skipped=1)


def test_what_breaks_its_budget_fails_with_the_unit_in_the_message(run):
    tests = [f"    def test_{n}(gpu_infer, engine, requests): {call}\n" for n, call in enumerate(BROKEN)]
    result = run(test_a=f"{ENGINE}\n{''.join(tests)}")
    result.assert_outcomes(failed=len(BROKEN))
    result.stdout.fnmatch_lines(list(BROKEN.values()))


def test_an_option_names_the_function_for_every_measured_test(run):
    tests = """
    def test_called(engine, requests): list(engine.generate(requests[0]))
    def test_not_called(engine, requests): engine.head(requests[0])
    def test_without_device(): pass
    """
    result = run("--gpu-sync-budget=0", "--gpu-step-at=Engine.step", test_a=ENGINE + tests)
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.fnmatch_lines(
        [
            "Step made 1 sync, budget 0 (worst of 3 steps after warm-up)",
            "Not measured: no step ended: Engine.step() was not called",
        ]
    )
    refused = run("--gpu-sync-budget=0", "--gpu-step-at=a b", test_a=tests)
    refused.stderr.fnmatch_lines(["*--gpu-step-at: step_at takes the name of a function*not 'a b'"])
