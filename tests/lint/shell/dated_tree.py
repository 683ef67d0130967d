"""A project to be edited at random: what is kept of it goes by the times of its files."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class DatedTree:
    """A folder in which each file that is written has a time of change of its own, well in the past."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.clock = time.time() - 100_000

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        self.clock += 1
        os.utime(path, (self.clock, self.clock))
