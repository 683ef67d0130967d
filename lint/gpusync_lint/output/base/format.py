"""An output format: how the outcome of a run is written for one kind of reader.

A format is a module of `gpusync_lint/output` with one subclass of `Format`; its name on the command line is that of
the module. The choices of `--output-format`, its help and the table in docs/linter.md follow from the modules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusync_lint.run.outcome import Outcome

Document = Any
"""A file of a format, parsed as JSON."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks of an output."""

    show_suppressed: bool = False
    """Include what a comment or the baseline accepts."""
    statistics: bool = False
    """Include how many warnings there are of each code."""
    fixed: bool = False
    """Fixes were applied: say how many."""
    color: bool = False
    """Color the text, for a terminal."""


@dataclass(frozen=True, slots=True)
class Shows:
    """How each part of an outcome appears, in a few words; empty if the format cannot contain it."""

    warnings: str
    notes: str = ""
    suppressed: str = ""
    """What a comment or the baseline accepts, with `--show-suppressed`."""
    errors: str = "on standard error"
    """Files that could not be linted. They are on standard error in any case."""
    statistics: str = ""
    """With `--statistics`, which is refused where this is empty."""
    observed: str = ""
    """With `--observed`, which is refused where this is empty."""


class Format(ABC):
    """One output format. It keeps no state, and decides nothing about what is reported."""

    audience: ClassVar[str]
    """Who or what reads it."""
    shows: ClassVar[Shows]
    shows_edits: ClassVar[bool] = False
    """Whether it contains the edits of fixes, which are computed for such a format only."""

    @abstractmethod
    def render(self, outcome: Outcome, options: Options) -> str:
        """The whole output, ending in a newline unless it is empty."""


class MergeableFormat(Format):
    """A format in JSON whose files, of a project that was linted in shards, can be merged into one."""

    kind: ClassVar[str]
    """What a file of it is called in messages."""

    @abstractmethod
    def recognizes(self, document: Document) -> bool:
        """Whether a file, parsed as JSON, is of this format."""

    @abstractmethod
    def merge(self, documents: Sequence[tuple[str, Document]]) -> Document:
        """Files, each with its name, as one. The result does not depend on their order.

        Raises:
            MergeError: a file does not obey the format; the message names it.
        """
