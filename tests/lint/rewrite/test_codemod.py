"""What the codemod writes for each operation in layouts that are easily got wrong, and what it refuses."""

from __future__ import annotations

import ast
import pickle
import sys
from typing import TYPE_CHECKING

import pytest
from gpusync_lint.model.findings import Finding, Fix
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.operations import (
    AddComment,
    AddFirstArgument,
    AddKeyword,
    InsertAfter,
    InsertBefore,
    RemoveComment,
    RemoveStatement,
    RenameCalled,
    ReplaceExpression,
    ReplaceInComment,
    ReplaceStatements,
    Template,
)
from gpusync_lint.model.spans import Edit, Span
from gpusync_lint.rewrite.apply import apply_edits
from gpusync_lint.rewrite.codemod import Codemod, CodemodError
from gpusync_lint.rewrite.layout import MAX_DEPTH, Layout
from gpusync_lint.run.cache_file import Document

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.model.operations import Operation


def places(text: str) -> Callable[[str], Span]:
    """The place of the expression or statement that is written like this."""
    layout = Layout(text.split("\n"))
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.expr, ast.stmt))]

    def place(code: str) -> Span:
        return next(span for node in nodes if layout.text(span := layout.span(node)) == code)

    return place


def written(text: str, *operations: Operation) -> str:
    return apply_edits(text, Codemod(text).edits(operations))


def detached(text: str, call: str, receiver: str) -> str:
    """`call` with `receiver.detach()` in its place."""
    place = places(text)
    return written(text, ReplaceExpression(place(call), Template("{}.detach()", (place(receiver),))))


REPLACED = {
    "behind a keyword without a blank": ("return(float(x))", "return(x.detach())"),
    "in an elif": ("if a:\n    b\nelif float(x) > 3:\n    c", "if a:\n    b\nelif x.detach() > 3:\n    c"),
    "in an except": ("try:\n    a\nexcept float(x):\n    b", "try:\n    a\nexcept x.detach():\n    b"),
    "in a guard": (
        "match a:\n    case [b] if float(x) > 3:\n        c",
        "match a:\n    case [b] if x.detach() > 3:\n        c",
    ),
    "in a decorator": ("@a\n@b(float(x))\ndef f():\n    pass", "@a\n@b(x.detach())\ndef f():\n    pass"),
    "in a default": ("@a\ndef f(x=float(x)):\n    pass", "@a\ndef f(x=x.detach()):\n    pass"),
    "in a base class": ("class A(float(x)): b = 1", "class A(x.detach()): b = 1"),
    "after a semicolon": ("a = 1; b = float(x); c", "a = 1; b = x.detach(); c"),
    "in a suite on the same line": ("if a: b; c = float(x)\nelse: d", "if a: b; c = x.detach()\nelse: d"),
    "in an else on one line": ("if a: b\nelse: c = float(x)", "if a: b\nelse: c = x.detach()"),
    "in a finally on one line": ("try: a\nfinally: float(x)", "try: a\nfinally: x.detach()"),
    "in a try on one line": ("try: float(x)\nfinally: a", "try: x.detach()\nfinally: a"),
    "behind a backslash": ("a = b + \\\n  float(x) + \\\n  c", "a = b + \\\n  x.detach() + \\\n  c"),
    "in a suite behind a backslash": ("if a: \\\n  b = float(x)", "if a: \\\n  b = x.detach()"),
    "behind a form feed": ("\x0cif a:\n\x0c    b = float(x)", "\x0cif a:\n\x0c    b = x.detach()"),
    "behind tabs": ("if a:\n\tb = [\tfloat(x)\t]", "if a:\n\tb = [\tx.detach()\t]"),
    "behind letters of more than one byte": ("größe = '名前', float(x)", "größe = '名前', x.detach()"),
    "in a walrus": ("if (y := float(x)) > 3: pass", "if (y := x.detach()) > 3: pass"),
    "before a type comment": ("for a in float(x):  # type: int\n    b", "for a in x.detach():  # type: int\n    b"),
    "in a header over lines": (
        "if (\n    a  # one\n    and float(x)\n):  # two\n    # three\n    b",
        "if (\n    a  # one\n    and x.detach()\n):  # two\n    # three\n    b",
    ),
    "in a match": ("match float(x):\n    case 1:\n        a", "match x.detach():\n    case 1:\n        a"),
    "where only match is a name": ("match = case(float(x))", "match = case(x.detach())"),
    "in a with": ("async with float(x) as a, b:\n    c", "async with x.detach() as a, b:\n    c"),
    "in parentheses of its own": ("a = (float(x))", "a = (x.detach())"),
    "before a word": ("a = [float(x)for b in c]", "a = [x.detach()for b in c]"),
}


