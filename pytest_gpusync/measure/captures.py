"""Whether a function can be captured as a CUDA graph, and whether replays do what the function does.

On the simulated device a capture goes on after an operation that is not permitted, so all of them are found, with their
lines. A second capture with the same inputs then shows what depends on Python: a kernel with another number, another
kernel, another size. Replays with changed inputs are compared with the function itself. On a GPU, torch's own capture
stops at the first error.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_gpusync.measure.recording import uncounted
from pytest_gpusync.model.captures import Baked, CaptureReport, Difference, NotCapturable, Offender
from pytest_gpusync.model.measurement import MeasurementError, Site
from pytest_gpusync.simulated import is_on
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType, TracebackType

    import torch

    from pytest_gpusync.simulated.tensors.cuda_graphs import CUDAGraph, Kernel

_UNKNOWN = Site("<unknown>", 0, "?")


def check_capture(
    step: Callable[..., Any],
    *args: Any,
    warmup: int = 3,
    replays: int = 2,
    replay_inputs: Sequence[Sequence[Any]] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    **kwargs: Any,
) -> CaptureReport:
    """Capture ``step(*args, **kwargs)`` as a CUDA graph, replay it, and return what was found.

    Tensors on the device among the arguments are the static inputs. Before each replay new values are copied into them,
    and afterwards the function is called with the same values. What the function changes in place (weights, buffers)
    is put back between the two on the simulated device. Syncs made here are not counted.

    Args:
        step: the function to capture. It is called ``warmup + replays`` times and captured once or twice.
        warmup: calls before the capture, on a side stream.
        replays: replays to compare with the function.
        replay_inputs: for each replay, positional arguments with the values to copy into `args`. By default the
            elements of each tensor are reversed, and floating-point ones scaled as well.
        rtol: relative tolerance for values, as in ``torch.testing.assert_close``.
        atol: absolute tolerance for values.

    Raises:
        MeasurementError: there is neither a GPU nor the simulated device.
        ValueError: `warmup` or `replays` is negative, or there are too few `replay_inputs`.
    """
    if warmup < 0 or replays < 0:
        raise ValueError("`warmup` and `replays` must not be negative")
    if replay_inputs is not None and len(replay_inputs) < replays:
        raise ValueError(f"{replays} replays need as many `replay_inputs`, not {len(replay_inputs)}")
    import torch

    if not torch.cuda.is_available():
        raise MeasurementError("no GPU to capture on: use `with simulated_cuda():` around the check")
    check = _Check(step, args, kwargs, replay_inputs, {"rtol": rtol, "atol": atol})
    with uncounted():
        check.warm_up(warmup)
        return check.on_simulated_device(replays) if is_on() else check.on_gpu(replays)


def assert_capturable(step: Callable[..., Any], *args: Any, **options: Any) -> CaptureReport:
    """Assert that ``step(*args, **kwargs)`` can be captured as a CUDA graph, and that replays do what it does.

    The arguments, and the exceptions for wrong ones, are those of :func:`check_capture`: `options` are its keyword
    arguments and those of `step`.

    Raises:
        NotCapturable: an AssertionError that names every line; `report` has what was found.
    """
    __tracebackhide__ = True
    report = check_capture(step, *args, **options)
    if not report.is_capturable:
        raise NotCapturable(report)
    return report


class Captures:
    """The captures made in a block of :func:`record_captures`."""

    def __init__(self) -> None:
        self._offenders: dict[tuple[str | None, Site, str], int] = {}
        self._device: str = "simulated" if is_on() else "cuda"
        self.graphs = 0
        """The number of captures that ended; not known on a GPU, where it stays 0."""

    @property
    def offenders(self) -> tuple[Offender, ...]:
        """What the captures did that is not permitted, in the order in which it was done."""
        return tuple(Offender(rule, site, error, times) for (rule, site, error), times in self._offenders.items())  # type: ignore[arg-type]

    @property
    def report(self) -> CaptureReport:
        """The offenders as a report, which can be printed."""
        subject = f"{self.graphs} capture{'' if self.graphs == 1 else 's'}" if self.graphs else "The block"
        why = "record_captures() does not replay"
        return CaptureReport(subject, self._device, self.offenders, why_not_compared=why)  # type: ignore[arg-type]

    def assert_none(self) -> None:
        """Assert that there were captures, and that they did nothing that is not permitted.

        Raises:
            NotCapturable: there is an offender; the text names every line.
            AssertionError: nothing was captured.
        """
        __tracebackhide__ = True
        if self._offenders:
            raise NotCapturable(self.report)
        if self._device == "simulated" and not self.graphs:
            raise AssertionError("no CUDA graph was captured in the block")

    def add(self, rule: str | None, error: str, site: Site) -> None:
        """Add an offender."""
        key = rule, site, error.splitlines()[0]
        self._offenders[key] = self._offenders.get(key, 0) + 1

    def __str__(self) -> str:
        return str(self.report)


@contextmanager
def record_captures() -> Iterator[Captures]:
    """Collect what the captures of CUDA graphs in the block do that is not permitted.

    On the simulated device captures go on after such an operation, so all are collected, whoever captures:
    ``torch.cuda.graph``, ``make_graphed_callables``, a library. On a GPU the first one raises as usual, and is kept.

    Example::

        with simulated_cuda(), record_captures() as seen:
            runner = GraphRunner(model)
        print(seen)
    """
    seen = Captures()
    if not is_on():
        try:
            yield seen
        except RuntimeError as error:
            seen.add(None, str(error), _site_of_traceback(error.__traceback__))
            raise
        return
    from pytest_gpusync.simulated.base.capture_rules import collection
    from pytest_gpusync.simulated.tensors.cuda_graphs import capture

    def collect(rule: str, error: str, where: FrameType | Site | None) -> None:
        seen.add(rule, error, where if isinstance(where, Site) else _site(where))

    def ended(graph: CUDAGraph) -> None:
        seen.graphs += 1

    before = collection.collector, capture.ended
    collection.collector, capture.ended = collect, ended
    try:
        yield seen
    finally:
        collection.collector, capture.ended = before


def _site(frame: FrameType | None) -> Site:
    return attribution.charge(frame, threading.get_ident()).site


def _site_of_traceback(traceback: TracebackType | None) -> Site:
    """The user's innermost line of a traceback."""
    found = _UNKNOWN
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if attribution.is_user_code(code.co_filename):
            found = attribution.site_of(code, traceback.tb_lasti)
        traceback = traceback.tb_next
    return found


