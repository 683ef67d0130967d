from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from gpusync_lint.model.findings import Finding
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.spans import Span
from gpusync_lint.settings.selection import (
    Layer,
    Level,
    Selection,
    UnknownCodeError,
    glob_pattern,
    level_of,
    resolve,
    resolve_all,
)

NAMES = {"GS201": "item-read", "GS202": "tolist-read", "GS501": "blocking-copy", "GS903": "unused-allow"}


@pytest.mark.parametrize(
    ("word", "prefix"),
    [("GS201", "GS201"), ("GS2", "GS2"), ("GS20", "GS20"), ("GS", "GS"), ("item-read", "GS201")],
)
def test_a_word_stands_for_a_code_prefix(word: str, prefix: str) -> None:
    assert resolve(word, NAMES) == prefix


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [
        ("GS9O3", "did you mean GS903?"),
        ("gs201", "did you mean GS201?"),
        ("item-raed", "did you mean item-read?"),
        ("Item-Read", "did you mean item-read?"),
        ("zzz", "`gpusync rule` lists them all"),
        ("G", "`gpusync rule` lists them all"),
    ],
)
def test_an_unknown_word_is_refused_with_a_suggestion(word: str, suggestion: str) -> None:
    with pytest.raises(UnknownCodeError) as caught:
        resolve(word, NAMES)
    assert str(caught.value) == f"no rule has the code or name {word!r}; {suggestion}"


def test_words_may_be_separated_by_commas_and_repeated() -> None:
    assert resolve_all(["GS2, item-read", "GS201,", "GS2"], NAMES) == ("GS2", "GS201")


@pytest.mark.parametrize(
    ("layers", "on", "off"),
    [
        pytest.param([], ["GS201", "GS903"], [], id="everything by default"),
        pytest.param([Layer(("GS2",))], ["GS201", "GS202"], ["GS501", "GS903"], id="select"),
        pytest.param([Layer(None, ("GS2",))], ["GS501"], ["GS201"], id="ignore"),
        pytest.param([Layer(("GS2",), ("GS201",))], ["GS202"], ["GS201"], id="ignore narrows select"),
        pytest.param([Layer(("GS201",), ("GS2",))], ["GS201"], ["GS202"], id="the longer prefix wins"),
        pytest.param([Layer(("GS201",), ("GS201",))], [], ["GS201"], id="ignore wins a tie"),
        pytest.param([Layer(("GS2",)), Layer(("GS5",))], ["GS501"], ["GS201"], id="nearer select replaces"),
        pytest.param([Layer(None, ("GS201",)), Layer(("GS201",))], ["GS201"], ["GS501"], id="and overrides ignore"),
        pytest.param([Layer(("GS2",)), Layer(None, ("GS201",))], ["GS202"], ["GS201", "GS501"], id="ignore adds"),
        pytest.param([Layer(())], [], ["GS201"], id="an empty select selects nothing"),
    ],
)
def test_layers_of_selection(layers: list[Layer], on: list[str], off: list[str]) -> None:
    selection = Selection(tuple(layers))
    assert [code for code in (*on, *off) if selection.enabled(code)] == on


def test_codes_can_be_ignored_by_file() -> None:
    selection = Selection(per_file=((glob_pattern("tests/**"), ("GS2",)),), root=PurePosixPath("/project"))
    assert not selection.enabled("GS201", PurePosixPath("/project/tests/a.py"))
    assert selection.enabled("GS501", PurePosixPath("/project/tests/a.py"))
    assert selection.enabled("GS201", PurePosixPath("/project/train.py"))


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("tests", "tests/a.py", True),
        ("tests", "pkg/tests/a.py", True),
        ("tests", "tests.py", False),
        ("tests/", "tests/a.py", True),
        ("./tests", "tests/a.py", True),
        ("*.py", "pkg/a.py", True),
        ("a?.py", "ab.py", True),
        ("a?.py", "abc.py", False),
        ("[ab].py", "b.py", True),
        ("[!ab].py", "b.py", False),
        ("pkg/*.py", "pkg/a.py", True),
        ("pkg/*.py", "pkg/sub/a.py", False),
        ("pkg/*.py", "other/pkg/a.py", False),
        ("pkg/**/a.py", "pkg/a.py", True),
        ("pkg/**/a.py", "pkg/x/y/a.py", True),
        ("**/gen", "x/y/gen/a.py", True),
        ("pkg/**", "pkg/x/a.py", True),
        ("a.b", "aXb", False),
        ("/vendor", "vendor/a.py", True),
        ("/vendor", "pkg/vendor/a.py", False),
    ],
)
def test_glob_patterns(pattern: str, path: str, matches: bool) -> None:
    assert bool(glob_pattern(pattern).match(path)) is matches


def _finding(heat: Heat, confidence: Confidence) -> Finding:
    span = Span(1, 1, 1, 2)
    return Finding("GS201", "item-read", "a.py", span, "waits", "do not", heat, confidence, "torch", "key")


@pytest.mark.parametrize(
    ("heat", "threshold", "level"),
    [
        (Heat.STEP, Heat.STEP, Level.WARNING),
        (Heat.GUARDED, Heat.STEP, Level.NOTE),
        (Heat.EPOCH, Heat.STEP, Level.NOTE),
        (Heat.ONCE, Heat.STEP, None),
        (Heat.GUARDED, Heat.GUARDED, Level.WARNING),
        (Heat.EPOCH, Heat.GUARDED, Level.NOTE),
        (Heat.EPOCH, Heat.EPOCH, Level.WARNING),
        (Heat.ONCE, Heat.EPOCH, None),
        (Heat.ONCE, Heat.ONCE, Level.WARNING),
    ],
)
def test_heat_decides_the_level(heat: Heat, threshold: Heat, level: Level | None) -> None:
    assert level_of(_finding(heat, Confidence.HIGH), threshold, Confidence.MEDIUM) is level


@pytest.mark.parametrize(
    ("confidence", "threshold", "level"),
    [
        (Confidence.HIGH, Confidence.MEDIUM, Level.WARNING),
        (Confidence.MEDIUM, Confidence.MEDIUM, Level.WARNING),
        (Confidence.LOW, Confidence.MEDIUM, None),
        (Confidence.MEDIUM, Confidence.HIGH, None),
        (Confidence.LOW, Confidence.LOW, Level.WARNING),
    ],
)
def test_findings_less_sure_than_asked_are_left_out(
    confidence: Confidence, threshold: Confidence, level: Level | None
) -> None:
    assert level_of(_finding(Heat.STEP, confidence), Heat.STEP, threshold) is level
