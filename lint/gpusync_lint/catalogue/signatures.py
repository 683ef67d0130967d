"""The arguments of torch's operators that are Python numbers, from `torch_signatures.json`."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import NamedTuple

IGNORED = frozenset({"dtype", "layout", "device", "pin_memory", "requires_grad", "memory_format", "generator", "out"})
"""Keywords that most signatures have, and that are neither tensors to be read nor numbers."""


class Argument(NamedTuple):
    """An argument of an operator."""

    name: str
    type: str
    """`t`: a tensor, `s`: several tensors, `n`: a number, `l`: several numbers, `d`: one number or several.

    `o` is anything else that no tensor can be passed for; of `x` nothing is known.
    """


class Signature(NamedTuple):
    """One way to call an operator."""

    positional: tuple[Argument, ...]
    """All arguments that can be given by position; of a method without `self`."""
    keywords: tuple[Argument, ...]
    """Arguments that can be given by keyword only, without those of `IGNORED`."""

    @property
    def takes_sizes(self) -> bool:
        """Whether its numbers can be given one by one: `x.view(2, -1)` for `x.view((2, -1))`."""
        return len(self.positional) == 1 and self.positional[0].type in ("l", "d")


@cache
def names() -> frozenset[str]:
    """The dotted names of the functions and methods that take numbers: `torch.arange`, `torch.Tensor.narrow`."""
    return frozenset(_table())


@cache
def signatures(dotted: str) -> tuple[Signature, ...]:
    """The signatures of a function or method; empty if it takes no numbers."""
    return tuple(_parse(written) for written in _table().get(dotted, ()))


@cache
def _table() -> dict[str, list[str]]:
    written = resources.files("gpusync_lint.catalogue").joinpath("torch_signatures.json").read_text("utf-8")
    table: dict[str, list[str]] = json.loads(written)["signatures"]
    return table


def _parse(written: str) -> Signature:
    positional, _, keywords = written.partition("|")
    return Signature(_arguments(positional), _arguments(keywords))


def _arguments(written: str) -> tuple[Argument, ...]:
    return tuple(Argument(*part.split(":")) for part in written.split())
