"""Process groups in Python, and the one of a single process: its collectives copy their input to their output."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist

from pytest_gpusync.simulated.base import sync_events
from pytest_gpusync.simulated.base.state import current_device
from pytest_gpusync.simulated.races import collectives, reports

_c10d: Any = dist
"""The base classes are partly private, and their type stubs name other parameters than callers do."""


_Method = Callable[..., Any]
_TENSORS: Final[Mapping[str, tuple[int, int | None]]] = {
    "allreduce": (0, None),
    "allreduce_coalesced": (0, None),
    "broadcast": (0, None),
    "reduce": (0, None),
    "allgather": (0, 1),
    "_allgather_base": (0, 1),
    "allgather_into_tensor_coalesced": (0, 1),
    "reduce_scatter": (0, 1),
    "_reduce_scatter_base": (0, 1),
    "reduce_scatter_tensor_coalesced": (0, 1),
    "gather": (0, 1),
    "scatter": (0, 1),
    "alltoall_base": (0, 1),
    "alltoall": (0, 1),
    "recv": (0, None),
    "recv_anysource": (0, None),
}
"""Collectives, with the positions of the tensors that they write and of those that they only read."""
_READS_ONLY: Final = {"send": 0}
_WAITING_CALLERS: Final = ("/torch/nn/parallel/", "/torch/autograd/", "/torch/distributed/utils.py")
"""Files of torch below which C++ calls a collective, and waits for it before it uses the result."""


class Followed(_c10d._Work):  # type: ignore[misc]
    """Work whose accesses are ordered by waiting for it."""

    collective: collectives.Collective | None = None
    """What nobody has waited for yet; None if races are not looked for."""

    def _join(self) -> None:
        if self.collective is not None:
            self.collective.wait()


class Done(Followed):
    """Work that is finished when it is issued."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        """Return at once; the current stream then waits for the work."""
        self._join()
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a completed future. Whoever waits for it is taken to do so before the results are used."""
        self._join()
        return self._future

    def result(self) -> Any:
        """Return the result of the collective."""
        return self._result


def _followed(method: _Method, written: int | None, read: int | None) -> _Method:
    """Return a collective that tells which tensors it uses on a stream of its own until somebody waits for its work."""

    @functools.wraps(method)
    def start(self: Any, *arguments: Any, **keywords: Any) -> Any:
        work = method(self, *arguments, **keywords)
        if reports.is_listening() and isinstance(work, Followed):
            frame = sys._getframe(1)
            writes = () if written is None else _flat(arguments[written])
            work.collective = collectives.start(
                f"group {self.group_name}", () if read is None else _flat(arguments[read]), writes, frame
            )
            if any(part in frame.f_code.co_filename for part in _WAITING_CALLERS):
                work._join()
        return work

    return start


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value or () for tensor in _flat(item)]


class PythonProcessGroup(_c10d.ProcessGroup):  # type: ignore[misc]
    """Base of the process groups of the simulated device."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._name = "0"
        # C++ keeps no reference to work written in Python, so recent work must outlive the call that created it.
        self._recent: deque[Any] = deque(maxlen=64)

    def __init_subclass__(cls) -> None:
        for name, (written, read) in _TENSORS.items():
            if name in vars(cls):
                setattr(cls, name, _followed(vars(cls)[name], written, read))
        for name, read in _READS_ONLY.items():
            if name in vars(cls):
                setattr(cls, name, _followed(vars(cls)[name], None, read))

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
