"""Whatever a file contains, the engine answers."""

from __future__ import annotations

import gc
import textwrap

import growth
import pytest
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.run import engine

CODE = "import torch\nx = torch.zeros(3, device='cuda')\nfor i in range(9):\n    x.sum().item()\n"


def analyze(text):
    return engine.analyze([Source("a.py", text)], EngineSettings())


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "(" * 3000 + ")" * 3000,
        "x = " + "[" * 150 + "]" * 150,
        "x = " + "+".join(["1"] * 20000),
        "x = y" + ".a()" * 5000,
        "x = " + "-" * 5000 + "1",
        "if a:\n    pass\n" + "elif b:\n    pass\n" * 20000,
    ],
    ids=["parentheses", "brackets", "sum", "call chain", "minus signs", "elif chain"],
)
def test_deep_nesting_does_not_crash(text):
    assert analyze("import torch\n" + text).findings == ()


@pytest.mark.parametrize("start", ["def f():\n    return ", "y = "], ids=["in a function", "in the module"])
def test_deep_nesting_beside_a_finding_does_not_hide_it(start):
    deep = start + "+".join(["x"] * 700) + "\n"
    assert [finding.code for finding in analyze(deep + CODE).findings] == ["GS201"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("x = (\n", 1, "not valid Python: '(' was never closed"),
        ("print 'a'\n", 1, "not valid Python: "),
        ("a\x00b\n", None, "not valid Python: "),
    ],
    ids=["unclosed", "python 2", "null byte"],
)
def test_a_file_that_does_not_parse_is_one_error(text, line, message):
    (error,) = analyze(text).errors
    assert error.message.startswith(message)
    assert "\n" not in error.message
    assert line is None or error.line == line


def test_other_files_are_linted_beside_one_that_does_not_parse():
    analysis = engine.analyze([Source("bad.py", "x = ("), Source("good.py", CODE)], EngineSettings())
    assert (len(analysis.errors), len(analysis.findings), analysis.files) == (1, 1, 2)


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# only a comment\n", "'''doc'''"], ids=["empty", "blank", "comment", "doc"]
)
def test_a_file_without_code_is_clean(text):
    assert analyze(text) == engine.Analysis((), (), 1)


@pytest.mark.parametrize(
    "text",
    [
        CODE.replace("\n", "\r\n"),
        CODE.replace("\n", "\r"),
        "\ufeff" + CODE,
        CODE.replace("for", "\ffor"),
        CODE.rstrip("\n"),
    ],
    ids=["CRLF", "CR", "byte order mark", "form feed", "no final newline"],
)
def test_unusual_text_has_the_same_finding(text):
    (finding,) = analyze(text).findings
    assert (finding.code, finding.span.line) == ("GS201", 4)


def test_columns_count_characters():
    code = CODE.replace("    x.sum().item()", "    é = '日本'; x.sum().item()")
    (finding,) = analyze(code).findings
    line = code.splitlines()[finding.span.line - 1]
    assert line[finding.span.column - 1 : finding.span.end_column - 1] == "item()"


def test_statements_that_share_a_line_are_told_apart():
    (finding,) = analyze(
        "import torch\nx = torch.zeros(3, device='cuda'); y = [x.sum().item() for i in x]; z = 1\n"
    ).findings
    assert finding.span.line == 2


def test_a_decorated_method_in_a_nested_class_is_read():
    code = (
        "import torch\nclass A:\n    class B:\n        @staticmethod\n        def f():\n"
        "            x = torch.zeros(3, device='cuda')\n            for i in x:\n                i.item()\n"
    )
    assert [finding.span.line for finding in analyze(code).findings] == [8]


def test_garbage_collection_is_left_as_it_was():
    gc.disable()
    try:
        analyze(CODE)
        assert not gc.isenabled()
    finally:
        gc.enable()
    analyze(CODE)
    assert gc.isenabled()


def test_findings_come_in_order():
    sources = [Source(path, CODE + "    print(x)\n") for path in ("b.py", "a.py")]
    findings = engine.analyze(sources, EngineSettings()).findings
    assert list(findings) == sorted(findings, key=lambda finding: (finding.path, finding.span))


def test_a_key_does_not_depend_on_the_line():
    assert analyze(CODE).findings[0].key == analyze("# a\n\n" + CODE).findings[0].key


def test_a_long_call_chain_is_evaluated_once():
    assert analyze("import torch\nx = a" + ".b(1)" * 60 + "\n").errors == ()


@pytest.mark.parametrize(
    "statement",
    [
        "if x is None:\n    y = x + 1\n",
        "y = x.sum().item()\n",
        "if x.sum() > 0:\n    print(x)\n",
        "if a:\n    return a\n",
    ],
    ids=["branches", "findings", "findings in branches", "ways out"],
)
def test_time_grows_with_the_length_of_a_function(statement):
    def analyze_repeated(count):
        body = textwrap.indent(statement * count, "        ")
        text = f"import torch\ndef f(a):\n    x = torch.zeros(3, device='cuda')\n    for i in range(9):\n{body}"
        analyze(text)

    analyze_repeated(10)
    # Eight times as long if it is linear, sixty-four times if it is quadratic.
    assert growth.ratio(analyze_repeated, 100, 800, limit=20) < 20


def test_an_analysis_leaves_nothing_to_the_garbage_collector():
    source = Source(
        "a.py",
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x: torch.Tensor) -> 'Net':\n"
        "        def inner(y): return y + self.k\n        return inner(x).item()\n\n"
        "def run(loader):\n    net = Net().cuda()\n    for x in loader:\n"
        "        print(net(x.cuda()), lambda z: net(z))\n",
    )
    other = Source("b.py", "from a import Net, run\n\nclass Sub(Net):\n    made = Net()\n")
    settings = EngineSettings()
    engine.analyze([source, other], settings)
    gc.collect()
    gc.disable()
    try:
        assert engine.analyze([source, other], settings).findings
        assert gc.collect() == 0
    finally:
        gc.enable()
