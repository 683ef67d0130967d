"""One line for each warning, for editors, ``grep`` and narrow logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.escaping import escaped
from gpusync_lint.output.base.format import Format, Shows
from gpusync_lint.output.text import Style, closing
from gpusync_lint.settings.selection import Level

if TYPE_CHECKING:
    from gpusync_lint.output.base.format import Options
    from gpusync_lint.run.outcome import Outcome


class Concise(Format):
    """``train.py:14:5: GS201 [item] message``, and the closing line of the text output."""

    audience = "people and editors: one line for each warning"
    shows = Shows(
        "one line",
        notes="counted in the closing line",
        suppressed="what is allowed, with its reason",
        statistics="a line for each code",
    )

    def render(self, outcome: Outcome, options: Options) -> str:
        """The lines; empty when no file was linted."""
        style = Style(options.color)
        lines = []
        for one in outcome.reported:
            if one.level is Level.WARNING and (one.accepted is None or options.show_suppressed):
                finding = one.finding
                accepted = "" if one.accepted is None else f" ({one.accepted})"
                place = style(f"{escaped(outcome.place(finding))}:", "1")
                message = escaped(f"{finding.message}{accepted}")
                lines.append(f"{place} {style(finding.code, '1;31')} [{finding.name}] {message}\n")
        if options.statistics:
            lines += [f"{one.count} {one.code} [{one.name}]\n" for one in outcome.statistics]
        return "".join(lines) + closing(outcome, style, options)
