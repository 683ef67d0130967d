from __future__ import annotations

import pytest
from gpusync_lint import rule_pages
from gpusync_lint.cli import rule
from gpusync_lint.model import codes

DOCS = rule_pages.docs()

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize("code", DOCS)
def test_every_page_is_complete(code: str, capsys: Captured) -> None:
    assert rule([code]) == 0
    blocks = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert blocks[0] == f"{code} {DOCS[code].name}"
    titles = ["What it does", "Why is this bad", "Example", "Use instead", "Fix safety", "Options", "When to ignore"]
    out = "\n\n".join(blocks[1:])
    places = [out.index(f"{title}\n  ") for title in titles]
    assert places == sorted(places)


@pytest.mark.parametrize("code", DOCS)
def test_prose_is_wrapped_and_code_is_not(code: str) -> None:
    page = rule_pages.render(DOCS[code])
    code_lines = {f"    {line}" for text in (DOCS[code].example, DOCS[code].use_instead) for line in text.split("\n")}
    assert code_lines <= {line or "    " for line in page.split("\n")}
    assert [line for line in page.split("\n") if len(line) > rule_pages.WIDTH and line not in code_lines] == []


def test_a_rule_is_found_by_its_name(capsys: Captured) -> None:
    rule(["unused-allow"])
    assert capsys.readouterr().out.startswith("GS903 unused-allow\n")


def test_without_a_code_all_are_listed_one_per_line(capsys: Captured) -> None:
    assert rule([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{code}  {doc.name}" for code, doc in sorted(DOCS.items())]
    assert "GS201" in DOCS


def test_a_prefix_lists_its_rules(capsys: Captured) -> None:
    assert rule(["GS9"]) == 0
    assert [line[:5] for line in capsys.readouterr().out.splitlines()] == ["GS901", "GS902", "GS903", "GS904", "GS905"]


def test_an_unknown_code_exits_2_with_a_suggestion(capsys: Captured) -> None:
    assert rule(["GS9O3"]) == 2
    message = "gpusync rule: error: no rule has the code or name 'GS9O3'; did you mean GS903?\n"
    assert capsys.readouterr() == ("", message)


def test_two_codes_are_one_too_many(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as caught:
        rule(["GS201", "GS202"])
    assert caught.value.code == 2
    message = "gpusync rule: error: unexpected argument 'GS202' (see gpusync rule --help)\n"
    assert capsys.readouterr() == ("", message)


def test_names_are_distinct() -> None:
    assert len(set(codes.names().values())) == len(DOCS)


def test_codes_and_names_are_those_of_the_pages() -> None:
    assert list(codes.names().items()) == [(code, doc.name) for code, doc in DOCS.items()]


@pytest.mark.parametrize("code", DOCS)
def test_a_page_says_how_often_a_line_has_to_run_and_whether_there_is_a_fix(code: str) -> None:
    doc = DOCS[code]
    assert doc.frequency in {"every step", "every iteration", "any line", "in a capture"}
    assert doc.frequency == "every step" or "every step" not in doc.summary
    assert rule_pages.fix_kinds(doc) in {"none", "safe", "unsafe", "safe, unsafe"}


def test_the_topics_cover_all_codes() -> None:
    assert {code[:3] for code in DOCS} == set(rule_pages.TOPICS)


def test_options_that_change_one_rule_are_on_its_page_only() -> None:
    assert [code for code, doc in DOCS.items() if "barriers" in rule_pages.options(doc)] == ["GS699"]
    assert [code for code, doc in DOCS.items() if "baseline" in rule_pages.options(doc)] == ["GS905"]
    assert "torch-version" in rule_pages.options(DOCS["GS505"])


def test_examples_of_other_frameworks_are_folded_behind_those_of_the_rule() -> None:
    own, _, others = rule_pages.page(DOCS["GS201"]).partition("<details")
    assert "s.item()" in own
    assert "<summary>JAX</summary>" in others
    assert "<details" not in rule_pages.page(DOCS["GS804"])
