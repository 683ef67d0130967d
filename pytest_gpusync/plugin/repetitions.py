"""Tests that other plugins run many times within one call: an example of Hypothesis is a step, and so is a round of
pytest-benchmark.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

EXAMPLE = "Hypothesis example"
ROUND = "benchmark round"


@contextmanager
def repetitions_are_steps(item: pytest.Item, end_step: Callable[[str], None]) -> Iterator[None]:
    """End a step after each example or round of the test's call.

    Args:
        item: the test, after its setup.
        end_step: called with what a step is.
    """
    # Both are used through what they give to other plugins: neither is imported.
    hypothesis = getattr(getattr(item, "obj", None), "hypothesis", None)
    inner = getattr(hypothesis, "inner_test", None)
    benchmark: Any = getattr(item, "funcargs", {}).get("benchmark")
    make_runner = getattr(benchmark, "_make_runner", None)
    if hypothesis is not None and inner is not None:
        hypothesis.inner_test = _example(inner, end_step)
    if make_runner is not None:
        benchmark._make_runner = _runner_maker(make_runner, end_step)
    try:
        yield
    finally:
        if hypothesis is not None and inner is not None:
            hypothesis.inner_test = inner
        if make_runner is not None:
            benchmark._make_runner = make_runner


def _example(inner: Callable[..., Any], end_step: Callable[[str], None]) -> Callable[..., Any]:
    """Return a test function that ends a step after each of its calls."""
    if inspect.iscoroutinefunction(inner):

        @functools.wraps(inner)
        async def awaited(*arguments: Any, **named: Any) -> Any:
            __tracebackhide__ = True
            try:
                return await inner(*arguments, **named)
            finally:
                end_step(EXAMPLE)

        return awaited

    @functools.wraps(inner)
    def called(*arguments: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        try:
            return inner(*arguments, **named)
        finally:
            end_step(EXAMPLE)

    return called


def _runner_maker(make_runner: Callable[..., Any], end_step: Callable[[str], None]) -> Callable[..., Any]:
    """Return a maker of functions that run one round, which end a step outside of the time that is taken."""

    def make(*arguments: Any, **named: Any) -> Callable[..., Any]:
        run_round = make_runner(*arguments, **named)

        def run(*given: Any, **options: Any) -> Any:
            result = run_round(*given, **options)
            end_step(ROUND)
            return result

        return run

    return make
