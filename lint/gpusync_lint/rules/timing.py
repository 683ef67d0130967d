"""GS701: GPU work is timed, and nothing waits for it before the clock is read again."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.values import UNKNOWN, Kind, Value, has_tensor
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.blocks import LOOPS, around
from gpusync_lint.rules.base.context import Report, RuleContext, keyword, positional
from gpusync_lint.rules.base.device_work import Work, work_of_call
from gpusync_lint.rules.base.windows import (
    BARRIERS,
    OTHER_GPU,
    TimingRule,
    Window,
    assigned,
    barrier_of,
    is_clock,
    path_of,
    since,
    started,
    value_of,
)
from gpusync_lint.rules.fixes.synchronize import synchronize_between, synchronize_in, synchronize_in_lambda

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.model.findings import Fix

_MANAGER = (
    "from contextlib import contextmanager\n@contextmanager\n"
    "def timed():\n    start = time.time()\n    yield\n    print(time.time() - start)\n"
)
_DECORATOR = (
    "def timed(fn):\n    def wrapper(*args):\n        start = time.time()\n        result = fn(*args)\n"
    "        print(time.time() - start)\n        return result\n    return wrapper\n"
)
_CLOCK_WORDS = ("time", "clock", "now(")
"""Parts of the names of nearly all functions that read a clock."""
_PATHS = (ast.Name, ast.Attribute, ast.Subscript)
_TIMEIT = ("timeit.timeit", "timeit.repeat", "timeit.Timer")
_BENCHMARKS = frozenset({"benchmark", "pedantic"})
"""The fixture of pytest-benchmark, and its method, which call the function that they are given."""


class ClockPair(TimingRule):
    """`time.perf_counter() - start` after device work that nothing waited for; also clock reads kept in a list.

    Both clock reads are statements of one block. Every call between them must be understood: one that is not may wait.
    A loop over a data loader is left alone, because what is still queued at its end is a small part of an epoch.
    """

    nodes = (ast.BinOp, ast.Call)
    calls = ("append",)
    barriers = (*BARRIERS, OTHER_GPU)
    VALID: ClassVar = (
        "start = time.time()\nmodel(x)\ntorch.cuda.synchronize()\nprint(time.time() - start)",
        "start = time.time()\nmodel(x).sum().item()\nprint(time.time() - start)",
        "start = time.time()\nunknown(model(x))\nprint(time.time() - start)",
        "start = time.time()\nc.sum()\nprint(time.time() - start)",
        "start = time.time()\nnp.dot(np.ones(9), np.ones(9))\nprint(time.time() - start)",
        "start = time.time()\nfor y in torch.utils.data.DataLoader([]):\n    model(x)\nprint(time.time() - start)",
        "start = time.time()\nx @ x2\ntorch.cuda.synchronize(0)\nprint(time.time() - start)",
        "start = time.process_time()\nx @ x2\nprint(time.process_time() - start)",
        "times = [time.time()]\nx @ x2\ntorch.cuda.synchronize()\ntimes.append(time.time())",
    )
    INVALID: ClassVar = (
        "start = time.time()\nmodel(x)\nprint(time.time() - start)",
        "start = time.perf_counter()\ny = x @ x2\nend = time.perf_counter()\nspent = end - start",
        "start = time.time()\nfor _ in range(9):\n    torch.mm(x, x2)\nspent = (time.time() - start) / 9",
        "model.start = time.time()\ny = x @ x2\nmodel.spent = time.time() - model.start",
        "spans = {}\nspans['a'] = time.time()\ny = x @ x2\nprint(time.time() - spans['a'])",
        "times = [time.time()]\ny = x @ x2\ntimes.append(time.time())",
        "start = time.time()\ny = x @ x2\nend = time.time()\nif step:\n    losses.append(end - start)",
        "start = time.time()\ny = x @ x2\ntorch.cuda.synchronize(1)\nprint(time.time() - start)",
    )

    def check(self, node: ast.BinOp | ast.Call, context: RuleContext) -> Iterator[Report]:
        """Judge a subtraction, or a clock read that is appended to a list."""
        window = self._window(node, context)
        # What a function is given to time is reported where it is passed.
        if window is not None and not context.timers.times_parameter(context.function):
            report = self.report(node, window.statements, window.lines, context)
            if report is not None:
                yield _with_fix(report, synchronize_between(*window, context))

    def applies_to(self, context: RuleContext) -> bool:
        """Whether the file may read a clock."""
        return super().applies_to(context) and any(word in context.file.text for word in _CLOCK_WORDS)

    def _window(self, node: ast.BinOp | ast.Call, context: RuleContext) -> Window | None:
        if isinstance(node, ast.Call):
            return self._in_list(node, context)
        if not isinstance(node.op, ast.Sub) or not isinstance(node.right, _PATHS):
            return None
        ends = is_clock(node.left, context)
        start, stop = path_of(node.right), path_of(node.left)
        if not start or not (ends or stop):
            return None
        holders = around(context.function, context.statement)
        if not holders or ends:
            return since(*holders[-1], start, context) if holders else None
        for block, before in reversed(holders):
            at = assigned(block, before, stop)
            if at >= 0:
                return since(block, at, start, context) if is_clock(value_of(block[at]), context) else None
            if isinstance(block[before], LOOPS):
                return None
        return None

    def _in_list(self, node: ast.Call, context: RuleContext) -> Window | None:
        """`times.append(time.time())` after another one, or after `times = [time.time()]`."""
        if len(node.args) != 1 or not is_clock(node.args[0], context):
            return None
        holders = around(context.function, context.statement)
        block, stop = holders[-1] if holders else ([context.statement], 0)
        if value_of(block[stop]) is not node:
            return None
        for at in range(stop - 1, -1, -1):
            value = value_of(block[at])
            if isinstance(value, ast.List) and len(value.elts) == 1:
                value = value.elts[0]
            elif isinstance(value, ast.Call) and getattr(value.func, "attr", "") == "append" and len(value.args) == 1:
                value = value.args[0]
            else:
                continue
            return Window(block, at, stop) if is_clock(value, context) else None
        return None


class TimedBlock(TimingRule):
    """`with Benchmark():` around device work that nothing waits for, where the context manager reads a clock.

    It may be a class of the project, a function under `@contextmanager`, or one of a library that the catalogues know.
    """

    nodes = (ast.With,)
    barriers = (*BARRIERS, OTHER_GPU)
    VALID: ClassVar = (
        "with torch.no_grad():\n    y = x @ x2",
        "from d2l import torch as d2l\nwith d2l.Benchmark():\n    y = x @ x2\n    torch.cuda.synchronize()",
        "from d2l import torch as d2l\nwith d2l.Benchmark():\n    np.dot(np.ones(9), np.ones(9))",
    )
    INVALID: ClassVar = (
        "from d2l import torch as d2l\nwith d2l.Benchmark():\n    y = x @ x2",
        "from d2l import torch as d2l\nwith d2l.Benchmark():\n    y = x @ x2\n    torch.cuda.synchronize(1)",
        f"{_MANAGER}with timed():\n    y = x @ x2",
    )

    def check(self, node: ast.With, context: RuleContext) -> Iterator[Report]:
        """Judge a `with` statement."""
        for item in node.items:
            if context.timers.times_block(_manager(item.context_expr, context)):
                lines = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
                report = self.report(item.context_expr, node.body, lines, context)
                if report is not None:
                    yield _with_fix(report, synchronize_in(node.body, context))
                return


class Stopwatch(TimingRule):
    """`timer.stop()` after device work that nothing waited for, where the methods of the timer read a clock."""

    nodes = (ast.Call,)
    barriers = (*BARRIERS, OTHER_GPU)
    VALID: ClassVar = (
        "from d2l import torch as d2l\ntimer = d2l.Timer()\ny = x @ x2\ntorch.cuda.synchronize()\ntimer.stop()",
        "from d2l import torch as d2l\ntimer = d2l.Timer()\ntimer.stop()",
        "y = x @ x2\nprocess.stop()",
    )
    INVALID: ClassVar = (
        "from d2l import torch as d2l\ntimer = d2l.Timer()\ny = x @ x2\ntimer.stop()",
        "from d2l import torch as d2l\ntimer = d2l.Timer()\nc.sum()\ntimer.start()\ny = x @ x2\nprint(timer.stop())",
    )

    def applies_to(self, context: RuleContext) -> bool:
        """Whether the file may call a method that ends a measurement."""
        text = context.file.text
        return super().applies_to(context) and any(f".{name}(" in text for name in context.timers.stops)

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in context.timers.stops:
            return
        watch = context.timers.stopwatch(context.value(node.func.value))
        path = path_of(node.func.value)
        if node.func.attr not in watch.stops or not path:
            return
        holders = around(context.function, context.statement)
        window = started(holders[-1], path, watch.starts, context) if holders else None
        if window is not None:
            report = self.report(node, window.statements, window.lines, context)
            if report is not None:
                yield _with_fix(report, synchronize_between(*window, context))


class TimedFunction(TimingRule):
    """A function that gives the device work and does not wait for it, passed to something that times its calls.

    `timeit.timeit`, the `benchmark` fixture of pytest-benchmark, and functions of the project that call their argument
    between two reads of a clock. `torch.utils.benchmark` and `triton.testing.do_bench` wait for the GPU themselves.
    """

    nodes = (ast.Call,)
    barriers = BARRIERS
    VALID: ClassVar = (
        "import timeit\ntimeit.timeit(lambda: torch.mm(x, x2).sum().item(), number=10)",
        "import timeit\ntimeit.timeit(lambda: (torch.mm(x, x2), torch.cuda.synchronize()), number=10)",
        "import timeit\ntimeit.timeit(lambda: np.dot(np.ones(9), np.ones(9)), number=10)",
        "from torch.utils import benchmark\nbenchmark.Timer('torch.mm(x, x)', globals={'x': x}).timeit(10)",
    )
    INVALID: ClassVar = (
        "import timeit\nprint(timeit.timeit(lambda: torch.mm(x, x2), number=10))",
        "import timeit\ndef work():\n    return x @ x2\ntimes = timeit.repeat(work, number=10)",
        "import timeit\nseconds = timeit.Timer(lambda: torch.mm(x, x2)).timeit(10)",
        "def test_mm(benchmark):\n    benchmark(lambda: torch.mm(x, x2))",
        "def test_mm(benchmark):\n    benchmark.pedantic(torch.mm, args=(x, x2))",
        "def seconds(fn):\n    start = time.time()\n    fn()\n    return time.time() - start\nseconds(lambda: x @ x2)",
    )

    def applies_to(self, context: RuleContext) -> bool:
        """Whether the file may call something that times a function."""
        text = context.file.text
        names = ("timeit", "benchmark", *(f"{name}(" for name in context.timers.functions))
        return super().applies_to(context) and any(name in text for name in names)

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        given = self._timed(node, context)
        if given is None:
            return
        lines = range(given.lineno, (given.end_lineno or given.lineno) + 1)
        if isinstance(given, ast.Lambda) and not context.reported_lines.isdisjoint(lines):
            return
        called = context.value(given)
        work = work_of_call(called, context)
        if work is None and called.kind is Kind.NAME and isinstance(called.ref, str):
            work = _of_torch(called.ref, node, context)
        if work is not None:
            fix = synchronize_in_lambda(given, context) if isinstance(given, ast.Lambda) else None
            yield _with_fix(Report(barrier_of(work), node, Confidence.MEDIUM), fix)

    def _timed(self, node: ast.Call, context: RuleContext) -> ast.expr | None:
        """The function whose calls a call times."""
        called = context.value(node.func)
        first = next(iter(positional(node)), None)
        if called.kind is Kind.NAME and isinstance(called.ref, str) and called.ref in _TIMEIT:
            return keyword(node, "stmt") or first
        if called.kind is Kind.FUNCTION:
            return self._argument(node, called, context) if called.ref.name in context.timers.functions else None
        func = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "pedantic" else node.func
        is_fixture = isinstance(func, ast.Name) and func.id == "benchmark" and called.kind is Kind.UNKNOWN
        return first if is_fixture and "benchmark" in _parameters(context) else None

    def _argument(self, node: ast.Call, called: Value, context: RuleContext) -> ast.expr | None:
        name = context.timers.timed_parameter(called.ref)
        given = keyword(node, name)
        if given is not None or not name:
            return given
        args = called.ref.node.args
        names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
        at = names.index(name) if name in names else len(node.args)
        return node.args[at] if at < len(node.args) and not any(isinstance(a, ast.Starred) for a in node.args) else None


class TimedDecorator(TimingRule):
    """A function that gives the device work and does not wait for it, under a decorator that times its calls."""

    nodes = (ast.FunctionDef,)
    barriers = (*BARRIERS, OTHER_GPU)
    VALID: ClassVar = (
        "@torch.no_grad()\ndef work():\n    return x @ x2",
        f"{_DECORATOR}@timed\ndef work():\n    return (x @ x2).sum().item()",
    )
    INVALID: ClassVar = (f"{_DECORATOR}@timed\ndef work():\n    return x @ x2",)

    def check(self, node: ast.FunctionDef, context: RuleContext) -> Iterator[Report]:
        """Judge the decorators of a function."""
        for decorator in node.decorator_list:
            called = context.decorator(decorator)
            if called is not None and context.timers.decorates(called):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                report = self.report(decorator, node.body, lines, context)
                if report is not None:
                    yield replace(report, function=context.function.nested.get(node))
                return


class TimedCell(TimingRule):
    """A statement under `%time` or `%timeit`, or a cell under `%%time` or `%%timeit`, of a notebook."""

    nodes = (ast.Expr,)
    barriers = (*BARRIERS, OTHER_GPU)
    VALID: ClassVar = ("...", "...; 2\ny = x @ x2")
    INVALID: ClassVar = ()

    def applies_to(self, context: RuleContext) -> bool:
        """Whether the file is a notebook, of which `files.ipython_magics` marks what is timed."""
        return context.file.path.endswith(".ipynb") and super().applies_to(context)

    def check(self, node: ast.Expr, context: RuleContext) -> Iterator[Report]:
        """Judge a statement that is only an expression, which may be such a mark."""
        holders = around(context.function, context.statement)
        if not isinstance(node.value, ast.Constant) or node.value.value is not Ellipsis or not holders:
            return
        block, at = holders[-1]
        after = block[at + 1 :]
        if not after or after[0].lineno != node.lineno:
            return
        count = value_of(after[0])
        if isinstance(count, ast.Constant) and isinstance(count.value, int):
            after = [statement for statement in after[1:] if statement.lineno <= node.lineno + count.value]
        else:
            after = after[:1]
        if after:
            lines = range(node.lineno, (after[-1].end_lineno or after[-1].lineno) + 1)
            report = self.report(node.value, after, lines, context)
            if report is not None:
                yield report


def _with_fix(report: Report, fix: Fix | None) -> Report:
    """A report with a fix, where it is torch's work that nothing waits for."""
    return replace(report, fix=fix) if report.barrier == "unsynchronised-timing" else report


def _manager(node: ast.expr, context: RuleContext) -> Value:
    """What a `with` statement is given; for a call of a function of the project, the function."""
    called = context.value(node.func) if isinstance(node, ast.Call) else UNKNOWN
    return called if called.kind is Kind.FUNCTION else context.value(node)


def _parameters(context: RuleContext) -> set[str]:
    args = getattr(context.function.node, "args", None)
    return {arg.arg for arg in ast.walk(args) if isinstance(arg, ast.arg)} if args is not None else set()


def _of_torch(dotted: str, node: ast.Call, context: RuleContext) -> Work | None:
    """A function of torch that is called with tensors on the device: `benchmark(torch.mm, x, y)`."""
    given = [context.value(arg) for arg in (*node.args, *(each.value for each in node.keywords))]
    waits = dotted in context.catalogue.by_function
    return Work(node, "torch") if dotted.startswith("torch.") and not waits and any(map(has_tensor, given)) else None
