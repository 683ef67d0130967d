"""Which device a region is measured on, and the environment that its reports name."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Literal

from pytest_gpusync.machine import devices
from pytest_gpusync.model.measurement import Environment, MeasurementError
from pytest_gpusync.recorders.base import NO_GIL, free_threaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.recorders import Recorder

DeviceChoice = Literal["auto", "cuda", "simulated"]


def usable_device(choice: DeviceChoice, *, simulated: bool) -> devices.Device:
    """Return the GPU to measure on; on the simulated device, a device of kind "none".

    Args:
        choice: the device that was asked for.
        simulated: the simulated device is on.

    Raises:
        MeasurementError: that device cannot be measured here.
    """
    if simulated:
        if choice == "cuda":
            raise MeasurementError("the simulated CUDA device is on in this process, so the GPU cannot be measured")
        return devices.Device("none", reason="the simulated CUDA device is on")
    if choice == "simulated":
        raise MeasurementError(
            "the simulated CUDA device is not on; open the region under `with simulated_cuda(), record():`"
        )
    found = devices.detect()
    if choice == "cuda" and found.kind == "other":
        raise MeasurementError(f"there is no NVIDIA GPU; leave the device to be found, to measure on {found.gpu}")
    if found.kind == "none":
        raise MeasurementError(
            f"no GPU to measure: {found.reason}; "
            "use `with simulated_cuda(), record():` to count on the simulated device"
        )
    if free_threaded():
        raise MeasurementError(NO_GIL)
    return found


def describe_environment(recorder: Recorder, found: devices.Device, refusals: Sequence[str]) -> Environment:
    """Return where a recorder measures.

    Args:
        recorder: the recorder that runs.
        found: the GPU, or why there is none.
        refusals: why recorders that see more cannot run, one clause each.
    """
    build = devices.torch_build()
    notes = [f"cannot see {recorder.blind_spots}"] if recorder.blind_spots else []
    if refusals:
        notes.insert(0, "; ".join(refusals))
    return Environment(
        torch=build[0] if build else None,
        python=platform.python_version(),
        device=_device_name(recorder, found),
        gpu=found.gpu,
        driver=found.driver,
        recorder=recorder.name,
        coverage=recorder.coverage,
        note="; ".join(notes) or None,
    )


def _device_name(recorder: Recorder, found: devices.Device) -> str:
    if devices.simulation_is_on():
        return "simulated"
    return found.gpu or found.kind if found.kind == "other" else "cuda"


def unknown_environment() -> Environment:
    """Return the environment of a region in which no recorder ran."""
    return Environment(None, platform.python_version(), "none", None, None, recorder="none", coverage="simulated")
