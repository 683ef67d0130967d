"""What of torch and of the process the runtime may change, as a dictionary that can be compared."""

from __future__ import annotations

import atexit
import builtins
import gc
import os
import signal
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed
import torch.multiprocessing
import torch.nn.modules.module
import torch.optim
import torch.profiler
import torch.utils.data

OWNERS = (
    torch,
    torch._C,
    torch._C._autograd,
    torch._tensor,
    torch.Tensor,
    torch.UntypedStorage,
    torch.accelerator,
    torch.amp,
    torch.autograd,
    torch.autograd.Variable,
    torch.autograd.graph,
    torch.autograd.profiler.record_function,
    torch.backends.cuda,
    torch.backends.cudnn,
    torch.cuda,
    torch.cuda.Event,
    torch.cuda.Stream,
    torch.cuda.graphs,
    torch.cuda.memory,
    torch.cuda.nccl,
    torch.cuda.nvtx,
    torch.cuda.random,
    torch.cuda.streams,
    torch.distributed,
    torch.distributed.distributed_c10d,
    torch.library,
    torch.multiprocessing,
    torch.nn.Module,
    torch.nn.functional,
    torch.ops,
    torch.optim.Optimizer,
    torch.optim.SGD,
    torch.overrides,
    torch.profiler,
    torch.random,
    torch.serialization,
    torch.storage,
    torch.utils.data,
    torch.utils.data.DataLoader,
    torch.version,
    ThreadPoolExecutor,
    builtins,
    gc,
    os,
    signal,
    threading,
)
CHANGES_BY_ITSELF = {
    "__annotations__",
    "__doc__",
    "__warningregistry__",
    "_active",
    "_counter",
    "_dangling",
    "_limbo",
    "_shutdown_locks",
    "_shutdown_locks_lock",
}


def torch_state():
    """Return everything that must be as before once the device is off and no region is open."""
    optimizers, modules = sys.modules["torch.optim.optimizer"], torch.nn.modules.module
    state = {
        (getattr(owner, "__name__", str(owner)), name): id(value)
        for owner in OWNERS
        for name, value in list(vars(owner).items())
        if name not in CHANGES_BY_ITSELF
    }
    state |= {
        "environment": dict(os.environ),
        "path": list(sys.path),
        "meta_path": [id(finder) for finder in sys.meta_path],
        "hooks": [id(hook) for hook in (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook)],
        "trace": (sys.gettrace(), sys.getprofile(), threading._trace_hook, threading._profile_hook),
        "monitoring": [sys.monitoring.get_tool(tool) for tool in range(6)] if hasattr(sys, "monitoring") else None,
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "gc callbacks": list(gc.callbacks),
        "gc": (gc.isenabled(), gc.get_threshold()),
        "warnings": list(warnings.filters),
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch._C._is_multithreading_enabled()),
        "defaults": (torch.get_default_dtype(), torch.get_default_device(), torch.Tensor.__new__),
        "cuda": (torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.is_initialized()),
        "queued": len(torch.cuda._queued_calls),
        "optimizer hooks": (len(optimizers._global_optimizer_pre_hooks), len(optimizers._global_optimizer_post_hooks)),
        "module hooks": [
            len(getattr(modules, name)) for name in vars(modules) if name.startswith("_global_") and "hooks" in name
        ],
        "descriptors": sorted(os.listdir("/proc/self/fd")),
    }
    return state


def at_exit():
    """Return how many functions run when the process ends."""
    return atexit._ncallbacks()


def changes(before, after):
    """Return what differs between two states."""
    keys = before.keys() | after.keys()
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}
