"""What the simulated device does not permit while a CUDA graph is captured, and what a replay does not renew."""

from __future__ import annotations

import random

import pytest
import torch

from pytest_gpusync import NotCapturable, assert_capturable, check_capture, record, record_captures
from pytest_gpusync.measure import captures
from pytest_gpusync.model.measurement import MeasurementError
from pytest_gpusync.simulated import simulated_cuda
from pytest_gpusync.simulated.base import capture_rules as rules

FORBIDDEN = {
    "reading a number": (lambda x: x.sum().item(), "wait", rules.NOT_PERMITTED),
    "a branch": (lambda x: x if x.sum() > 0 else x + 1, "wait", rules.NOT_PERMITTED),
    "nonzero": (lambda x: x.nonzero(), "wait", rules.NOT_PERMITTED),
    "a mask": (lambda x: x[x > 0], "wait", rules.NOT_PERMITTED),
    "unique": (torch.unique, "wait", rules.NOT_PERMITTED),
    "a copy to the host": (lambda x: x.cpu(), "copy", rules.UNPINNED),
    "a tensor of Python numbers": (lambda x: x + torch.tensor([2.0], device="cuda"), "copy", rules.UNPINNED),
    "a small copy that would not wait": (
        lambda x: x + torch.ones(1).to("cuda", non_blocking=True), "copy", rules.UNPINNED,
    ),
    "synchronize": (lambda x: torch.cuda.synchronize(), "wait", rules.NOT_PERMITTED),
    "a query of a stream": (lambda x: torch.cuda.current_stream().query(), "call", rules.NOT_PERMITTED),
    "a query of an event of the capture": (lambda x: _recorded().query(), "call", rules.CAPTURED_EVENT),
    "a wait for an event of the capture": (lambda x: _recorded().synchronize(), "call", rules.CAPTURED_EVENT),
    "work on a stream outside": (lambda x: _on(torch.cuda.Stream(), x), "stream", rules.NOT_PERMITTED),
    "work on the default stream": (lambda x: _on(torch.cuda.default_stream(), x), "stream", rules.NOT_PERMITTED),
    "work in place on a stream outside": (lambda x: _in_place_on(torch.cuda.Stream(), x), "stream", rules.NOT_CAPTURED),
    "work that is not joined": (lambda x: _on(_forked(), x), "stream", rules.UNJOINED),
    "a wait for work outside": (
        lambda x: torch.cuda.current_stream().wait_stream(torch.cuda.Stream()), "stream", rules.ISOLATION,
    ),
    "the default stream that waits": (
        lambda x: torch.cuda.default_stream().wait_stream(torch.cuda.current_stream()), "stream", rules.IMPLICIT,
    ),
    "a generator": (
        lambda x: torch.rand(4, device="cuda", generator=GENERATORS[0]), "generator", rules.UNREGISTERED,
    ),
    "a new seed": (lambda x: torch.cuda.manual_seed(random.getrandbits(30)), "generator", rules.NEW_SEED),
}  # fmt: skip
PERMITTED = {
    "kernels": lambda x: torch.relu(x @ x.T).softmax(-1),
    "a stream that is joined": lambda x: _joined(x),
    "two streams that are joined one through the other": lambda x: _joined_through(x),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "a copy from a pinned buffer": lambda x: x + PINNED[0].to("cuda", non_blocking=True),
    "the same seed": lambda x: torch.cuda.manual_seed(torch.cuda.initial_seed()),
    "repeat_interleave of a known size": lambda x: x.repeat_interleave(COUNTS[0], 0, output_size=8),
    "where": lambda x: torch.where(x > 0, x, -x),
}
GENERATORS: list = []
PINNED: list = []
COUNTS: list = []


def _recorded():
    event = torch.cuda.Event()
    event.record()
    return event


def _in_place_on(stream, x):
    with torch.cuda.stream(stream):
        return x.add_(1)


def _on(stream, x):
    with torch.cuda.stream(stream):
        return x + 1


def _forked():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    return side


def _joined(x):
    side = _forked()
    y = _on(side, x)
    torch.cuda.current_stream().wait_stream(side)
    return y + x


