from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING

import pytest
from gpusync_lint.accept.allow_comments import apply
from gpusync_lint.accept.comments import UnreadableCommentsError
from gpusync_lint.model.findings import Finding
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.spans import Span
from gpusync_lint.rewrite.apply import apply_edits
from gpusync_lint.rewrite.codemod import Codemod

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = {
    "GS201": "item-read",
    "GS202": "tolist-read",
    "GS501": "blocking-copy",
    "GS901": "allow-without-reason",
    "GS902": "expired-allow",
    "GS903": "unused-allow",
    "GS904": "malformed-allow",
}
TODAY = date(2027, 3, 1)


def _finding(text: str, marked: str, code: str) -> Finding:
    start = text.index(marked)
    before, span_text = text[:start], marked
    line = before.count("\n") + 1
    column = start - (before.rfind("\n") + 1) + 1
    end_line = line + span_text.count("\n")
    end_column = len(span_text) - span_text.rfind("\n") if "\n" in span_text else column + len(span_text)
    span = Span(line, column, end_line, end_column)
    return Finding(
        code, NAMES[code], "a.py", span, "waits", "do not", Heat.STEP, Confidence.HIGH, "torch", f"a.py::{code}"
    )


def _apply(
    text: str,
    *findings: tuple[str, str],
    enabled: Callable[[str, str], bool] = lambda code, path: True,
) -> tuple[list[str | None], list[Finding]]:
    """The reason that each of the (marked text, code) findings is allowed for, and the findings about comments."""
    result = apply(
        [_finding(text, marked, code) for marked, code in findings],
        "a.py",
        text,
        names=NAMES,
        enabled=enabled,
        today=TODAY,
    )
    return [one.suppressed for one in result[: len(findings)]], result[len(findings) :]


COVERED = {
    "at the end of the line": "x.item()  # gpusync: allow[GS201] why\n",
    "by a prefix": "x.item()  # gpusync: allow[GS2] why\n",
    "by the rule's name": "x.item()  # gpusync: allow[item-read] why\n",
    "by one of several codes": "x.item(), x.tolist()  # gpusync: allow[GS201, GS202] why\n",
    "on the line above": "# gpusync: allow[GS201] why\nx.item()\n",
    "indented, on the line above": "if x:\n    # gpusync: allow[GS201] why\n    x.item()\n",
    "above, with another comment between": "# gpusync: allow[GS201] why\n# more\nx.item()\n",
    "on the first line of the statement": "f(  # gpusync: allow[GS201] why\n    x.item(),\n)\n",
    "on the last line of the statement": "f(\n    x.item(),\n)  # gpusync: allow[GS201] why\n",
    "on a line of its own inside the statement": "f(\n    # gpusync: allow[GS201] why\n    x.item(),\n)\n",
    "above a statement of several lines": "# gpusync: allow[GS201] why\nf(\n    y,\n    x.item(),\n)\n",
    "in the header of a compound statement": "while (\n    x.item()\n):  # gpusync: allow[GS201] why\n    pass\n",
    "above an elif": "if a:\n    pass\n# gpusync: allow[GS201] why\nelif x.item():\n    pass\n",
    "after a line continuation": "y = 1 + \\\n    x.item()  # gpusync: allow[GS201] why\n",
    "before a continued line": "# gpusync: allow[GS201] why\ny = 1 + \\\n    x.item()\n",
    "after another pragma": "x.item()  # noqa: E501 # gpusync: allow[GS201] why\n",
    "before another pragma": "x.item()  # gpusync: allow[GS201] why # noqa\n",
    "without spaces": "x.item()  #gpusync:allow[GS201]why\n",
    "after a dash": "x.item()  # gpusync: allow[GS201] - why\n",
    "in the whole file": "# gpusync: allow-file[GS201] why\n\nimport a\n\nx.item()\n",
    "in the whole file, below a shebang": "#!/usr/bin/python\n\n# gpusync: allow-file[GS2] why\nx.item()\n",
    "until today": "x.item()  # gpusync: allow[GS201] until=2027-03-01 why\n",
    "until some day, said after the reason": "x.item()  # gpusync: allow[GS201] why until=2030-01-01\n",
    "on the last line, unterminated": "x.item()  # gpusync: allow[GS201] why",
    "in a file with a form feed": "a = 1\n\x0c\nx.item()  # gpusync: allow[GS201] why\n",
}


