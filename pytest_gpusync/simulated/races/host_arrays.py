"""NumPy arrays over pinned memory that tell when they are read or written.

An array shares the memory of its tensor, and NumPy knows nothing of copies under way. While races are looked for,
``Tensor.numpy()`` of a pinned tensor returns a subclass of ``numpy.ndarray`` that reports its own accesses; its views
are of that class, too. ``numpy.asarray()`` of it, and C code that is given its memory, are not seen.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from pytest_gpusync.simulated.races import pinned_memory
from pytest_gpusync.simulated.races.extents import of_strided

if TYPE_CHECKING:
    from types import FrameType

_READING = frozenset(
    {
        *("all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "choose", "clip", "compress", "conj"),
        *("conjugate", "copy", "cumprod", "cumsum", "dot", "dump", "dumps", "item", "max", "mean", "min", "nonzero"),
        *("prod", "ptp", "repeat", "round", "searchsorted", "std", "sum", "take", "tobytes", "tofile", "tolist"),
        *("trace", "var", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__bool__", "__float__"),
        *("__int__", "__complex__", "__index__", "__contains__", "__repr__", "__str__", "__format__"),
    }
)
"""Methods that read the elements."""
_WRITING = frozenset({"fill", "itemset", "partition", "put", "setfield", "sort"})
"""Methods that write them."""


@cache
def _watched() -> Any:
    """Return the class; NumPy is imported only where a program uses it."""
    import numpy

    class ndarray(numpy.ndarray):  # noqa: N801
        """A ``numpy.ndarray`` over pinned memory."""

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
            frame = sys._getframe(1)
            results: tuple[Any, ...] = keywords.get("out") or ()
            for value in inputs:
                _use(value, method == "at" and value is inputs[0], frame)
            for value in results:
                _use(value, True, frame)
            if results:
                keywords["out"] = tuple(_plain(value) for value in results)
            made = getattr(ufunc, method)(*map(_plain, inputs), **keywords)
            return results[0] if len(results) == 1 and results[0] is not None else made

        def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
            frame = sys._getframe(1)
            for value in _arrays((arguments, keywords)):
                _use(value, False, frame)
            targets = [keywords["out"]] if "out" in keywords else []
            if function is numpy.copyto or function.__name__ in ("put", "place", "putmask", "fill_diagonal"):
                targets += [arguments[0] if arguments else keywords.get("dst")]
            for value in targets:
                _use(value, True, frame)
            return function(*_plain_all(arguments), **{name: _plain_all(value) for name, value in keywords.items()})

        def __getitem__(self, key: Any) -> Any:
            result = super().__getitem__(key)
            if not _is_view(result, self):
                _use(self, False, sys._getframe(1))
            return result

        def __setitem__(self, key: Any, value: Any) -> None:
            frame = sys._getframe(1)
            part = super().__getitem__(key)
            _use(value, False, frame)
            _use(part if _is_view(part, self) else self, True, frame)
            super().__setitem__(key, _plain(value))

        def __iter__(self) -> Any:
            if self.ndim == 1:
                _use(self, False, sys._getframe(1))
            return super().__iter__()

    for name in (*_READING, *_WRITING):
        if hasattr(numpy.ndarray, name):
            setattr(ndarray, name, _method(name, name in _WRITING))
    return ndarray


def _method(name: str, is_write: bool) -> Any:
    import numpy

    original = getattr(numpy.ndarray, name)

    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        _use(self, is_write, sys._getframe(1))
        if is_write:
            return original(self, *arguments, **keywords)
        return getattr(_plain(self), name)(*arguments, **keywords)

    method.__name__ = name
    return method


def watch(array: Any) -> Any:
    """Return `array`, which lies in pinned memory, as an array that reports its accesses."""
    return array.view(_watched())


def _use(value: Any, is_write: bool, frame: FrameType) -> None:
    if pinned_memory.pending and isinstance(value, _watched()) and value.size:
        start = value.__array_interface__["data"][0]
        extent = of_strided(start, value.shape, value.strides, value.itemsize)
        base = pinned_memory.base_around(extent[0])
        if base is not None:
            pinned_memory.host_uses_memory(base, extent, is_write, frame, value)


def _is_view(part: Any, array: Any) -> bool:
    """Return whether `part`, an array or a number, has memory of `array`."""
    import numpy

    return isinstance(part, numpy.ndarray) and numpy.may_share_memory(_plain(part), _plain(array))


def _plain(value: Any) -> Any:
    import numpy

    return value.view(numpy.ndarray) if isinstance(value, _watched()) else value


def _plain_all(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_plain_all(item) for item in value)
    return _plain(value)


def _arrays(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [array for item in value for array in _arrays(item)]
    return [value] if isinstance(value, _watched()) else []
