"""``gpusync doctor``: report what can be measured on this machine, plant syncs, and check that they are seen."""

from __future__ import annotations

import argparse
import platform
import sys
from typing import TYPE_CHECKING

from pytest_gpusync.machine import devices
from pytest_gpusync.measure.region import record
from pytest_gpusync.model.measurement import MeasurementError
from pytest_gpusync.model.site_counts import syncs_per_step
from pytest_gpusync.recorders import candidates
from pytest_gpusync.recorders.obstacles import Fact, facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from pytest_gpusync.model.measurement import Environment

PLANTED = 3
"""Syncs that the check makes: a scalar read, and a blocking copy in each direction."""


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    return argparse.ArgumentParser(
        prog="gpusync doctor",
        description="Report what can be measured on this machine, plant syncs, and check that each is seen.",
        epilog="exit status: 0 if syncs can be counted on a GPU or on the simulated device, 1 if not.",
        allow_abbrev=False,
    )


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0 if syncs can be counted here and the planted ones were seen, else 1."""
    command_parser().parse_args(list(argv))
    _describe_machine()
    found = devices.detect()
    build = devices.torch_build()
    if build is None:
        print("\nNothing can be measured: torch is not installed in this environment.")
        return 1
    if found.kind != "none":
        return 0 if _check_device(found) else 1
    print(f"\nno GPU: {found.reason}")
    return 0 if _check_simulated() else 1


def _describe_machine() -> None:
    from gpusync_lint import __version__

    build = devices.torch_build()
    found = devices.detect()
    gpu = {
        "cuda": f"{found.gpu} (driver {found.driver})",
        "other": f"{found.gpu}, as torch was built or a package adds it",
        "none": f"none: {found.reason}",
    }[found.kind]
    said = [
        Fact("pytest-gpusync", __version__),
        Fact("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Fact("torch", "not installed" if build is None else f"{build[0]} ({_kind_of_build(build[1], found)})"),
        Fact("GPU" if found.kind != "other" else "accelerator", gpu),
        *facts(found),
    ]
    for fact in said:
        print(f"{fact.name:<16}{fact.found}")
        if fact.advice is not None:
            print(f"{'':<16}to improve: {fact.advice}")


def _kind_of_build(cuda: str | None, found: devices.Device) -> str:
    if cuda is not None:
        return f"CUDA {cuda}"
    return f"for {found.gpu}" if found.kind == "other" else "CPU build"


def _check_device(found: devices.Device) -> bool:
    import torch

    from pytest_gpusync.recorders.dispatcher import accelerator

    good: list[Environment] = []
    for name in (*candidates(found.kind, "auto"), *(["dispatcher"] if found.kind == "cuda" else [])):
        try:
            device = accelerator()
            if device is not None:
                torch.zeros(1, device=device)
            with record("doctor", recorder=name) as region:
                _plant(device or "cuda")
        except MeasurementError as error:
            print(f"\nrecorder {name}: cannot run: {error}")
            continue
        except RuntimeError as error:
            what = "GPU" if found.kind == "cuda" else found.gpu
            print(f"\nthe {what} does not work with this torch: {str(error).splitlines()[0]}")
            return False
        if _verdict(name, region.result().problem, syncs_per_step(region.result())):
            good.append(region.result().environment)
    if not good:
        _describe_use("nothing")
    else:
        where = "a real GPU" if found.kind == "cuda" else f"{found.gpu} devices"
        _describe_use(f"{where}, with coverage {good[0].coverage}")
    return bool(good)


def _check_simulated() -> bool:
    from pytest_gpusync.simulated import SimulationUnavailable, simulated_cuda

    try:
        with simulated_cuda(), record("doctor") as region:
            _plant()
    except (SimulationUnavailable, MeasurementError) as error:
        print(f"recorder simulated: cannot run: {error}")
        return False
    good = _verdict("simulated", region.result().problem, syncs_per_step(region.result()))
    from pytest_gpusync.simulated.native_path import dispatch

    if dispatch.unavailable is not None:
        print(f"{'':16}its kernels run in Python, about 10 us slower each: {dispatch.unavailable}")
    _describe_use("the simulated CUDA device" if good else "nothing")
    return good


def _plant(device: torch.device | str = "cuda") -> None:
    """Make exactly :data:`PLANTED` syncs."""
    import torch

    value = torch.ones(4).to(device)
    value.sum().item()
    value.cpu()


def _verdict(name: str, problem: str | None, counts: list[int]) -> bool:
    seen = sum(counts)
    if problem is None and seen == PLANTED:
        print(f"\nrecorder {name}: {PLANTED} syncs planted, {seen} seen")
        return True
    print(
        f"\nrecorder {name}: {PLANTED} syncs planted, {seen} seen: it cannot be trusted here {problem or ''}".rstrip()
    )
    return False


def _describe_use(device: str) -> None:
    print(f"`pytest --gpu-sync-budget=N` and `gpusync trace` will count on {device}.")
    sys.stdout.flush()
