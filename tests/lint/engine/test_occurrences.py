"""The rules are shown every node of a statement's own expressions."""

from __future__ import annotations

import argparse
import ast
import inspect
import statistics

import pytest
from gpusync_lint.inference.tables import EXPRESSIONS as EVALUATED
from gpusync_lint.project.symbols import read_symbols
from gpusync_lint.rules import all_rules
from gpusync_lint.rules.base.occurrences import EXPRESSIONS, MAX_DEPTH, STATEMENTS, occurrences

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
    s = f"{a()} {b():>{width()}} {c()!r}" "plain" f"{d()}"
    {**a(), b(): c()}, {d(), *e()}, {k(): v() for k in w() if x()}, (g() for g in h())
    return (yield a()), (yield from b()), -c(), a() @ b(), (a()) . b (c() , ), x if y else z
class C(base(), metaclass=meta()):
    attribute = call(); other = call()
    def method(self): return call(self)
"""


def shown(text, *wanted):
    file = read_symbols("a.py", text, ast.parse(text))
    return [one for fn in file.all_functions for one in occurrences_of(fn, *wanted)]


def occurrences_of(fn, *wanted):
    return [one for one, _ in occurrences(fn, lambda node: ("a rule",), frozenset(wanted))]


def calls(text):
    """How many calls there are outside of signatures, and how many are shown."""
    return sum(isinstance(node, ast.Call) for node in ast.walk(ast.parse(text))), len(shown(text, ast.Call))


def test_calls_in_every_kind_of_syntax_are_shown():
    seen, found = calls(SYNTAX)
    in_signatures = 6  # decorator (2), defaults (2), bases of a class (2)
    in_other = 4  # del, `from` of raise, a default of a lambda, `as x.y`
    assert seen - in_signatures - in_other <= found < seen


def test_no_node_is_shown_twice():
    found = [id(occurrence.node) for occurrence in shown(SYNTAX, *STATEMENTS, *EXPRESSIONS)]
    assert len(found) == len(set(found))


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
def test_every_form_of_a_statement_is_shown_whole(statement):
    seen, found = calls(statement)
    assert seen == found > 0


@pytest.mark.parametrize("module", [argparse, inspect, statistics], ids=lambda module: module.__name__)
def test_calls_of_real_code_are_shown(module):
    seen, found = calls(inspect.getsource(module))
    assert found >= 0.96 * seen


@pytest.mark.parametrize(
    ("statement", "repeated", "deferred"),
    [
        ("f()", False, False),
        ("x = [f() for i in y]", True, False),
        ("x = {i: 1 for i in y if f()}", True, False),
        ("x = lambda: f()", False, True),
        ("x = map(lambda i: f(), y)", False, False),
        ("x = put(lambda i: f(), y)", False, True),
        ("assert x, f()", False, True),
        ("assert f(), x", False, False),
    ],
)
def test_an_occurrence_says_whether_its_node_runs_once_and_at_once(statement, repeated, deferred):
    (occurrence,) = [
        occurrence for occurrence in shown(statement, ast.Call) if getattr(occurrence.node.func, "id", "") == "f"
    ]
    assert (occurrence.repeated, occurrence.deferred) == (repeated, deferred)


def test_the_occurrence_of_a_replacement_field_names_the_outermost_f_string():
    (occurrence,) = shown("x = 'a' f'{y:{f()}}'", ast.Call)
    assert isinstance(occurrence.string, ast.JoinedStr)
    assert occurrence.string is occurrence.statement.value


@pytest.mark.parametrize(("depth", "count"), [(MAX_DEPTH - 1, 1), (MAX_DEPTH, 0)])
def test_a_statement_that_is_nested_too_deeply_is_left_out(depth, count):
    tree = ast.parse("f()\ng()")
    for _ in range(depth):
        tree.body[0].value = ast.Attribute(tree.body[0].value, "a", ast.Load())
    file = read_symbols("a.py", "", tree)
    found = occurrences_of(file.body, ast.Call)
    assert [occurrence.node.func.id for occurrence in found] == ["g", "f"][: 1 + count]


def test_nothing_but_the_wanted_types_is_shown():
    assert {type(occurrence.node) for occurrence in shown(SYNTAX, ast.Call, ast.If)} == {ast.Call, ast.If}


NOT_GONE_THROUGH = {"TemplateStr", "Interpolation"}
"""Newer syntax, whose parts are left out."""


def test_every_expression_of_ast_is_gone_through():
    known = {node for node in ast.expr.__subclasses__() if node.__module__ in ("ast", "_ast")}
    assert {node.__name__ for node in known - EXPRESSIONS.keys()} <= NOT_GONE_THROUGH


def test_every_type_of_node_that_rules_declare_is_shown():
    declared = {node for rule in all_rules() for node in rule.nodes}
    assert declared <= STATEMENTS.keys() | EXPRESSIONS.keys()


@pytest.mark.parametrize("node", [node for node in ast.stmt.__subclasses__() if node.__module__ in ("ast", "_ast")])
def test_every_statement_of_ast_with_an_expression_to_judge_is_gone_through(node):
    passed_over = (
        ast.ClassDef, ast.Delete, ast.Import, ast.ImportFrom, ast.Global,
        ast.Nonlocal, ast.Pass, ast.Break, ast.Continue, ast.Try, getattr(ast, "TryStar", ast.Try),
        getattr(ast, "TypeAlias", ast.Try),
    )  # fmt: skip
    assert (node in STATEMENTS) is not (node in passed_over)


def test_every_expression_type_of_ast_is_evaluated():
    in_place = {ast.Name, ast.Attribute, ast.Constant}  # by `eval` itself
    held = in_place | {ast.Await, ast.YieldFrom, ast.Slice, ast.FormattedValue}
    newer = {"TemplateStr", "Interpolation"}
    missing = {node.__name__ for node in ast.expr.__subclasses__() if node not in EVALUATED and node not in held}
    assert missing <= newer
