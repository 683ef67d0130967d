"""Replaces the C++ functions that ``torch.cuda`` and ``torch.accelerator`` call, so that their own Python code runs on
the simulated device.
"""

from __future__ import annotations

import ctypes
import functools
import types
import uuid
from typing import TYPE_CHECKING, Any

import torch

from pytest_gpusync.simulated.base import state, sync_events
from pytest_gpusync.simulated.base.state import process
from pytest_gpusync.simulated.base.sync_events import conditions
from pytest_gpusync.simulated.tensors import cuda_graphs, generators, memory, streams
from pytest_gpusync.simulated.torch_api import compilation

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.simulated.base.patches import Patches

NAME = "Simulated CUDA device"
CAPABILITY = (9, 0)
"""Reported compute capability: that of an H200, to whose syncs the device is calibrated."""
_NVML = (
    "clock_rate",
    "device_memory_used",
    "list_gpu_processes",
    "memory_usage",
    "power_draw",
    "temperature",
    "utilization",
)
"""Queries to the driver's management library, to which a GPU hidden from torch would respond."""
_RUNTIME_VERSION = "13.0"
"""Reported CUDA version on a CPU build of torch."""


_CUFFT_PLANS = 4096
"""Default capacity of cuFFT's plan cache; FFTs run without plans here."""
_NCCL_VERSION = (2, 28, 9)
"""Reported version of NCCL, which is not used here."""


class DeviceProperties:
    """Replaces ``torch.cuda._CudaDeviceProperties``; sizes and limits are those of an H200, the memory is
    the host's.
    """

    name = NAME
    major, minor = CAPABILITY
    multi_processor_count = 132
    is_integrated = False
    is_multi_gpu_board = False
    max_threads_per_multi_processor = 2048
    max_threads_per_block = 1024
    warp_size = 32
    regs_per_multiprocessor = 65536
    gcnArchName = "sm_90"  # noqa: N815
    L2_cache_size = 50 << 20
    shared_memory_per_block = 48 << 10
    shared_memory_per_block_optin = 227 << 10
    shared_memory_per_multiprocessor = 228 << 10
    clock_rate = 1980000
    pci_bus_id = pci_device_id = pci_domain_id = 0

    def __init__(self, index: int) -> None:
        self.total_memory = memory.total()
        self.uuid = uuid.uuid5(uuid.NAMESPACE_DNS, f"simulated-cuda-{index}")

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count})"
        )


def install(patches: Patches) -> None:
    """Replace everything; `patches` restores it."""
    for name, function in {**_cuda_functions(), **_accelerator_functions()}.items():
        patches.set(torch._C, name, function)
    _install_modules(patches)
    _install_classes(patches)
    _install_nvtx(patches)
    _install_libraries(patches)


def _synchronize(index: int | None = None) -> None:
    """Wait for a device, by default the current one: one sync."""
    device = state.device_index(index)
    state.check_ordinal(device)
    sync_events.announce("device", device=device)


def _capability(index: int) -> dict[str, Any]:
    return {"supported_dtypes": {value for value in vars(torch).values() if isinstance(value, torch.dtype)}}


def _set_debug_mode(mode: int) -> None:
    conditions.debug_mode = int(mode)


def _cuda_functions() -> dict[str, Callable[..., Any]]:
    nothing = _nothing
    return {
        "_cuda_init": nothing,
        "_cuda_getDeviceCount": lambda: process.devices,
        "_cuda_getDevice": state.current_device,
        "_cuda_setDevice": state.set_device,
        "_cuda_exchangeDevice": state.exchange_device,
        "_cuda_maybeExchangeDevice": state.exchange_device,
        "_cuda_hasPrimaryContext": lambda index: True,
        "_cuda_isInBadFork": lambda: process.bad_fork,
        "_cuda_canDeviceAccessPeer": lambda one, other: one != other,
        "_cuda_getArchFlags": lambda: "sm_90",
        "_cuda_getCompiledVersion": lambda: 13000,
        "_cuda_synchronize": _synchronize,
        "_cuda_sleep": nothing,
        "_cuda_get_sync_debug_mode": lambda: conditions.debug_mode,
        "_cuda_set_sync_debug_mode": _set_debug_mode,
        "_cuda_getCurrentStream": lambda index: _stream_data(streams.current_stream(index)),
        "_cuda_getDefaultStream": lambda index: _stream_data(streams.default_stream(index)),
        "_cuda_getCurrentRawStream": lambda index: streams.current_stream(index).stream_id,
        "_cuda_isCurrentStreamCapturing": cuda_graphs.is_capturing,
        "_cuda_getCurrentBlasHandle": lambda: 0,
        "_cuda_getCurrentSolverHandle": lambda: 0,
        "_cuda_emptyCache": memory.empty_cache,
        "_cuda_ipc_collect": nothing,
        "_cuda_memoryStats": memory.statistics,
        "_cuda_resetPeakMemoryStats": memory.reset_peak,
        "_cuda_resetAccumulatedMemoryStats": memory.reset_accumulated,
        "_cuda_hostMemoryStats": memory.host_statistics,
        "_cuda_resetPeakHostMemoryStats": nothing,
        "_cuda_resetAccumulatedHostMemoryStats": nothing,
        "_cuda_memorySnapshot": memory.snapshot,
        "_cuda_record_memory_history": memory.record_history,
        "_cuda_record_memory_history_legacy": memory.record_history,
        "_cuda_attach_out_of_memory_observer": nothing,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_setMemoryFraction": memory.set_fraction,
        "_cuda_getMemoryFraction": memory.allowed_fraction,
        "_cuda_cudaCachingAllocator_raw_alloc": _raw_allocate,
        "_cuda_cudaCachingAllocator_raw_delete": _raw_delete,
        "_cuda_cudaCachingAllocator_enable": nothing,
        "_cuda_getCublasWorkspaceSize": _refuse("the cuBLAS workspace"),
        "_cuda_getCublasLtWorkspaceSize": _refuse("the cuBLASLt workspace"),
        "_host_emptyCache": nothing,
        "_graph_pool_handle": cuda_graphs.pool_handle,
        "_cuda_jiterator_compile_and_launch_kernel": _refuse("torch.cuda.jiterator"),
    }


