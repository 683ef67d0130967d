"""What a hot line runs once per: a step of training, a request, a timestep of denoising, or a token."""

from __future__ import annotations

from enum import Enum


class Unit(str, Enum):
    """What repeats a line of heat `step`, from the weakest evidence to the strongest."""

    REQUEST = "request"
    """A call by a server, or an iteration of a loop that takes requests from a queue."""
    TIMESTEP = "timestep"
    """An iteration of a denoising loop."""
    TOKEN = "token"
    """An iteration of a loop that generates tokens."""
    STEP = "step"
    """A step of training or evaluation, or anything else that repeats."""

    @property
    def rank(self) -> int:
        """0 for the weakest."""
        return _RANKS[self._value_]


_RANKS = {unit._value_: rank for rank, unit in enumerate(Unit)}


def common(one: Unit | None, other: Unit | None) -> Unit | None:
    """The unit of what is run for two reasons: the one with the stronger evidence."""
    if one is None or other is None:
        return one or other
    return one if one.rank >= other.rank else other
