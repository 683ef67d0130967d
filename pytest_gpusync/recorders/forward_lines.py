"""The forward line that created an operator whose gradient waits, without anomaly mode.

Autograd numbers the operators it creates on a thread. With every call of the main thread, the gate notes how many
operators there were. An operator that also waits in forward, such as indexing by a mask, is the last one created at
that moment: its number and that count give its line. If another operation waited, such as reading a value before the
next operator, the operator was created just before that line.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pytest_gpusync.model.measurement import Attribution

_COUNTER: Final = "_ZN2at15sequence_number4peekEv"
"""``uint64_t at::sequence_number::peek()``: the number of operators created on the calling thread."""

_MAX_LINES: Final = 1 << 12
_ENGINE: Final = "_engine_run_backward"


class ForwardLines:
    """Lines at which the main thread waited, by how many operators had been created."""

    def __init__(self) -> None:
        self._charges: dict[int, Attribution] = {}

    def note(self, made: int, charge: Attribution) -> None:
        """Keep that the main thread made a call at this line after creating `made` operators; calls come in order."""
        if made == 0 or made in self._charges or _ENGINE in (charge.site.via or ""):
            return
        if len(self._charges) >= _MAX_LINES:
            self._charges.clear()
        self._charges[made] = charge

    def line_of(self, operator: int) -> str | None:
        """Return where the operator of this number was created, or just before where; None if no call shows it."""
        charge = self._charges.get(operator + 1)
        if charge is None:
            return None
        site = charge.site
        return f"{site.path}:{site.line} {site.function}"


def operator_counter() -> int:
    """Return the address of the function that counts operators; 0 without torch, or if torch does not export it.

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
