"""Syntax of Python 3.11 to 3.14: read by these interpreters, and by older ones as far as libcst knows it."""

from __future__ import annotations

import sys

import pytest
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.run.engine import analyze

HOT = """import torch
for x in loader:
    loss = torch.ones(3).cuda().sum()
    loss.backward()
    loss.item()
"""
SYNTAX = {
    "exception groups": ((3, 11), "try:\n    x = 1\nexcept* ValueError:\n    pass\n"),
    "stars in an index": ((3, 11), "x = y[*z]\n"),
    "type aliases": ((3, 12), "type Pair[T] = tuple[T, T]\n"),
    "type parameters": ((3, 12), "def f[T: int, *Ts, **P](x: T) -> T:\n    return x\nclass C[T]:\n    pass\n"),
    "quotes in f-strings": ((3, 12), "y = f\"{f\"{1 + 1}\"}\"\n"),
    "comments in f-strings": ((3, 12), 'y = f"""{\n    1  # one\n}"""\n'),
    "defaults of type parameters": ((3, 13), "def f[T = int](x: T) -> T:\n    return x\n"),
    "template strings": ((3, 14), 'y = t"hello {name!r:>{width}}"\n'),
    "exceptions without parentheses": ((3, 14), "try:\n    x = 1\nexcept ValueError, TypeError:\n    pass\n"),
}  # fmt: skip


@pytest.mark.parametrize(("version", "code"), SYNTAX.values(), ids=SYNTAX.keys())
def test_newer_syntax_hides_no_finding(version: tuple[int, int], code: str) -> None:
    analysis = analyze([Source("a.py", code + HOT)], EngineSettings())
    lines = {finding.span.line for finding in analysis.findings if finding.code == "GS201"}
    if sys.version_info >= version:
        assert analysis.errors == ()
    if analysis.errors:  # this interpreter and libcst are too old: it is said
        assert analysis.errors[0].message.startswith("not valid Python")
    else:
        assert lines == {code.count("\n") + 5}


@pytest.mark.parametrize(("version", "code"), SYNTAX.values(), ids=SYNTAX.keys())
def test_a_wait_inside_newer_syntax_is_found(version: tuple[int, int], code: str) -> None:
    if sys.version_info < version:
        pytest.skip(f"needs Python {version[0]}.{version[1]}")
    indented = "".join(f"    {line}\n" for line in code.splitlines())
    text = HOT.replace("    loss.item()\n", f"{indented}    loss.item()\n")
    if '"""' in code:
        return
    analysis = analyze([Source("a.py", text)], EngineSettings())
    assert analysis.errors == ()
    assert [finding.span.line for finding in analysis.findings if finding.code == "GS201"] == [text.count("\n")]
