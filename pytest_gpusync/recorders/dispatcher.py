"""Counts the waits that show in torch's dispatcher, on any accelerator.

A dispatch mode sees each operator of the thread that opened the region, and of autograd's threads working for it. An
operator that gives the host a value of the device waits, whatever the device: a read, a blocking copy, an operator
whose output's size depends on the values. torch marks the last kind itself, by tags on its operators. The synchronize
functions of ``torch.accelerator`` and of each backend are no operators, so they are wrapped; so are those that free
memory.

What an operator does inside, it does unseen: a kernel that waits although it returns nothing to the host. For the
operators whose CUDA kernels read values in a number that torch's source shows, that number counts on CUDA devices; of
decompositions, which wait in a number that depends on the data, one wait counts.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import torch
from torch.utils import _python_dispatch

from pytest_gpusync.machine.replacements import Replacements
from pytest_gpusync.model.measurement import PAGEABLE_H2D_WAITS_ABOVE, RawSync
from pytest_gpusync.recorders.base import Recorder, RecorderUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from pytest_gpusync.model.measurement import Coverage, Direction, Kind, SyncSink

    Rule = Callable[[Sequence[Any], Mapping[str, Any]], "Iterator[Wait]"]

BACKENDS: Final = ("cuda", "xpu", "mps", "mtia", "npu", "hpu", "mlu", "musa")
"""Modules of torch that hold a backend's ``synchronize()``. Only cuda was run; the others are as documented."""

_IN_C: Final[Mapping[str, Kind]] = {
    "_cuda_synchronize": "device",
    "_accelerator_synchronizeDevice": "device",
    "_xpu_synchronize": "device",
    "_mps_deviceSynchronize": "device",
    "_mtia_deviceSynchronize": "device",
}
"""Functions of ``torch._C`` behind the synchronize functions: also one that a program imported earlier is seen."""

_compiler: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)

_EMPTY_CACHE: Final = ("_cuda_emptyCache", "_accelerator_emptyCache", "_xpu_emptyCache", "_mps_emptyCache")
"""Functions of ``torch._C`` that give cached memory back to the driver, which waits for the device."""

_ALLOCATOR_SETTINGS: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

_MASKS: Final = (torch.bool, torch.uint8)


class Wait(NamedTuple):
    """One wait of an operator."""

    device: torch.device
    direction: Direction | None = None
    nbytes: int | None = None
    kind: Kind = "stream"


class DispatcherRecorder(Recorder):
    """See the module docstring."""

    name: ClassVar[str] = "dispatcher"
    coverage: ClassVar[Coverage] = "dispatcher"
    blind_spots: ClassVar[str] = (
        "waits inside kernels and libraries, and other threads than the one that opened the region"
    )

    def __init__(self) -> None:
        self._sink: SyncSink | None = None
        self._mode: _Mode | None = None
        self._replaced = Replacements()

    def start(self, sink: SyncSink) -> None:
        """See :meth:`Recorder.start`."""
        device = accelerator()
        if device is None:
            raise RecorderUnavailable("torch finds no accelerator")
        self._sink = sink
        for name, kind in _IN_C.items():
            self._wrap(torch._C, name, kind)
        for name in _EMPTY_CACHE:
            self._wrap_empty_cache(name)
        for backend in BACKENDS:
            module = sys.modules.get(f"torch.{backend}")
            if module is not None:
                self._wrap_backend(module)
        self._mode = _Mode(self._emit)
        self._see_printing(self._mode)
        # Without entering it, which tells torch.compile to compile nothing inside.
        _python_dispatch._push_mode(self._mode)

    def watch_device_work(self, watcher: Callable[[int], bool]) -> None:
        """See :meth:`Recorder.watch_device_work`."""
        if self._mode is not None:
            self._mode.watcher = watcher

    def stop(self) -> None:
        """See :meth:`Recorder.stop`."""
        self._replaced.restore()
        if self._mode is not None:
            _leave(self._mode)
        self._mode = self._sink = None

    def can_plant(self) -> bool:
        """See :meth:`Recorder.can_plant`."""
        return self._mode is not None and self._mode.watcher is None

    def plant(self) -> None:
        """See :meth:`Recorder.plant`."""
        device = accelerator()
        assert device is not None
        torch.empty(1, device=device).item()

    def _see_printing(self, mode: _Mode) -> None:
        """Put the mode back where torch prints a tensor, which it does without any."""
        from torch import _tensor_str as printing

        original: Callable[..., str] = printing._str_intern

        def str_intern(*arguments: Any, **options: Any) -> Any:
            _python_dispatch._push_mode(mode)
            try:
                return original(*arguments, **options)
            finally:
                _leave(mode)

        self._replaced.put(printing, "_str_intern", str_intern)

    def _wrap_backend(self, module: Any) -> None:
        """Wrap what waits in a backend's module, except where it calls a function of ``torch._C`` that is wrapped."""
        if not _is_wrapped_in_c(module):
            self._wrap(module, "synchronize", "device")
        kinds: Mapping[str, Kind] = {"Stream": "stream", "Event": "event"}
        for owner, kind in kinds.items():
            found = getattr(module, owner, None)
            # torch.Stream itself, which some backends use, is a C type and cannot be wrapped.
            if isinstance(found, type) and found.__module__ != "torch" and "synchronize" in vars(found):
                self._wrap(found, "synchronize", kind)

    def _wrap(self, owner: Any, name: str, kind: Kind) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        def synchronize(*arguments: Any, **options: Any) -> Any:
            self._emit(Wait(_waited_for(arguments), kind=kind), sys._getframe(1))
            return original(*arguments, **options)

        self._replaced.put(owner, name, synchronize)

    def _wrap_empty_cache(self, name: str) -> None:
        original = getattr(torch._C, name, None)
        if original is None:
            return

        def empty_cache(*arguments: Any, **options: Any) -> Any:
            before = _segments()
            result = original(*arguments, **options)
            after = _segments()
            # Only CUDA's allocator says how many times it had to free memory.
            waits = 1 if before is None or after is None else before - after
            for _ in range(waits):
                self._emit(Wait(_waited_for(()), kind="free"), sys._getframe(1))
            return result

        self._replaced.put(torch._C, name, empty_cache)

    def _emit(self, wait: Wait, frame: FrameType | None) -> None:
        sink = self._sink
        if sink is not None:
            device = wait.device.index
            sink(RawSync(wait.kind, frame, threading.get_ident(), wait.direction, wait.nbytes, device=device))