def _accelerator_functions() -> dict[str, Callable[..., Any]]:
    return {
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": state.current_device,
        "_accelerator_setDeviceIndex": state.set_device,
        "_accelerator_exchangeDevice": state.exchange_device,
        "_accelerator_maybeExchangeDevice": state.exchange_device,
        "_accelerator_getStream": streams.current_stream,
        "_accelerator_setStream": streams.set_stream,
        "_accelerator_synchronizeDevice": _synchronize,
        "_accelerator_emptyCache": memory.empty_cache,
        "_accelerator_emptyHostCache": _nothing,
        "_accelerator_getDeviceCapability": _capability,
        "_accelerator_getDeviceStats": memory.statistics,
        "_accelerator_getMemoryInfo": memory.info,
        "_accelerator_resetPeakStats": memory.reset_peak,
        "_accelerator_resetAccumulatedStats": memory.reset_accumulated,
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_hooks_is_available": lambda: True,
    }


def _install_modules(patches: Patches) -> None:
    cuda = torch.cuda
    runtime = _runtime()
    patches.set(torch._C, "_has_cuda", True)
    patches.set(torch._C, "_cudart", runtime)
    if torch.version.cuda is None:
        patches.set(torch.version, "cuda", _RUNTIME_VERSION)
    for name, value in {
        "_cudart": runtime,
        "has_magma": True,
        "_initialized": False,
        "_queued_calls": list(cuda._queued_calls),
        "_cached_device_count": None,
        "_is_in_bad_fork": lambda: process.bad_fork,
        "_exchange_device": state.exchange_device,
        "_maybe_exchange_device": state.exchange_device,
        "_CudaDeviceProperties": DeviceProperties,
        "_get_device_properties": _properties,
        "get_device_properties": _properties,
        "default_generators": generators.defaults(),
        "device_count": lambda: process.devices,
        "_device_count_nvml": lambda: process.devices,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "set_stream": streams.set_stream,
        "stream": streams.StreamContext,
        "is_current_stream_capturing": cuda_graphs.is_capturing,
        "graph_pool_handle": cuda_graphs.pool_handle,
        "mem_get_info": memory.info,
    }.items():
        patches.set(cuda, name, value)
    for name in _NVML:
        patches.set(cuda, name, _refuse(f"torch.cuda.{name}"))
    patches.set(cuda.memory, "list_gpu_processes", cuda.list_gpu_processes)
    patches.set(cuda.memory, "mem_get_info", memory.info)
    for owner in (cuda, cuda.memory):
        patches.set(owner, "MemPool", MemPool)
        patches.set(owner, "CUDAPluggableAllocator", PluggableAllocator)
    patches.set(cuda.graphs, "is_current_stream_capturing", cuda_graphs.is_capturing)
    patches.set(cuda.graphs, "graph_pool_handle", cuda_graphs.pool_handle)
    patches.set(torch, "compile", compilation.compile)
    patches.set(torch.nn.Module, "compile", compilation.compile_module)


