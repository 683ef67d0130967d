"""Kernels of the CUDA dispatch key that run the CPU kernel over the same memory.

:func:`kernel_for` derives a kernel from an operator's schema: it relabels the tensor arguments as CPU tensors, calls
the operator, and relabels new tensors in the result. Tensors that the operator writes are returned as the objects they
were. A view operator instead runs the CPU kernel on the labeled tensor itself, so that the view shares its storage.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet

from pytest_gpusync.simulated.base.state import check_ordinal, current_device, ensure_usable, process
from pytest_gpusync.simulated.base.sync_events import conditions
from pytest_gpusync.simulated.kernels import calibration
from pytest_gpusync.simulated.races import device_work
from pytest_gpusync.simulated.tensors import cuda_graphs, generators, memory, unknown_values
from pytest_gpusync.simulated.tensors.labels import as_cpu, as_cuda

Kernel = Callable[..., Any]
Tensor = torch.Tensor

CPU_KEYS = DispatchKeySet(DispatchKey.CPU)
"""Redispatching with these runs an operator's CPU kernel on any tensors."""
_CPU, _META = torch.device("cpu"), torch.device("meta")

MIXED_DEVICES = frozenset(
    {
        "aten::copy_",
        "aten::index.Tensor",
        "aten::index.Tensor_out",
        "aten::_index_put_impl_",
        "aten::_foreach_copy_",
        "aten::_nested_from_padded",
    }
)
"""Operators whose CUDA kernels take CPU tensors together with cuda tensors; the others take only 0-dim CPU tensors."""

replacements: dict[str, Kernel] = {}
"""CPU functions that replace operators without a usable CPU kernel, by qualified name with overload."""


class Schema:
    """What a kernel needs to know about an operator."""

    def __init__(self, op: Any) -> None:
        schema = op._schema
        self.name: str = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        arguments = schema.arguments
        self.arguments: list[str] = [argument.name for argument in arguments]
        kinds = [str(argument.type) for argument in arguments]
        self.tensors = [n for n, kind in enumerate(kinds) if kind in {"Tensor", "Optional[Tensor]"}]
        self.lists = [n for n, kind in enumerate(kinds) if "List[" in kind and "Tensor" in kind]
        self.tensor_names = frozenset(self.arguments[n] for n in (*self.tensors, *self.lists))
        self.device = self._position("device")
        self.generator = self._position("generator")
        aliases = [argument.alias_info for argument in arguments]
        self.writes = any(alias is not None and alias.is_write for alias in aliases)
        self.written = [n for n, alias in enumerate(aliases) if alias is not None and alias.is_write]
        self.outs = [
            n
            for n, alias in enumerate(aliases)
            if alias is not None and alias.is_write and arguments[n].kwarg_only and kinds[n] == "Tensor"
        ]
        self.view = self.name.startswith("aten::set_.") or any(
            result.alias_info is not None and not result.alias_info.is_write for result in schema.returns
        )
        self.returns = [self._written_argument(result.alias_info, aliases) for result in schema.returns]

    def _position(self, name: str) -> int:
        return self.arguments.index(name) if name in self.arguments else -1

    @staticmethod
    def _written_argument(alias: Any, aliases: Sequence[Any]) -> int | None:
        """Return the position of the argument that a result is, None for a new tensor."""
        if alias is None or not alias.is_write:
            return None
        for position, other in enumerate(aliases):
            if other is not None and other.before_set == alias.before_set:
                return position
        return None


def kernel_for(op: Any) -> Kernel:
    """Return the CUDA kernel of the operator overload `op`."""
    schema = Schema(op)
    return _view_kernel(op) if schema.view else _compute_kernel(op, schema)


_late: dict[Any, Kernel] = {}


def fallback(op: Any, *arguments: Any, **keywords: Any) -> Any:
    """Run an operator that was not known when the device was switched on."""
    kernel = _late.get(op)
    if kernel is None:
        kernel = _late[op] = kernel_for(op)
    return kernel(*arguments, **keywords)


def _view_kernel(op: Any) -> Kernel:
    redispatch = op._handle.redispatch_boxed  # OpOverload.redispatch without a Python frame

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        if process.blocked:
            ensure_usable()
        return redispatch(CPU_KEYS, *arguments, **keywords)

    return kernel