@pytest.mark.parametrize(("before", "after"), REPLACED.values(), ids=REPLACED.keys())
def test_an_expression_is_replaced(before: str, after: str) -> None:
    ast.parse(after)
    assert detached(before, "float(x)", "x") == after
    assert detached(f"{before}\n", "float(x)", "x") == f"{after}\n"


PARENTHESISED = {
    "float(a + b)": ("a + b", "(a + b).detach()"),
    "float((a + b))": ("a + b", "(a + b).detach()"),
    "float((a))": ("a", "a.detach()"),
    "float(-a)": ("-a", "(-a).detach()"),
    "float(3)": ("3", "(3).detach()"),
    "float(await a)": ("await a", "(await a).detach()"),
    "float(a if b else c)": ("a if b else c", "(a if b else c).detach()"),
    "float((a, b))": ("(a, b)", "(a, b).detach()"),
    "float(f(\n  a\n))": ("f(\n  a\n)", "f(\n  a\n).detach()"),
    "float(\n  a\n  .b\n)": ("a\n  .b", "(a\n  .b.detach())"),
    "f(float(\n  a\n  .b\n))": ("a\n  .b", "f(a\n  .b.detach())"),
}


@pytest.mark.parametrize("before", PARENTHESISED)
def test_parentheses_are_added_where_they_are_needed(before: str) -> None:
    receiver, after = PARENTHESISED[before]
    call = before[before.index("float") :].removesuffix(")" if before.startswith("f(") else "")
    assert detached(f"y = {before}\n", call, receiver) == f"y = {after}\n"


def test_a_blank_that_is_needed_without_parentheses_is_made_up_for_by_parentheses() -> None:
    text = "return(a, b)\n"
    assert written(text, ReplaceExpression(places(text)("(a, b)"), Template("c"))) == "return(c)\n"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="ast does not know where the expression stands")
def test_a_brace_behind_the_brace_of_an_f_string_does_not_escape_it() -> None:
    text = "f'{a}'\n"
    assert written(text, ReplaceExpression(places(text)("a"), Template("{b}"))) == "f'{({b})}'\n"


KEYWORDS = {
    "f()": "f(k=v)",
    "f(a)": "f(a, k=v)",
    "f(a,)": "f(a, k=v)",
    "f( a )": "f( a, k=v )",
    "f(*a, **b)": "f(*a, **b, k=v)",
    "f(a for a in b)": "f((a for a in b), k=v)",
    "f(\n    a,\n    b,\n)": "f(\n    a,\n    b,\n    k=v,\n)",
    "f(\n    a,\n    b\n)": "f(\n    a,\n    b,\n    k=v\n)",
    "f(\n    a,\n)": "f(\n    a,\n    k=v,\n)",
    "f(\n    a, b\n)": "f(\n    a, b, k=v\n)",
    "f(a,\n  b)": "f(a,\n  b, k=v)",
    "f(\n)": "f(\nk=v)",
}


@pytest.mark.parametrize("before", KEYWORDS)
def test_a_keyword_argument_stands_as_the_others_do(before: str) -> None:
    text = f"y = {before}\n"
    assert written(text, AddKeyword(places(text)(before), "k", Template("v"))) == f"y = {KEYWORDS[before]}\n"


FIRST = {
    "f()": "f(v)",
    "f(a)": "f(v, a)",
    "f(a, b=c)": "f(v, a, b=c)",
    "f(a for a in b)": "f(v, (a for a in b))",
    "f(\n    a,\n    b,\n)": "f(\n    v,\n    a,\n    b,\n)",
    "f(\n    a,\n)": "f(\n    v,\n    a,\n)",
    "f(\n    a\n)": "f(\n    v,\n    a\n)",
    "f(\n    a, b\n)": "f(\n    v, a, b\n)",
}


@pytest.mark.parametrize("before", FIRST)
def test_a_positional_argument_stands_as_the_others_do(before: str) -> None:
    text = f"y = {before}\n"
    assert written(text, AddFirstArgument(places(text)(before), Template("v"))) == f"y = {FIRST[before]}\n"


def test_the_edit_of_another_name_is_that_of_the_name() -> None:
    text = "y = f(\n    x\n    .item()  # why\n)\n"
    operation = RenameCalled(places(text)("x\n    .item()"), "detach")
    assert Codemod(text).edits([operation]) == (Edit(Span(3, 6, 3, 10), "detach"),)


