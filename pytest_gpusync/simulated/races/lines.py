"""The lines of the user's program that accesses come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpusync.simulated.base.state import process
from pytest_gpusync.simulated.races.hooks import hooks
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from types import FrameType

    from pytest_gpusync.simulated.races.history import Place


class Line:
    """Where an access comes from."""

    __slots__ = ("frame", "place")

    def __init__(self, frame: FrameType | None, place: Place) -> None:
        self.frame = frame
        self.place = place

    @staticmethod
    def of(frame: FrameType | None) -> Line:
        """Return the user's innermost line below `frame`."""
        if process.tracking:
            hooks.learn_codes(frame)
        found = attribution.user_instruction(frame)
        return Line(None, None) if found is None else Line(found[0], found[1:])
