"""Periods of one step by default: `--log-every`, default 1. What is done every so many steps is then done in each."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=16)
def is_one(name: str, text: str) -> bool:
    """Whether all numbers that a file gives to a name are 1: constants, defaults of parameters, fields and options."""
    if name not in text and name.replace("_", "-") not in text:
        return False
    option = re.escape(name).replace("_", "[-_]")
    numbers = [
        *re.findall(rf"(?<!\w){re.escape(name)}[\"']?\s*(?::\s*int\s*=|[=:])(?!=)\s*(\d[\w.]*)", text),
        *re.findall(rf"--{option}[\"'][^\n]*?\bdefault\s*=\s*(\d[\w.]*)", text),
    ]
    return bool(numbers) and all(number == "1" for number in numbers)
