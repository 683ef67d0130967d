"""The two trees of a piece of source are walked in step."""

from __future__ import annotations

import argparse
import ast
import inspect
import statistics

import libcst as cst
import pytest
from gpusync_lint.fragments import pair
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
    """How many calls `ast` sees in bodies, and how many are paired."""
    file = summarise("a.py", text, ast.parse(text))
    seen = paired = 0
    for statement in file.tree.body:
        found = pair(text.split("\n"), statement, file.body)
        assert found is not None
        for item in found.pairs:
            if isinstance(item.node, cst.Call):
                assert isinstance(item.twin, ast.Call)
                label = getattr(item.node.func, "attr", item.node.func)
                if isinstance(label, cst.Name):
                    assert ast.unparse(item.twin.func).endswith(label.value)
                paired += 1
        seen += sum(isinstance(node, ast.Call) for node in ast.walk(statement))
    return seen, paired


def test_every_kind_of_syntax_is_paired():
    seen, paired = calls(SYNTAX.replace(' rb"x"[0]', ""))
    in_signatures = 6  # decorator (2), defaults (2), bases of a class (2)
    in_other = 5  # del, `from` of raise, a default of a lambda, `as x.y`
    assert seen - in_signatures - in_other <= paired <= seen


@pytest.mark.parametrize("module", [argparse, inspect, statistics], ids=lambda module: module.__name__)
def test_calls_of_real_code_are_paired(module):
    seen, paired = calls(inspect.getsource(module))
    assert paired >= 0.97 * seen
