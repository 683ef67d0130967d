"""The two trees of a piece of source are walked in step."""

from __future__ import annotations

import argparse
import ast
import inspect
import statistics

import libcst as cst
import pytest
from gpusync_lint.expressions import _EVALUATORS
from gpusync_lint.fragments import pair
from gpusync_lint.pairing import EXPRESSIONS, STATEMENTS
from gpusync_lint.summaries import summarise

SYNTAX = """
@decorated(call(1), key=value)
async def f(a, /, b=default(1), *args: int, c=default(2), **kwargs) -> result:
    x, *y = first(*args, k=1, *others, **kwargs)
    x[1:end(), ..., None, (1, 2)] = x[a,] = x[[i for i in range(3) if i if call(i)]]
    x: int = call()
    x += call() if test() else other()
    del x[call()]
    assert (a and b and (c or d())) or not e(), message()
    while (n := nxt()) is not None:
        continue
    else:
        call()
    for i, (j, k) in zip(a(), b()):
        break
    async for i in c():
        await d()
    with open(a()) as g, h() as x.y:
        pass
    try:
        raise Error(a()) from b()
    except (A, B) as error:
        call()
    else:
        call()
    finally:
        call()
    if a() < b() <= c() in d():
        pass
    elif e():
        pass
    else:
        call()
    match call():
        case [1, 2] if guard():
            call()
    lambda z, y=call(): call(z)
    s = f"{a()} {b():>{width()}} {c()!r}" "plain" f"{d()}" rb"x"[0]
    {**a(), b(): c()}, {d(), *e()}, {k(): v() for k in w() if x()}, (g() for g in h())
    return (yield a()), (yield from b()), -c(), a() @ b(), (a()) . b (c() , ), x if y else z
class C(base(), metaclass=meta()):
    attribute = call(); other = call()
    def method(self): return call(self)
"""


def calls(text):
    """How many calls `ast` sees outside of signatures, and how many are paired."""
    file = summarise("a.py", text, ast.parse(text))
    statements = [(node, file.body) for node in ast.walk(file.tree) if isinstance(node, ast.stmt)]
    paired = 0
    for item in pair(text.split("\n"), statements).pairs:
        if isinstance(item.node, cst.Call):
            assert isinstance(item.twin, ast.Call)
            label = getattr(item.node.func, "attr", item.node.func)
            if isinstance(label, cst.Name):
                assert ast.unparse(item.twin.func).endswith(label.value)
            paired += 1
    return sum(isinstance(node, ast.Call) for node in ast.walk(file.tree)), paired


def test_every_kind_of_syntax_is_paired():
    seen, paired = calls(SYNTAX.replace(' rb"x"[0]', ""))
    in_signatures = 6  # decorator (2), defaults (2), bases of a class (2)
    in_other = 5  # del, `from` of raise, a default of a lambda, `as x.y`
    assert seen - in_signatures - in_other <= paired <= seen


@pytest.mark.parametrize(
    "statement",
    [
        "if (a.b()  # why\n        and c()):\n    pass",
        "if (\n    (n := a())\n):\n    pass",
        "with (a() as b, c()):\n    pass",
        "for x, in a():\n    pass",
        "é = '日本', a(); b()",
        "if x: a()",
        "return (a()\n    .b())",
        "x = a() + \\\n    b()",
        "match a(), b():\n    case {'k': [*_]} | C(x=1) if c():\n        pass",
    ],
)
def test_every_form_of_a_statement_is_cut_out_whole(statement):
    seen, paired = calls(statement)
    assert seen == paired > 0


def test_a_statement_that_libcst_cannot_read_leaves_the_others(monkeypatch):
    parse = cst.parse_module

    def picky(code):
        if "bad" in code:
            raise cst.ParserSyntaxError("no", lines=[], raw_line=1, raw_column=0)
        return parse(code)

    monkeypatch.setattr(cst, "parse_module", picky)
    assert calls("a()\nbad()\nc()\n") == (3, 2)


@pytest.mark.parametrize("module", [argparse, inspect, statistics], ids=lambda module: module.__name__)
def test_calls_of_real_code_are_paired(module):
    seen, paired = calls(inspect.getsource(module))
    assert paired >= 0.96 * seen


def concrete(base):
    """Every class below one that has no further subclasses."""
    below = [found for sub in base.__subclasses__() for found in concrete(sub)]
    return below or [base]


NOT_EXPRESSIONS_OF_THEIR_OWN = {"TemplatedString", "StarredDictComp", "StarredElement"}
"""Syntax that is newer than the oldest libcst supported, whose parts are left out; and a part of its container."""


def test_every_expression_of_libcst_is_walked():
    known = {node.__name__ for node in concrete(cst.BaseExpression) if node.__module__.startswith("libcst._nodes")}
    assert known - {node.__name__ for node in EXPRESSIONS} <= NOT_EXPRESSIONS_OF_THEIR_OWN


@pytest.mark.parametrize("node", [node for node in ast.stmt.__subclasses__() if node.__module__ in ("ast", "_ast")])
def test_every_statement_of_ast_with_an_expression_to_judge_is_walked(node):
    passed_over = (
        ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Delete, ast.Import, ast.ImportFrom, ast.Global,
        ast.Nonlocal, ast.Pass, ast.Break, ast.Continue, ast.Try, getattr(ast, "TryStar", ast.Try),
        getattr(ast, "TypeAlias", ast.Try),
    )  # fmt: skip
    assert (node in STATEMENTS) is not (node in passed_over)


def test_every_expression_type_of_ast_is_evaluated():
    held = {ast.Await, ast.YieldFrom, ast.Slice, ast.FormattedValue}
    newer = {"TemplateStr", "Interpolation"}
    missing = {node.__name__ for node in ast.expr.__subclasses__() if node not in _EVALUATORS and node not in held}
    assert missing <= newer