def test_the_edit_of_an_expression_is_that_of_the_expression() -> None:
    text = "if a:\n    b = f(c, float(x), d)\n"
    place = places(text)
    operation = ReplaceExpression(place("float(x)"), Template("{}.detach()", (place("x"),)))
    assert Codemod(text).edits([operation]) == (Edit(Span(2, 14, 2, 22), "x.detach()"),)


def test_operations_inside_what_is_replaced_are_part_of_it() -> None:
    text = "y = torch.zeros(\n    3,\n).to(d, e)\n"
    place = places(text)
    inner, outer = place("torch.zeros(\n    3,\n)"), place("torch.zeros(\n    3,\n).to(d, e)")
    operations = [
        AddKeyword(inner, "device", Template("{}", (place("d"),))),
        AddKeyword(inner, "dtype", Template("{}", (place("e"),))),
        RenameCalled(inner, "ones"),
        ReplaceExpression(outer, Template("{}", (inner,))),
    ]
    (edit,) = Codemod(text).edits(operations)
    assert (edit.span, edit.replacement) == (outer, "torch.ones(\n    3,\n    device=d,\n    dtype=e,\n)")


def test_a_part_outside_what_is_replaced_is_as_it_stands() -> None:
    text = "for a in b:\n    c = f(a)\n"
    place = places(text)
    operations = [
        ReplaceExpression(place("a"), Template("{}", (place("c"),))),
        ReplaceExpression(place("b"), Template("[g({}) for {} in {}]", (place("a"), place("a"), place("b")))),
    ]
    assert written(text, *operations) == "for c in [g(a) for a in b]:\n    c = f(a)\n"


STATEMENTS = {
    "b": ("x = 1\nb", "b\nx = 1"),
    "if a: b": ("x = 1\nif a: b", "if a: b\nx = 1"),
    "b;": ("x = 1\nb;", "b;\nx = 1"),
    "b  # one": ("x = 1\nb  # one", "b  # one\nx = 1"),
    "# one\nb": ("# one\nx = 1\nb", "# one\nb\nx = 1"),
    "for a in b:\n    c\nelse:\n    d": (
        "x = 1\nfor a in b:\n    c\nelse:\n    d",
        "for a in b:\n    c\nelse:\n    d\nx = 1",
    ),
    "@a\n@b\ndef f(): c": ("x = 1\n@a\n@b\ndef f(): c", "@a\n@b\ndef f(): c\nx = 1"),
}


@pytest.mark.parametrize("indentation", ["", "    ", "\t"])
@pytest.mark.parametrize("before", STATEMENTS)
def test_a_statement_is_put_on_a_line_of_its_own(before: str, indentation: str) -> None:
    def indented(text: str) -> str:
        lines = "".join(f"{indentation}{line}\n" for line in text.split("\n"))
        return f"if 0:\n{lines}" if indentation else lines

    text = indented(before)
    body = ast.parse(text).body[0]
    statement = body.body[0] if indentation and isinstance(body, ast.If) else body
    span = Layout(text.split("\n")).span(statement)
    above, below = STATEMENTS[before]
    assert written(text, InsertBefore(span, Template("x = 1"))) == indented(above)
    assert written(text, InsertAfter(span, Template("x = 1"))) == indented(below)


def test_a_statement_is_put_after_the_last_line_of_a_file() -> None:
    assert written("if a:\n    b", InsertAfter(Span(2, 5, 2, 6), Template("c"))) == "if a:\n    b\n    c"


def test_statements_give_way_to_one() -> None:
    text = "a = 1\nb = 2  # two\nc = 3\n"
    operation = ReplaceStatements(Span(1, 1, 2, 6), Template("a, b = f({}, {})", (Span(1, 5, 1, 6), Span(2, 5, 2, 6))))
    assert written(text, operation) == "a, b = f(1, 2)  # two\nc = 3\n"


def test_a_part_over_lines_is_put_in_parentheses_in_a_statement() -> None:
    text = "y = (x\n  .z)\n"
    operation = InsertAfter(Span(1, 1, 2, 6), Template("a = {}", (places(text)("x\n  .z"),)))
    assert written(text, operation) == "y = (x\n  .z)\na = (x\n  .z)\n"


def test_a_statement_is_removed_with_its_line() -> None:
    assert written("a\n  \nb\nc", RemoveStatement(Span(3, 1, 3, 2))) == "a\n  \nc"
    assert written("a\nb", RemoveStatement(Span(2, 1, 2, 2))) == "a\n"