def _joined_through(x):
    first, second = _forked(), torch.cuda.Stream()
    y = _on(first, x)
    second.wait_stream(first)
    z = _on(second, y)
    torch.cuda.current_stream().wait_stream(second)
    return z


@pytest.fixture
def x(cuda):
    GENERATORS[:] = [torch.Generator("cuda")]
    PINNED[:] = [torch.ones(4).pin_memory()]
    COUNTS[:] = [torch.full((4,), 2, device="cuda")]
    return torch.linspace(-1, 2, 16, device="cuda").reshape(4, 4)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_a_capture_does_not_permit_is_found_with_its_error(x, name):
    step, rule, error = FORBIDDEN[name]
    report = check_capture(step, x, warmup=1)
    assert [(one.rule, one.error) for one in report.offenders] == [(rule, error)]
    assert report.offenders[0].site.path.endswith("test_captures.py")


@pytest.mark.parametrize("name", FORBIDDEN)
def test_without_anybody_who_collects_it_raises_as_on_a_gpu(x, name):
    step, _, error = FORBIDDEN[name]
    if error == rules.NOT_CAPTURED:
        pytest.skip("CUDA does not raise")
    with pytest.raises(RuntimeError) as caught, torch.cuda.graph(torch.cuda.CUDAGraph()):
        step(x)
    assert error in (str(caught.value), str(caught.value.__context__))


@pytest.mark.parametrize("name", PERMITTED)
def test_what_a_capture_permits_is_replayed_like_eager_code(x, name):
    report = assert_capturable(PERMITTED[name], x, warmup=1)
    assert report.is_capturable
    assert report.replays == 2


def test_every_offender_is_found_with_its_line(x):
    def step(x):
        if x.sum() > 0:
            x = x * 2
        torch.cuda.synchronize()
        return x[x > 0].tolist()

    with pytest.raises(NotCapturable) as caught:
        assert_capturable(step, x)
    first = step.__code__.co_firstlineno
    offenders = caught.value.report.offenders
    assert [(one.rule, one.site.line - first) for one in offenders] == [
        ("wait", 1),
        ("wait", 3),
        ("wait", 4),
        ("copy", 4),
    ]
    assert str(caught.value).startswith("step() cannot be captured as a CUDA graph")


def test_an_offender_in_a_loop_is_counted(x):
    def step(x):
        return [row.sum().item() for row in x]

    (offender,) = check_capture(step, x).offenders
    assert offender.times == 4


class Counter:
    steps = 0

    @classmethod
    def next(cls):
        cls.steps += 1
        return cls.steps


def test_a_python_number_that_changes_is_found_at_the_line_that_uses_it(x):
    def step(x):
        Counter.steps += 1
        y = x + 1
        return y * Counter.steps

    report = check_capture(step, x)
    (baked,) = report.baked
    assert baked.site.line == step.__code__.co_firstlineno + 3
    assert baked.operator == "aten::mul.Tensor"
    assert "a replay repeats 4" in baked.difference
    assert [one.what for one in report.differences] == ["Output 0"]
    with pytest.raises(NotCapturable, match="1 baked value, 1 different result"):
        assert_capturable(step, x)


def test_random_numbers_of_python_are_baked(x):
    (baked,) = check_capture(lambda x: x * random.random(), x).baked
    assert "in the next call" in baked.difference


def test_values_that_the_host_puts_into_a_pinned_buffer_are_baked(x):
    def step(x):
        host = torch.tensor([random.random(), 1, 2, 3], pin_memory=True)
        return x + host.to("cuda", non_blocking=True)

    (baked,) = check_capture(step, x).baked
    assert "copies values of the host" in baked.difference


def test_a_branch_of_python_is_found_where_the_kernels_differ(x):
    def step(x):
        Counter.steps += 1
        if Counter.steps % 2:
            x = x + 1
        return x * 2

    (baked,) = check_capture(step, x).baked
    assert baked.difference == "is launched in one call and not in the next"


def test_what_is_changed_in_place_is_put_back_between_replay_and_eager_code(x):
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    assert assert_capturable(step, x).replays == 2