def _compute_kernel(op: Any, schema: Schema) -> Kernel:
    announce = calibration.announcer(schema.name)
    function = replacements.get(schema.name, op._op)  # OpOverload.__call__ without a Python frame
    packet = op._overloadpacket
    finish = finisher(schema)
    mixed = schema.name in MIXED_DEVICES or schema.name.startswith("c10d::")
    tensors, lists, tensor_names = schema.tensors, schema.lists, schema.tensor_names
    has_options = schema.device >= 0 or schema.generator >= 0
    outs = schema.outs
    makes_tensors = None in schema.returns
    only_writes = schema.writes and not outs and not makes_tensors

    def kernel(*arguments: Any, **keywords: Any) -> Any:
        if process.blocked:
            ensure_usable()
        if process.tracking or conditions.capturing:
            device_work.before(schema, arguments, keywords)
        if announce is not None:
            announce(arguments, keywords)
        call = list(arguments)
        named = keywords
        given = len(call)
        index = -1
        other_device = None
        run = function
        for position in tensors:
            if position >= given:
                break
            value = call[position]
            if value is None:
                continue
            if not isinstance(value, Tensor):
                # The schema has a tensor and the call a Python number: overload resolution finds the variant for it.
                run = packet
            elif value.is_cuda:
                own = value.get_device()
                if index < 0:
                    index = own
                elif index != own and value.dim():
                    other_device = value
                call[position] = as_cpu(value)
            else:
                if value.dim():
                    other_device = value
                if not process.values:
                    call[position] = unknown_values.meta_of(value)
        for position in lists:
            if position < given and call[position] is not None:
                index, other_device, call[position] = _convert_list(call[position], index, other_device)
        if keywords:
            for name in keywords.keys() & tensor_names:
                value = keywords[name]
                if value is None:
                    continue
                if not isinstance(value, Tensor):
                    index, other_device, value = _convert_list(value, index, other_device)
                elif value.is_cuda:
                    index = value.get_device() if index < 0 else index
                    value = as_cpu(value)
                named = {**named, name: value}
        if other_device is not None and index >= 0 and not mixed:
            _refuse_mixture(index, other_device, schema.name)
        if has_options:
            index, named = _convert_options(schema, call, named, index)
        elif index < 0:
            index = current_device()
        try:
            if only_writes and not process.values:
                result = None
            elif conditions.capturing and process.values and outs:
                result = _capture_with_outputs(schema, run, arguments, keywords, call, named)
            elif conditions.capturing and process.values:
                result = cuda_graphs.record(schema.name, run, call, named, writes=schema.writes)
            elif outs:
                result = _run_with_outputs(schema, run, arguments, keywords, call, named)
            else:
                result = run(*call, **named)
        except RuntimeError as error:
            translated = memory.as_out_of_memory(_without_cpu_kernel(error), index)
            if not process.values:
                translated = unknown_values.as_value_needed(error, schema.name)
            if translated is error:
                raise
            raise translated from None
        result = finish(result, arguments, keywords, index)
        if makes_tensors and (process.tracking or conditions.capturing):
            device_work.after(schema, result)
        return result

    return kernel


_NO_CPU_KERNEL = re.compile(r"Could not run '([^']+)' with arguments from the 'CPU' backend")


def _without_cpu_kernel(error: RuntimeError) -> RuntimeError:
    """Return `error`; if it says in fifty lines that an operator has no CPU kernel, a one-line error instead."""
    found = _NO_CPU_KERNEL.match(str(error))
    if found is None:
        return error
    return NotImplementedError(
        f"the simulated device does not simulate {found[1]}, which has no CPU kernel: use other operators, or run "
        "on a GPU"
    )


def _convert_list(values: Sequence[Any], index: int, other_device: Any) -> tuple[int, Any, list[Any]]:
    converted = []
    for value in values:
        if isinstance(value, Tensor):
            if value.is_cuda:
                own = value.get_device()
                if index < 0:
                    index = own
                elif index != own and value.dim():
                    other_device = value
                value = as_cpu(value)
            else:
                if value.dim():
                    other_device = value
                if not process.values:
                    value = unknown_values.meta_of(value)
        converted.append(value)
    return index, other_device, converted


def _refuse_mixture(index: int, other_device: Tensor, name: str) -> None:
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, cuda:{index} and "
        f"{other_device.device}! (when checking the arguments of {name.removeprefix('aten::')})"
    )


def _convert_options(
    schema: Schema, call: list[Any], keywords: Mapping[str, Any], index: int
) -> tuple[int, dict[str, Any]]:
    """Replace the device and generator arguments by the CPU's; return the index of the result's device (-2 for the
    CPU).
    """
    keywords = dict(keywords)

    def argument(position: int) -> Any:
        return call[position] if position < len(call) else keywords.get(schema.arguments[position])

    def replace(position: int, value: Any) -> None:
        if position < len(call):
            call[position] = value
        else:
            keywords[schema.arguments[position]] = value

    device = argument(schema.device) if schema.device >= 0 else None
    if device is not None:
        if device.type == "cuda":
            index = device.index if device.index is not None else current_device()
            check_ordinal(index)
        else:
            index = -2
        replace(schema.device, _CPU if process.values or index == -2 else _META)
    elif index < 0:
        index = current_device()
    if keywords.get("pin_memory"):
        keywords["pin_memory"] = False
    if schema.generator >= 0:
        generator = generators.resolve(argument(schema.generator), index)
        replace(schema.generator, generator if process.values else None)
    return index, keywords


