"""Which device steps can run on, found without importing torch and without creating a CUDA context."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from typing import Final, Literal

_PLUGINS: Final = {"torch_npu": "npu", "habana_frameworks": "hpu", "torch_mlu": "mlu", "torch_musa": "musa"}
"""Packages that add a backend to a CPU build of torch, with the type of its devices."""


@dataclass(frozen=True, slots=True)
class Device:
    """The device that was found, or why there is none."""

    kind: Literal["cuda", "other", "none"]
    """An NVIDIA GPU, another accelerator, or none."""
    gpu: str | None = None
    """Marketing name of the first visible GPU; the type of another accelerator, such as "mps"."""
    driver: str | None = None
    """Driver version, as NVML gives it."""
    uuid: str | None = None
    """NVML's identifier of that GPU."""
    reason: str | None = None
    """Why there is no usable GPU, as a clause; None if there is one."""


def detect() -> Device:
    """Return the device that torch would use, or why it would find none.

    Accelerators other than NVIDIA's are told by the build of torch, not asked: whether they work shows when they are
    used.
    """
    build = torch_build()
    if build is None:
        return Device("none", reason="torch is not installed")
    version, cuda = build
    if cuda is None:
        other = _other_accelerator(version)
        if other is not None:
            return Device("other", other)
        return Device("none", reason=f"torch {version} is a CPU build")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return Device("none", reason="CUDA_VISIBLE_DEVICES hides every GPU")
    return _query_nvml(visible)


def count_gpus() -> int:
    """Return how many GPUs the driver lists, ignoring CUDA_VISIBLE_DEVICES; 0 if NVML does not respond."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver or no pynvml: no GPU
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0
    finally:
        pynvml.nvmlShutdown()


def simulation_is_on() -> bool:
    """Return whether the simulated device is on in this process; does not import it, and so not torch."""
    simulated = sys.modules.get("pytest_gpusync.simulated")
    return simulated is not None and bool(simulated.is_on())


def cuda_is_initialized() -> bool:
    """Return whether torch has initialized CUDA in this process; does not import torch."""
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


def torch_build() -> tuple[str, str | None] | None:
    """Return torch's version and the CUDA version it was built for (None for a CPU build); None if it is
    not installed.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "version"):
        # The simulated device sets torch.version.cuda on CPU builds; __version__ keeps the build's own suffix.
        return torch.__version__, None if "+cpu" in torch.__version__ else torch.version.cuda
    values = _values_of_version_file()
    version, cuda = values.get("__version__"), values.get("cuda")
    return (version, cuda if isinstance(cuda, str) else None) if isinstance(version, str) else None


def _other_accelerator(version: str) -> str | None:
    """Return the type of the accelerator that a build of torch without CUDA is for; None for the CPU."""
    from importlib.util import find_spec

    values = vars(sys.modules["torch.version"]) if "torch.version" in sys.modules else _values_of_version_file()
    for build, key in (("rocm", "hip"), ("xpu", "xpu")):
        if f"+{build}" in version or ("+cpu" not in version and values.get(key)):
            return build
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "mps"
    return next((device for package, device in _PLUGINS.items() if find_spec(package) is not None), None)


def _values_of_version_file() -> dict[str, object]:
    """Return what torch/version.py assigns, without importing torch; nothing if torch is not installed."""
    from importlib.util import find_spec

    try:
        spec = find_spec("torch")
    except (ImportError, ValueError):
        return {}
    if spec is None or not spec.submodule_search_locations:
        return {}
    return _read_version_file(os.path.join(next(iter(spec.submodule_search_locations)), "version.py"))


def _read_version_file(path: str) -> dict[str, object]:
    """Read a generated file of plain assignments; empty if it cannot be read."""
    import ast

    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return {}
    values: dict[str, object] = {}
    for node in tree.body:
        target: ast.expr | None = None
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value
    return values


def _query_nvml(visible: str | None) -> Device:
    try:
        import pynvml
    except ImportError:
        return Device("none", reason="the module pynvml is missing (pip install nvidia-ml-py)")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Device("none", reason=f"the NVIDIA driver does not respond ({error})")
    try:
        if pynvml.nvmlDeviceGetCount() == 0:
            return Device("none", reason="the NVIDIA driver lists no GPU")
        first = visible.split(",")[0].strip() if visible else "0"
        handle = (
            pynvml.nvmlDeviceGetHandleByIndex(int(first))
            if first.isdigit()
            else pynvml.nvmlDeviceGetHandleByUUID(first)
        )
        return Device(
            "cuda",
            _text(pynvml.nvmlDeviceGetName(handle)),
            _text(pynvml.nvmlSystemGetDriverVersion()),
            _text(pynvml.nvmlDeviceGetUUID(handle)),
        )
    except pynvml.NVMLError as error:
        return Device("none", reason=f"NVML cannot open the first visible GPU ({error})")
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
