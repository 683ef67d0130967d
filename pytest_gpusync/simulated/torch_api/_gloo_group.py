"""The process group of several processes, each with simulated devices: gloo is used in place of NCCL.

A collective is complete when the call returns. Point-to-point sends and receives are waited for when the program waits,
so two processes may send to each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pytest_gpusync.simulated.base import sync_events
from pytest_gpusync.simulated.base.state import current_device
from pytest_gpusync.simulated.tensors.labels import as_cpu
from pytest_gpusync.simulated.torch_api._process_group import Done, Followed, PythonProcessGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_c10d: Any = dist
Tensor = torch.Tensor


class _Pending(Followed):
    """Work in progress in gloo."""

    def __init__(self, work: Any, result: Any) -> None:
        super().__init__()
        self._work = work
        self._result = result

    def wait(self, timeout: Any = None) -> bool:
        """Wait for it."""
        self._work.wait()
        self._join()
        return True

    def is_completed(self) -> bool:
        """Return whether it is done."""
        return bool(self._work.is_completed())

    def result(self) -> Any:
        """Return what was sent or received."""
        return self._result


class GlooProcessGroup(PythonProcessGroup):
    """One process of several."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo = _c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
        # Collectives called from C++ reach it through the c10d operators, whose kernels relabel their tensors.
        kind = _c10d.ProcessGroup.BackendType.GLOO
        self._register_backend(torch.device("cpu"), kind, self._gloo)
        self._set_default_backend(kind)

    def _reduce(self, run: Callable[..., Any], options: Any, written: Sequence[Tensor]) -> None:
        """Run a reduction; gloo has no average."""
        averages = options is not None and options.reduceOp == dist.ReduceOp.AVG
        if averages:
            options.reduceOp = dist.ReduceOp.SUM
        run(options).wait()
        if averages:
            for tensor in written:
                tensor.div_(self.size())

    def allreduce(self, tensors: Any, opts: Any = None) -> Done:
        ours = _on_host(tensors)
        self._reduce(lambda options: self._gloo.allreduce(ours, options or _c10d.AllreduceOptions()), opts, ours)
        return self._done(tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Done:
        for tensor in tensors:
            self.allreduce([tensor], opts and _allreduce_options(opts))
        return self._done(tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> Done:
        self._gloo.broadcast(_on_host(tensors), opts or _c10d.BroadcastOptions()).wait()
        return self._done(tensors)

    def reduce(self, tensors: Any, opts: Any = None) -> Done:
        ours = _on_host(tensors)
        written = ours if opts is None or opts.rootRank == self.rank() else []
        self._reduce(lambda options: self._gloo.reduce(ours, options or _c10d.ReduceOptions()), opts, written)
        return self._done(tensors)

    def barrier(self, opts: Any = None) -> Done:
        """One stream sync, like NCCL's."""
        sync_events.announce("stream", device=current_device())
        self._gloo.barrier().wait()
        return self._done([])

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        self._gloo.allgather([_on_host(output) for output in outputs], _on_host(inputs)).wait()
        return self._done(outputs)

    def _allgather_base(self, output: Any, tensor: Any, opts: Any = None) -> Done:
        self._gloo.allgather([list(_host(output).view(self.size(), -1))], [_host(tensor).reshape(-1)]).wait()
        return self._done(output)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._allgather_base(output, tensor)
        return self._done(outputs)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        for output, tensors in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, torch.cat([tensor.reshape(-1) for tensor in tensors]), opts)
        return self._done(outputs)

    def _reduce_scatter_base(self, output: Any, tensor: Any, opts: Any = None) -> Done:
        everything = _host(tensor).clone().reshape(-1)
        options = _allreduce_options(opts)
        self._reduce(lambda options: self._gloo.allreduce([everything], options), options, [everything])
        _host(output).reshape(-1).copy_(everything.view(self.size(), -1)[self.rank()])
        return self._done(output)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, tensor, opts)
        return self._done(outputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        ours = [_on_host(output) for output in outputs]
        self._gloo.gather(ours, _on_host(inputs), opts or _c10d.GatherOptions()).wait()
        return self._done(outputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        theirs = [_on_host(tensors) for tensors in inputs]
        self._gloo.scatter(_on_host(outputs), theirs, opts or _c10d.ScatterOptions()).wait()
        return self._done(outputs)

    def alltoall_base(self, output: Any, tensor: Any, output_sizes: Any, input_sizes: Any, opts: Any = None) -> Done:
        self._gloo.alltoall_base(_host(output), _host(tensor), output_sizes, input_sizes).wait()
        return self._done(output)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        rank, size = self.rank(), self.size()
        _host(outputs[rank]).copy_(_host(inputs[rank]))
        work = []
        for peer in range(size):
            if peer != rank:
                work.append(self._gloo.send([_host(inputs[peer]).contiguous()], peer, 0))
                work.append(self._gloo.recv([_host(outputs[peer])], peer, 0))
        for each in work:
            each.wait()
        return self._done(outputs)

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._remember(_Pending(self._gloo.send(_on_host(tensors), peer, tag), tensors))

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._remember(_Pending(self._gloo.recv(_on_host(tensors), peer, tag), tensors))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self._remember(_Pending(self._gloo.recv_anysource(_on_host(tensors), tag), tensors))

    def shutdown(self) -> None:
        """Do nothing: gloo's connections end with the group."""


def _host(tensor: Tensor) -> Tensor:
    return as_cpu(tensor) if tensor.is_cuda else tensor


def _on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [_host(tensor.detach()) for tensor in tensors]


def _allreduce_options(options: Any) -> Any:
    result = _c10d.AllreduceOptions()
    if options is not None:
        result.reduceOp = options.reduceOp
    return result
