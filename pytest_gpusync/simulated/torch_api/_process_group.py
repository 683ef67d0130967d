"""Process groups in Python, and the one of a single process: its collectives copy their input to their output."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.distributed as dist

from pytest_gpusync.simulated.base import sync_events
from pytest_gpusync.simulated.base.state import current_device

_c10d: Any = dist
"""The base classes are partly private, and their type stubs name other parameters than callers do."""


class Done(_c10d._Work):  # type: ignore[misc]
    """Work that is finished when it is issued."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a completed future."""
        return self._future

    def result(self) -> Any:
        """Return the result of the collective."""
        return self._result


class PythonProcessGroup(_c10d.ProcessGroup):  # type: ignore[misc]
    """Base of the process groups of the simulated device."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._name = "0"
        # C++ keeps no reference to work written in Python, so recent work must outlive the call that created it.
        self._recent: deque[Any] = deque(maxlen=64)

    def _remember(self, work: Any) -> Any:
        self._recent.append(work)
        return work

    def _done(self, result: Any) -> Done:
        work = Done(result)
        self._remember(work)
        return work

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def pg_name(self) -> str:
        return self._name

    def _get_backend(self, device: Any) -> Any:
        return self

    def getBackendName(self) -> str:  # noqa: N802
        return "nccl"

    # Since torch 2.13 some collectives also have these names.

    def all_gather_single(self, *arguments: Any) -> Any:
        return self._allgather_base(*arguments)

    def all_gather_single_coalesced(self, *arguments: Any) -> Any:
        return self.allgather_into_tensor_coalesced(*arguments)

    def reduce_scatter_single(self, *arguments: Any) -> Any:
        return self._reduce_scatter_base(*arguments)

    def reduce_scatter_single_coalesced(self, *arguments: Any) -> Any:
        return self.reduce_scatter_tensor_coalesced(*arguments)

    def all_to_all_single(self, *arguments: Any) -> Any:
        return self.alltoall_base(*arguments)


class SingleProcessGroup(PythonProcessGroup):
    """A process group whose only rank is this process."""

    def allreduce(self, tensors: Any, opts: Any = None) -> Done:
        return self._done(tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Done:
        return self._done(tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> Done:
        return self._done(tensors)

    def reduce(self, tensors: Any, opts: Any = None) -> Done:
        return self._done(tensors)

    def barrier(self, opts: Any = None) -> Done:
        """One stream sync, like NCCL's."""
        sync_events.announce("stream", device=current_device())
        return self._done([])

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        for output, tensor in zip(outputs, inputs, strict=True):
            output[0].copy_(tensor)
        return self._done(outputs)

    def _allgather_base(self, output: Any, tensor: Any, opts: Any = None) -> Done:
        output.copy_(tensor.reshape(output.shape))
        return self._done(output)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        for output, tensor in zip(outputs, inputs, strict=True):
            output.copy_(tensor.reshape(output.shape))
        return self._done(outputs)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        for output, tensors in zip(outputs, inputs, strict=True):
            output.copy_(tensors[0])
        return self._done(outputs)

    def _reduce_scatter_base(self, output: Any, tensor: Any, opts: Any = None) -> Done:
        output.copy_(tensor.reshape(output.shape))
        return self._done(output)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        for output, tensor in zip(outputs, inputs, strict=True):
            output.copy_(tensor.reshape(output.shape))
        return self._done(outputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        for output, tensor in zip(outputs, inputs, strict=True):
            output[0].copy_(tensor)
        return self._done(outputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        for output, tensors in zip(outputs, inputs, strict=True):
            output.copy_(tensors[0])
        return self._done(outputs)

    def alltoall_base(self, output: Any, tensor: Any, output_sizes: Any, input_sizes: Any, opts: Any = None) -> Done:
        output.copy_(tensor)
        return self._done(output)
