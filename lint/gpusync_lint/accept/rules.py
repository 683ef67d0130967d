"""The rules about allow comments and baselines, which belong to no framework and so stand in no catalogue."""

from __future__ import annotations

from gpusync_lint.catalogue.schema import RuleDoc
from gpusync_lint.model.codes import OWN

FRAMEWORK = "gpusync"

RULES = {
    doc.code: doc
    for doc in (
        RuleDoc(
            code="GS901",
            name=OWN["GS901"],
            summary="An allow comment without a reason. It suppresses nothing until it has one.",
            why="It costs nothing at run time, but nobody can tell later whether the wait is still wanted.",
            example="stop = loss.item() < best  # gpusync: allow[GS201]",
            use_instead="stop = loss.item() < best  # gpusync: allow[GS201] early stopping decides on it",
            fix_safety="No fix: only the author knows the reason.",
            ignore_when="Never by a comment; `ignore` in [tool.gpusync] switches the rule off.",
            framework=FRAMEWORK,
        ),
        RuleDoc(
            code="GS902",
            name=OWN["GS902"],
            summary="An allow comment whose date has passed: `until=2027-03-01` names the last day on which it holds.",
            why="The author gave the wait a term, and the term is over. It suppresses nothing any more.",
            example="stop = loss.item() < best  # gpusync: allow[GS201] until=2026-01-31 while we debug",
            use_instead="best = torch.minimum(best, loss.detach())",
            fix_safety="No fix: remove the wait, or decide anew and move the date.",
            ignore_when="Never by a comment; move the date.",
            framework=FRAMEWORK,
        ),
        RuleDoc(
            code="GS903",
            name=OWN["GS903"],
            summary="An allow comment, or one of its codes, that suppresses nothing. It is not reported for codes that "
            "are not selected, and for files that are given by name (as a pre-commit hook gives them) only with "
            "`--confidence low`: it may take their callers to see the wait.",
            why="The line it was written for is gone or no longer waits; left in place, the comment would hide the "
            "next wait there.",
            example="total += loss.detach()  # gpusync: allow[GS201] early stopping decides on it",
            use_instead="total += loss.detach()",
            fix_safety="Unsafe: linted with more of the project, the line may be found to wait after all.",
            ignore_when="Never by a comment; `ignore` in [tool.gpusync] switches the rule off.",
            framework=FRAMEWORK,
        ),
        RuleDoc(
            code="GS904",
            name=OWN["GS904"],
            summary="A comment that starts with `gpusync:` and cannot be obeyed: a code that no rule has, no brackets, "
            "a date that is none, an allow-file below the first statement.",
            why="Its author believes that something is suppressed, and it is not.",
            example="stop = loss.item() < best  # gpusync: allow[GS2O1] early stopping decides on it",
            use_instead="stop = loss.item() < best  # gpusync: allow[GS201] early stopping decides on it",
            fix_safety="No fix; the message suggests the nearest code.",
            ignore_when="Never by a comment.",
            framework=FRAMEWORK,
        ),
        RuleDoc(
            code="GS905",
            name=OWN["GS905"],
            summary="An entry of the baseline that no finding answers to any more. It is reported where its file was "
            "linted or is gone, and its code is selected; for files that are given by name (as a pre-commit hook gives "
            "them) only with `--confidence low`: it may take their callers to see the wait.",
            why="The wait is gone, which is good news; left in place, the entry would hide the same wait when it comes "
            "back.",
            example="gpusync lint --baseline gpusync-baseline.json",
            use_instead="gpusync lint --baseline gpusync-baseline.json --write-baseline",
            fix_safety="No fix of the source; --write-baseline takes the entry out.",
            ignore_when="Where the baseline is cleaned now and then: `ignore` in [tool.gpusync] switches the rule off.",
            framework=FRAMEWORK,
        ),
    )
}
"""By code. They cannot be allowed by a comment themselves."""
