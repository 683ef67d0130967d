"""GS721 to GS725: what a CUDA graph does not record, and what its capture does not permit, besides waits."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.domain.values import Kind
from gpusync_lint.heat.guards import is_counter_name
from gpusync_lint.model.levels import Confidence
from gpusync_lint.rules.base.captured import CaptureRule
from gpusync_lint.rules.base.context import Report, RuleContext, keyword, keyword_is, method
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.traversal import children, walk, walk_block

if TYPE_CHECKING:
    from collections.abc import Iterator

_CAPTURED = "graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n"
_SIDE = "side = torch.cuda.Stream()\n"
_IS = (ast.Is, ast.IsNot)
_LIMITS = ("num_", "n_", "max_", "min_", "total_", "warmup_", "every_", "per_")
"""How the names of numbers of steps begin that do not change."""


class CounterInCapture(CaptureRule):
    """`self.step += 1` with a Python number, in an attribute or a global name, and clocks."""

    nodes = (ast.AugAssign,)
    barriers = ("counter-in-capture",)
    VALID: ClassVar = (
        f"{_CAPTURED}    x.add_(1)",
        f"{_CAPTURED}    x += 1",
        f"{_CAPTURED}    parts = 0\n    for row in x:\n        parts += 1",
        f"total += 1\n{_CAPTURED}    y = x * total",
    )
    INVALID: ClassVar = (f"{_CAPTURED}    total += 1\n    y = x * total",)

    def check_captured(self, node: ast.AugAssign, context: RuleContext) -> Iterator[Report]:
        """Check an assignment."""
        target = node.target
        if not _is_number(node.value, context) or not _outlives(target, context) or not self.is_captured(context):
            return
        value = context.value(target)
        if value.kind in (Kind.HOST, Kind.UNKNOWN):
            is_counter = value.kind is Kind.HOST or is_counter_name((dotted_path(target) or "").rpartition(".")[2])
            yield self.report("counter-in-capture", target, Confidence.MEDIUM if is_counter else Confidence.LOW)


def _is_number(node: ast.expr, context: RuleContext) -> bool:
    return context.value(node).kind is Kind.HOST or (isinstance(node, ast.Constant) and not isinstance(node.value, str))


def _outlives(target: ast.expr, context: RuleContext) -> bool:
    """Whether what is changed is still there at the replay: an attribute, or a name of another scope."""
    if isinstance(target, ast.Attribute):
        return True
    if not isinstance(target, ast.Name):
        return False
    function = context.function
    if function.is_module:  # a name that the capture itself sets is made anew
        return not _is_set_in(context.statement, target.id, function.node.body)
    return target.id in context.once(_declared, function.node.body)


def _declared(body: list[ast.stmt]) -> frozenset[str]:
    """The names that a function declares as global or nonlocal."""
    declarations = (node for node in walk_block(body) if isinstance(node, (ast.Global, ast.Nonlocal)))
    return frozenset(name for node in declarations for name in node.names)


def _is_set_in(statement: ast.stmt, name: str, body: list[ast.stmt]) -> bool:
    """Whether a `with` statement around a statement sets a name before it."""
    for node in walk_block(body):
        if isinstance(node, ast.With) and node.lineno <= statement.lineno <= (node.end_lineno or node.lineno):
            return any(
                isinstance(one, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in one.targets)
                for one in walk_block(node.body)
            )
    return False


class ClockInCapture(CaptureRule):
    """`time.time()` and the like."""

    nodes = (ast.Call,)
    calls = frozenset(
        {
            "time.time", "time.time_ns", "time.perf_counter", "time.perf_counter_ns", "time.monotonic",
            "time.monotonic_ns", "time.process_time", "datetime.datetime.now", "datetime.datetime.utcnow",
        }
    )  # fmt: skip
    barriers = ("clock-in-capture",)
    words = ("time",)
    VALID: ClassVar = (
        f"start = time.time()\n{_CAPTURED}    y = x + 1\ntook = time.time() - start",
        f"{_CAPTURED}    start = time.time()\n    y = x + 1\n    took = time.time() - start",
    )
    INVALID: ClassVar = (f"{_CAPTURED}    y = x * time.time()",)

    def check_captured(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        if context.qualified_name(node.func) in self.calls and self.is_captured(context):
            yield self.report(
                "clock-in-capture", node, Confidence.LOW if _only_times(node, context) else Confidence.MEDIUM
            )


def _only_times(node: ast.Call, context: RuleContext) -> bool:
    """Whether a clock is read for a time that nothing on the device shows to use: `start = time.time()`, `now - start`.

    Its replays lose that time and are right otherwise.
    """
    statement = context.statement
    for one in walk(statement):
        if isinstance(one, ast.BinOp) and node in (one.left, one.right):
            return isinstance(one.op, ast.Sub) and context.value(one).kind is not Kind.TENSOR
    if not isinstance(statement, ast.Assign) or statement.value is not node:
        return False
    names = {one.id for one in statement.targets if isinstance(one, ast.Name)}
    return not any(
        isinstance(one, ast.Name) and one.id in names and context.value(operation).kind is Kind.TENSOR
        for operation in walk_block(context.function.node.body)
        if isinstance(operation, (ast.BinOp, ast.Call))
        for one in children(operation)
    )


class RandomnessInCapture(CaptureRule):
    """Random numbers of the host, seeds, and generators of torch that are not registered."""

    nodes = (ast.Call,)
    barriers = ("host-random-in-capture", "generator-in-capture", "seed-in-capture")
    words = ("random", "seed", "generator")
    VALID: ClassVar = (
        f"{_CAPTURED}    y = torch.rand(4, device=dev)",
        f"torch.manual_seed(0)\n{_CAPTURED}    y = torch.rand(4, device=dev)",
        (
            "drawn = torch.Generator(dev)\ngraph = torch.cuda.CUDAGraph()\ngraph.register_generator_state(drawn)\n"
            "with torch.cuda.graph(graph):\n    y = torch.rand(4, device=dev, generator=drawn)"
        ),
        f"k = np.random.rand()\n{_CAPTURED}    y = x + k",
    )
    INVALID: ClassVar = (
        f"{_CAPTURED}    y = x + np.random.rand()",
        f"{_CAPTURED}    torch.manual_seed(0)",
        f"drawn = torch.Generator(dev)\n{_CAPTURED}    y = torch.rand(4, device=dev, generator=drawn)",
        f"drawn = torch.Generator(dev)\n{_CAPTURED}    drawn.manual_seed(1)",
    )
    _STATES = frozenset({"manual_seed", "seed"})
    _SEEDS = frozenset(
        {
            "torch.manual_seed", "torch.seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all",
            "torch.cuda.seed", "torch.cuda.seed_all",
        }
    )  # fmt: skip

    def check_captured(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        barrier = self._barrier(node, context)
        if barrier is not None and self.is_captured(context):
            yield self.report(barrier, node)

    def _barrier(self, node: ast.Call, context: RuleContext) -> str | None:
        dotted = context.qualified_name(node.func)
        if dotted.startswith(("random.", "numpy.random.")):
            return None if dotted.endswith((".default_rng", ".Random", ".RandomState")) else "host-random-in-capture"
        if dotted in self._SEEDS:
            return "seed-in-capture"
        generator = keyword(node, "generator")
        if generator is not None and _is_generator(generator, context):
            return None if "register_generator_state" in context.file.text else "generator-in-capture"
        if method(node) in self._STATES and isinstance(node.func, ast.Attribute):
            return "seed-in-capture" if _is_generator(node.func.value, context) else None
        return None


def _is_generator(node: ast.expr, context: RuleContext) -> bool:
    """Whether an expression is a `torch.Generator`: by its value, or by the assignment of its name in the function."""
    if context.qualified_name(node).startswith("torch.Generator"):
        return True
    if not isinstance(node, ast.Name):
        return False
    for fn in (context.function, context.file.body):
        _, values = fn.assignments.get(node.id, (0, []))
        if any(isinstance(one, ast.Call) and _last_name(one) == "Generator" for one in values):
            return True
    return False


class StreamInCapture(CaptureRule):
    """`with torch.cuda.stream(side):` where `side` does not wait for the capture, or nothing waits for `side`."""

    nodes = (ast.Call,)
    calls = ("torch.cuda.stream", "torch.cuda.StreamContext", "torch.cuda.default_stream", "wait_event", "wait")
    barriers = ("stream-not-captured", "stream-not-joined", "default-stream-in-capture", "event-from-outside")
    words = ("tream", "wait")
    VALID: ClassVar = (
        (
            f"{_SIDE}{_CAPTURED}    side.wait_stream(torch.cuda.current_stream())\n"
            "    with torch.cuda.stream(side):\n        y = x + 1\n    torch.cuda.current_stream().wait_stream(side)"
        ),
        (
            f"{_SIDE}{_CAPTURED}    begun = torch.cuda.Event()\n    begun.record()\n    side.wait_event(begun)\n"
            "    with torch.cuda.stream(side):\n        y = x + 1\n        ended = torch.cuda.Event()\n"
            "        ended.record()\n    ended.wait()"
        ),
        (
            f"{_SIDE}with torch.cuda.stream(side):\n    y = x + 1\ntorch.cuda.current_stream().wait_stream(side)\n"
            f"{_CAPTURED}    x + 1"
        ),
    )
    INVALID: ClassVar = (
        f"{_SIDE}{_CAPTURED}    with torch.cuda.stream(side):\n        y = x + 1\n",
        (
            f"{_SIDE}{_CAPTURED}    side.wait_stream(torch.cuda.current_stream())\n"
            "    with torch.cuda.stream(side):\n        y = x + 1\n"
        ),
        f"{_CAPTURED}    with torch.cuda.stream(torch.cuda.default_stream()):\n        y = x + 1\n",
        f"done = torch.cuda.Event()\ndone.record()\n{_CAPTURED}    torch.cuda.current_stream().wait_event(done)\n",
    )

    def check_captured(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        dotted = context.qualified_name(node.func)
        if dotted == "torch.cuda.default_stream":
            if self.is_captured(context):
                yield self.report("default-stream-in-capture", node)
        elif dotted in self.calls:
            path = dotted_path(node.args[0]) if node.args else None
            if path is not None and isinstance(context.statement, ast.With) and self.is_captured(context):
                yield from self._of_block(node, path, context)
        elif method(node) in ("wait_event", "wait"):
            yield from self._of_event(node, context)

    def _of_block(self, node: ast.Call, path: str, context: RuleContext) -> Iterator[Report]:
        """Check a block of work on a stream: what orders it must be in the same function."""
        statement = context.statement
        calls = _calls_of(context)
        if not any(
            one.lineno < statement.lineno and method(one) in ("wait_stream", "wait_event") and _receiver(one) == path
            for one in calls
        ):
            yield self.report("stream-not-captured", node)
            return
        last = statement.end_lineno or statement.lineno
        events = _events_recorded(statement)
        for one in calls:
            named = {dotted_path(arg) for arg in one.args} | {_receiver(one)}
            if one.lineno > last and (
                (method(one) == "wait_stream" and path in named)
                or (method(one) in ("wait_event", "wait") and (events & named or path in {_receiver(one)}))
            ):
                return
            if method(one) in ("record_event", "record") and path in named:  # `joined = side.record_event()`
                return
        yield self.report("stream-not-joined", node)

    def _of_event(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a wait for an event: it must be recorded in a capture, as far as the function shows."""
        event = node.args[0] if method(node) == "wait_event" and node.args else getattr(node.func, "value", None)
        path = dotted_path(event) if event is not None else None
        if path is None or context.value(event).kind is not Kind.EVENT or not self.is_captured(context):
            return
        start = _start_of_capture(context)
        records = [one.lineno < start for one in _calls_of(context) if _records(one, path)]
        if not records and not context.is_part:
            # Another function of the file records it, before the capture if it is not captured itself.
            records = [
                not context.is_captured(fn)
                for fn in context.file.all_functions
                for one in context.once(_calls, fn.node.body)
                if _records(one, path)
            ]
        if records and all(records):
            yield self.report("event-from-outside", node)