COMMENTED = {
    "f(x)": "f(x)  # c",
    "f(x)  # one": "f(x)  # one  # c",
    "f(x) \t": "f(x)  # c",
    "f(\n    x,\n    y,\n)": "f(\n    x,  # c\n    y,\n)",
    "y = x + \\\n    1": "y = x + \\\n    1  # c",
    "y = x, '''\n'''": "y = x, '''\n'''  # c",
    "y = f'''{x}\n'''": "y = f'''{x}\n'''  # c",
    "y = f'''{\nx\n}\n'''": "y = f'''{\nx\n}\n'''  # c",
    "if x:\n    a": "if x:  # c\n    a",
    "if a:\n    b\nelif x:\n    c": "if a:\n    b\nelif x:  # c\n    c",
    "@x\ndef f():\n    a": "@x  # c\ndef f():\n    a",
    "def f(\n    a=x\n):\n    b": "def f(\n    a=x  # c\n):\n    b",
    "a; x; b": "a; x; b  # c",
    "if a: x\nelse: b": "if a: x  # c\nelse: b",
    "if a: b\nelse: x": "if a: b\nelse: x  # c",
}


@pytest.mark.parametrize("before", COMMENTED)
def test_a_comment_stands_where_one_can(before: str) -> None:
    if before.startswith("y = f'''{\n") and sys.version_info < (3, 12):
        pytest.skip("not valid before 3.12")
    line = next(number for number, text in enumerate(before.split("\n"), 1) if "x" in text)
    column = before.split("\n")[line - 1].index("x") + 1
    assert written(before, AddComment(Span(line, column, line, column + 1), "# c")) == COMMENTED[before]
    assert written(f"{before}\nz\n", AddComment(Span(line, column, line, column + 1), "# c")) == (
        f"{COMMENTED[before]}\nz\n"
    )


def test_comments_are_changed_and_removed() -> None:
    text = "a  # one two\nif b:\n    # three\n    c\n"
    assert written(text, ReplaceInComment(Span(1, 6, 1, 9), "1")) == text.replace("one", "1")
    assert written(text, RemoveComment(Span(1, 4, 1, 13))) == text.replace("  # one two", "")
    assert written(text, RemoveComment(Span(3, 5, 3, 12))) == text.replace("    # three\n", "")


REFUSED: dict[str, tuple[str, Callable[[Callable[[str], Span]], Operation], str]] = {
    "a comment in a call": (
        "f(\n    a,  # one\n)\n",
        lambda place: AddKeyword(place("f(\n    a,  # one\n)"), "k", Template("v")),
        "there is a comment in the call",
    ),
    "a comment in what is replaced": (
        "f(\n    a,  # one\n    b)\n",
        lambda place: ReplaceExpression(
            place("f(\n    a,  # one\n    b)"), Template("{} + {}", (place("a"), place("b")))
        ),
        "a comment would be lost",
    ),
    "a comment between statements": (
        "a  # one\nb\n",
        lambda place: ReplaceStatements(Span(1, 1, 2, 2), Template("c")),
        "a comment would be lost",
    ),
    "a comment in what is removed": (
        "a(\n  b  # one\n)\nc\n",
        lambda place: RemoveStatement(Span(1, 1, 3, 2)),
        "a comment would be lost",
    ),
    "an elif": (
        "if a:\n    b\nelif c:\n    d\n",
        lambda place: InsertBefore(place("elif c:\n    d"), Template("x")),
        "the statement does not start its line",
    ),
    "a statement behind another one": (
        "a; b\n",
        lambda place: InsertBefore(place("b"), Template("x")),
        "the statement does not start its line",
    ),
    "a statement before another one": (
        "a; b\n",
        lambda place: InsertAfter(place("a"), Template("x")),
        "the statement shares its lines with another one",
    ),
    "a suite behind a backslash": (
        "if a: \\\n    b\n",
        lambda place: InsertBefore(place("b"), Template("x")),
        "the statement does not start its line",
    ),
    "a statement with another one": (
        "a; b\n",
        lambda place: RemoveStatement(place("a")),
        "the statement shares its lines with something else",
    ),
    "no comment": (
        "a = '# b'\n",
        lambda place: RemoveComment(Span(1, 1, 1, 2)),
        "there is no comment at this position",
    ),
    "no comment to change": (
        "a = b\n",
        lambda place: ReplaceInComment(Span(1, 5, 1, 6), "c"),
        "there is no comment at this position",
    ),
}