def _install_classes(patches: Patches) -> None:
    cuda = torch.cuda
    for name, stand_in in {
        "Stream": streams.Stream,
        "Event": streams.Event,
        "ExternalStream": streams.ExternalStream,
        "StreamContext": streams.StreamContext,
        "CUDAGraph": cuda_graphs.CUDAGraph,
    }.items():
        patches.set(cuda, name, stand_in)
    for name in ("Stream", "Event", "ExternalStream"):
        patches.set(cuda.streams, name, getattr(cuda, name))
    patches.set(cuda.graphs, "CUDAGraph", cuda_graphs.CUDAGraph)
    patches.set(torch._C, "_CUDAGraph", cuda_graphs.CUDAGraph)
    patches.set(torch, "Generator", generators.Generator)
    patches.set(torch, "Stream", streams.AnyStream)
    patches.set(torch, "Event", streams.AnyEvent)


def _install_nvtx(patches: Patches) -> None:
    """Replace the NVTX library, which a CPU build lacks, by functions that do nothing; ``torch.cuda.nvtx`` stays
    torch's own.
    """
    if hasattr(torch._C, "_nvtx"):
        return
    depth = [0]

    def push(message: str) -> int:
        depth[0] += 1
        return depth[0] - 1

    def pop() -> int:
        depth[0] -= 1
        return depth[0]

    stub = types.SimpleNamespace(
        rangePushA=push, rangePop=pop, rangeStartA=lambda message: 0, rangeEnd=_nothing, markA=_nothing
    )
    patches.set(torch.cuda.nvtx, "_nvtx", stub)


def _install_libraries(patches: Patches) -> None:
    """Replace the library settings of the device.

    As on a CPU build, it has no cuDNN; NCCL has no tensors to reduce, and cuFFT keeps no plans. The preferred library
    and the plan limit can be set and read, without effect.
    """
    # The module is wrapped in an object of its own, and calls its functions without it.
    cudnn: Any = torch.backends.cudnn
    cudnn = getattr(cudnn, "m", cudnn)
    patches.set(torch._C, "_has_cudnn", False)
    patches.set(cudnn, "_init", lambda: False)
    patches.set(cudnn, "is_acceptable", lambda tensor: False)
    patches.set(torch.cuda.nccl, "is_available", lambda tensors: False)
    patches.set(torch.cuda.nccl, "version", lambda: _NCCL_VERSION)
    limits: dict[int, int] = {}
    plans = torch.backends.cuda.cuFFTPlanCache
    patches.set(plans, "size", property(lambda self: 0))
    patches.set(
        plans,
        "max_size",
        property(
            lambda self: limits.get(self.device_index, _CUFFT_PLANS),
            lambda self, size: limits.__setitem__(self.device_index, size),
        ),
    )
    patches.set(plans, "clear", _nothing)
    for library in ("linalg", "blas"):
        setter, getter = f"_set_{library}_preferred_backend", f"_get_{library}_preferred_backend"
        preferred = [getattr(torch._C, getter)()]
        patches.set(torch._C, setter, functools.partial(preferred.__setitem__, 0))
        patches.set(torch._C, getter, functools.partial(preferred.__getitem__, 0))


def _properties(device: Any = None) -> DeviceProperties:
    torch.cuda._lazy_init()
    index = state.device_index(device)
    if index >= process.devices:
        raise AssertionError(f"Invalid device id: {state.no_such_device(index)}")
    return DeviceProperties(index)


def _stream_data(stream: streams.Stream) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


def _nothing(*_: Any, **__: Any) -> None:
    """A function without effect on the simulated device."""


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name} is not simulated: run on a GPU")

    return refuse


class MemPool:
    """Replaces ``torch.cuda.MemPool``, which is not simulated."""

    __init__ = _refuse("torch.cuda.MemPool")


class PluggableAllocator:
    """Replaces ``torch.cuda.memory.CUDAPluggableAllocator``, with which a program gets managed memory, for example."""

    __init__ = _refuse("torch.cuda.memory.CUDAPluggableAllocator")


_raw: dict[int, Any] = {}


def _raw_allocate(nbytes: int, stream: int = 0) -> int:
    block = ctypes.create_string_buffer(nbytes)
    address = ctypes.addressof(block)
    _raw[address] = block
    memory.take(address, nbytes, state.current_device())
    return address


def _raw_delete(address: int) -> None:
    if _raw.pop(address, None) is not None:
        memory.release(address)


def _stream_synchronize(stream: int) -> int:
    sync_events.announce("stream", device=state.current_device(), stream=stream)
    return 0


class _CudaError(int):
    success = 0


def _runtime() -> types.ModuleType:
    """Return a replacement of ``torch._C._cudart``."""
    runtime: Any = types.ModuleType("torch._C._cudart")
    runtime.cudaError = _CudaError
    runtime.cudaGetErrorString = lambda code: "no error"
    runtime.cudaMemGetInfo = memory.info
    runtime.cudaStreamSynchronize = _stream_synchronize
    for name in ("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister"):
        setattr(runtime, name, lambda *_: 0)
    module: types.ModuleType = runtime
    return module