def test_weights_that_a_replay_updates_otherwise_are_found_at_the_kernel_that_writes_them(x):
    weights = torch.ones(4, device="cuda")

    def step(x):
        Counter.steps += 1
        weights.add_(x.sum(0), alpha=float(Counter.steps))

    report = check_capture(step, x)
    (difference,) = report.differences
    assert difference.what.endswith("what aten::add_.Tensor writes")
    assert f":{step.__code__.co_firstlineno + 2} " in difference.what


def test_a_number_that_the_function_returns_is_that_of_the_capture(x):
    def step(x):
        Counter.steps += 1
        return x + 1, Counter.steps

    (difference,) = check_capture(step, x).differences
    assert difference.difference.startswith("is ")


def test_inputs_may_be_given_for_each_replay(x):
    seen = []

    def step(x):
        seen.append(x.clone())
        return x + 1

    check_capture(step, x, replays=1, replay_inputs=[[x * 0 + 7]], warmup=0)
    assert seen[-1].tolist() == [[7] * 4] * 4


def test_the_inputs_are_as_before_afterwards(x):
    before = x.clone()
    check_capture(lambda x: x + 1, x)
    assert torch.equal(x, before)


def test_captures_of_others_are_collected_in_a_block(x):
    model = torch.nn.Linear(4, 4).cuda()

    class Net(torch.nn.Module):
        def forward(self, x):
            y = model(x)
            return y if y.sum() > 0 else y + 1

    with record_captures() as seen:
        torch.cuda.make_graphed_callables(Net(), (x.clone().requires_grad_(),))
    assert seen.graphs == 2
    assert [one.rule for one in seen.offenders] == ["wait"]
    with pytest.raises(NotCapturable):
        seen.assert_none()


def test_a_block_without_captures_shows_nothing(x):
    with record_captures() as seen:
        x.sum().item()
    assert seen.offenders == ()
    with pytest.raises(AssertionError, match="no CUDA graph was captured"):
        seen.assert_none()


def test_outside_of_the_block_a_capture_raises_again(x):
    with record_captures():
        pass
    with pytest.raises(RuntimeError, match="not permitted"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.sum().item()


def test_the_check_counts_no_syncs(x):
    with record() as seen:
        (x + 1).sum().item()
        check_capture(lambda x: x.sum().item(), x)
    assert seen.syncs == 1


def test_an_exception_of_the_function_is_its_own(x):
    def step(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        check_capture(step, x)
    assert not torch.cuda.is_current_stream_capturing()


def test_a_capture_begins_on_another_stream_than_the_default_one(cuda):
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()


def test_a_registered_generator_may_be_used(x):
    drawn, graph = torch.Generator("cuda"), torch.cuda.CUDAGraph()
    graph.register_generator_state(drawn)
    with torch.cuda.graph(graph):
        y = torch.rand(4, device="cuda", generator=drawn)
    graph.replay()
    first = y.tolist()
    graph.replay()
    assert y.tolist() != first


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"warmup": -1}, "must not be negative"),
        ({"replays": 3, "replay_inputs": [[1]]}, "3 replays need as many `replay_inputs`, not 1"),
        ({"replays": 1, "replay_inputs": [[]]}, r"`replay_inputs\[0\]` has 0 tensors, the arguments 1"),
    ],
)
def test_wrong_arguments_are_refused(x, arguments, problem):
    with pytest.raises(ValueError, match=problem):
        check_capture(lambda x: x + 1, x, **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_device_nothing_is_checked():
    with pytest.raises(MeasurementError, match="simulated_cuda"):
        check_capture(lambda: None)


def test_without_values_replays_are_not_compared():
    with simulated_cuda(values=False):
        report = check_capture(lambda x: x + 1, torch.ones(4, device="cuda"))
    assert (report.offenders, report.replays) == ((), None)
    assert "without values" in str(report)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (lambda x: x + 1, "can be captured as a CUDA graph (on a GPU), 2 replays equal to eager code"),
        (lambda x: x.sum().item(), "the first offender"),
        (lambda x: x * Counter.next(), "1 different result"),
        (lambda x: x.add_(1), "the function changes what it computes with"),
    ],
)
def test_a_gpu_stops_at_the_first_offender_and_compares_replays(x, monkeypatch, step, says):
    """The way of a GPU, on the simulated device, which raises like one if nobody collects."""
    monkeypatch.setattr(captures, "is_on", lambda: False)
    assert says in str(check_capture(step, x))
