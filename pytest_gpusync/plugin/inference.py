"""Real requests inside a test: what the fixture ``gpu_infer`` runs, and the results."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpusync.measure.step_at import chosen
from pytest_gpusync.model.budgets import LatencyBudget, NotMeasured, judge_latency
from pytest_gpusync.model.measurement import PER_REQUEST, PER_TOKEN
from pytest_gpusync.plugin.arguments import checked_budget
from pytest_gpusync.plugin.training import StepRunner, TrainingRun, number_of_steps, step_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpusync.model.estimates import Estimate
    from pytest_gpusync.plugin.training import StepLoop


class InferenceRun(TrainingRun):
    """Requests that were answered, and what was measured of them. A step is a request, or a token."""

    @property
    def latency_ms(self) -> Estimate | None:
        """Median time of a step after warm-up, in milliseconds, from its start to the end of its work on the device,
        with an interval; None without a real GPU.
        """
        from pytest_gpusync.model.step_times import latency_ms

        return latency_ms(self.measurement)

    def assert_latency(self, max: float) -> None:
        """Fail the test if a step certainly takes more than `max` milliseconds, by the median.

        If that is undecided the test goes on, as in :meth:`assert_memory_growth`. On the simulated device the test is
        skipped here: time is not simulated.

        Raises:
            BudgetExceeded: with the sentence.
            NotMeasured: too few steps ran, or they could not be timed.
            ValueError: `max` is not a number of milliseconds above 0.
        """
        __tracebackhide__ = True
        budget = checked_budget(LatencyBudget, max, "assert_latency")
        self._require_all_steps()
        if self.measurement.environment.device != "cuda":
            self._run.skip_untimed()
        self._run.apply_verdict(self._record, judge_latency(self.measurement, budget))


class GpuInfer(StepRunner):
    """The value of the fixture ``gpu_infer``: call it to answer real requests."""

    def __call__(
        self,
        model: Callable[..., Any],
        requests: Iterable[Any] | None = None,
        steps: int | None = None,
        warmup: int = 3,
        in_flight: int | None = None,
        *,
        per: Literal["request", "token"] = "request",
        step_at: str | None = None,
        process: bool = False,
    ) -> InferenceRun:
        """Answer `steps` requests and measure each; the first `warmup` steps are left out of budgets.

        Args:
            model: called as ``model(request)``, or as ``model()`` without requests; a module of torch as
                ``model(**request)`` if the request is a dict. A module runs in ``eval()`` mode and under
                ``torch.inference_mode()``; everything else runs as it is. A coroutine is awaited, and what a generator
                yields is read to its end, as a server does that streams the response.
            requests: a list, a generator, a DataLoader. It is iterated again, if possible, until `steps` requests are
                answered. If a generator ends earlier, so does the run: ``note`` of the result says so, and its
                assertions fail.
            steps: requests to answer, including warm-up; by default each of `requests` once.
            warmup: steps that are run first and left out of budgets.
            in_flight: most steps that the host may run ahead, as for ``gpu_train``.
            per: "token": a step is a value that the generator `model` yields, and budgets are per token.
            step_at: the name of a function whose returns end the steps instead, such as "Engine.step"; see
                ``gpu_sync.step_at``. Such steps are not timed.
            process: query the driver after each step for the memory of the process.

        Raises:
            ValueError: the arguments leave no step to measure, or `model` is no generator and `per` is "token".
            NotMeasured: nothing can be measured here, the requests ran out before the end of warm-up, or the function
                `step_at` was not called.
        """
        __tracebackhide__ = True
        if per not in ("request", "token"):
            raise ValueError(f'gpu_infer: per must be "request" or "token", not {per!r}')
        if per == "token" and step_at is not None:
            raise ValueError("gpu_infer: give per or step_at, not both")
        ends = chosen(None, step_at)
        # Warm-up is counted in steps: of other steps than requests, a single request may make enough.
        by_request = per == "request" and step_at is None
        count = number_of_steps("gpu_infer", "requests", requests, steps, warmup if by_request else 0)
        arguments = step_arguments(requests, count, 0)
        kind = PER_TOKEN if per == "token" else PER_REQUEST
        answered = 0
        with (
            _serving(model) as call,
            self._loop(kind, count if by_request else None, warmup, in_flight, process=process, step_on=ends) as loop,
        ):
            for request in arguments:
                if per == "token":
                    _yield_tokens(call(*request), loop)
                elif step_at is not None:
                    _read(call(*request))
                else:
                    loop.begin()
                    _read(call(*request))
                    loop.end()
                answered += 1
        note = None if answered == count else f"{answered} of {count} requests were answered: the requests ran out"
        assert loop.record is not None
        measurement = loop.record.measurement
        if measurement.problem is not None and (step_at is not None or note is None):
            raise NotMeasured(f"Not measured: {measurement.problem}")
        if note is not None and measurement.steps <= warmup:
            raise NotMeasured(f"Not measured: {note}, and the first {warmup} steps are warm-up")
        return InferenceRun(self._run, loop.record, note)


def _yield_tokens(stream: Any, loop: StepLoop) -> None:
    """Read a stream to its end; each of its values ends a step."""
    __tracebackhide__ = True
    if not isinstance(stream, Iterator):
        raise ValueError(
            f'gpu_infer: per="token" needs a model that yields its tokens, and it returned {type(stream).__name__}; '
            'name the function that makes one instead: step_at="Engine.step"'
        )
    loop.begin()
    for _ in stream:
        loop.end()
        loop.begin()


def _read(response: object) -> None:
    """Read a response to its end, if it is streamed."""
    __tracebackhide__ = True
    if inspect.isgenerator(response):
        for _ in response:
            pass


@contextmanager
def _serving(model: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield what answers a request, with a module in the mode for inference; its own mode is restored."""
    module_type: Any = getattr(sys.modules.get("torch.nn"), "Module", ())
    if not isinstance(model, module_type):
        with _event_loop() as run:

            def answer(*request: Any) -> Any:
                __tracebackhide__ = True
                return run(model(*request))

            yield answer
        return
    import torch

    modes = [(module, module.training) for module in model.modules()]
    model.eval()

    def infer(*request: Any) -> Any:
        __tracebackhide__ = True
        with torch.inference_mode():
            if len(request) == 1 and isinstance(request[0], Mapping):
                return model(**request[0])
            return model(*request)

    try:
        yield infer
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _event_loop() -> Iterator[Callable[[Any], Any]]:
    """Yield a function that runs a coroutine to its end in one event loop, and turns an asynchronous generator into a
    generator; anything else it returns as it is. The loop is made for the first coroutine.
    """
    loop: asyncio.AbstractEventLoop | None = None

    def running() -> asyncio.AbstractEventLoop:
        nonlocal loop
        if loop is None:
            loop = asyncio.new_event_loop()
        return loop

    def read(stream: AsyncIterator[Any]) -> Iterator[Any]:
        while True:
            try:
                yield running().run_until_complete(anext(stream))
            except StopAsyncIteration:
                return

    def run(response: Any) -> Any:
        __tracebackhide__ = True
        if inspect.isasyncgen(response):
            return read(response)
        return running().run_until_complete(response) if inspect.isawaitable(response) else response

    try:
        yield run
    finally:
        if loop is not None:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
