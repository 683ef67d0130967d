"""Sizes of memory as text: "1 MiB" and "512 KiB" (powers of 1024), "10MB" (powers of 1000), or bytes."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_UNITS: Final = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KIB": 1024,
    "MIB": 1024**2,
    "GIB": 1024**3,
    "TIB": 1024**4,
}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_size(size: int | str) -> int:
    """Return the number of bytes of a size.

    Args:
        size: a number of bytes, or text: a number and a unit, in any case, with or without a space between them.
            Without a unit it is bytes. KiB, MiB, GiB and TiB are powers of 1024; kB, MB, GB and TB are powers of 1000.

    Raises:
        ValueError: `size` is not a size; one line that says what is.
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    factor = _UNITS.get(match[2].upper() or "B") if match else None
    if match is None or factor is None:
        raise ValueError(f'a size is a number of bytes, or text such as "512 KiB", "1 MiB" or "10 MB", not {size!r}')
    # Going through a float would lose bytes of large sizes.
    return int(Fraction(match[1]) * factor)


def unit_of(nbytes: float) -> str:
    """Return the largest binary unit that is not larger than `nbytes`."""
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if abs(nbytes) >= factor:
            return unit
    return "B"


def format_number(nbytes: float, unit: str) -> str:
    """Return `nbytes` in `unit`, without the unit: bytes as an integer, other units with one decimal."""
    value = nbytes / _UNITS[unit.upper()]
    # Adding 0.0 turns -0.0 into 0.0.
    return f"{round(value, 0 if unit == 'B' else 1) + 0.0:.{0 if unit == 'B' else 1}f}"


def format_size(nbytes: float) -> str:
    """Return `nbytes` as text: "512 B", "1 MiB", "2.5 GiB"."""
    unit = unit_of(nbytes)
    return f"{format_number(nbytes, unit).removesuffix('.0')} {unit}"