def accelerator() -> torch.device | None:
    """Return the accelerator of this process; None if torch finds none."""
    device: torch.device | None
    if hasattr(torch, "accelerator"):
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return device
    for backend in BACKENDS:  # torch before 2.6
        module = getattr(torch, backend, None)
        if module is not None and module.is_available():
            return torch.device(backend)
    return None


def _segments() -> int | None:
    """Return how many blocks of memory CUDA's allocator holds, each of which it frees by itself; None elsewhere.

    With expandable segments it frees none.
    """
    current = accelerator()
    if current is None or current.type != "cuda":
        return None
    if any("expandable_segments:True" in os.environ.get(name, "") for name in _ALLOCATOR_SETTINGS):
        return 0
    api: Any = torch._C
    used = filter(api._cuda_hasPrimaryContext, range(torch.cuda.device_count()))
    return sum(int(torch.cuda.memory_stats(index).get("segment.all.current", 0)) for index in used)


def _leave_uncompiled(method: Any) -> None:
    """Tell torch.compile to compile neither a method nor what it calls."""
    if hasattr(method, "__wrapped__"):
        return  # torch has done so
    if hasattr(_compiler, "set_code_exec_strategy"):
        skip = _compiler._FrameAction.SKIP
        _compiler.set_code_exec_strategy(method.__code__, _compiler._FrameExecStrategy(skip, skip))
    elif hasattr(_compiler, "skip_code"):  # earlier releases
        _compiler.skip_code(method.__code__)


