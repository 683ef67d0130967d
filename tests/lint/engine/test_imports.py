"""Imports: the same from a tree and from a text, and one order in which their modules are looked for."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from gpusync_lint.project import imports
from gpusync_lint.project.import_context import _Folders
from gpusync_lint.project.imports import Import, lookup

STATEMENTS = {
    "import a": [Import("a")],
    "import a.b as c, d": [Import("a.b", "", "c"), Import("d")],
    "from a import b": [Import("a", "b")],
    "from a import b as c": [Import("a", "b", "c")],
    "from .a import (b,  # why (not)\n    c as d,\n)": [Import(".a", "b"), Import(".a", "c", "d")],
    "from . import a": [Import(".", "a")],
    "from a import *": [Import("a", "*")],
    "def f():\n    from a import b": [Import("a", "b")],
    "x = 1; import a": [Import("a")],
    "if x: import a": [Import("a")],
    "from a import b, \\\n    c": [Import("a", "b"), Import("a", "c")],
    "important = 1\nimportlib = 2": [],
    "from .import_utils import a": [Import(".import_utils", "a")],
    "import a; import b\nimport importlib": [Import("a"), Import("b"), Import("importlib")],
    "from a import (\n    import_b,\n    c,\n); import d": [Import("a", "import_b"), Import("a", "c"), Import("d")],
}


@pytest.mark.parametrize(("text", "found"), STATEMENTS.items())
def test_the_imports_of_a_text_are_those_of_its_tree(text, found):
    nodes = sorted(
        (node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))),
        key=lambda node: (node.lineno, node.col_offset),
    )
    assert [one for node in nodes for one in imports.of_statement(node)] == found
    assert list(imports.in_text(text)) == found


@pytest.mark.parametrize("text", ["import", "from import", "fromage import x", "from a import ("])
def test_what_is_no_import_names_no_module(text):
    assert [one for one in imports.in_text(text) if one.module] == []


def test_at_the_start_of_a_text_one_statement_is_read():
    assert imports.at_start("import a, b as c  # d\nimport e\n") == [Import("a"), Import("b", "", "c")]
    assert imports.at_start("x = 1\nimport a") == []


@pytest.mark.parametrize(
    ("one", "bound", "target"),
    [
        (Import("a.b"), "a", "a"),
        (Import("a.b", "", "a"), "a", "a.b"),
        (Import("a.b", "", "c"), "c", "a.b"),
        (Import("a", "b"), "b", "a.b"),
        (Import(".", "b", "c"), "c", ".b"),
        (Import("..a", "b"), "b", "..a.b"),
    ],
)
def test_an_import_binds_a_local_name_to_a_dotted_one(one, bound, target):
    assert (one.bound, one.target) == (bound, target)


FILES = ("a.py", "src/s.py", "p/__init__.py", "p/b.py", "p/q/__init__.py", "p/q/c.py", "p/q.py", "p/a.py", "r/d.py")
FOUND = [
    ("p/b.py", "a", "p/a.py"),  # its own folder before those above it
    ("a.py", "a", "a.py"),
    ("a.py", "p.b.f", "p/b.py"),
    ("a.py", "p.q", "p/q/__init__.py"),  # a package before a file of the same name
    ("a.py", "p.nothing", "p/__init__.py"),
    ("p/q/c.py", "s", "src/s.py"),
    ("p/q/c.py", "..b.f", "p/b.py"),
    ("p/q/c.py", ".f", "p/q/__init__.py"),
    ("p/b.py", "r", ""),  # a folder, not a module
    ("a.py", ".q", ""),
    ("a.py", "..p", ""),  # above the top
    ("a.py", "torch.nn", ""),
]


@pytest.mark.parametrize(("importer", "target", "found"), FOUND)
def test_a_module_is_looked_for_among_files(importer, target, found):
    index = {imports.module_of(path): path for path in sorted(FILES)}
    known = imports.beginnings(index)
    folder = tuple(importer.split("/")[:-1])
    hits = [index[module] for module, _ in lookup(folder, target, known.__contains__) if module in index]
    assert (hits or [""])[0] == found


@pytest.mark.parametrize(("importer", "target", "found"), FOUND)
def test_a_module_is_looked_for_on_disk_in_the_same_order(tmp_path, importer, target, found):
    for path in ("setup.py", *FILES):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    hit = _Folders().module(str((tmp_path / importer).parent), target)
    assert (None if hit is None else hit.relative_to(tmp_path)) == (Path(found) if found else None)


def test_the_words_that_are_left_are_for_the_module_to_define():
    modules = lookup((), "p.b.f", lambda module: True)
    assert list(modules)[:3] == [(("p", "b", "f"), ()), (("p", "b"), ("f",)), (("p",), ("b", "f"))]
