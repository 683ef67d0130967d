"""Heat and confidence of findings."""

from __future__ import annotations

from enum import Enum


class Heat(str, Enum):
    """How often a line runs."""

    ANY = "any"
    """It does not matter how often: the line is wrong, as a race is."""
    CAPTURE = "capture"
    """While a CUDA graph is captured, where a wait is an error."""
    STEP = "step"
    """Every step of a training, evaluation or generation loop."""
    GUARDED = "guarded"
    """In a step, but in few steps only (``if step % 100 == 0``)."""
    EPOCH = "epoch"
    """Once per epoch, or per iteration of another outer loop."""
    ONCE = "once"
    """In set-up or tear-down, or not known to repeat."""

    @property
    def rank(self) -> int:
        """0 for the hottest."""
        return _HEAT_RANKS[self._value_]


FREQUENCIES = tuple(heat for heat in Heat if heat not in (Heat.ANY, Heat.CAPTURE))
"""The heats of lines that run a known number of times, the hottest first. One of them is the threshold of warnings."""
_HEAT_RANKS = {heat._value_: rank for rank, heat in enumerate(Heat)}
"""By `_value_`, here and below: `value` is a property implemented in Python, and a run reads many ranks."""


class Confidence(str, Enum):
    """How sure the inference is that the line waits."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    @property
    def rank(self) -> int:
        """0 for the highest."""
        return _CONFIDENCE_RANKS[self._value_]


_CONFIDENCE_RANKS = {confidence._value_: rank for rank, confidence in enumerate(Confidence)}
