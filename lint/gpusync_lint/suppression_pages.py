"""What ``gpusync rule`` says of the rules about allow comments, which stand in no catalogue."""

from __future__ import annotations

from gpusync_lint.rule_pages import RulePage
from gpusync_lint.suppressions import NAMES

_COST = "It costs nothing at run time; it hides whether a wait was accepted on purpose."

PAGES = (
    RulePage(
        code="GS901",
        name=NAMES["GS901"],
        what="An allow comment without a reason. It suppresses nothing until it has one.",
        why=f"Nobody can tell later whether the wait is still wanted. {_COST}",
        example="loss_value = loss.item()  # gpusync: allow[GS201]",
        instead="loss_value = loss.item()  # gpusync: allow[GS201] early stopping reads it",
        fix="None: only the author knows the reason.",
        allow='Never by a comment; ignore = ["GS901"] in [tool.gpusync] switches the rule off.',
    ),
    RulePage(
        code="GS902",
        name=NAMES["GS902"],
        what="An allow comment whose date has passed. `until=2027-03-01` names the last day on which it holds.",
        why="The author gave the wait a term, and the term is over. It suppresses nothing any more.",
        example="loss_value = loss.item()  # gpusync: allow[GS201] until=2026-01-31 while we debug",
        instead="total += loss.detach()",
        fix="None: remove the wait, or decide anew and move the date.",
        allow="Never by a comment; move the date.",
    ),
    RulePage(
        code="GS903",
        name=NAMES["GS903"],
        what="An allow comment, or a code in it, that suppresses nothing.",
        why="The line it was written for is gone or no longer waits; left in place it would hide the next wait there.",
        example="total += loss.detach()  # gpusync: allow[GS201] early stopping reads it",
        instead="total += loss.detach()",
        fix="Unsafe: removes it. Linted with more of the project, the line may be found to wait after all.",
        allow="Never by a comment. It is not reported for codes that are not selected.",
    ),
    RulePage(
        code="GS904",
        name=NAMES["GS904"],
        what="A comment that starts with `gpusync:` and is not understood: a code that no rule has, a missing bracket, "
        "a date that is none, an allow-file below the first statement.",
        why="Its author believes that something is suppressed, and it is not.",
        example="loss_value = loss.item()  # gpusync: allow[GS2O1] early stopping reads it",
        instead="loss_value = loss.item()  # gpusync: allow[GS201] early stopping reads it",
        fix="None; the message suggests the nearest code.",
        allow="Never by a comment.",
    ),
)
