"""The example in the docstring of the inference is what the inference computes."""

from __future__ import annotations

import ast
import re
import textwrap

import gpusync_lint.inference
from gpusync_lint.inference.fixpoint import Inference
from gpusync_lint.inference.named_barriers import NamedBarriers
from gpusync_lint.project.resolution import Project
from gpusync_lint.project.symbols import read_symbols


def example() -> str:
    """The indented block of the docstring."""
    doc = gpusync_lint.inference.__doc__
    block = re.search(r"(?:^    .*\n|^\n)+", doc[doc.index("    import torch") :], re.MULTILINE)
    return textwrap.dedent(block[0])


def commented(text: str, pattern: str) -> dict[int, str]:
    """The comments that match a pattern, by line."""
    comments = (line.partition("  # ")[2] for line in text.splitlines())
    return {number: comment for number, comment in enumerate(comments, 1) if re.match(pattern, comment)}


def bound_values(text: str) -> dict[int, set[str]]:
    """The values that each line binds or returns, as the inference computes them."""
    named = NamedBarriers(())
    file = read_symbols("example.py", text, ast.parse(text))
    inference = Inference(Project([file], named.roots), named)
    inference.run()
    found: dict[int, set[str]] = {}
    for fn in (file.body, *file.all_functions):
        for node, value in inference.values(fn).items():
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.setdefault(node.lineno, set()).add(repr(value))
        for node in ast.walk(fn.node):
            if isinstance(node, ast.Return) and not fn.is_module:
                found.setdefault(node.lineno, set()).add(repr(inference.returns(fn)))
    return found


def test_the_values_are_those_of_the_comments():
    text = example()
    values = bound_values(text)
    expected = {line: {comment} for line, comment in commented(text, r"Value\(").items()}
    assert len(expected) == 7
    assert {line: values[line] for line in expected} == expected


def test_the_findings_are_those_of_the_comments(lint):
    text = example()
    assert {finding.span.line: finding.code for finding in lint(text)} == commented(text, "GS")
