"""Checks budgets and numbers given by a test. The traceback of an invalid one ends at the line that gave it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpusync.model.budgets import (
    Budget,
    DispatchBudget,
    FlightBudget,
    GrowthBudget,
    LatencyBudget,
    LineGroup,
    Over,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.model.memory_growth import MemoryKind

BudgetType = TypeVar("BudgetType", DispatchBudget, FlightBudget, LatencyBudget)


def check_numbers(source: str, **numbers: tuple[int | None, int]) -> None:
    """Check that each number is an integer of at least its minimum."""
    __tracebackhide__ = True
    for name, (value, least) in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{source}: {name} must be an integer of at least {least}, not {value!r}")


def growth_budget(max: int | str, of: MemoryKind, source: str) -> GrowthBudget:
    """Return a budget of memory growth."""
    __tracebackhide__ = True
    try:
        return GrowthBudget.parse(max, of, source)
    except ValueError as error:
        complaint = str(error)
    raise ValueError(f"{source}: {complaint}")


def checked_budget(kind: Callable[[Any, str], BudgetType], max: float, source: str) -> BudgetType:
    """Return a budget of this kind."""
    __tracebackhide__ = True
    try:
        return kind(max, source)
    except ValueError as error:
        complaint = str(error)
    raise ValueError(f"{source}: {complaint}")


def sync_budget(
    max: int | None,
    exact: int | None,
    source: str,
    percentile: float | None = None,
    over: str | None = None,
    within: str | None = None,
) -> Budget:
    """Return a budget of syncs."""
    __tracebackhide__ = True
    try:
        share = None if over is None else Over.parse(over)
        lines = None if within is None else LineGroup.parse(within)
        return Budget(max=max, exact=exact, source=source, percentile=percentile, over=share, within=lines)
    except ValueError as error:
        complaint = str(error)
    raise ValueError(f"{source}: {complaint}")
