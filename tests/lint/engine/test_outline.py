"""Files told apart by their text into definitions and what stands around them."""

import ast
from pathlib import Path

import pytest
from gpusync_lint.model.findings import Source
from gpusync_lint.project.outline import FRAME, NAMES, WHOLE, Outline

HERE = Path(__file__).parents[3]
FILES = sorted(
    [*HERE.glob("lint/gpusync_lint/**/*.py"), *HERE.glob("pytest_gpusync/**/*.py"), *HERE.glob("tests/*/*.py")]
)

TEXT = '''"""What it is for.

class of its own
"""
import os, torch.nn as nn
from .q import (r,
    s as t,  # why
)
A = 1
B: int = call(a=2)

@decorated(
    1
)
@again
def f(x,
      y):
    return x

class K(Base):
    z = 1

    def f(self): ...

async def g(): ...
def f(): return 2
'''


def definitions(text, path="m.py"):
    return Outline(Source(path, text))


def names(tree):
    return [(node.name, node.lineno, node.end_lineno) for node in tree.body if hasattr(node, "name")]


def test_each_definition_stands_on_its_own_lines():
    found = definitions(TEXT)
    assert set(found.pieces) == {"f", "K", "g"}
    whole = names(ast.parse(TEXT))
    for label in found.pieces:
        assert names(ast.parse(found.text_of(label))) == [one for one in whole if one[0] == label]
    assert found.text_of("f").lstrip("\n").startswith("@decorated(")


def test_the_frame_is_the_rest_line_by_line():
    frame = definitions(TEXT).frame.split("\n")
    for number, line in enumerate(TEXT.split("\n")):
        assert frame[number] in ("", line)
    assert names(ast.parse("\n".join(frame))) == []
    assert [line for line in frame if line] == [line for line in TEXT.split("\n")[:10] if line]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_pieces_of_real_files_are_what_parsing_them_whole_gives(path):
    text = path.read_text(encoding="utf-8")
    found = definitions(text)
    whole = ast.parse(text)
    try:
        pieces = [ast.parse(found.text_of(label)) for label in found.pieces]
        pieces.append(ast.parse(found.frame))
    except SyntaxError:  # a line at the margin in a string; then the whole is read
        assert '"""' in text or "'''" in text
        return
    statements = sorted((node for tree in pieces for node in tree.body), key=lambda node: node.lineno)
    assert [ast.dump(node, include_attributes=True) for node in statements] == [
        ast.dump(node, include_attributes=True) for node in whole.body
    ]


def test_most_files_can_be_taken_apart():
    apart = 0
    for path in FILES:
        found = definitions(path.read_text(encoding="utf-8"))
        try:
            for text in (found.frame, *map(found.text_of, found.pieces)):
                ast.parse(text)
        except SyntaxError:
            continue
        apart += 1
    assert apart > 0.8 * len(FILES)


def changed(text, *labels):
    before, after = (Outline(Source("m.py", one)).digests(labels) for one in (TEXT, text))
    return {label for label in labels if before[label] != after[label]}


LABELS = (FRAME, NAMES, WHOLE, "f", "K", "g", "A", "B", "nn", "r", "t", "absent")


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (("A = 1", "A = 2"), {"A"}),
        (("z = 1", "z = 2"), {"K"}),
        (("return 2", "return 3"), {"f"}),
        (("return x", "return y"), {"f"}),
        (("again", "once_more"), {"f"}),
        (("call(a=2)", "call(a=3)"), {"B"}),
        (("import (r,", "import (r, absent,"), {"r", "t", "absent", NAMES}),
        (("A = 1", "\n\n\nA = 1"), set()),
        (("A = 1", "A = absent = 1"), {FRAME, "A", NAMES}),
        (("A = 1", "A = 1; absent = 2"), {FRAME, "A", NAMES}),
        (("A = 1", "if A: absent = 1"), {FRAME, "A", NAMES}),
        (("A = 1", "A = x[0] = 1"), {FRAME, "A", NAMES}),
        (("A = 1", "A = (absent := 1)"), {FRAME, "A", NAMES}),
        (("from .q import (r,", "from .q import *\nfrom .q import (r,"), {FRAME}),
        (("import os,", "import os, absent.x,"), {FRAME, "nn", "absent"}),
        (("async def g(): ...", "async def g(): ...\ndef absent(): ..."), {"absent", NAMES}),
    ],
)
def test_an_edit_changes_the_digests_of_what_it_is_about(edit, expected):
    assert TEXT.count(edit[0]) == 1
    assert changed(TEXT.replace(*edit), *LABELS) - {NAMES} == (expected | {WHOLE}) - {NAMES}


def test_the_names_that_a_file_may_bind():
    found, reexports = definitions(TEXT).names
    assert {"f", "K", "g", "A", "B"} <= found
    assert not reexports
    words, reexports = definitions("from .a import *\nif x: y = z\n", "p/__init__.py").names
    assert {"x", "y", "z"} <= words
    assert reexports


def test_of_several_definitions_of_a_name_the_last_says_whether_it_is_a_function():
    text = "def a(): ...\nclass a: ...\nclass b: ...\n@c\nasync def b(): ...\nclass c(a): ...\ndef d(): ...\n"
    found = Outline(Source("m.py", text))
    assert [label for label in "abcde" if found.is_function(label)] == ["b", "d"]
