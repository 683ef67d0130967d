"""What prevents counting at the driver on this machine, each with its remedy.

Recorders say it when they refuse to start, ``gpusync doctor`` when asked.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from pytest_gpusync.machine import devices
from pytest_gpusync.machine.native_libraries import NativeUnavailable
from pytest_gpusync.recorders import base, cupti_api, frames, gate

NO_PERMISSION: Final = (
    "this container or user may not use CUPTI; start the container with --cap-add=SYS_ADMIN, or have the host load the "
    "nvidia module with NVreg_RestrictProfilingToAdminUsers=0 (NVIDIA calls it ERR_NVGPUCTRPERM)"
)
NO_DRIVER: Final = (
    "libcuda.so.1, the driver's library, was not found; "
    "a container gets it with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)
_REFUSALS: Final = {
    cupti_api.INSUFFICIENT_PRIVILEGES: NO_PERMISSION,
    cupti_api.VIRTUALIZED_DEVICE: "CUPTI may not be used on this virtual GPU; have the host enable profiling for it",
    cupti_api.CONFIDENTIAL_COMPUTING: "CUPTI does not work under confidential computing; torch's own hooks count less",
    cupti_api.MIG_DEVICE: "CUPTI does not support this MIG instance; count on a whole GPU, or with torch's own hooks",
    cupti_api.WSL_DEVICE: "CUPTI does not support this GPU under WSL; allow it in the NVIDIA Control Panel of Windows",
}
_TOOLS: Final = (
    ("NSYS_PROFILING_SESSION_ID", "Nsight Systems"),
    ("NV_NSIGHT_INJECTION_PORT_BASE", "Nsight Compute"),
    ("NV_NSIGHT_INJECTION_TRANSPORT_TYPE", "Nsight Compute"),
)


class Fact(NamedTuple):
    """One thing about this machine."""

    name: str
    found: str
    advice: str | None = None
    """What would improve it, as a sentence without its period; None if nothing needs to."""


_AT_THE_DISPATCHER: Final = (
    Fact("recorder", "dispatcher: counts reads, blocking copies, sizes that depend on values, and synchronize calls"),
    Fact("not counted", "waits inside kernels and libraries, and of threads other than the region's and autograd's"),
    Fact("tried", "on NVIDIA GPUs only; which calls wait here was taken from source and documentation"),
)
_XLA: Final = Fact("torch_xla", "installed; waits for XLA devices are not counted (PT_XLA_DEBUG_LEVEL=2 reports them)")
_DRIVER_CALLS: Final = "counted at the driver"
_FRAMEWORKS: Final = (
    ("cupy", "CuPy", _DRIVER_CALLS),
    ("numba_cuda", "Numba", _DRIVER_CALLS),
    ("jax", "JAX", "counted where it fetches values and blocks until they are ready; it makes no driver call"),
)


def facts(found: devices.Device) -> list[Fact]:
    """Return the facts that matter for counting here; `found` is the GPU, or why there is none."""
    xla = [_XLA] if _is_installed("torch_xla") else []
    if found.kind == "other":
        return [*_AT_THE_DISPATCHER, *xla]
    there_is_a_gpu = found.kind == "cuda"
    said = [_cupti(there_is_a_gpu), _gate()]
    if there_is_a_gpu:
        said += [*_versions(), *_mig()]
    tool = injected_tool()
    if tool is not None:
        said.append(Fact("attached", tool, f"{held_by(tool)}; without it the count has coverage torch"))
    said += xla
    return said + [Fact(name, how) for module, name, how in _FRAMEWORKS if _is_installed(module) and there_is_a_gpu]


def injected_tool() -> str | None:
    """Return the name of the tool that was injected into this process and holds CUPTI; None if there is none."""
    for variable, tool in _TOOLS:
        if variable in os.environ:
            return tool
    library = os.path.basename(os.environ.get("CUDA_INJECTION64_PATH", ""))
    if not library:
        return None
    if "sanitizer" in library.lower():
        return "compute-sanitizer"
    return f"a tool (CUDA_INJECTION64_PATH names {library})"


def held_by(tool: str | None) -> str:
    """Return a message that another tool holds CUPTI, with the remedy."""
    who = tool or "another tool (a profiler, Nsight, compute-sanitizer)"
    return f"{who} holds CUPTI; run without it to count at the driver"


def explain(error: cupti_api.CuptiError) -> str:
    """Return why CUPTI refuses, with the remedy."""
    if error.code == cupti_api.MULTIPLE_SUBSCRIBERS:
        return held_by(injected_tool())
    return _REFUSALS.get(error.code, str(error))


def no_library() -> str:
    """Return a message that there is no libcupti, with the package that has the right one."""
    return f"libcupti was not found; pip install {package_of_cupti()}, on which CUDA builds of torch depend"


def package_of_cupti() -> str:
    """Return the distribution that contains the libcupti for the CUDA that torch was built for."""
    cuda = cuda_of_torch()
    return "nvidia-cuda-cupti-cu12" if cuda is not None and cuda[0] == 12 else "nvidia-cuda-cupti"


def _cupti(there_is_a_gpu: bool) -> Fact:
    built = cuda_of_torch()
    path = cupti_api.find_library(built[0] if built is not None else None)
    if path is None:
        return Fact("CUPTI", "no libcupti", no_library())
    of_library = re.search(r"libcupti\.so\.(\d+)", path)
    if built is not None and of_library is not None and int(of_library[1]) != built[0]:
        advice = f"torch was built for CUDA {built[0]}; pip install {package_of_cupti()} beside it"
        return Fact("CUPTI", f"{path}, of CUDA {of_library[1]}", advice)
    if not there_is_a_gpu:
        # CUPTI 13.2 crashes the process when it is called without a driver.
        return Fact("CUPTI", f"{path} (not asked: no GPU)")
    if not cupti_api.has_driver():
        return Fact("CUPTI", f"{path} (not asked: no libcuda.so.1)", NO_DRIVER)
    try:
        return Fact("CUPTI", f"{cupti_api.Cupti(path).version()}, {path}")
    except (OSError, AttributeError, cupti_api.CuptiError) as error:
        return Fact("CUPTI", f"{path} cannot be used: {error}", f"reinstall {package_of_cupti()}")


def _gate() -> Fact:
    try:
        gate.library()
    except NativeUnavailable as missing:
        return Fact("native gate", f"no: {missing}; only torch's own hooks count", missing.remedy)
    if base.free_threaded():
        return Fact("native gate", "built, and not used", base.NO_GIL)
    if frames.find_layout() is None:
        version = ".".join(map(str, sys.version_info[:2]))
        found = f"yes; the frames of {sys.implementation.name} {version} are not known, so each sync enters Python"
        return Fact("native gate", found, "use CPython 3.10 to 3.15; counts are the same, a sync costs some 20 us more")
    return Fact("native gate", "yes, and it reads Python's frames")


def _versions() -> list[Fact]:
    built, driver = cuda_of_torch(), _cuda_of_driver()
    if driver is None:
        return []
    text = f"the driver supports {driver[0]}.{driver[1]}"
    if built is not None and built[0] > driver[0]:
        return [
            Fact(
                "CUDA",
                f"{text}, torch was built for {built[0]}.{built[1]}",
                f"update the NVIDIA driver, or install a torch that was built for CUDA {driver[0]}",
            )
        ]
    return [Fact("CUDA", text)]


def _mig() -> list[Fact]:
    """Return a fact if the first visible GPU is divided into MIG instances."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # reported elsewhere
        return []
    try:
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
        if first.startswith("MIG-"):
            name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByUUID(first))
            shown = name.decode() if isinstance(name, bytes) else name
            return [Fact("MIG", f"an instance, {shown}: syncs are counted as on a whole GPU")]
        by = pynvml.nvmlDeviceGetHandleByIndex if first.isdigit() else pynvml.nvmlDeviceGetHandleByUUID
        handle = by(int(first) if first.isdigit() else first)
        if not pynvml.nvmlDeviceGetMigMode(handle)[0]:
            return []
        number = _instances(pynvml, handle)
    except pynvml.NVMLError:  # this GPU has no MIG mode
        return []
    finally:
        pynvml.nvmlShutdown()
    if not number:
        advice = "make an instance (nvidia-smi mig -cgi 9 -C), or switch the mode off (nvidia-smi -mig 0)"
        return [Fact("MIG", "on, without an instance: CUDA finds no device", advice)]
    advice = "a process sees one instance; choose it by CUDA_VISIBLE_DEVICES=MIG-... (nvidia-smi -L lists them)"
    return [Fact("MIG", f"on, {number} instance{'s' if number > 1 else ''}", advice if number > 1 else None)]


def _instances(pynvml: Any, handle: Any) -> int:
    number = 0
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError:
            continue
        number += 1
    return number


def cuda_of_torch() -> tuple[int, int] | None:
    """Return the CUDA version that torch was built for; None for a CPU build, or without torch."""
    build = devices.torch_build()
    found = re.match(r"(\d+)\.(\d+)", build[1] or "") if build is not None else None
    return None if found is None else (int(found[1]), int(found[2]))


def _cuda_of_driver() -> tuple[int, int] | None:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, or no pynvml
        return None
    try:
        number = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        return number // 1000, number % 1000 // 10
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return True
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
