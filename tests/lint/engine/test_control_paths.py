"""The path to a statement is found by its line, whichever statements were looked up before."""

from __future__ import annotations

import ast
import gc
import random
import weakref

import growth
import pytest
from gpusync_lint.heat.control_paths import ControlPaths

CODE = """\
def f(self, step, loader):
    a()
    if step % 10 == 0:
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
        if step % 5:
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
PATHS = {
    "a": [],
    "b": ["guard"],
    "c": ["guard"],
    "d": ["guard", "eager"],
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
    "s": ["guard", "eager"],
    "t": ["guard", "eager"],
    "u": ["guard", "eager", "error"],
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


def kinds(path):
    return [node.kind.value for node in path]


@pytest.mark.parametrize("seed", range(5))
def test_the_path_to_a_statement_does_not_depend_on_earlier_lookups(seed):
    body = ast.parse(CODE).body[0].body
    statements = calls(body)
    order = sorted(statements)
    random.Random(seed).shuffle(order)
    paths = ControlPaths(body, {})
    assert {label: kinds(paths.to(statements[label])) for label in order} == PATHS


def test_statements_in_one_loop_share_its_node():
    body = ast.parse(CODE).body[0].body
    statements = calls(body)
    paths = ControlPaths(body, {})
    first, guarded = paths.to(statements["g"]), paths.to(statements["m"])
    assert guarded[:-1] == first
    loop = next(statement for statement in body if isinstance(statement, ast.For))
    assert paths.loops({loop}) == [first]


def test_a_statement_of_another_function_has_no_path():
    body = ast.parse(CODE).body[0].body
    assert ControlPaths(body, {}).to(ast.parse("x = 1").body[0]) == ()


def test_lookups_make_no_reference_cycles():
    body = ast.parse(CODE).body[0].body
    paths = ControlPaths(body, {})
    first = weakref.ref(body[0])
    for statement in calls(body).values():
        paths.to(statement)
    gc.disable()
    try:
        del paths, body, statement
        assert first() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("statement", "end", "size"),
    [("call()\n", "", 4000), ("if a():\n    call()\nelif b():\n    call()\nel", "se:\n    call()\n", 100)],
    ids=["long", "deep"],
)
def test_time_grows_with_the_number_of_statements(statement, end, size):
    def statements(count):
        body = ast.parse(statement * count + end).body
        return body, [node for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.Expr)]

    def find_paths(given):
        body, wanted = given
        paths = ControlPaths(body, {})
        for one in wanted:
            paths.to(one)

    # Eight times as long if it is linear, sixty-four times if it is quadratic.
    assert growth.ratio(find_paths, statements(size), statements(8 * size), limit=24) < 24
