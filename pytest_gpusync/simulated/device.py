"""Switches the simulated device on and off: the order of the steps, the checks between them, and the way back."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

import torch
from torch.autograd.variable import Variable

from pytest_gpusync.simulated import children
from pytest_gpusync.simulated.abi import autograd_engine
from pytest_gpusync.simulated.abi.cuda_hooks import AcceleratorHooks
from pytest_gpusync.simulated.abi.device_guard import DeviceGuard
from pytest_gpusync.simulated.base.patches import Patches
from pytest_gpusync.simulated.base.state import process
from pytest_gpusync.simulated.base.sync_events import conditions
from pytest_gpusync.simulated.base.versions import INSTALL, SimulationUnavailable
from pytest_gpusync.simulated.kernels import autotuning, registration
from pytest_gpusync.simulated.native_path import dispatch
from pytest_gpusync.simulated.tensors import memory, streams, unknown_values
from pytest_gpusync.simulated.tensors.caching_allocator import SHARED
from pytest_gpusync.simulated.torch_api import compilation, cuda_api, distributed, profiling, refusals, tensor_api

if TYPE_CHECKING:
    from collections.abc import Callable

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class SimulatedDevice:
    """The simulated device of a process; :mod:`.activation` counts its users."""

    def __init__(self, inherit: Callable[[int, int | None, bool], None]) -> None:
        """Keep `inherit`, which switches the device on in a process started by one with the device."""
        self._inherit = inherit
        self._guard = DeviceGuard()
        self._hooks = AcceleratorHooks()
        self._patches = Patches()
        self._checked = False
        self._visible: str | None = None
        """``CUDA_VISIBLE_DEVICES`` of the program, while GPUs are hidden."""
        self._hides = False

    def switch_on(self, devices: int, nbytes: int | None, values: bool) -> None:
        """Make torch see `devices` CUDA devices of `nbytes` bytes each; None for as many as the host has.

        Raises:
            SimulationUnavailable: a step failed; the steps before it are undone.
        """
        if devices < 1:
            raise SimulationUnavailable(f"cannot simulate {devices} CUDA devices: simulate at least 1")
        if torch.cuda.is_initialized() and _gpus_found():
            raise SimulationUnavailable(
                "this process already uses a GPU: switch the simulated device on before the first use of cuda, or in a "
                "process of its own"
            )
        process.devices, process.memory = devices, nbytes
        try:
            self._hide_gpus()
            autograd_engine.start_without_threads()
            self._guard.install()
            self._show_gpus()
            self._hooks.install()
            registration.register()
            self._replace()
            process.on = True
            self._check()
            process.values = values
            process.changed()
            if not values:
                # The rules for shapes, which torch itself loads late.
                importlib.import_module("torch._meta_registrations")
                unknown_values.install(self._patches)
            children.install(self._patches, self._inherit, devices, nbytes, values)
        except BaseException:
            self.switch_off()
            if not self._checked:
                self._guard.remove()
            raise

    def require(self, devices: int, nbytes: int | None, values: bool) -> None:
        """Check that at least `devices` devices of `nbytes` bytes are simulated already, with values or without."""
        if values != process.values:
            raise SimulationUnavailable(
                f"the simulated device is on {'with' if process.values else 'without'} values: "
                "set `values` where it is first switched on"
            )
        if devices > process.devices:
            raise SimulationUnavailable(
                f"the simulated device is on with {process.devices} devices, not {devices}: set `devices` where it is "
                f"first switched on (`pytest --gpu-simulated-devices={devices}`, `gpusync trace --devices {devices}`)"
            )
        if nbytes is not None and nbytes != memory.total():
            raise SimulationUnavailable(
                f"the simulated device is on with {memory.total():,} bytes of memory, not {nbytes:,}: "
                "set `memory` where it is first switched on"
            )

    def switch_off(self) -> None:
        """Restore everything that was replaced except the device guard. Does nothing if nothing was.

        An interrupted call can be repeated.
        """
        process.on, process.blocked, process.values = False, True, True
        process.changed()
        self._show_gpus()
        self._patches.undo()
        refusals.reset()
        children.reset()
        tensor_api.reset()
        self._hooks.remove()
        conditions.capturing, conditions.pool, conditions.debug_mode = False, SHARED, 0
        conditions.captured_streams = None
        streams.reset()
        compilation.reset()
        autotuning.reset()
        memory.reset()

    def _hide_gpus(self) -> None:
        """Hide GPUs until :meth:`_show_gpus`: if the driver is first called then, this process will never find any."""
        self._visible, self._hides = os.environ.get(_VISIBLE), True
        os.environ[_VISIBLE] = ""

    def _show_gpus(self) -> None:
        if not self._hides:
            return
        if self._visible is not None:
            os.environ[_VISIBLE] = self._visible
        elif _VISIBLE in os.environ:
            del os.environ[_VISIBLE]
        self._hides = False

    def _replace(self) -> None:
        cuda_api.install(self._patches)
        tensor_api.install(self._patches)
        distributed.install(self._patches)
        profiling.install(self._patches)
        refusals.install(self._patches)
        self._patches.set(torch.ops, "load_library", registration.loading(torch.ops.load_library))
        self._patches.set(
            Variable, "_execution_engine", autograd_engine.SingleThreadedEngine(Variable._execution_engine)
        )

    def _check(self) -> None:
        """Run one small training step, the first time, to check that guard, hooks, kernels and engine work together."""
        if self._checked or process.bad_fork:
            return
        try:
            works = _trains()
            if works:
                dispatch.install()
                works = _trains()
        except Exception as error:
            raise SimulationUnavailable(
                f"a first computation on the simulated device failed with torch {torch.__version__} "
                f"({type(error).__name__}: {error}): {INSTALL}"
            ) from error
        if not works:
            raise SimulationUnavailable(
                f"torch {torch.__version__} computed a wrong gradient on the simulated device: {INSTALL}"
            )
        self._checked = True
        # The check must not count as a use by the program: a process forked now may still use the device.
        torch.cuda._initialized, process.blocked = False, True
        process.changed()
        memory.reset()


def _trains() -> bool:
    with torch.enable_grad(), torch.inference_mode(mode=False):
        x = torch.full((2,), 3.0, device="cuda", requires_grad=True)
        (x * x).sum().backward()
        gradient = x.grad
        if gradient is None or not gradient.is_cuda:
            return False
        return gradient.tolist() == [6.0, 6.0]  # gpusync: allow[GS203] once per process, on the simulated device


def _gpus_found() -> int:
    """Return how many GPUs the driver has found for this process; 0 if they are hidden."""
    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    try:
        return int(count()) if count is not None else 0
    except RuntimeError:
        return 0
