"""The fast walk sees what the standard library's sees."""

from __future__ import annotations

import argparse
import ast
import inspect

import pytest
from gpusync_lint.walking import children, walk

PASSED_OVER = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


def concrete(base):
    below = [found for sub in base.__subclasses__() for found in concrete(sub)]
    return below or [base]


DEPRECATED = {
    "Index", "ExtSlice", "Num", "Str", "Bytes", "NameConstant", "Ellipsis", "AugLoad", "AugStore", "Param",
    "Suite",
}  # fmt: skip
NODES = [node for node in concrete(ast.AST) if node.__name__ not in DEPRECATED | {"Constant"}]


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.__name__)
def test_every_field_that_holds_a_node_is_looked_into(node):
    marks = {field: ast.Pass() for field in node._fields}
    made = node(**marks)
    passed = {field for field in marks if marks[field] not in children(made)}
    plain = {"attr", "conversion", "ctx", "id", "is_async", "kind", "level", "lineno", "module", "op", "ops", "simple"}
    plain |= {"tag", "type_comment"}
    assert passed <= plain


def test_real_code_is_walked_whole():
    tree = ast.parse(inspect.getsource(argparse))
    expected = {id(node) for node in ast.walk(tree) if not isinstance(node, PASSED_OVER)}
    assert {id(node) for node in walk(tree)} == expected


def test_absent_and_plain_values_are_left_out():
    assert children(ast.parse("return_ = lambda: 1").body[0].value) != []
    assert children(ast.parse("{**a}", mode="eval").body)[0].id == "a"