def _calls_of(context: RuleContext) -> list[ast.Call]:
    return context.once(_calls, context.function.node.body)


def _calls(body: list[ast.stmt]) -> list[ast.Call]:
    return [node for node in walk_block(body) if isinstance(node, ast.Call)]


def _records(node: ast.Call, path: str) -> bool:
    """Whether a call records the event of a dotted path."""
    return method(node) == "record" and _receiver(node) == path


def _receiver(node: ast.Call) -> str | None:
    return dotted_path(node.func.value) if isinstance(node.func, ast.Attribute) else None


def _events_recorded(statement: ast.stmt) -> set[str | None]:
    """The dotted paths of what is recorded in a block."""
    return {_receiver(node) for node in walk(statement) if isinstance(node, ast.Call) and method(node) == "record"}


def _start_of_capture(context: RuleContext) -> int:
    """The line where the capture begins, if it is in this function; else the first line of the function."""
    capture = context.capture()
    if capture is not None and not capture.calls:
        return capture.line
    return getattr(context.function.node, "lineno", 0)


class QueryInCapture(CaptureRule):
    """`event.query()` and `stream.query()`, and pinned buffers that are filled in the capture."""

    nodes = (ast.Call,)
    calls = ("query", "elapsed_time", "pin_memory", "tensor", "as_tensor", "full")
    barriers = ("query-in-capture", "pinning-in-capture")
    words = (".query(", "elapsed_time", "pin_memory")
    VALID: ClassVar = (
        f"done = torch.cuda.Event()\ndone.query()\n{_CAPTURED}    y = x + 1",
        f"{_CAPTURED}    y = x + 1\nhost = c.pin_memory()",
        (
            f"done = torch.cuda.Event()\n{_CAPTURED}    if not torch.cuda.is_current_stream_capturing():\n"
            "        done.query()"
        ),
    )
    INVALID: ClassVar = (
        f"done = torch.cuda.Event()\n{_CAPTURED}    done.query()",
        f"{_CAPTURED}    host = torch.tensor([1.0, total], pin_memory=True)",
        f"{_CAPTURED}    y = c.pin_memory()",
    )

    def check_captured(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        barrier = self._barrier(node, context)
        if barrier is not None and self.is_captured(context):
            yield self.report(barrier, node)

    def _barrier(self, node: ast.Call, context: RuleContext) -> str | None:
        name = method(node)
        if name in ("query", "elapsed_time") and isinstance(node.func, ast.Attribute):
            return "query-in-capture" if context.value(node.func.value).kind in (Kind.EVENT, Kind.STREAM) else None
        if name == "pin_memory" and isinstance(node.func, ast.Attribute):
            return "pinning-in-capture" if context.value(node.func.value).kind is Kind.TENSOR else None
        is_filled = _last_name(node) in ("tensor", "as_tensor", "full") and keyword_is(node, "pin_memory", True)
        return "pinning-in-capture" if is_filled else None


def _last_name(node: ast.Call) -> str:
    return (dotted_path(node.func) or "").rpartition(".")[2]


class BranchInCapture(CaptureRule):
    """`if step % 10 == 0:` with a counter of steps."""

    nodes = (ast.If, ast.IfExp)
    barriers = ("branch-in-capture",)
    VALID: ClassVar = (
        f"{_CAPTURED}    for i in range(4):\n        if i % 2 == 0:\n            x.add_(i)",
        f"if step % 2 == 0:\n    {_CAPTURED.replace(chr(10) + 'with', chr(10) + '    with')}        x.add_(1)",
        f"num_steps = 3\n{_CAPTURED}    y = x + 1 if num_steps > 1 else x",
    )
    INVALID: ClassVar = (
        f"{_CAPTURED}    if total % 10 == 0:\n        x.mul_(2)",
        f"global_step = 0\n{_CAPTURED}    y = x if global_step > 3 else x + 1",
    )

    def check_captured(self, node: ast.If | ast.IfExp, context: RuleContext) -> Iterator[Report]:
        """Check a branch."""
        if _reads_counter(node.test, context) and self.is_captured(context):
            yield self.report("branch-in-capture", node.test)


def _reads_counter(test: ast.expr, context: RuleContext) -> bool:
    """Whether a condition compares a Python number that counts steps, or its remainder."""
    if isinstance(test, ast.UnaryOp):
        test = test.operand
    if isinstance(test, (ast.Name, ast.Attribute)) or (isinstance(test, ast.Compare) and isinstance(test.ops[0], _IS)):
        return False  # most conditions
    for node in walk(test):
        found = False
        if isinstance(node, ast.Compare):
            found = any(_is_counter(one, context) for one in (node.left, *node.comparators))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            found = _is_host(node.left, context) and not context.is_loop_target(node.left)
        if found:
            return True
    return False


def _is_counter(node: ast.expr, context: RuleContext) -> bool:
    last = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    if not is_counter_name(last) or last.lower().startswith(_LIMITS) or dotted_path(node) is None:
        return False
    return _is_host(node, context) and not context.is_loop_target(node)


def _is_host(node: ast.expr, context: RuleContext) -> bool:
    return context.value(node).kind in (Kind.HOST, Kind.UNKNOWN) and not isinstance(node, ast.Constant)
