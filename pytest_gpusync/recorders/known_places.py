"""The places from which calls of the main thread are buffered without entering Python, and the lines they are charged
to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from pytest_gpusync.model.measurement import Attribution
    from pytest_gpusync.recorders.gate import CallGate


class KnownPlaces:
    """Attributions of the calls from places that the gate buffers by itself."""

    def __init__(self) -> None:
        self.charges: dict[int, Attribution] = {}
        self._codes: dict[int, CodeType] = {}
        """Code objects of the places' frames, kept so that no other object gets their identity."""
        self._version = attribution.cache_version()

    def learn(self, entry: CallGate, place: int, frame: FrameType, charge: Attribution) -> None:
        """Let the gate buffer further calls from the position of `frame`, which is `place` if the gate could determine
        it.
        """
        codes = attribution.codes_up_to_user_frame(frame)
        # Without user code the gate would not know where to stop reading frames. And one call of the engine runs many
        # operators, each with another attribution.
        if not codes or attribution.runs_backward(frame):
            return
        if not entry.knows(place, id(codes[-1])):
            self.forget(entry)
            entry.knows(place, id(codes[-1]))
        self._codes.update((id(code), code) for code in codes)
        if place:
            self.charges[place] = charge

    def refresh(self, entry: CallGate) -> None:
        """Forget places learned before :mod:`attribution` cleared its caches."""
        if self._version != attribution.cache_version():
            self.forget(entry)

    def forget(self, entry: CallGate) -> None:
        """Forget all places."""
        entry.forget_places()
        self.charges.clear()
        self._codes.clear()
        self._version = attribution.cache_version()