@pytest.mark.parametrize("text", COVERED.values(), ids=COVERED.keys())
def test_a_finding_is_allowed(text: str) -> None:
    findings = [("x.item()", "GS201")]
    if "tolist" in text:
        findings.append(("x.tolist()", "GS202"))
    reasons, about = _apply(text, *findings)
    assert set(reasons) == {"why"}
    assert about == []


NOT_COVERED = {
    "another code": "x.item()  # gpusync: allow[GS501] why\n",
    "on the line below": "x.item()\n# gpusync: allow[GS201] why\ny = 1\n",
    "an empty line between": "# gpusync: allow[GS201] why\n\nx.item()\n",
    "on the statement before": "y = 1  # gpusync: allow[GS201] why\nx.item()\n",
    "on the header, finding in the body": "if y:  # gpusync: allow[GS201] why\n    x.item()\n",
    "in the body, finding in the header": "if x.item():\n    y = 1  # gpusync: allow[GS201] why\n",
    "above the decorator": "# gpusync: allow[GS201] why\n@f\ndef g(y=x.item()):\n    pass\n",
    "at the end of the file": "x.item()\n# gpusync: allow[GS201] why\n",
}


@pytest.mark.parametrize("text", NOT_COVERED.values(), ids=NOT_COVERED.keys())
def test_a_comment_elsewhere_allows_nothing_and_is_unused(text: str) -> None:
    reasons, about = _apply(text, ("x.item()", "GS201"))
    assert reasons == [None]
    assert [one.code for one in about] == ["GS903"]


NO_COMMENT = {
    "a string": 'x.item()\ny = "# gpusync: allow[GS201] why"\n',
    "a string on the line": 'x.item("# gpusync: allow[GS201] why")\n',
    "a docstring": '"""\n# gpusync: allow-file[GS201] why\n"""\nx.item()\n',
    "words about it": "x.item()  # see gpusync: allow[GS201] why\n",
}


@pytest.mark.parametrize("text", NO_COMMENT.values(), ids=NO_COMMENT.keys())
def test_only_a_comment_counts(text: str) -> None:
    marked = "x.item(" if "item(" in text and "x.item()" not in text else "x.item()"
    assert _apply(text, (marked, "GS201")) == ([None], [])


ABOUT = {
    "no reason": (
        "x.item()  # gpusync: allow[GS201]\n",
        "GS901",
        "`# gpusync: allow[GS201]` gives no reason and has no effect",
    ),
    "a dash is no reason": (
        "x.item()  # gpusync: allow[GS201] --\n",
        "GS901",
        "`# gpusync: allow[GS201] --` gives no reason and has no effect",
    ),
    "a date is no reason": (
        "x.item()  # gpusync: allow[GS201] until=2030-01-01\n",
        "GS901",
        "`# gpusync: allow[GS201] until=2030-01-01` gives no reason and has no effect",
    ),
    "another pragma is no reason": (
        "x.item()  # gpusync: allow[GS201] # noqa\n",
        "GS901",
        "`# gpusync: allow[GS201]` gives no reason and has no effect",
    ),
    "expired": (
        "x.item()  # gpusync: allow[GS201] until=2027-02-28 why\n",
        "GS902",
        "`# gpusync: allow[GS201] until=2027-02-28 why` expired on 2027-02-28 and has no effect",
    ),
    "unknown code": (
        "x.item()  # gpusync: allow[GS2O1] why\n",
        "GS904",
        "`# gpusync: allow[GS2O1] why`: no rule has the code or name 'GS2O1'; did you mean GS201?",
    ),
    "no code": ("x.item()  # gpusync: allow[] why\n", "GS904", "`# gpusync: allow[] why` names no code"),
    "no brackets": (
        "x.item()  # gpusync: allow GS201 why\n",
        "GS904",
        "`# gpusync: allow GS201 why` is not understood",
    ),
    "misspelled": (
        "x.item()  # gpusync: alow[GS201] why\n",
        "GS904",
        "`# gpusync: alow[GS201] why` is not understood; did you mean allow[...]?",
    ),
    "a date that is none": (
        "x.item()  # gpusync: allow[GS201] until=2027-02-30 why\n",
        "GS904",
        "`# gpusync: allow[GS201] until=2027-02-30 why`: '2027-02-30' is not a date",
    ),
    "for the whole file, too late": (
        "import a\n# gpusync: allow-file[GS201] why\nx.item()\n",
        "GS904",
        "`# gpusync: allow-file[GS201] why` is below the first statement and has no effect",
    ),
    "a rule about comments": (
        "x.item()  # gpusync: allow[GS903] why\n",
        "GS904",
        "GS903 cannot be allowed by a comment",
    ),
}


