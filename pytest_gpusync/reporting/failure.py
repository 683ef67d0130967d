"""A broken budget as the failure of a test, which pytest shows instead of a traceback."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _pytest._io import TerminalWriter


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a failure; pytest's short summary and JUnit's message read it."""

    path: str
    lineno: int
    message: str
    """The sentence."""

    def __str__(self) -> str:
        return f"{self.path}:{self.lineno}: {self.message}"


@dataclass(frozen=True, slots=True)
class BudgetFailure:
    """pytest's longrepr: the sentence, the lines, and where in the test the budget was asserted."""

    text: str
    reprcrash: Place
    asserted_at: str | None = None
    """``path:line`` of the assertion inside the test; None for a budget on the test as a whole."""

    def to_text(self) -> str:
        """Return this as JSON: workers of pytest-xdist send text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> BudgetFailure:
        """Return the failure that :meth:`to_text` encoded."""
        fields = json.loads(text)
        return cls(fields["text"], Place(**fields["reprcrash"]), fields["asserted_at"])

    def __str__(self) -> str:
        return f"{self.text}\n{self.asserted_at}" if self.asserted_at else self.text

    def toterminal(self, writer: TerminalWriter) -> None:
        """Write the failure to the terminal, with its sentence highlighted."""
        from pytest_gpusync.reporting.terminal import wrap_line

        sentence, *rest = str(self).split("\n")
        for row in wrap_line(sentence):
            writer.line(row, red=True, bold=True)
        for line in rest:
            for row in wrap_line(line):
                writer.line(row)