def finisher(schema: Schema) -> Callable[[Any, Sequence[Any], Mapping[str, Any], int], Any]:
    """Return the function that makes the kernel's result from the CPU operator's, given the kernel's arguments and
    device index.
    """
    names = schema.arguments

    def original(position: int, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        return arguments[position] if position < len(arguments) else keywords[names[position]]

    if not schema.returns:
        return lambda result, arguments, keywords, index: None
    if len(schema.returns) == 1:
        written = schema.returns[0]
        if written is not None:

            def finish_written(result: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], index: int) -> Any:
                return arguments[written] if written < len(arguments) else keywords[names[written]]

            return finish_written
        return lambda result, arguments, keywords, index: label(result, index)

    def finish(result: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], index: int) -> Any:
        return tuple(
            label(value, index) if written is None else original(written, arguments, keywords)
            for written, value in zip(schema.returns, result or [None] * len(schema.returns), strict=True)
        )

    return finish


def label(result: Any, index: int) -> Any:
    """Return `result`, a CPU tensor or a list of them, as tensors of ``cuda:index``; anything else, or for a negative
    index, unchanged.
    """
    if index < 0:
        return result
    if isinstance(result, Tensor):
        if result.is_cpu:
            return as_cuda(result, index)
        return as_cuda(unknown_values.with_memory(result), index) if result.is_meta and not process.values else result
    if isinstance(result, (list, tuple)):
        return [label(value, index) for value in result]
    return result


def _run_with_outputs(
    schema: Schema,
    run: Kernel,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    call: list[Any],
    named: dict[str, Any],
) -> Any:
    """Run an ``out=`` operator on new CPU tensors, because relabeled memory cannot be resized, and take over their
    memory.
    """
    taken = []
    named = dict(named)
    for position in schema.outs:
        name = schema.arguments[position]
        target = keywords.get(name) if position >= len(arguments) else arguments[position]
        if target is None:
            continue
        fresh = torch.empty(0, dtype=target.dtype, device=_CPU if process.values else _META)
        if position < len(call):
            written, call[position] = call[position], fresh
        else:
            written, named[name] = named[name], fresh
        taken.append((target, written, fresh))
    result = run(*call, **named)
    for target, written, fresh in taken:
        if target.shape == fresh.shape:
            if process.values:
                written.copy_(fresh)
            continue
        if target.numel():
            warnings.warn(
                f"An output with one or more elements was resized since it had shape {list(target.shape)}, "
                f"which does not match the required output shape {list(fresh.shape)}.",
                stacklevel=4,
            )
        adopt(target, fresh)
    return result


def _capture_with_outputs(
    schema: Schema,
    run: Kernel,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    call: list[Any],
    named: Mapping[str, Any],
) -> Any:
    """Record an ``out=`` operator. Outputs get their sizes, as on a GPU, and their values with the first replay."""
    named = dict(named)
    fresh_call, fresh_named = list(call), dict(named)
    fresh: dict[int, Tensor] = {}
    for position in schema.outs:
        target = _argument(schema, position, call, named)
        if target is not None:
            fresh[position] = torch.empty(0, dtype=target.dtype)
            _set_argument(schema, position, fresh_call, fresh_named, fresh[position])
    run(*fresh_call, **fresh_named)
    for position, made in fresh.items():
        target = _argument(schema, position, arguments, keywords)
        if target.shape != made.shape:
            adopt(target, made)
            _set_argument(schema, position, call, named, as_cpu(target))
    return cuda_graphs.record(schema.name, run, call, named, writes=True)


def _argument(schema: Schema, position: int, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    return arguments[position] if position < len(arguments) else keywords.get(schema.arguments[position])


def _set_argument(schema: Schema, position: int, arguments: list[Any], keywords: dict[str, Any], value: Any) -> None:
    if position < len(arguments):
        arguments[position] = value
    else:
        keywords[schema.arguments[position]] = value


def adopt(target: Tensor, fresh: Tensor) -> None:
    """Give `target`, a simulated tensor, the shape and the memory of `fresh`, a CPU tensor."""
    torch.ops.aten.set_.source_Tensor.redispatch(CPU_KEYS, target, label(fresh, target.get_device()))
