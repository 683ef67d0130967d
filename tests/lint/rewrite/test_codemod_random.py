"""The codemod on random programs in random layouts, against the same change made in the tree that `ast` gives."""

from __future__ import annotations

import ast
import copy
import io
import random
import tokenize
import warnings
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
    RemoveStatement,
    RenameCalled,
    ReplaceExpression,
    ReplaceStatements,
    Template,
)
from gpusync_lint.model.spans import Span
from gpusync_lint.rewrite.apply import apply_edits, choose
from gpusync_lint.rewrite.codemod import Codemod
from gpusync_lint.syntax.blocks import blocks
from random_source import F_STRINGS_HAVE_POSITIONS, program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpusync_lint.model.operations import Operation

SEEDS = range(60)
TEMPLATES = (
    "{}", "({})", "{}.detach()", "{}.size({})", "f({}, {})", "torch.stack([{}, {}]).tolist()", "({} / {}).item()",
    "{} - {}", "-{}", "not {}", "{} ** {}", "{} if {} else {}", "{} and {}", "{} < {}", "lambda: {}", "await {}",
    "a_value", "{}[:2]", "(x := {})", "f(*{}, **{})",
)  # fmt: skip
STATEMENTS = ("a = {}", "a, b = torch.stack([{}, {}]).tolist()", "a.extend(f(list({})))", "a = 1")


