"""Calls written anew: what places alone give is what libcst makes of them, and libcst is loaded for the others."""

import subprocess
import sys

import pytest
from gpusync_lint.rewrite import codemod
from gpusync_lint.rules.fixes import rewriting

CALLS = [
    "f.g()",
    "f.g(a)",
    "f.g( a)",
    "f.g(a )",
    "f.g(a, )",
    "f.g(a,)",
    "f.g(a , b)",
    "f.g(*a)",
    "f.g(**a)",
    "f.g(a, k=1)",
    "f.g (a)",
    "f.g((a))",
    "f.g((a), b)",
    "f.g([0.0] * n, device=d)",
    "f.g([0, 0],  b)",
    "f.g('a,')",
    "f.g('(', ')')",
    "f . g(a)",
    "f().g(a)(b).g(c)",
    "f.g.g(g)",
    "(f.g)(a)",
    "größe.g(a)",
    "f.g('größe', b)",
    "f.g(x for x in y)",
    "f.g(lambda: 0, b)",
    "f.g(\n    a,\n    b,\n)",
    "f.g(a,\n    b)",
]


@pytest.mark.parametrize("text", CALLS)
def test_keywords_are_added_as_libcst_adds_them(text):
    for given in ([("device", "d")], [("dtype", "x.dtype"), ("device", "x.device")], [("total", "sum(\n  a)")]):
        assert rewriting.with_keywords(text, given) == codemod.with_keywords(text, given)


@pytest.mark.parametrize("text", CALLS)
def test_the_last_name_is_changed_as_libcst_changes_it(text):
    assert rewriting.calling(text, "other") == codemod.calling(text, "other")


@pytest.mark.parametrize("text", [text for text in CALLS if text not in ("f.g()", "f.g(**a)")])
def test_calls_are_filled_as_libcst_fills_them(text):
    for shape, number in (("()", "1.0"), ("(len(\n x),)", "-2")):
        assert rewriting.filling(text, "full", shape, number) == codemod.filling(text, "full", shape, number)


def test_what_neither_can_read_is_a_value_error():
    with pytest.raises(ValueError, match="libcst cannot read it"):
        rewriting.calling("f.g(a", "other")


def test_libcst_is_loaded_only_for_calls_over_several_lines():
    load = "import sys; from gpusync_lint.rules.fixes.rewriting import calling"
    asked = f"{load}; calling(%r, 'g'); print('libcst' in sys.modules)"
    told = [
        subprocess.run([sys.executable, "-c", asked % text], capture_output=True, text=True, check=True).stdout.strip()
        for text in ("f.g(a, b)", "f.g(a,\n  b)")
    ]
    assert told == ["False", "True"]