class _Mode(_python_dispatch.TorchDispatchMode):
    """Looks at each operator before it runs. What it does for an operator that never waits is kept to a minimum."""

    def __init__(self, emit: Callable[[Wait, FrameType | None], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._emit = emit
        self.watcher: Callable[[int], bool] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return whether torch wraps the method below, so that torch.compile does not compile it.

        The wrapper costs a microsecond for each operator, and imports torch._dynamo. Instead the code itself is marked,
        where torch offers that.
        """
        return not hasattr(_compiler, "set_code_exec_strategy")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        operator = func._op  # unlike `func`, it is hashed without a call of Python
        try:
            rule, call = _known[operator]
        except KeyError:
            plain = type(func) is torch._ops.OpOverload
            rule, call = _known[operator] = (rule_of(func), operator if plain else func)
        if rule is not None:
            for wait in rule(args, kwargs or {}):
                self._emit(wait, sys._getframe(1))
        result = call(*args, **kwargs) if kwargs else call(*args)
        if self.watcher is not None:
            self._watch((*args, *(kwargs or {}).values(), result))
        return result

    def _watch(self, values: Sequence[Any]) -> None:
        watcher = self.watcher
        if watcher is not None and _device_of(values) is not None and watcher(threading.get_ident()):
            self.watcher = None


_leave_uncompiled(_Mode.__torch_dispatch__)


def _leave(mode: _Mode) -> None:
    """Take a mode from this thread's stack, also from below modes that the program entered later and has not left."""
    above = []
    while mode in _python_dispatch._get_current_dispatch_mode_stack():
        top = _python_dispatch._pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        _python_dispatch._push_mode(other)


def rule_of(func: Any) -> Rule | None:
    """Return what tells the waits of a call of an operator from its arguments; None if it never waits."""
    name = str(getattr(func, "overloadpacket", None))
    rule = _RULES.get(name)
    if rule is not None:
        return rule
    tags = getattr(func, "tags", ())
    if torch.Tag.data_dependent_output in tags:
        return _read
    if torch.Tag.dynamic_output_shape in tags or name in _SIZED_BY_VALUES:
        return _sized_by_values
    return None


_known: dict[Any, tuple[Rule | None, Callable[..., Any]]] = {}
"""By the function of C++ behind an operator: what :func:`rule_of` returned, and how to call the operator."""


def _read(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
    """A value of the device is given to the host."""
    tensor = _first((*args, *options.values()))
    if tensor is not None and tensor.numel():
        yield Wait(tensor.device, "D2H", tensor.element_size())


def _sized_by_values(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
    """The host must know how large the output is, unless it was told."""
    tensor = _first((*args, *options.values()))
    if tensor is not None and tensor.numel() and options.get("output_size") is None:
        yield Wait(tensor.device)


def _indexed(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
    """Each mask among the indices is first turned into numbers, of which the host must know how many there are; indices
    of the host are copied.
    """
    tensor = args[0]
    if not _is_of_device(tensor):
        return
    for index in args[1]:
        if index is None:
            continue
        if not _is_of_device(index):
            yield from _copy(index, tensor.device, False, None)
        if index.dtype in _MASKS:
            yield Wait(tensor.device)


def _put(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
    """As :func:`_indexed`, and values of the host are copied, unless torch makes a masked_fill of the call."""
    tensor, indices, values = args[:3]
    if not _is_of_device(tensor):
        return
    given = [index for index in indices if index is not None]
    fills = len(given) == 1 and given[0].dtype in _MASKS and given[0].device == tensor.device
    if fills and values.numel() == 1 and values.device.type == "cpu":
        return
    yield from _indexed(args, options)
    yield from _copy(values, tensor.device, False, None)


def _made_from_data(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
    """``torch.tensor(data, device=...)`` and its like: the copy is not dispatched, this call that follows it is."""
    tensor = args[0]
    if _is_of_device(tensor) and tensor.numel():
        yield Wait(tensor.device, "H2D", tensor.numel() * tensor.element_size())


def _inside(waits: int) -> Rule:
    """Return the rule of an operator whose CUDA kernel reads so many values, one after the other. Of kernels of other
    devices and of ROCm it is only known that they need a value.
    """

    def rule(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
        for wait in _sized_by_values(args, options):
            yield from [wait] * (waits if _is_cuda(wait.device) else 1)

    return rule


def _checked(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
    """CUDA's kernels read at least whether the algorithm converged. How often its library waits is not known."""
    tensor = _first(args[:1])
    if tensor is not None and _is_cuda(tensor.device) and tensor.numel() > 1:
        yield Wait(tensor.device, "D2H")


def _histogram(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
    """Without bounds, the smallest and the largest value are read."""
    low = args[2] if len(args) > 2 else options.get("min", 0)
    high = args[3] if len(args) > 3 else options.get("max", 0)
    if low == high:
        yield from _inside(2)(args[:1], {})


def _checked_normal(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
    """A deviation that is a tensor is checked not to be negative."""
    if len(args) > 1 and isinstance(args[1], torch.Tensor):
        yield from _inside(2)(args[1:2], {})


def _isin(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
    """Sorts both tensors, without duplicates, unless there is little to look for (torch's own bound)."""
    elements, tests = args[:2]
    if not isinstance(elements, torch.Tensor) or not isinstance(tests, torch.Tensor) or not _is_of_device(elements):
        return
    searches = _is_cuda(elements.device) and not options.get("assume_unique", False)
    if searches and elements.numel() and tests.numel() >= int(10 * elements.numel() ** 0.145):
        yield from [Wait(elements.device)] * 3


def _filled(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
    """The value to fill with is read."""
    yield from _read(args[3:], options)


def _copy_into(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
    target, source = args[0], args[1]
    if isinstance(target, torch.Tensor) and isinstance(source, torch.Tensor):
        non_blocking = bool(args[2] if len(args) > 2 else options.get("non_blocking", False))
        yield from _copy(source, target.device, non_blocking, target)


def _copies_into(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
    for pair in zip(args[0], args[1], strict=False):
        yield from _copy_into((*pair, *args[2:]), options)


def _copy_from(args: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Wait]:
    device = options.get("device")
    if device is not None:
        yield from _copy(args[0], torch.device(device), bool(options.get("non_blocking", False)), None)


def _copy(
    source: torch.Tensor, device: torch.device, non_blocking: bool, target: torch.Tensor | None
) -> Iterator[Wait]:
    """Yield the wait of a copy between host and device; `target` is None for a new tensor."""
    outbound = _is_of_device(source)
    if outbound == _is_device(device) or not source.numel():
        return
    nbytes = source.numel() * source.element_size()
    direction: Direction = "D2H" if outbound else "H2D"
    there = source.device if outbound else device
    if not non_blocking:
        yield Wait(there, direction, nbytes)
    elif there.type == "cuda":
        # Other devices' rules for pageable memory are not known. A new tensor of the host is pinned by torch.
        host = target if outbound else source
        pinned = host is None or host.is_pinned()
        if not pinned and (outbound or nbytes > PAGEABLE_H2D_WAITS_ABOVE):
            yield Wait(there, direction, nbytes, "pageable")


_RULES: Final[Mapping[str, Rule]] = {
    "aten.copy_": _copy_into,
    "aten._copy_from": lambda args, options: _copy_into((args[1], args[0], *args[2:]), options),
    "aten._foreach_copy_": _copies_into,
    "aten._to_copy": _copy_from,
    "aten.index": _indexed,
    "aten._unsafe_index": _indexed,
    "aten.index_put": _put,
    "aten.index_put_": _put,
    "aten._index_put_impl_": _put,
    "aten.index_fill": _filled,
    "aten.index_fill_": _filled,
    "aten.lift_fresh": _made_from_data,
    "aten.normal": _checked_normal,
    "aten.repeat_interleave": _inside(2),
    "aten.bincount": _inside(2),
    "aten.histc": _histogram,
    "aten.isin": _isin,
    "aten.unique_dim": _inside(3),
    "aten._linalg_check_errors": _read,
    "aten._linalg_eigh": _checked,
    "aten._linalg_svd": _checked,
    "aten._to_sparse": _sized_by_values,
    "aten._to_sparse_csr": _inside(2),
    "aten._to_sparse_csc": _sized_by_values,
    "aten._to_sparse_bsr": _sized_by_values,
    "aten._to_sparse_bsc": _sized_by_values,
}
"""By the name of the operator without its overload; operators that torch tags need no entry."""

_SIZED_BY_VALUES: Final = frozenset(
    f"aten.{name}"
    for name in (
        "_ctc_loss", "_unique", "_unique2", "argwhere", "linalg_lstsq", "masked_select", "nonzero", "one_hot",
        "unique_consecutive", "unique_dim_consecutive",
    )
)  # fmt: skip
"""Operators that torch tags today. Earlier releases may lack some of the tags."""


def _is_cuda(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None


def _is_device(device: torch.device) -> bool:
    return device.type not in ("cpu", "meta")


def _is_of_device(tensor: torch.Tensor) -> bool:
    return _is_device(tensor.device)


def _first(values: Sequence[Any]) -> torch.Tensor | None:
    """Return the first tensor of a device among the arguments and the members of lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if _is_of_device(value):
                return value
        elif isinstance(value, (list, tuple)):
            found = _first(value)
            if found is not None:
                return found
    return None


def _device_of(values: Sequence[Any]) -> torch.device | None:
    tensor = _first(values)
    return tensor.device if tensor is not None else None


def _is_wrapped_in_c(module: Any) -> bool:
    """Return whether a module's ``synchronize()`` calls a wrapped function of ``torch._C``."""
    code = getattr(getattr(module, "synchronize", None), "__code__", None)
    return code is not None and any(name in code.co_names for name in _IN_C)


def _waited_for(arguments: tuple[Any, ...]) -> torch.device:
    """Return the device that a synchronize function waits for: of a stream or event, a given one, or the current."""
    given = arguments[0] if arguments else None
    device = getattr(given, "device", given)
    current = accelerator()
    kind = current.type if current is not None else "cuda"
    if isinstance(device, torch.device):
        return device
    if isinstance(device, str):
        return torch.device(device)
    if isinstance(device, int) and device >= 0:
        return torch.device(kind, device)
    if hasattr(torch, "accelerator"):
        return torch.device(kind, torch.accelerator.current_device_index())
    ask = getattr(getattr(torch, kind, None), "current_device", None)  # torch before 2.6; there is one MPS device only
    return torch.device(kind) if ask is None else torch.device(kind, ask())