@pytest.mark.parametrize(("text", "operation", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_layout_does_not_allow_is_known_without_libcst(
    text: str, operation: Callable[[Callable[[str], Span]], Operation], reason: str
) -> None:
    given = operation(places(text))
    assert Layout(text.split("\n")).obstacle(given) == reason
    with pytest.raises(CodemodError, match=reason):
        Codemod(text).edits([given])


WRONG: dict[str, tuple[str, Operation, str]] = {
    "no expression": ("a + b\n", RenameCalled(Span(1, 2, 1, 4), "c"), "there is no expression at this position"),
    "no statement": ("\n\na\n", RenameCalled(Span(1, 1, 1, 1), "c"), "there is no statement at this position"),
    "nothing": ("a\n", RenameCalled(Span(7, 1, 7, 2), "c"), "there is no statement at this position"),
    "no call": ("a + b\n", RenameCalled(Span(1, 1, 1, 2), "c"), "there is no call of a named function"),
    "a call of no name": ("a[0]()\n", RenameCalled(Span(1, 1, 1, 7), "c"), "there is no call of a named function"),
    "no call to give an argument": (
        "a\n",
        AddKeyword(Span(1, 1, 1, 2), "k", Template("v")),
        "there is no call at this position",
    ),
    "new source that is none": ("a\n", ReplaceExpression(Span(1, 1, 1, 2), Template("b(")), "ParserSyntaxError"),
    "more parts than places": (
        "a\n",
        ReplaceExpression(Span(1, 1, 1, 2), Template("b", (Span(1, 1, 1, 2),))),
        "ValueError",
    ),
    "a file that cannot be read": (
        "a = (\n",
        RenameCalled(Span(1, 1, 1, 2), "c"),
        "there is no statement at this position",
    ),
}


@pytest.mark.parametrize(("text", "operation", "reason"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_written_is_an_error_with_its_line(text: str, operation: Operation, reason: str) -> None:
    with pytest.raises(CodemodError, match=reason) as caught:
        Codemod(text).edits([operation])
    assert caught.value.line == operation.span.line
    assert "\n" not in str(caught.value)


def test_operations_are_written_all_or_none() -> None:
    codemod = Codemod("a = f(x)\nb = 1; c = 2\n")
    possible = RenameCalled(Span(1, 5, 1, 9), "g")
    assert codemod.edits([possible]) == (Edit(Span(1, 5, 1, 6), "g"),)
    for _ in range(2):
        with pytest.raises(CodemodError, match="shares its lines"):
            codemod.edits([possible, InsertAfter(Span(2, 1, 2, 6), Template("x"))])


@pytest.mark.parametrize("shape", ["x.a().b", "-", "[0]", "1 + "])
def test_the_deepest_expression_that_rules_see_can_be_rewritten(shape: str) -> None:
    levels = MAX_DEPTH - 4
    code = {
        "x.a().b": "x.item()" + ".a().b" * (levels // 3),
        "-": "-" * levels + "x.item()",
        "[0]": "x.item()" + "[0]" * levels,
        "1 + ": "x.item()" + " + 1" * levels,
    }[shape]
    text = f"y = {code}\n"
    assert detached(text, "x.item()", "x") == text.replace("item", "detach")


def test_what_is_nested_deeper_is_refused() -> None:
    text = f"y = x.item(){'[0]' * MAX_DEPTH}\n"
    with pytest.raises(CodemodError, match="the statement is nested too deeply"):
        detached(text, "x.item()", "x")


OPERATIONS: tuple[Operation, ...] = (
    ReplaceExpression(Span(1, 2, 3, 4), Template("{}.détaché()", (Span(1, 2, 3, 4),))),
    AddKeyword(Span(1, 2, 3, 4), "k", Template("v")),
    AddFirstArgument(Span(1, 2, 3, 4), Template("()")),
    RenameCalled(Span(1, 2, 3, 4), "detach"),
    InsertBefore(Span(1, 2, 3, 4), Template("a")),
    InsertAfter(Span(1, 2, 3, 4), Template("a = {}", (Span(5, 6, 7, 8),))),
    ReplaceStatements(Span(1, 2, 3, 4), Template("a")),
    RemoveStatement(Span(1, 2, 3, 4)),
    AddComment(Span(1, 2, 3, 4), "# a"),
    ReplaceInComment(Span(1, 2, 3, 4), ""),
    RemoveComment(Span(1, 2, 3, 4)),
)


def test_operations_are_plain_data() -> None:
    fix = Fix("Change it", OPERATIONS, safe=True)
    assert pickle.loads(pickle.dumps(fix)) == fix
    span = Span(1, 1, 1, 2)
    found = Finding("GS201", "n", "a.py", span, "m", "r", Heat.STEP, Confidence.HIGH, "torch", "a.py::k", fix)
    document = Document.new("", ["a.py"], [], [])
    document.set_findings(0, [(found, None)])
    assert list(document.findings([0], -1)) == [found]
