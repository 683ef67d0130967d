"""The device of a pytest session: the real GPU, or the simulated one, which is switched on when it is needed.

Test modules call ``torch.cuda.is_available()`` while they are imported, so the simulated device must be on by then. But
pytest must not import torch for a project that does not use it. So the device is switched on right after torch has been
imported, by whatever code.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpusync.machine import devices
from pytest_gpusync.machine.import_hooks import AfterImport

if TYPE_CHECKING:
    from pytest_gpusync.machine.devices import Device
    from pytest_gpusync.measure.device_choice import DeviceChoice


class SessionDevice:
    """The device that the steps of a session run on."""

    def __init__(
        self, choice: DeviceChoice, *, devices: int | None = None, values: bool = True, memory: int | None = None
    ) -> None:
        """Keep the choice; nothing is decided yet.

        Args:
            choice: the requested device.
            devices: number of simulated devices; None for one, or under torchrun one per local process.
            values: whether the simulated device computes values.
            memory: bytes of the simulated device; None for as many as the host has.
        """
        self.choice = choice
        self._devices = devices
        self._values = values
        self._memory = memory
        self.unavailable: str | None = None
        """Why the simulated device could not be switched on; None if it could."""
        self._open = ExitStack()
        self._is_on = False

    @cached_property
    def found(self) -> Device:
        """The GPU, or why there is none."""
        return devices.detect()

    @property
    def is_simulated(self) -> bool:
        """True if steps run on the simulated device."""
        return self.choice == "simulated" or (self.choice == "auto" and self.found.kind == "none")

    @property
    def no_gpu_reason(self) -> str | None:
        """Why a test that needs a real GPU cannot run, as a clause; None if it can."""
        if self.choice == "simulated":
            return "--gpu-device=simulated"
        if self.found.kind == "other":
            return f"{self.found.gpu} is not an NVIDIA GPU"
        return self.found.reason

    def switch_on_with_torch(self) -> None:
        """Switch the simulated device on as soon as torch is imported; at once if it is already."""
        if not self.is_simulated:
            return
        self._hide_gpu()
        if "torch" in sys.modules:
            self.switch_on()
            return
        finder = AfterImport("torch", self.switch_on)
        sys.meta_path.insert(0, finder)
        self._open.callback(finder.remove)

    def switch_on(self) -> None:
        """Switch the simulated device on if steps run on it, importing torch. Does nothing if it is on.

        Sets :attr:`unavailable` if it cannot be switched on.
        """
        if self._is_on or self.unavailable is not None or not self.is_simulated:
            return
        self._hide_gpu()
        try:
            from pytest_gpusync.simulated import simulated_cuda

            self._open.enter_context(simulated_cuda(self._devices, values=self._values, memory=self._memory))
        except (ImportError, RuntimeError) as error:
            self.unavailable = f"the simulated CUDA device cannot be switched on: {error}"
        else:
            self._is_on = True

    @property
    def is_late(self) -> bool:
        """True if steps run on the simulated device, and torch has been imported without it."""
        return not self._is_on and self.unavailable is None and "torch" in sys.modules and self.is_simulated

    def _hide_gpu(self) -> None:
        """Hide a real GPU from this process before the driver is first called: the simulated device takes its place."""
        if self.found.kind == "none" or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            return
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""

        def show_again() -> None:
            if before is None:
                os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            else:
                os.environ["CUDA_VISIBLE_DEVICES"] = before

        self._open.callback(show_again)

    def close(self) -> None:
        """Switch the simulated device off and restore the import system."""
        self._open.close()
        self._is_on = False
