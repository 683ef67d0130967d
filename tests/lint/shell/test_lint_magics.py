from __future__ import annotations

import ast

import pytest
from gpusync_lint.files.ipython_magics import PYTHON_CELL_MAGICS, mask

CASES = [
    ("a line magic", "%matplotlib inline\nx = 1", "pass\nx = 1"),
    ("a timed statement", "%time x = f()\n%timeit  y.item()", "...;  x = f()\n...;     y.item()"),
    ("a timed statement with options", "%timeit -n 3 -r5 -o x", "...;                x"),
    ("a profiled statement", "%prun f(x)", "pass; f(x)"),
    ("a profiled statement with an option of its own", "%prun -s cumulative f(x)", "pass"),
    ("a timer without a statement", "%time", "pass"),
    ("a timed thing that is no Python", "%time !ls", "pass"),
    ("a shell command", "!pip install torch\nx", "pass\nx"),
    ("a magic in a block", "if x:\n    %cd y\nz", "if x:\n    pass\nz"),
    ("a magic over lines", "!pip install \\\n  torch \\\n  numpy\nx", "pass\n\n\nx"),
    ("an assigned command", "files = !ls\nx", "files = None\nx"),
    ("an assigned magic", "a, b = %time f()\nx", "a, b = None\nx"),
    ("an attribute", "self.x = !ls", "self.x = None"),
    ("help before", "?torch.add\nx", "pass\nx"),
    ("help after", "torch.add?\nx", "pass\nx"),
    ("more help", "torch.add??", "pass"),
    ("help on a magic", "%time?", "pass"),
    ("automatic calls", "/f 1\n,f a b\n;f a b", "pass\npass\npass"),
    ("a timed cell", "%%time\nx = 1\ny = 2", "...; 2\nx = 1\ny = 2"),
    ("a timed cell with a statement", "%%timeit n = 3\nx = 1", "...; 1\nx = 1"),
    ("blank lines above a cell magic", "\n\n%%time\nx", "\n\n...; 1\nx"),
    ("a cell of another language", "%%bash\nls\ncd x", "\n\n"),
    ("a file that a cell writes", "%%writefile a.py\nx = 1\n", "\n\n"),
    ("an empty cell", "", ""),
]

PYTHON = [
    ("a remainder that goes on", "x = (a\n% b)"),
    ("a remainder after a backslash", "x = a \\\n% b"),
    ("a remainder", "x = y % z\nx %= 2"),
    ("a comparison", "assert x != y\nz = x != y"),
    ("a string", "x = '''\n%time\n!ls\nwhat?\n'''"),
    ("a string in a string", "x = '''it\\'s\n!ls\n\"\"\"'''\ny = 1"),
    ("a string with a backslash at its end", "x = 'a\\\n%b'"),
    ("a question in a comment", "# %time\n# why?\nx = 1  # why?"),
    ("a quote in a comment", "x = 1  # don't\ny = 2"),
    ("a bracket in a string", "x = '('\ny = 2"),
    ("a format", "x = 'a %s' % y\nx = f'{y!r}'"),
    ("top-level await", "await x"),
]


@pytest.mark.parametrize(("source", "python"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_only_ipython_reads_is_replaced(source: str, python: str) -> None:
    assert mask(source) == python
    assert python.count("\n") == source.count("\n")
    ast.parse(python)


@pytest.mark.parametrize("source", [case[1] for case in PYTHON], ids=[case[0] for case in PYTHON])
def test_python_stays_as_it_is(source: str) -> None:
    ast.parse(source)
    assert mask(source) == source


def test_a_magic_after_every_piece_of_python_is_found() -> None:
    for _, source in PYTHON:
        assert mask(f"{source}\n%cd x") == f"{source}\npass"


@pytest.mark.parametrize("magic", sorted(PYTHON_CELL_MAGICS))
def test_the_body_of_a_python_cell_magic_is_read(magic: str) -> None:
    assert mask(f"%%{magic} -n 1\nx.item()").split("\n")[1:] == ["x.item()"]
