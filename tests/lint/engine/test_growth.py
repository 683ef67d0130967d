"""Time grows with the size of a file, not with its square, whatever the file consists of.

Each program is analyzed at a size and at four times that size. The ratio of the CPU times is 4 if they are linear, and
16 if they are quadratic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import growth
import pytest
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.project import partition
from gpusync_lint.project.outline import FRAME, Outline
from gpusync_lint.run.engine import analyze
from gpusync_lint.settings.selection import glob_pattern

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_RATIO = 9.0
HEAD = "import time\nimport torch\nfrom torch import nn\nmodel = nn.Linear(3, 3).cuda()\n"
LOOP = "for x in loader:\n    loss = model(x.cuda()).sum()\n    loss.backward()\n    opt.step()\n"


def ratio(run: Callable[[str], object], program: Callable[[int], str], size: int) -> float:
    """The ratio of the CPU times at four times a size and at a size."""
    return growth.ratio(run, program(size), program(4 * size), limit=MAX_RATIO)


def in_loop(line: str) -> Callable[[int], str]:
    """A training loop with a line that is repeated; `#` is the number of the repetition."""
    return lambda size: HEAD + LOOP + "".join(f"    {line.replace('#', str(one))}\n" for one in range(size))


def at_top(line: str) -> Callable[[int], str]:
    return lambda size: HEAD + "".join(line.replace("#", str(one)) + "\n" for one in range(size)) + LOOP


def after_loop(line: str) -> Callable[[int], str]:
    return lambda size: f"{HEAD}{LOOP}    {line.replace('#', str(size))}\n"


def chain_of_classes(size: int) -> str:
    classes = "".join(
        f"class C{one + 1}(C{one}):\n    def m(self, x): return super().m(x) + self.k{one}(x)\n"
        f"    def k{one}(self, x): return x.cpu()\n"
        for one in range(size)
    )
    base = "class C0(nn.Module):\n    def m(self, x): return x.item()\n"
    return f"{HEAD}{base}{classes}{LOOP}    C{size}().m(loss)\n"


def diamonds(size: int) -> str:
    classes = "".join(
        f"class L{one}(A{one}): pass\nclass R{one}(A{one}): pass\n"
        f"class A{one + 1}(L{one}, R{one}):\n    def m{one}(self, x): return self.m{one - 1}(x).cpu()\n"
        for one in range(size)
    )
    return f"{HEAD}class A0: pass\n{classes}{LOOP}    A{size}().m{size - 1}(loss)\n"


def chain_of_functions(size: int) -> str:
    functions = "".join(f"def f{one + 1}(x):\n    y = f{one}(x)\n    return y + x.item()\n" for one in range(size))
    return f"{HEAD}def f0(x): return x.cuda()\n{functions}{LOOP}    f{size}(loss)\n"


def lambdas(body: str) -> Callable[[int], str]:
    def program(size: int) -> str:
        defined = "".join(f"f{one + 1} = lambda x: {body.replace('#', str(one))}\n" for one in range(size))
        return f"{HEAD}f0 = lambda x: x.item()\n{defined}{LOOP}    f{size}(loss)\n"

    return program


def growing(first: str, step: str) -> Callable[[int], str]:
    """A container that is put into itself again and again."""
    return lambda size: (
        HEAD + LOOP + f"    t = {first}\n" + "".join(f"    {step.replace('#', str(one))}\n" for one in range(size))
    )


def branches(head: str, branch: str) -> Callable[[int], str]:
    """One statement with many branches, each with a read."""
    return lambda size: (
        HEAD
        + LOOP
        + head
        + "".join(f"    {branch.replace('#', str(one))}:\n{' ' * 12}a = loss.item()\n" for one in range(size))
    )


PROGRAMS: dict[str, Callable[[int], str]] = {
    "reads of one tensor": in_loop("a# = loss.item()"),
    "reads of many tensors": in_loop("a# = (loss * #).sum().item()"),
    "pairs of reads": in_loop("print(loss.item(), x.sum().item())"),
    "ratios": in_loop("a# = loss.item() / x.sum().item()"),
    "copies": in_loop("a# = torch.randn(3).pin_memory().to('cuda')"),
    "appended losses": in_loop("history#.append(loss)"),
    "losses in one list": in_loop("history.append(loss)"),
    "timed lines": in_loop("t# = time.time(); model(x.cuda()); print(time.time() - t#)"),
    "conditions": in_loop("if loss > #: y = loss"),
    "guarded reads": in_loop("if step % # == 0: print(loss.item())"),
    "allow comments": in_loop("loss.item()  # gpusync: allow[GS201] wanted"),
    "a chain of elif": branches("    if c == -1: pass\n", "elif c == #"),
    "cases": branches("    match c:\n", "    case #"),
    "handlers": branches("    try: pass\n", "except E#"),
    "classes": at_top("class C#(nn.Module):\n    def forward(self, x):\n        return self.l(x).item()"),
    "functions": at_top("def f#(x):\n    return x.cuda().item()"),
    "statements on a line": lambda size: HEAD + LOOP + "    " + ";".join(["loss.item()"] * size) + "\n",
    "assignments on a line": lambda size: HEAD + LOOP + "    " + ";".join(f"a{i} = loss.item()" for i in range(size)),
    "findings on a line": lambda size: HEAD + LOOP + f"    print({', '.join(['loss.item()'] * size)})\n",
    "a chain of classes": chain_of_classes,
    "diamonds of classes": diamonds,
    "a chain of functions": chain_of_functions,
    "a chain of lambdas": lambdas("f#(x)"),
    "doubling lambdas": lambdas("f#(x) + f#(x)"),
    "doubling tuples": growing("(loss, loss)", "t = (t, t)"),
    "doubling dicts": growing("{'a': loss}", "t = {**t, 'k#': t, **t}"),
    "joined dicts": growing("{'a': loss}", "if c: t = {**t, 'k#': t, 'j': {**t}}"),
    "wide tuples": lambda size: f"{HEAD}{LOOP}    t = ({'loss, ' * size})\n" + "    u = (t, t, t)\n" * size,
}

TEXTS: dict[str, Callable[[int], str]] = {
    "escaped quotes": lambda size: 'x = 1 1\n"' + '\\"' * size,
    "an open string of lines": lambda size: "x = 1 1\n'''" + "\\'" * size,
    "open strings": lambda size: "x = 1 1\n" + "'\"\n" * size,
    "backslashes": lambda size: 'x = 1 1\n"' + "\\" * size,
    "open imports": lambda size: "from a import (\n" * size,
    "comments in an open import": lambda size: "from a import (" + "#aa\n" * size,
    "a comment in an open import": lambda size: "from a import (#" + "a#" * size,
    "the word import on a line": lambda size: "x " + "import " * size,
    "dots": lambda size: "from " + "." * size + " x import",
    "spaces": lambda size: "import" + " " * size + "x",
    "continued lines": lambda size: "import a" + "\\\n" * size,
    "hashes": lambda size: "#" * size,
    "marks of comments": lambda size: "import torch\nx = 1 " + "# gpusync:" * size,
    "default devices": lambda size: "import torch\n" + "set_default_tensor_type(" * size,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_the_time_of_an_analysis_is_linear(program: Callable[[int], str]) -> None:
    def run(text: str) -> None:
        assert analyze([Source("a.py", text)], EngineSettings()).files == 1

    run(program(3))
    assert ratio(run, program, 150) < MAX_RATIO


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_the_time_of_reading_text_is_linear(text: Callable[[int], str]) -> None:
    def run(text: str) -> None:
        analyze([Source("a.py", text)], EngineSettings())
        partition.divide([Source("a.py", text)], [partition.imports(text)], frozenset({"torch"}))
        outline = Outline(Source("a.py", text))
        assert isinstance(outline.digest(FRAME), str)

    assert ratio(run, text, 5000) < MAX_RATIO


@pytest.mark.parametrize("unit", ["*a", "?*", "[ab]*", "**/a*/", "**a*", "*/"])
def test_the_time_of_a_path_pattern_is_not_exponential(unit: str) -> None:
    def match(count: int) -> None:
        pattern = glob_pattern(unit * count + "b")
        for path in ("a" * 300, "/".join(["aa"] * 100), "a/" * 150):
            assert pattern.match(path) is None

    # Four times the units: as many times as long, or 300 ** 3 times, once for each place that a star could end at.
    assert growth.ratio(match, 1, 4, limit=40) < 40
    match(40)


def test_chains_of_imports_lose_no_finding() -> None:
    """Names that are passed on by 1,600 modules, in chains and in circles, by name and by star."""
    count = 1600
    main = Source("main.py", f"from m0 import g\n{HEAD}{LOOP}    g(loss)\n")
    last = Source(f"m{count}.py", "import torch\ndef g(x): return x.item()\n")
    for line in ("from m{} import g", "from m{} import *", "from m{} import *\nimport main"):
        chain = [Source(f"m{one}.py", line.format(one + 1) + "\n") for one in range(count)]
        analysis = analyze([main, *chain, last], EngineSettings())
        assert analysis.errors == ()
        assert {(finding.path, finding.heat.value) for finding in analysis.findings} >= {(last.path, "step")}


def test_a_limit_that_is_reached_is_said() -> None:
    classes = "".join(f"class C{one + 1}(C{one}): pass\n" for one in range(600))
    deep = "y = " + "+".join(["x"] * 400) + "\n"
    for program, message in (
        (f"{HEAD}class C0: pass\n{classes}{LOOP}    C600().m(loss)\n", "more than 500 base classes"),
        (f"{HEAD}{LOOP}    {deep}", "nested too deeply"),
        (lambdas("f#(x) + f#(x)")(50), "lambdas call each other"),
    ):
        (error,) = analyze([Source("a.py", program)], EngineSettings()).errors
        assert message in error.message
        assert error.line is not None