class Program:
    """One random program, with the expressions and statements that operations may name."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.text = program(self.random)
        self.tree = _parsed(self.text)
        self.codemod = Codemod(self.text)
        self.layout = self.codemod.layout
        self.expressions = list(_expressions(self.tree))
        self.blocks = [block for block in _blocks(self.tree.body) if block]

    def template(self, text: str, own: ast.expr | None = None) -> tuple[Template, ast.AST]:
        """A template with parts at random, often `own`, and the tree that it stands for."""
        count = text.count("{}")
        parts = [
            own if own is not None and self.random.random() < 0.5 else self.random.choice(self.expressions)
            for _ in range(count)
        ]
        template = Template(text, tuple(self.layout.span(part) for part in parts))
        tree = ast.parse(text.format(*(f"__part_{number}" for number in range(count)))).body[0]
        return template, _Substitute(parts).visit(tree)

    def expression(self, text: str, own: ast.expr | None = None) -> tuple[Template, ast.expr]:
        """The same for an expression."""
        template, tree = self.template(text, own)
        assert isinstance(tree, ast.Expr)
        return template, tree.value

    def block(self) -> tuple[list[ast.stmt], int]:
        """A block at random, and a place in it."""
        block = self.random.choice(self.blocks)
        return block, self.random.randrange(len(block))

    def check(self, operations: list[Operation], change: Callable[[], object]) -> bool:
        """Apply operations to the text, and a change to the tree: they have to agree, and no comment may be lost.

        False where the layout of the program does not allow one of the operations.
        """
        if any(self.layout.obstacle(operation) is not None for operation in operations):
            return False
        newline = self.random.choice(["\n", "\r\n", "\r"])
        written = apply_edits(self.text.replace("\n", newline), self.codemod.edits(operations))
        after = written.replace(newline, "\n")
        assert after.replace("\n", newline) == written
        change()
        assert ast.dump(_parsed(after)) == ast.dump(self.tree), f"{self.text}\n---\n{after}"
        assert set(comments(self.text)) <= set(comments(after))
        return True


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that have a text of their own, and may be put elsewhere."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.pattern, ast.JoinedStr)):
            if F_STRINGS_HAVE_POSITIONS and isinstance(child, ast.JoinedStr):
                yield child
                for hole in child.values:
                    if isinstance(hole, ast.FormattedValue):
                        yield hole.value
                        yield from _expressions(hole.value)
            continue
        if isinstance(child, ast.expr) and not isinstance(child, (ast.Starred, ast.Slice)):
            of_call = isinstance(child, ast.GeneratorExp) and child.end_col_offset == getattr(
                node, "end_col_offset", -1
            )
            index = isinstance(node, ast.Subscript) and child is node.slice and isinstance(child, ast.Tuple)
            if isinstance(getattr(child, "ctx", ast.Load()), ast.Load) and not index and not of_call:
                yield child
        yield from _expressions(child)


def _blocks(body: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    yield body
    for statement in body:
        for block in blocks(statement):
            yield from _blocks(block)


class _Substitute(ast.NodeTransformer):
    """Puts copies of expressions in the place of names."""

    def __init__(self, parts: list[ast.expr]) -> None:
        self.parts = parts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        number = node.id.removeprefix("__part_")
        return node if number == node.id else copy.deepcopy(self.parts[int(number)])


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_expression_is_replaced(seed: int) -> None:
    one = Program(seed)
    old = one.random.choice(one.expressions)
    template, new = one.expression(one.random.choice(TEMPLATES), old)
    one.check([ReplaceExpression(one.layout.span(old), template)], lambda: _Replace(old, new).visit(one.tree))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_keyword_argument_is_added(seed: int) -> None:
    one = Program(seed)
    call = _call(one)
    template, new = one.expression(one.random.choice(["{}", "{}.device", "'cuda'"]))
    added = AddKeyword(one.layout.span(call), "device", template)
    one.check([added], lambda: call.keywords.append(ast.keyword("device", new)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_positional_argument_is_added(seed: int) -> None:
    one = Program(seed)
    call = _call(one)
    template, new = one.expression(one.random.choice(["{}", "({},)", "()"]))
    one.check([AddFirstArgument(one.layout.span(call), template)], lambda: call.args.insert(0, new))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_called_is_renamed(seed: int) -> None:
    one = Program(seed)
    call = _call(one)

    def rename() -> None:
        setattr(call.func, "attr" if isinstance(call.func, ast.Attribute) else "id", "detach")

    assert one.check([RenameCalled(one.layout.span(call), "detach")], rename)


def _call(one: Program) -> ast.Call:
    """A call of something that has a name; one is made where there is none."""
    while True:
        calls = [node for node in one.expressions if isinstance(node, ast.Call)]
        calls = [node for node in calls if isinstance(node.func, (ast.Name, ast.Attribute))]
        if calls:
            return one.random.choice(calls)
        one.__init__(one.random.randrange(10**9))  # type: ignore[misc]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_call_is_unwrapped_and_given_an_argument(seed: int) -> None:
    """`f(a).to(device)` to `f(a, device=device)`: operations within what another one replaces."""
    one = Program(seed)
    inner = _call(one)
    outer = one.random.choice([node for node in one.expressions if any(part is inner for part in ast.walk(node))])
    value, device = one.expression("{}")
    operations = [
        RenameCalled(one.layout.span(inner), "full"),
        AddKeyword(one.layout.span(inner), "device", value),
        ReplaceExpression(one.layout.span(outer), Template("{}.T", (one.layout.span(inner),))),
    ]

    def change() -> None:
        setattr(inner.func, "attr" if isinstance(inner.func, ast.Attribute) else "id", "full")
        inner.keywords.append(ast.keyword("device", device))
        new = ast.Attribute(copy.copy(inner), "T", ast.Load())
        one.tree = _Replace(outer, new).visit(one.tree)

    one.check(operations, change)


@pytest.mark.parametrize("seed", SEEDS)
def test_fixes_that_do_not_overlap_are_applied_together(seed: int) -> None:
    one = Program(seed)
    changes = {}
    for number, old in enumerate(one.random.sample(one.expressions, min(6, len(one.expressions)))):
        template, new = one.expression(one.random.choice(TEMPLATES), old)
        operation = ReplaceExpression(one.layout.span(old), template)
        if one.layout.obstacle(operation) is None:
            fix = Fix(f"Change {number}", (operation,), safe=True)
            changes[fix] = (old, new)
    findings = [
        Finding("GS1", "", "", fix.operations[0].span, "", "", Heat.STEP, Confidence.HIGH, "", "", fix)
        for fix in changes
    ]
    chosen = choose(findings, lambda fix: one.codemod.edits(fix.operations), unsafe=False)
    assert bool(chosen.fixes) is bool(changes)
    for old, new in map(changes.__getitem__, chosen.fixes):
        one.tree = _Replace(old, new).visit(one.tree)
    assert ast.dump(_parsed(apply_edits(one.text, chosen.edits))) == ast.dump(one.tree)


@pytest.mark.parametrize("kind", [InsertBefore, InsertAfter])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_statement_is_inserted(seed: int, kind: type[InsertBefore] | type[InsertAfter]) -> None:
    one = Program(seed)
    block, place = one.block()
    template, new = one.template(one.random.choice(STATEMENTS))
    assert isinstance(new, ast.stmt)
    where = place + (kind is InsertAfter)
    one.check([kind(one.layout.span(block[place]), template)], lambda: block.insert(where, new))


@pytest.mark.parametrize("seed", SEEDS)
def test_statements_are_replaced(seed: int) -> None:
    one = Program(seed)
    block, place = one.block()
    last = one.random.randrange(place, len(block))
    template, new = one.template(one.random.choice(STATEMENTS))
    first, end = one.layout.span(block[place]), one.layout.span(block[last])
    assert isinstance(new, ast.stmt)

    def change() -> None:
        block[place : last + 1] = [new]

    if not getattr(block[place], "decorator_list", None):
        one.check([ReplaceStatements(Span(*first[:2], *end[2:]), template)], change)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_statement_is_removed(seed: int) -> None:
    one = Program(seed)
    block, place = one.block()
    if len(block) > 1 and not getattr(block[place], "decorator_list", None):
        one.check([RemoveStatement(one.layout.span(block[place]))], lambda: block.pop(place))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_comment_is_added(seed: int) -> None:
    one = Program(seed)
    before = comments(one.text)
    span = one.layout.span(one.random.choice(one.expressions))
    edits = one.codemod.edits([AddComment(span, "# gpusync: allow[GS201] known")])
    after = apply_edits(one.text, edits)
    assert ast.dump(_parsed(after)) == ast.dump(one.tree)
    (edit,) = edits
    assert edit.span.line >= span.end_line
    assert edit.replacement == "  # gpusync: allow[GS201] known"
    changed = [(new, old) for new, old in zip(after.split("\n"), one.text.split("\n"), strict=True) if new != old]
    assert [new for new, _ in changed] == [f"{old.rstrip()}{edit.replacement}" for _, old in changed]
    assert len(comments(after)) in (len(before), len(before) + 1)


def test_layouts_allow_most_of_what_is_asked_for() -> None:
    """That the tests above test something: of these programs, a comment is in the way of some, but not of most."""
    allowed = 0
    for seed in SEEDS:
        one = Program(seed)
        old = one.random.choice(one.expressions)
        template, new = one.expression("{}.detach()", old)
        replaced = ReplaceExpression(one.layout.span(old), template)
        allowed += one.check([replaced], lambda old=old, new=new, one=one: _Replace(old, new).visit(one.tree))
    assert allowed > 0.7 * len(SEEDS)
