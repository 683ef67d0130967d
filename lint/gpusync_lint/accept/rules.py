"""The rules about allow comments and baselines. They belong to no framework, so they are not in a catalogue."""

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
            summary="An allow comment without a reason. It has no effect until it has one.",
            why="Without the reason, nobody can tell later whether the wait is still wanted.",
            example="stop = loss.item() < best  # gpusync: allow[GS201]",
            use_instead="stop = loss.item() < best  # gpusync: allow[GS201] early stopping decides on it",
            fix_safety="No fix: only the author knows the reason.",
            ignore_when="A comment cannot allow it; `ignore` in [tool.gpusync] disables the rule.",
            frequency="any line",
            framework=FRAMEWORK,
        ),
        RuleDoc(
            code="GS902",
            name=OWN["GS902"],
            summary="An allow comment whose date has passed. `until=2027-03-01` is the last day on which it is valid.",
            why="The author allowed the wait until a date. After that date the comment has no effect.",
            example="stop = loss.item() < best  # gpusync: allow[GS201] until=2026-01-31 while we debug",
            use_instead="best = torch.minimum(best, loss.detach())",
            fix_safety="No fix: remove the wait, or change the date.",
            ignore_when="A comment cannot allow it; change the date.",
            frequency="any line",
            framework=FRAMEWORK,
        ),
        RuleDoc(
            code="GS903",
            name=OWN["GS903"],
            summary="An allow comment, or one of its codes, that allows no finding. It is not reported for codes that "
            "are not enabled. For files that are given by name, as by a pre-commit hook, it is reported only with "
            "`--confidence low`, because the wait may be visible only together with their callers.",
            why="The line for which it was written is gone or no longer waits. If the comment stays, it hides the next "
            "wait there.",
            example="total += loss.detach()  # gpusync: allow[GS201] early stopping decides on it",
            use_instead="total += loss.detach()",
            fix_safety="Unsafe: if more of the project is linted, the line may be reported after all.",
            ignore_when="A comment cannot allow it; `ignore` in [tool.gpusync] disables the rule.",
            frequency="any line",
            framework=FRAMEWORK,
        ),
        RuleDoc(
            code="GS904",
            name=OWN["GS904"],
            summary="A comment that starts with `gpusync:` and cannot be read: an unknown code, missing brackets, an "
            "invalid date, or an `allow-file` below the first statement.",
            why="Its author expects that it allows something, and it does not.",
            example="stop = loss.item() < best  # gpusync: allow[GS2O1] early stopping decides on it",
            use_instead="stop = loss.item() < best  # gpusync: allow[GS201] early stopping decides on it",
            fix_safety="No fix; the message suggests the nearest code.",
            ignore_when="A comment cannot allow it.",
            frequency="any line",
            framework=FRAMEWORK,
        ),
        RuleDoc(
            code="GS905",
            name=OWN["GS905"],
            summary="An entry of the baseline that matches no finding any more. It is reported if its file was linted "
            "or is gone and its code is enabled. For files that are given by name, as by a pre-commit hook, it is "
            "reported only with `--confidence low`, because the wait may be visible only together with their callers.",
            why="The wait is gone. If the entry stays, it hides the same wait when it comes back.",
            example="gpusync lint --baseline gpusync-lint-baseline.json",
            use_instead="gpusync lint --baseline gpusync-lint-baseline.json --write-baseline",
            fix_safety="No fix; `--write-baseline` removes the entry.",
            ignore_when="You clean up the baseline from time to time; `ignore` in [tool.gpusync] disables the rule.",
            frequency="any line",
            framework=FRAMEWORK,
        ),
    )
}
"""The pages by code. No comment can allow these findings."""
