"""The fast walk sees what the standard library's sees."""

from __future__ import annotations

import argparse
import ast
import inspect
import sys

import pytest
from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.traversal import children, walk

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


def test_the_blocks_of_a_statement_are_all_lists_of_statements_in_it():
    compound = [kind for kind in ast.stmt.__subclasses__() if set(kind._fields) & {"body", "cases"}]
    text = (
        "async def f():\n    async for x in y: pass\n    else: pass\n    async with z: pass\n"
        "def g():\n    for x in y: pass\n    else: pass\n    with z: pass\n    while x: pass\n    else: pass\n"
        "class C:\n    if x: pass\n    elif y: pass\n    else: pass\n"
        "try: pass\nexcept A: pass\nexcept B: pass\nelse: pass\nfinally: pass\n"
        "match x:\n    case 1: pass\n    case 2: pass\n"
    )
    if sys.version_info >= (3, 11):
        text += "try: pass\nexcept* A: pass\n"
    tree = ast.parse(text)
    seen = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            seen.add(type(node))
            inside = {id(one) for block in blocks(node) for one in block}
            holders = [node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())]
            held = [one for each in holders for one in ast.iter_child_nodes(each)]
            assert inside == {id(one) for one in held if isinstance(one, ast.stmt)}
    assert seen >= set(compound)
