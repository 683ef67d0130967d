"""The device without values: operators compute only shapes, memory is counted but not touched, and numbers are unknown.

This is for models that do not fit the host or would take too long there. A tensor of the device then has memory that
was never written; kernels run on *meta* tensors, which have none. Reading a floating-point tensor with ``item()`` or
``tolist()`` gives an :class:`Unknown`, which can be printed and added up. Where the program depends on a value (a
comparison, a branch, a shape, a copy to the host) it is stopped with :class:`ValueNeeded`, which names the line. Until
then it makes the same syncs as with values.
"""

from __future__ import annotations

import mmap
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from pytest_gpusync.simulated.base import sync_events
from pytest_gpusync.simulated.base.state import process
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.simulated.base.patches import Patches

Tensor = torch.Tensor
_LARGE = 1 << 30
_NORESERVE = 0x4000
"""``MAP_NORESERVE`` of Linux; Python exports it from 3.11 on."""


class ValueNeeded(RuntimeError):
    """The program needs a value that the simulated device does not compute; the message is one line."""


def refuse(what: str) -> NoReturn:
    """Stop the program: `what` needs a value."""
    raise ValueNeeded(
        f"{_line()}{what} needs a value, and this simulated device computes none: run with values, or change the line"
    ) from None


def _line() -> str:
    """Return the program's current line, as the start of a message."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if attribution.is_user_code(name):
            return f"{attribution.display_path(name)}:{frame.f_lineno}: "
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


def meta_of(x: Tensor) -> Tensor:
    """Return a tensor like `x` without memory."""
    if x.is_nested:
        refuse("an operator on nested tensors")
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def with_memory(x: Tensor) -> Tensor:
    """Return a CPU tensor like the meta tensor `x`; its memory is not touched, so the system does not back it."""
    if x.nbytes < _LARGE or not x.is_contiguous():
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    # The system refuses more memory than it has, unless told that it need not reserve it.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return torch.frombuffer(mmap.mmap(-1, x.nbytes, flags=flags), dtype=x.dtype).view(x.shape)


_SHAPES_FROM_VALUES = ("meta", "data-dependent", "data dependent", "dynamic", "unbacked")


def as_value_needed(error: RuntimeError, name: str) -> RuntimeError:
    """Return `error` of operator `name`, or a :class:`ValueNeeded` if it says that a meta tensor has no values."""
    told = f"{type(error).__name__} {error}".lower()
    if not isinstance(error, NotImplementedError) and not any(word in told for word in _SHAPES_FROM_VALUES):
        return error
    try:
        refuse(f"{name.removeprefix('aten::').partition('.')[0].lstrip('_')}()")
    except ValueNeeded as refusal:
        return refusal


def _refusing(what: str) -> Callable[..., Any]:
    def method(*_: Any) -> NoReturn:
        refuse(what)

    return method


def _propagating(name: str) -> Callable[..., Any]:
    compute = getattr(float, name)

    def method(self: Unknown, *others: Any) -> Any:
        return NotImplemented if compute(self, *others) is NotImplemented else Unknown()

    return method


class Unknown(float):
    """An unknown number. It prints as ``?``; arithmetic with it gives another; comparing it is an error.

    C code that reads it, such as ``math.sqrt``, sees 1.0.
    """

    def __new__(cls) -> Unknown:  # noqa: D102
        return float.__new__(cls, 1.0)

    def __repr__(self) -> str:
        return "?"

    __str__ = __repr__

    def __format__(self, specification: str) -> str:
        return "?"

    def __hash__(self) -> int:
        return id(self)


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs", "pos"):
    setattr(Unknown, f"__{_name}__", _propagating(f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Unknown, f"__{_name}__", _refusing("a comparison"))
for _name in ("bool", "int", "trunc", "round", "floor", "ceil"):
    setattr(Unknown, f"__{_name}__", _refusing(f"{_name}()"))


def install(patches: Patches) -> None:
    """Make reading a floating-point tensor of the device give unknown numbers; `patches` restores everything."""
    item, tolist = Tensor.item, Tensor.tolist

    def read_item(self: Tensor) -> Any:
        if not _is_unknown(self) or self.numel() != 1:
            return item(self)
        sync_events.announce("stream", direction="D2H", nbytes=self.element_size(), device=self.get_device())
        return Unknown()

    def read_list(self: Tensor) -> Any:
        if not _is_unknown(self):
            return tolist(self)
        nbytes = self.numel() * self.element_size()
        if nbytes:
            sync_events.announce("stream", direction="D2H", nbytes=nbytes, device=self.get_device())
        return _nested(list(self.shape))

    patches.set(Tensor, "item", read_item)
    patches.set(Tensor, "tolist", read_list)


def _is_unknown(x: Tensor) -> bool:
    return x.is_cuda and x.is_floating_point() and not process.values


def _nested(shape: list[int]) -> Any:
    return [_nested(shape[1:]) for _ in range(shape[0])] if shape else Unknown()