@pytest.mark.parametrize(("text", "code", "message"), ABOUT.values(), ids=ABOUT.keys())
def test_a_comment_that_does_not_hold_is_a_finding(text: str, code: str, message: str) -> None:
    reasons, about = _apply(text, ("x.item()", "GS201"))
    assert reasons == [None]
    assert [(one.code, one.name, one.message) for one in about] == [(code, NAMES[code], message)]


def test_findings_about_comments_are_hot_and_sure_and_mark_the_comment() -> None:
    text = "x = 1\nx.item()  # noqa # gpusync: allow[GS201]\n"
    _, (about,) = _apply(text)
    assert (about.heat, about.confidence) == (Heat.STEP, Confidence.HIGH)
    assert about.span == Span(2, 18, 2, 41)


def test_the_known_codes_of_a_comment_hold_beside_an_unknown_one() -> None:
    reasons, about = _apply("x.item()  # gpusync: allow[GS201, GS999] why\n", ("x.item()", "GS201"))
    assert (reasons, [one.code for one in about]) == (["why"], ["GS904"])


def test_keys_of_equal_comments_differ_and_do_not_hold_the_line() -> None:
    line = "x = 1  # gpusync: allow[GS201]\n"
    _, about = _apply(line * 2)
    _, moved = _apply("\n\n" + line * 2)
    assert [one.key for one in about] == [one.key for one in moved]
    assert len({one.key for one in about}) == 2


def test_a_comment_for_rules_that_are_switched_off_is_not_called_unused() -> None:
    _, about = _apply("x = 1  # gpusync: allow[GS5] why\n", enabled=lambda code, path: code != "GS501")
    assert about == []


def test_without_its_project_a_file_cannot_show_that_a_comment_is_unused() -> None:
    text = "x = 1  # gpusync: allow[GS201] why\ny = 2  # gpusync: allow[GS201]\n"
    about = apply([], "a.py", text, names=NAMES, enabled=lambda code, path: True, today=TODAY, alone=True)
    assert {one.code: one.confidence for one in about} == {"GS901": Confidence.HIGH, "GS903": Confidence.LOW}


def test_an_unused_code_beside_a_used_one_is_named() -> None:
    text = "x.item()  # gpusync: allow[GS201, GS501] why\n"
    _, (about,) = _apply(text, ("x.item()", "GS201"))
    assert (about.code, about.message) == ("GS903", "`# gpusync: allow[GS201, GS501] why` allows no finding of GS501")


UNUSED_FIXED = {
    "x = 1  # gpusync: allow[GS201] why\ny = 2\n": "x = 1\ny = 2\n",
    "if x:\n    # gpusync: allow[GS201] why\n    y = 2\n": "if x:\n    y = 2\n",
    "x = 1\n# gpusync: allow[GS201] why": "x = 1\n",
    "x.tolist()  # gpusync: allow[GS201, GS202] why\n": "x.tolist()  # gpusync: allow[GS202] why\n",
}


@pytest.mark.parametrize(("before", "after"), UNUSED_FIXED.items())
def test_the_unsafe_fix_removes_what_is_unused(before: str, after: str) -> None:
    findings = [("x.tolist()", "GS202")] if "tolist" in before else []
    _, (about,) = _apply(before, *findings)
    assert about.fix is not None
    assert not about.fix.safe
    assert apply_edits(before, Codemod(before).edits(about.fix.operations)) == after


def test_an_unused_comment_that_shares_its_line_with_another_has_no_fix() -> None:
    _, (about,) = _apply("x = 1  # noqa # gpusync: allow[GS201] why\n")
    assert about.fix is None


def test_a_finding_over_several_statements_is_allowed_on_any_of_them() -> None:
    text = "t = now()\nf()  # gpusync: allow[GS201] why\nd = now() - t\n"
    marked = re.sub(r"\n$", "", text)
    assert _apply(text, (marked, "GS201"))[0] == ["why"]


def test_comments_that_cannot_be_told_from_code_are_an_error() -> None:
    with pytest.raises(UnreadableCommentsError, match="its allow comments cannot be read: "):
        _apply('x = """\n# gpusync: allow[GS201] why\n')
