"""Imports: read from a tree or from a text, and resolved to the modules of a project.

There is one order in which a module is looked for, `lookup`. What differs between its users is only which modules
exist: the files of a run, or those on disk.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SOURCE_FOLDERS = ("src", "lib", "python")
"""Folders that are put on `sys.path` by convention: `import pkg` may mean `src/pkg`."""

Module = tuple[str, ...]
"""The path of a module without its suffix, as parts. A package and its `__init__` are the same module."""

_IMPORT = re.compile(
    r"(?:from[ \t]+([\w.]*)[ \t]+import\b[ \t]*(\((?:[^)#]|\#[^\n]*(?:\n|\Z))*\)?|(?:[^\n#;\\]|\\\n)*)"
    r"|import\b[ \t]*((?:[^\n#;\\]|\\\n)*))"
)
"""An import statement. A parenthesis that is not closed extends to the end of the text, so that every text is matched
in linear time."""
_BEGIN = re.compile(r"(?:^|[;:])[ \t]*((?:from[ \t]+[\w.]*[ \t]+)?import\b)", re.MULTILINE)
_BEFORE = 400
"""The maximum number of characters, in its line, between the beginning of an import statement and the word `import`."""
_COMMENT = re.compile(r"#[^\n]*")


class Import(NamedTuple):
    """One name that an import statement imports."""

    module: str
    """As it is written; a relative one begins with dots."""
    name: str = ""
    """What is taken from the module: `b` of `from a import b`, `*` for all; empty for `import a`."""
    alias: str = ""
    """The name after `as`; empty without one."""

    @property
    def bound(self) -> str:
        """The local name that is bound: `a` for `import a.b`."""
        return self.alias or self.name or self.module.partition(".")[0]

    @property
    def target(self) -> str:
        """The dotted name that the local name stands for: `a.b` for `from a import b`, `a` for `import a.b`."""
        if self.name:
            return dotted(self.module, self.name)
        return self.module if self.alias else self.bound


def dotted(module: str, name: str) -> str:
    """The dotted name of what is imported from a module; of the module itself for an empty name."""
    return f"{module}.{name}" if name and module and not module.endswith(".") else f"{module}{name}"


def of_statement(node: ast.Import | ast.ImportFrom) -> list[Import]:
    """What an import statement imports."""
    if isinstance(node, ast.Import):
        return [Import(alias.name, "", alias.asname or "") for alias in node.names]
    module = "." * node.level + (node.module or "")
    return [Import(module, alias.name, alias.asname or "") for alias in node.names]


def in_text(text: str) -> Iterator[Import]:
    """What the import statements of a text import, found without parsing, which takes a hundred times as long.

    A statement in a comment or a string may be taken for code.
    """
    start = done = 0
    while True:
        # Looking for the word first is faster than a pattern that is tried at the beginning of every line.
        word = text.find("import", start)
        if word < 0:
            return
        start = word + len("import")
        earliest = max(done, word - _BEFORE)
        begin = _BEGIN.search(text, max(text.rfind("\n", earliest, word) + 1, earliest), start + 1)
        match = _IMPORT.match(text, begin.start(1)) if begin is not None else None
        if match is not None:
            yield from _imported(match)
            start = done = max(match.end(), start)


def modules_in(text: str) -> list[tuple[str, str]]:
    """The modules that a text imports, each with the name taken from it (empty for a plain import, and for a star)."""
    return list(dict.fromkeys((one.module, "" if one.name == "*" else one.name) for one in in_text(text)))


def at_start(text: str) -> list[Import]:
    """What the import statement at the start of a text imports; nothing where another statement stands there."""
    match = _IMPORT.match(text)
    return [] if match is None else list(_imported(match))


def _imported(match: re.Match[str]) -> Iterator[Import]:
    module, names, modules = match.groups()
    items = names if modules is None else modules
    if "#" in items:
        items = _COMMENT.sub("", items)
    if "\\" in items:
        items = items.replace("\\", " ")
    for item in items.strip("() \t\n").split(","):
        words = item.split()
        if words:
            alias = words[2] if len(words) > 2 and words[1] == "as" else ""
            yield Import(words[0], "", alias) if modules is not None else Import(module, words[0], alias)


def module_of(path: str) -> Module:
    """The module of a file, by its path with forward slashes."""
    parts = tuple(path.removesuffix(".py").removesuffix(".pyi").split("/"))
    return parts[:-1] if parts[-1] == "__init__" else parts


def beginnings(modules: Iterable[Module]) -> frozenset[Module]:
    """Every beginning of the name of a module: the folders that hold modules, and the modules."""
    return frozenset(module[:length] for module in modules for length in range(len(module) + 1))


@lru_cache(maxsize=4)
def last_words(names: frozenset[Module]) -> frozenset[str]:
    """The last parts of some names of modules and folders."""
    return frozenset(name[-1] for name in names if name)


def lookup(
    folder: Module, target: str, may_exist: Callable[[Module], bool], top: int = 0
) -> Iterator[tuple[Module, Module]]:
    """The modules that a dotted name may mean, likeliest first, each with the words that are left for it to define.

    A relative name starts from the folder of its file. Another one is looked for in that folder, then in each folder
    above it, and in each in `SOURCE_FOLDERS` as well: a project may be linted from any folder of it. The longest
    beginning of the name that is a module comes first: `a.b.C` may be `C` of `a/b.py`, or of `a/b/__init__.py`.

    Args:
        folder: the folder of the file that imports.
        target: the dotted name; a relative one begins with dots.
        may_exist: whether there may be a module or a folder of a name; where not, nothing below it is looked for.
        top: how many parts of `folder` are not to be left upwards; a relative import may leave them.
    """
    bare = target.lstrip(".")
    words = tuple(bare.split(".")) if bare else ()
    relative = bare != target
    roots = _above(folder, len(target) - len(bare) - 1) if relative else _around(folder, top)
    for root in roots:
        if relative or may_exist((*root, *words[:1])):
            for length in range(len(words), -1 if relative else 0, -1):
                yield (*root, *words[:length]), words[length:]


def _above(folder: Module, levels: int) -> Iterator[Module]:
    """The folder some levels up, if there are so many."""
    if levels <= len(folder):
        yield folder[: len(folder) - levels]


def _around(folder: Module, top: int) -> Iterator[Module]:
    """A folder and those above it, each with the source folders in it."""
    for length in range(len(folder), top - 1, -1):
        yield folder[:length]
        for source in SOURCE_FOLDERS:
            yield (*folder[:length], source)
