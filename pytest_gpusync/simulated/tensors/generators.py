"""Random number generators of the simulated device: CPU generators whose device is cuda.

By default the device has generators of its own, like a GPU: random numbers on cuda neither depend on nor affect those
drawn on the CPU. After the same seed both give the same numbers.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import torch

from pytest_gpusync.simulated.base import capture_rules
from pytest_gpusync.simulated.base.state import current_device, device_index, process
from pytest_gpusync.simulated.base.sync_events import conditions

_Generator = torch._C.Generator


class SimulatedGenerator(_Generator):
    """A generator whose device is cuda."""

    _index: int
    _cdata: int

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """``cuda:N``."""
        return torch.device("cuda", self._index)

    def manual_seed(self, seed: int) -> _Generator:
        """Set the seed; during the capture of a CUDA graph only to what it is."""
        if conditions.capturing and seed != self.initial_seed():
            capture_rules.refuse("generator", capture_rules.NEW_SEED)
            return self
        return super().manual_seed(seed)

    def seed(self) -> int:
        """Set a random seed, which is not permitted during the capture of a CUDA graph, and return it."""
        if conditions.capturing:
            capture_rules.refuse("generator", capture_rules.NEW_SEED)
            return self.initial_seed()
        return super().seed()

    def get_offset(self) -> int:
        """Return 0: the CPU's generator has no Philox offset."""
        return 0

    def set_offset(self, offset: int) -> _Generator:
        """Do nothing: the CPU's generator has no Philox offset."""
        return self

    def clone_state(self) -> SimulatedGenerator:
        """Return a new generator with the state of this one."""
        copy = new(self._index)
        copy.set_state(self.get_state())
        return copy

    def graphsafe_get_state(self) -> SimulatedGenerator:
        """Return a copy of the state, as a generator."""
        return self.clone_state()

    def graphsafe_set_state(self, state: _Generator) -> SimulatedGenerator:
        """Copy the state of `state`."""
        self.set_state(state.get_state())
        return self


registered: set[int] = set()
"""The generators, by the addresses of their C++ parts, that the graph being captured knows besides the default ones."""
_known: WeakValueDictionary[int, SimulatedGenerator] = WeakValueDictionary()
"""Live simulated generators by the address of their C++ part: a kernel receives another Python object for it."""


def new(index: int) -> SimulatedGenerator:
    """Return a generator of ``cuda:index``."""
    generator: SimulatedGenerator = SimulatedGenerator.__new__(SimulatedGenerator)
    generator._index = index
    _known[generator._cdata] = generator
    return generator


class _GeneratorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)

    def __call__(cls, device: Any = "cpu") -> Any:
        target = torch.device(device)
        return new(device_index(target)) if target.type == "cuda" else _Generator(target)


class Generator(metaclass=_GeneratorType):
    """Replaces ``torch.Generator``: a simulated generator for cuda, torch's own for other devices."""


_defaults: tuple[SimulatedGenerator, ...] = ()


def defaults() -> tuple[SimulatedGenerator, ...]:
    """Return the default generator of each device."""
    global _defaults
    while len(_defaults) < process.devices:
        _defaults = (*_defaults, new(len(_defaults)))
    return _defaults[: process.devices]


def resolve(generator: Any, index: int) -> Any:
    """Return the generator that a kernel of ``cuda:index`` draws from, given the one passed to it.

    Raises:
        RuntimeError: it is a CPU generator.
    """
    if generator is None:
        return defaults()[index if index >= 0 else current_device()]
    if generator._cdata not in _known:
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    if conditions.capturing and generator._cdata not in registered | {one._cdata for one in defaults()}:
        capture_rules.refuse("generator", capture_rules.UNREGISTERED)
    return generator
