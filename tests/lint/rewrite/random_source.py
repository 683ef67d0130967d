"""Random programs in random layouts: they parse, they mean nothing, and hardly anybody would lay them out so."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

NAMES = ("x", "loss", "größe", "名前", "_", "case", "match", "model")
F_STRINGS_HAVE_POSITIONS = sys.version_info >= (3, 12)


class Source:
    """Writes one random program."""

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self.brackets = 0
        """How many are open: lines may end inside of them."""
        self.in_string = False
        self.comments = 0

    def program(self) -> str:
        """A program; its lines end in newlines."""
        indentation = self.random.choice(["    ", "\t", "  "])
        return "".join(self.statement("", indentation) for _ in range(self.random.randint(1, 4)))

    # layout

    def choice(self, *options: str) -> str:
        return self.random.choice(options)

    def space(self, *, needed: bool = False) -> str:
        """What may stand between two tokens."""
        kind = self.random.random()
        if self.in_string:
            return " "
        if kind < 0.75:
            return " " if needed else self.choice("", " ", " ", "  ")
        if self.brackets and kind < 0.93:
            return self.line_end()
        return self.choice(" \\\n ", "\t", "  ") if kind < 0.97 else " "

    def line_end(self) -> str:
        comment = ""
        if self.random.random() < 0.3:
            comment = f"  {self.comment()}"
        blank = self.choice("", "", "\n", "    \n")
        return f"{comment}\n{blank}{' ' * self.random.randint(0, 9)}"

    def comment(self) -> str:
        self.comments += 1
        return f"# note {self.comments} größe"

    def inside(self, opening: str, closing: str, write: Callable[[], str]) -> str:
        self.brackets += 1
        text = f"{opening}{self.space()}{write()}{self.space()}{closing}"
        self.brackets -= 1
        return text

    def listed(self, items: Sequence[Callable[[], str]], *, trailing: bool = True) -> str:
        text = ""
        for number, item in enumerate(items):
            text += f"{',' + self.space() if number else ''}{item()}{self.space()}"
        return f"{text},{self.space()}" if items and trailing and self.random.random() < 0.3 else text

    # expressions

    def expression(self, depth: int) -> str:
        """An expression that may stand as an operand of anything."""
        text = self.atom(depth) if depth <= 0 or self.random.random() < 0.7 else self.operation(depth)
        if self.random.random() < 0.1:
            inner = text
            return self.inside("(", ")", lambda: inner)
        return text

    def many(self, low: int, high: int, depth: int) -> list[Callable[[], str]]:
        return [lambda: self.expression(depth - 1) for _ in range(self.random.randint(low, high))]

    def atom(self, depth: int) -> str:
        kinds: list[Callable[[int], str]] = [self.name, self.literal]
        if depth > 0:
            kinds += [self.call, self.call, self.call, self.attribute, self.subscript, self.display, self.comprehension]
            kinds += [self.parenthesised]
            if F_STRINGS_HAVE_POSITIONS and not self.in_string:
                kinds.append(self.f_string)
        return self.random.choice(kinds)(depth)

    def name(self, depth: int) -> str:
        return self.random.choice(NAMES)

    def literal(self, depth: int) -> str:
        if self.in_string:
            return self.choice("1", "2.5", "None")
        return self.choice("1", "2.5", "None", "'#'", '"a" "b"', "'''one\n  two'''", "...", "0x1f")

    def primary(self, depth: int) -> str:
        return self.random.choice([self.name, self.call, self.attribute, self.subscript, self.parenthesised])(depth - 1)

    def attribute(self, depth: int) -> str:
        if depth <= 0:
            return self.name(depth)
        return f"{self.primary(depth)}{self.choice('', '', ' ')}.{self.choice('', '', ' ')}{self.name(0)}"

    def call(self, depth: int) -> str:
        if depth <= 0:
            return f"{self.name(0)}()"
        func = self.primary(depth)
        if self.random.random() < 0.1:
            arguments: list[Callable[[], str]] = [lambda: self.generator(depth - 1)]
            return f"{func}{self.inside('(', ')', arguments[0])}"
        arguments = self.many(0, 2, depth)
        if self.random.random() < 0.2:
            arguments.append(lambda: f"*{self.atom(depth - 1)}")
        for number in range(self.random.choice([0, 0, 1, 2])):
            arguments.append(
                lambda number=number: f"k{number}{self.space()}={self.space()}{self.expression(depth - 1)}"
            )
        if self.random.random() < 0.1:
            arguments.append(lambda: f"**{self.atom(depth - 1)}")
        return f"{func}{self.inside('(', ')', lambda: self.listed(arguments))}"

    def subscript(self, depth: int) -> str:
        if depth <= 0:
            return f"{self.name(0)}[0]"
        value = self.primary(depth)
        index: Callable[[], str] = lambda: self.expression(depth - 1)  # noqa: E731
        if self.random.random() < 0.3:
            index = lambda: f"{self.atom(depth - 1)}:{self.atom(depth - 1)}, {self.atom(depth - 1)}"  # noqa: E731
        return f"{value}{self.inside('[', ']', index)}"

    def display(self, depth: int) -> str:
        kind = self.random.randrange(4)
        if kind == 0:
            return self.inside("(", ")", lambda: self.listed(self.many(2, 3, depth)))
        if kind == 1:
            return self.inside("[", "]", lambda: self.listed(self.many(0, 3, depth)))
        if kind == 2:
            return self.inside("{", "}", lambda: self.listed(self.many(1, 3, depth)))
        pairs = [lambda: f"{self.expression(depth - 1)}:{self.space()}{self.expression(depth - 1)}"]
        return self.inside("{", "}", lambda: self.listed(pairs))

    def comprehension(self, depth: int) -> str:
        opening, closing = self.random.choice(["[]", "{}", "()"])
        return self.inside(opening, closing, lambda: self.generator(depth - 1))

    def generator(self, depth: int) -> str:
        element, source = self.expression(depth - 1), self.atom(depth - 1)
        target = self.choice("x", "größe", "x, y", "(x, y)")
        condition = f"{self.space(needed=True)}if {self.atom(depth - 1)}" if self.random.random() < 0.3 else ""
        space = self.space(needed=True)
        return f"{element}{space}for {target} in{self.space(needed=True)}{source}{condition}"

    def parenthesised(self, depth: int) -> str:
        kinds: list[Callable[[], str]] = [lambda: self.operation(depth)]
        if not self.in_string:
            kinds += [lambda: f"名前 := {self.expression(depth - 1)}", lambda: f"yield {self.expression(depth - 1)}"]
        return self.inside("(", ")", self.random.choice(kinds))

    def operation(self, depth: int) -> str:
        """An expression that would need parentheses in places."""
        first, second = self.atom(depth - 1), self.atom(depth - 1)
        kind = self.random.randrange(8)
        space, other = self.space(needed=True), self.space(needed=True)
        if kind <= 1:
            return f"{first}{space}{self.choice('+', '-', '*', '/', '**', '@', '<<', '|', '%')}{other}{second}"
        if kind == 2:
            return f"{self.choice('-', '~', 'not ')}{first}"
        if kind == 3:
            return f"{first}{space}{self.choice('and', 'or')}{other}{second}"
        if kind == 4:
            return f"{first}{space}{self.choice('<', '==', 'is', 'in', 'not in')}{other}{second}"
        if kind == 5:
            return f"{first}{space}if{other}{second} else {self.atom(depth - 1)}"
        if kind == 6 and not self.in_string:
            return f"lambda y: {first}"
        return f"await {first}"

    def f_string(self, depth: int) -> str:
        self.in_string, before = True, self.brackets
        self.brackets = 0
        hole = f"{self.choice('', ' ')}{self.atom(depth - 1)}{self.choice('', '!r', ':>3')}"
        self.in_string, self.brackets = False, before
        return f"f'größe {{{hole}}} {{x}}'" if "{" not in hole[:1] else "f'{x}'"

    # statements

    def value(self) -> str:
        """An expression behind a keyword or an operator, with the blank that it needs."""
        kind = self.random.random()
        if kind < 0.15:
            text = self.inside("(", ")", lambda: self.listed(self.many(2, 3, 3)))
            return f"{self.choice('', ' ')}{text}"
        if kind < 0.3:
            return f" {self.atom(2)}, {self.atom(2)}"
        if kind < 0.5:
            return f" {self.operation(3)}"
        return f" {self.expression(4)}"

    def test(self) -> str:
        return self.random.choice([lambda: f" {self.expression(3)}", lambda: f" {self.operation(3)}"])()

    def simple(self) -> str:
        """A statement without the end of its line."""
        kind = self.random.randrange(8)
        if kind == 0:
            return f"return{self.value()}"
        if kind == 1:
            return f"{self.atom(3)}"
        if kind == 2:
            return f"x, größe ={self.value()}"
        if kind == 3:
            return f"x += {self.expression(3)}"
        if kind == 4:
            return f"assert{self.test()}, {self.expression(2)}"
        if kind == 5:
            return f"x: {self.atom(1)} = {self.expression(3)}"
        return f"x = y ={self.value()}"

    def simple_line(self) -> str:
        """Simple statements, with the end of their line."""
        line = "; ".join(self.simple() for _ in range(self.random.choice([1, 1, 1, 2, 3])))
        return f"{line}{self.choice('', '', ';', ' ')}{self.ending()}"

    def ending(self) -> str:
        return f"{f'  {self.comment()}' if self.random.random() < 0.2 else ''}\n"

    def block(self, indentation: str, deeper: str) -> str:
        if self.random.random() < 0.15:
            return f"{self.choice('', ' ')}{self.simple_line()}"
        body = "".join(self.statement(indentation + deeper, deeper) for _ in range(self.random.randint(1, 2)))
        note = f"{indentation}{deeper}{self.comment()}\n" if self.random.random() < 0.1 else ""
        return f"{self.ending()}{note}{body}"

    def statement(self, indentation: str, deeper: str) -> str:
        note = f"{indentation}{self.comment()}\n" if self.random.random() < 0.1 else ""
        note += "\x0c\n" if self.random.random() < 0.03 else ""
        if self.random.random() < 0.6 or len(indentation) > 3 * len(deeper):
            return f"{note}{indentation}{self.simple_line()}"
        return note + self.compound(indentation, deeper)

    def compound(self, indentation: str, deeper: str) -> str:
        def block() -> str:
            return self.block(indentation, deeper)

        kind = self.random.randrange(8)
        if kind == 0:
            text = f"{indentation}if{self.test()}:{block()}"
            for _ in range(self.random.randint(0, 2)):
                text += f"{indentation}elif{self.test()}:{block()}"
            return text + (f"{indentation}else:{block()}" if self.random.random() < 0.5 else "")
        if kind == 1:
            keyword = self.choice("for", "for", "async for")
            ending = f"{indentation}else:{block()}" if self.random.random() < 0.3 else ""
            return f"{indentation}{keyword} {self.choice('x', 'x, y', '(x, y)')} in{self.value()}:{block()}{ending}"
        if kind == 2:
            return f"{indentation}while{self.test()}:{block()}"
        if kind == 3:
            return f"{indentation}with {self.expression(3)} as x, {self.atom(2)}:{block()}"
        if kind == 4:
            return (
                f"{indentation}try:{block()}{indentation}except {self.atom(2)} as error:{block()}"
                f"{indentation}finally:{block()}"
            )
        if kind == 5:
            below = indentation + deeper
            guard = f" if{self.test()}" if self.random.random() < 0.7 else ""
            body = f"{below}case [x, *_]{guard}:{self.block(below, deeper)}"
            return f"{indentation}match {self.atom(3)}:\n{body}"
        decorator = f"{indentation}@{self.primary(2)}{self.ending()}" if self.random.random() < 0.5 else ""
        if kind == 6:
            return f"{decorator}{indentation}class A({self.primary(2)}):{block()}"
        return f"{decorator}{indentation}async def f(x={self.expression(2)}):{block()}"


def program(random: random.Random) -> str:
    """A random program that parses."""
    while True:
        text = Source(random).program()
        try:
            ast.parse(text)
        except SyntaxError:
            continue
        return text