class _Check:
    """One check of a function."""

    def __init__(
        self,
        step: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        replay_inputs: Sequence[Sequence[Any]] | None,
        tolerance: dict[str, float | None],
    ) -> None:
        self._step = step
        self._args = args
        self._kwargs = kwargs
        self._replay_inputs = replay_inputs
        self._tolerance = tolerance
        self._inputs = [one for one in _leaves((args, kwargs)) if _is_on_device(one)]
        self._subject = f"{getattr(step, '__name__', None) or type(step).__name__}()"

    def _call(self) -> Any:
        return self._step(*self._args, **self._kwargs)

    def warm_up(self, times: int) -> None:
        """Call the function on a side stream."""
        import torch

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(times):
                self._call()
        torch.cuda.current_stream().wait_stream(side)

    def _change_inputs(self, replay: int) -> None:
        """Copy new values into the static inputs."""
        import torch

        with torch.no_grad():
            if self._replay_inputs is None:
                for tensor in self._inputs:
                    tensor.copy_(_changed(tensor))
                return
            given = [one for one in _leaves(tuple(self._replay_inputs[replay])) if isinstance(one, torch.Tensor)]
            static = [one for one in _leaves(self._args) if _is_on_device(one)]
            if len(given) != len(static):
                raise ValueError(f"`replay_inputs[{replay}]` has {len(given)} tensors, the arguments {len(static)}")
            for tensor, value in zip(static, given, strict=True):
                tensor.copy_(value)

    # the simulated device

    def on_simulated_device(self, replays: int) -> CaptureReport:
        """Capture, compare two captures, and compare replays with eager code."""
        import torch

        from pytest_gpusync.simulated.base.state import process
        from pytest_gpusync.simulated.tensors import generators

        drawn = [one.get_state() for one in generators.defaults()]
        with record_captures() as seen:
            graph, outputs = self._capture()
        for generator, state in zip(generators.defaults(), drawn, strict=True):
            generator.set_state(state)
        with record_captures():
            again, _ = self._capture()
        kernels = graph.kernels or ()
        baked = _compare_captures(kernels, again.kernels or ())
        offenders = seen.offenders
        differences: list[Difference] = []
        compared: int | None = None
        why = "`replays` is 0" if process.values else "the simulated device is on without values"
        if process.values and not any(not one.error.startswith("no error") for one in offenders):
            with torch.no_grad():
                kept = [one.detach().clone() for one in self._inputs]
            differences = self._compare_replays(graph, outputs, replays)
            compared = replays or None
            with torch.no_grad():
                for tensor, value in zip(self._inputs, kept, strict=True):
                    tensor.copy_(value)
        return CaptureReport(
            self._subject, "simulated", offenders, tuple(baked), tuple(differences), len(kernels), compared,
            why,
        )  # fmt: skip

    def _capture(self) -> tuple[CUDAGraph, list[Any]]:
        import torch

        from pytest_gpusync.simulated.tensors.cuda_graphs import capture

        graph: Any = torch.cuda.CUDAGraph()
        before, capture.place_of = capture.place_of, _site
        try:
            with torch.cuda.graph(graph):
                outputs = _leaves(self._call())
        finally:
            capture.place_of = before
        return graph, outputs

    def _compare_replays(self, graph: CUDAGraph, outputs: list[Any], replays: int) -> list[Difference]:
        from pytest_gpusync.simulated.tensors import generators

        found: dict[str, Difference] = {}
        state = _State(graph.kernels or ())
        for replay in range(replays):
            self._change_inputs(replay)
            state.keep()
            drawn = [one.get_state() for one in generators.defaults()]
            try:
                graph.replay()
            except RuntimeError as error:
                text = f"could not be replayed with other inputs: {str(error).splitlines()[0]}"
                return [Difference("The graph", text)]
            replayed = [_kept(one) for one in outputs]
            written = state.take()
            state.put_back()
            for generator, before in zip(generators.defaults(), drawn, strict=True):
                generator.set_state(before)
            eager = _leaves(self._call())
            for difference in (*self._compare_outputs(replayed, eager), *state.compare(written, self._differs)):
                found.setdefault(difference.what, difference)
        return list(found.values())

    def _compare_outputs(self, replayed: list[Any], eager: list[Any]) -> Iterator[Difference]:
        if len(replayed) != len(eager):
            yield Difference("The result", f"has {len(eager)} values in eager code and {len(replayed)} at the capture")
            return
        for index, (one, other) in enumerate(zip(replayed, eager, strict=True)):
            what = f"Output {index}"
            if _is_on_device(other) and _is_on_device(one):
                difference = self._differs(one, other)
                if difference:
                    yield Difference(what, difference)
            elif isinstance(other, (int, float, complex, str)) and one != other:
                yield Difference(what, f"is {one!r} from the capture on, and {other!r} in eager code")

    def _differs(self, replayed: torch.Tensor, eager: torch.Tensor) -> str:
        """How two tensors differ, as a clause; empty if they do not."""
        import torch

        if replayed.shape != eager.shape:
            return f"has the shape {list(replayed.shape)} after a replay and {list(eager.shape)} in eager code"
        rtol, atol = self._tolerance["rtol"], self._tolerance["atol"]
        try:
            torch.testing.assert_close(replayed, eager, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError:
            pass
        else:
            return ""
        different = (replayed != eager) & ~((replayed != replayed) & (eager != eager))
        count = int(different.sum().item())
        where = tuple(different.nonzero()[0].tolist()) if eager.dim() else ()
        at = f" at {list(where)}" if where else ""
        return (
            f"differs in {count:,} of {eager.numel():,} elements: {replayed[where].item():.6g} after a replay, "
            f"{eager[where].item():.6g} in eager code{at}"
        )

    # a GPU

    def on_gpu(self, replays: int) -> CaptureReport:
        """Capture and replay on a GPU, which stops at the first operation that is not permitted."""
        import torch

        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                outputs = _leaves(self._call())
        except RuntimeError as error:
            first = _first_error(error)
            site = _site_of_traceback(first.__traceback__)
            return CaptureReport(self._subject, "cuda", (Offender(None, site, str(first).splitlines()[0]),))
        differences: dict[str, Difference] = {}
        for replay in range(replays):
            self._change_inputs(replay)
            graph.replay()
            replayed = [_kept(one) for one in outputs]
            graph.replay()
            if any(self._differs(one, two) for one, two in zip(replayed, outputs, strict=True) if _is_on_device(one)):
                return CaptureReport(
                    self._subject, "cuda", (),
                    why_not_compared="the function changes what it computes with, which only the simulated device "
                    "can put back",
                )  # fmt: skip
            for one in self._compare_outputs(replayed, _leaves(self._call())):
                differences.setdefault(one.what, one)
        return CaptureReport(
            self._subject, "cuda", (), (), tuple(differences.values()), None, replays or None, "`replays` is 0"
        )


def _first_error(error: BaseException) -> BaseException:
    """The error of the operation: torch raises another one when the failed capture ends."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return error


class _State:
    """The memory that a graph uses and does not make: inputs, weights, buffers."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self._writers: dict[int, Kernel] = {}
        """By address, the last kernel that writes to memory."""
        self._tensors: dict[int, torch.Tensor] = {}
        """By address, a tensor of memory that the graph does not make."""
        self._kept: dict[int, Any] = {}
        made: set[int] = set()
        for kernel in kernels:
            for tensor in kernel.tensors():
                address = _address(tensor)
                if address not in made:
                    self._tensors.setdefault(address, tensor)
            if kernel.result is None:
                self._writers.update((_address(one), kernel) for one in _written(kernel))
            made.update(_address(one) for one in _leaves(kernel.result) if _is_tensor(one))

    def keep(self) -> None:
        """Copy the memory."""
        self._kept = self.take()

    def take(self) -> dict[int, Any]:
        """Return a copy of the memory."""
        return {address: one.untyped_storage().clone() for address, one in self._tensors.items()}

    def put_back(self) -> None:
        """Restore what was kept."""
        for address, values in self._kept.items():
            self._tensors[address].untyped_storage().copy_(values)

    def compare(
        self, written: dict[int, Any], differs: Callable[[torch.Tensor, torch.Tensor], str]
    ) -> Iterator[Difference]:
        """Compare what a replay has written with the memory as it is now."""
        import torch

        for address, kernel in self._writers.items():
            tensor = self._tensors.get(address)
            if tensor is None:
                continue
            before = torch.empty(0, dtype=tensor.dtype).set_(
                written[address], tensor.storage_offset(), tensor.size(), tensor.stride()
            )
            difference = differs(before, tensor.detach())
            if difference:
                site = kernel.place or _UNKNOWN
                yield Difference(f"{site.path}:{site.line} {site.function}: what {kernel.name} writes", difference)


def _written(kernel: Kernel) -> Iterable[torch.Tensor]:
    """The tensors that a kernel without new results writes: its first argument, and those given as `out`."""
    outs = [one for name, one in kernel.keywords.items() if name.startswith("out")]
    return [one for one in _leaves([*kernel.arguments[:1], *outs]) if _is_tensor(one)]


def _compare_captures(first: Sequence[Kernel], second: Sequence[Kernel]) -> list[Baked]:
    """What differs between two captures with the same inputs: it depends on Python."""
    found: dict[Site, Baked] = {}
    made, made_next = _made(first), _made(second)
    for one, other in zip(first, second, strict=False):
        site = one.place or _UNKNOWN
        if one.name != other.name or one.place != other.place:
            found.setdefault(site, Baked(site, one.name, "is launched in one call and not in the next"))
            return list(found.values())
        difference = _baked_argument(one, other, made, made_next)
        if difference:
            known = found.get(site)
            found[site] = (
                Baked(site, one.name, difference)
                if known is None
                else Baked(site, known.operator, known.difference, known.times + 1)
            )
    if len(first) != len(second):
        longer = first if len(first) > len(second) else second
        extra = longer[min(len(first), len(second))]
        site = extra.place or _UNKNOWN
        found.setdefault(site, Baked(site, extra.name, "is launched in one call and not in the next"))
    return list(found.values())


def _baked_argument(one: Kernel, other: Kernel, made: set[int], made_next: set[int]) -> str:
    """How the arguments that come from Python differ, as a clause; empty if they do not.

    Args:
        one: a kernel of the first capture.
        other: the same one of the second.
        made: the addresses of the memory that the kernels of the first capture make.
        made_next: the same of the second.
    """
    import torch

    for value, next_value in zip(_arguments(one), _arguments(other), strict=False):
        if isinstance(value, torch.Tensor) and isinstance(next_value, torch.Tensor):
            if value.shape != next_value.shape:
                shapes = f"{list(value.shape)} in one call, {list(next_value.shape)} in the next"
                return f"has an argument of the shape {shapes}"
            is_from_host = _address(value) not in made and _address(next_value) not in made_next
            if is_from_host and _address(value) != _address(next_value) and not torch.equal(value, next_value):
                if value.numel() != 1:
                    return "copies values of the host that differ in the next call: a replay repeats the first"
                value, next_value = value.item(), next_value.item()
                return f"uses {value:.6g}, and {next_value:.6g} in the next call: a replay repeats {value:.6g}"
        elif isinstance(value, (bool, int, float, complex)) and value != next_value:
            return f"uses {value!r}, and {next_value!r} in the next call: a replay repeats {value!r}"
    return ""


def _made(kernels: Sequence[Kernel]) -> set[int]:
    """The addresses of the memory that kernels make."""
    return {_address(one) for kernel in kernels for one in _leaves(kernel.result) if _is_tensor(one)}


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _arguments(kernel: Kernel) -> list[Any]:
    return _leaves([kernel.arguments, kernel.keywords])


def _leaves(value: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    leaves: list[Any] = tree_leaves(value)
    return leaves


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_on_device(value: Any) -> bool:
    return _is_tensor(value) and bool(value.is_cuda)


def _kept(value: Any) -> Any:
    return value.detach().clone() if _is_tensor(value) else value


def _changed(tensor: torch.Tensor) -> torch.Tensor:
    """Other values of the same range: the elements in reverse order, floating-point ones scaled."""
    flipped = tensor.detach().flip(tuple(range(tensor.dim())))
    return flipped * 0.75 if flipped.is_floating_point() or flipped.is_complex() else flipped
