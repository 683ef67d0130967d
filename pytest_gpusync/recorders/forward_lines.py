"""The line of forward that made an operator whose gradient waits, without anomaly mode.

Autograd numbers the operators that it makes on a thread. With every call of the main thread the gate notes how many
there were. An operator that waits in forward too, as indexing by a mask does, is the last one made at that moment: its
number and that count tell its line. Where the wait is another's, of a value read before the next operator was made, the
operator was made just before.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pytest_gpusync.model.measurement import Charge

_COUNTER: Final = "_ZN2at15sequence_number4peekEv"
"""``uint64_t at::sequence_number::peek()``: operators made on the calling thread, or, the next one's number."""

_MOST_LINES: Final = 1 << 12
_ENGINE: Final = "_engine_run_backward"


class ForwardLines:
    """Lines at which the main thread waited, by how many operators had been made."""

    def __init__(self) -> None:
        self._charges: dict[int, Charge] = {}

    def note(self, made: int, charge: Charge) -> None:
        """The main thread made a call at this line, after so many operators; calls come in their order."""
        if made == 0 or made in self._charges or _ENGINE in (charge.site.via or ""):
            return
        if len(self._charges) >= _MOST_LINES:
            self._charges.clear()
        self._charges[made] = charge

    def line_of(self, operator: int) -> str | None:
        """Return where the operator of this number was made, or just before where; None if no call told."""
        charge = self._charges.get(operator + 1)
        if charge is None:
            return None
        site = charge.site
        return f"{site.path}:{site.line} {site.function}"


def counter() -> int:
    """Return the address of the function that tells how many operators were made; 0 without torch, or where it is not.

    It takes no argument, no lock and no GIL.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return 0
    try:
        library = ctypes.CDLL(os.path.join(torch.__path__[0], "lib", "libtorch_cpu.so"))
        return ctypes.cast(getattr(library, _COUNTER), ctypes.c_void_p).value or 0
    except (AttributeError, OSError, IndexError):
        return 0
