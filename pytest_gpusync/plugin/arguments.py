"""Budgets and numbers as a test gives them: the traceback of one that cannot be meant ends at the line that gave it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpusync.model.budgets import Budget, DispatchBudget, FlightBudget, GrowthBudget

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.model.memory_growth import Of

Made = TypeVar("Made", DispatchBudget, FlightBudget)


def check_numbers(source: str, **numbers: tuple[int | None, int]) -> None:
    """Refuse what is no whole number from its least on."""
    __tracebackhide__ = True
    for name, (value, least) in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{source}: {name} is a whole number from {least} on, not {value!r}")


def growth_budget(max: int | str, of: Of, source: str) -> GrowthBudget:
    """Return a budget of memory growth; the traceback of a wrong one ends at the line that asked for it."""
    __tracebackhide__ = True
    try:
        return GrowthBudget.parse(max, of, source)
    except ValueError as error:
        complaint = str(error)
    raise ValueError(f"{source}: {complaint}")


def made(kind: Callable[[Any, str], Made], max: float, source: str) -> Made:
    """Return a budget of this kind; the traceback of a wrong one ends at the line that asked for it."""
    __tracebackhide__ = True
    try:
        return kind(max, source)
    except ValueError as error:
        complaint = str(error)
    raise ValueError(f"{source}: {complaint}")


def sync_budget(max: int | None, exact: int | None, source: str) -> Budget:
    """Return a budget; the traceback of a wrong one ends at the line that asked for it."""
    __tracebackhide__ = True
    try:
        return Budget(max=max, exact=exact, source=source)
    except ValueError as error:
        complaint = str(error)
    raise ValueError(f"{source}: {complaint}")
