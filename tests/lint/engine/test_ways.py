"""The way to a statement is found from its line, whatever was asked for before."""

from __future__ import annotations

import ast
import gc
import random
import time
import weakref

import pytest
from gpusync_lint.heat.control_paths import Ways

CODE = """\
def f(self, step, loader):
    a()
    if step % 10:
        b(); c()
    elif self.table is None:
        self.table = d()
    else:
        e()
    for x in loader:
        g()
        if x: h(); break
        while i():
            j()
        else:
            k()
        try:
            l()
        except Error:
            m()
        finally:
            n()
        if not verbose:
            continue
        o()
    else:
        p()
    class C:
        q()
    def inner():
        r()
    if self.kept is not None:
        return self.kept
    self.kept = s()
    with t():
        raise u()
"""
WAYS = {
    "a": [],
    "b": ["guard"],
    "c": ["guard"],
    "d": ["guard"],
    "e": [],
    "g": ["loop"],
    "h": ["loop", "exit"],
    "i": ["loop", "loop"],
    "j": ["loop", "loop"],
    "k": ["loop"],
    "l": ["loop"],
    "m": ["loop", "guard"],
    "n": ["loop"],
    "o": ["loop", "guard"],
    "p": [],
    "q": [],
    "r": [],
    "s": ["guard"],
    "t": ["guard"],
    "u": ["guard", "error"],
}


def calls(body):
    """The innermost statement that holds each call without arguments."""
    found = {}
    for statement in ast.walk(ast.Module(body, [])):
        if isinstance(statement, ast.stmt):
            for node in ast.walk(statement):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    known = found.get(node.func.id)
                    if known is None or known in ast.walk(statement) or statement in ast.walk(known):
                        found[node.func.id] = statement
    return found


def kinds(step):
    found = []
    while step is not None:
        found.append(step.kind)
        step = step.parent
    return found[::-1]


@pytest.mark.parametrize("seed", range(5))
def test_the_way_to_each_statement_does_not_depend_on_what_was_asked_before(seed):
    body = ast.parse(CODE).body[0].body
    statements = calls(body)
    order = sorted(statements)
    random.Random(seed).shuffle(order)
    ways = Ways(body, {})
    assert {label: kinds(ways.to(statements[label])) for label in order} == WAYS


def test_statements_in_one_loop_share_its_step():
    body = ast.parse(CODE).body[0].body
    statements = calls(body)
    ways = Ways(body, {})
    first, guarded = ways.to(statements["g"]), ways.to(statements["m"])
    assert guarded.parent is first
    loop = next(statement for statement in body if isinstance(statement, ast.For))
    assert ways.loops({loop}) == [first]


def test_there_is_no_way_to_a_statement_of_another_function():
    body = ast.parse(CODE).body[0].body
    assert Ways(body, {}).to(ast.parse("x = 1").body[0]) is None


def test_what_was_looked_up_is_let_go_of_without_the_garbage_collector():
    body = ast.parse(CODE).body[0].body
    ways = Ways(body, {})
    first = weakref.ref(body[0])
    for statement in calls(body).values():
        ways.to(statement)
    gc.disable()
    try:
        del ways, body, statement
        assert first() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "statement", ["call()\n", "if a():\n    call()\nelif b():\n    call()\nel"], ids=["long", "deep"]
)
def test_time_grows_with_the_number_of_statements(statement):
    def seconds(count):
        text = statement * count + ("se:\n    call()\n" if statement.endswith("el") else "")
        body = ast.parse(text).body
        wanted = [node for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.Expr)]
        start = time.process_time()
        ways = Ways(body, {})
        for one in wanted:
            ways.to(one)
        return time.process_time() - start

    seconds(20)
    assert seconds(400) < 24 * max(seconds(50), 0.001)
