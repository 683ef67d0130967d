"""Parsing source text, without crashing on a hostile file.

A file is parsed with `ast`. If that raises SyntaxError it is parsed with libcst, which knows newer syntax than the
running interpreter: the statements that `ast` can parse one by one are kept, and the rest are left out. libcst can
crash the process on very deep nesting, so it never gets text that `ast` rejected as nested too deeply.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass

_MAX_BRACKETS = 100
_MAX_CHAIN = 1000
_WEIGHT = 5
"""How much an operator that nests to the right counts in a chain. libcst needs more of the stack for it."""
_NESTING = re.compile(r"[(\[{)\]}\n+\-/%@&|^.~<>=:]|\*+|\b(?:not|lambda|else|await|yield|and|or|in|is)\b")
"""What a chain or a nesting of expressions consists of."""
_ADJACENT_STRINGS = re.compile(r"(?:''[\s\\]*){200}")
"""Strings that are concatenated without an operator."""
_STRINGS = re.compile(
    r"""'{3}(?:[^\\']+|\\.|'(?!''))*(?:'{3})?|"{3}(?:[^\\"]+|\\.|"(?!""))*(?:"{3})?"""
    r"""|'(?:[^'\\\n]+|\\.)*'?|"(?:[^"\\\n]+|\\.)*"?|\#[^\n]*""",
    re.DOTALL,
)
"""Strings and comments. A string without an end extends as far as it could: a pattern that failed there would be tried
again from every quote in it, which takes quadratic time."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The tree of a file, or the line and message of the error."""

    tree: ast.Module | None
    line: int | None = None
    message: str = ""


def normalize(text: str) -> str:
    """A text without a byte order mark and with `\\n` as its only line end."""
    text = text.removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def parse(text: str) -> Parsed:
    """Parse one file. Never raises, whatever the file contains."""
    try:
        return Parsed(_ast(text))
    except SyntaxError as error:
        if "too many nested" in (error.msg or ""):
            return Parsed(None, error.lineno, "nested too deeply to analyze")
        newer = _parse_newer_syntax(text)
        if newer is not None:
            return Parsed(newer)
        return Parsed(None, error.lineno, f"not valid Python: {error.msg}")
    except (RecursionError, MemoryError):
        return Parsed(None, None, "nested too deeply to analyze")
    except ValueError as error:
        return Parsed(None, None, f"not valid Python: {error}")


def _ast(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _parse_newer_syntax(text: str) -> ast.Module | None:
    """Split a file into statements with libcst, and keep those that this interpreter's grammar knows."""
    if not is_safe_for_libcst(text):
        return None
    import libcst as cst

    try:
        module = cst.parse_module(text)
        # Converting nodes back to text is recursive, too, and fails for trees that have just been parsed.
        parts = [module.code_for_node(statement) for statement in module.body]
        line = 1 + sum(1 for _ in module.header)
    except Exception:
        return None
    tree = ast.Module(body=[], type_ignores=[])
    for code in parts:
        try:
            part = _ast(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            part = None
        if part is not None:
            for node in part.body:
                ast.increment_lineno(node, line - 1)
            tree.body.extend(part.body)
        line += code.count("\n")
    return tree


def is_safe_for_libcst(text: str) -> bool:
    """Whether a text is nested too little to crash libcst, which would end the process. A rough bound."""
    bare = _STRINGS.sub("''", text)
    if bare.count("elif") > _MAX_BRACKETS or _ADJACENT_STRINGS.search(bare):
        return False
    depth = chain = 0
    for match in _NESTING.finditer(bare):
        token = match[0]
        if token in "([{":
            depth += 1
            if depth > _MAX_BRACKETS:
                return False
        elif token in ")]}":
            depth = max(0, depth - 1)
        elif token == "\n":
            chain = 0 if depth == 0 else chain
        else:
            chain += 1 if len(token) == 1 and token != "~" else _WEIGHT
            if chain > _MAX_CHAIN:
                return False
    return True
