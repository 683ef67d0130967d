"""Kinds of accelerators other than CUDA's, as their catalogues describe them. Lookups are cached."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import roots
from gpusync_lint.domain.values import Device

if TYPE_CHECKING:
    from gpusync_lint.catalogue.schema import Accelerator, Barrier


@cache
def by_device() -> dict[Device, Accelerator]:
    """The accelerators, by the member of `Device` that stands for them."""
    return {_device(accelerator): accelerator for accelerator in roots.accelerators().values()}


@cache
def by_module() -> dict[str, Accelerator]:
    """The accelerators by the top-level modules of their plugins: `torch_npu`."""
    return {module: one for name, one in roots.accelerators().items() for module in roots.modules_of(name)}


@cache
def moves() -> dict[str, Device]:
    """By name, the methods of tensors and modules that move them to an accelerator: `npu`."""
    return {name: _device(accelerator) for accelerator in roots.accelerators().values() for name in accelerator.moves}


@cache
def barriers() -> dict[str, Barrier]:
    """The barriers of accelerators by the dotted names of functions."""
    return {name: barrier for one in roots.accelerator_catalogues() for name, barrier in one.by_function.items()}


@lru_cache(20_000)
def named(text: str) -> Device | None:
    """The device that a string names: `"npu:0"`; None if it does not name an accelerator of a catalogue."""
    return _types().get(text.partition(":")[0])


@lru_cache(20_000)
def returned(dotted: str) -> Device | None:
    """The device that a function returns: `torch_xla.device`; None for any other function."""
    found = (device for device, accelerator in by_device().items() if dotted in accelerator.devices)
    return next(found, None)


@lru_cache(20_000)
def of_loader(dotted: str) -> Device | None:
    """The device to which a class that wraps a loader moves its batches; None for any other name."""
    found = (device for device, accelerator in by_device().items() if dotted in accelerator.loaders)
    return next(found, None)


@lru_cache(20_000)
def of_module(name: str) -> Device | None:
    """The device whose module of torch a name begins with, both without `torch.`: `npu.current_stream`."""
    root, _, rest = name.partition(".")
    device = _types().get(root) if rest else None
    return device if device is not None and by_device()[device].module == f"torch.{root}" else None


@cache
def _types() -> dict[str, Device]:
    return {accelerator.type: device for device, accelerator in by_device().items()}


def _device(accelerator: Accelerator) -> Device:
    device: Device = getattr(Device, accelerator.type.upper())
    return device
