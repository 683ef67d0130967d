"""Calls of functions and classes of torch: a function for each value of `gives` in its catalogue."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain import accelerators, torch_api
from gpusync_lint.domain.lattice import element, join_all
from gpusync_lint.domain.tensor_ops import combine, device_of, multiplied_gradient
from gpusync_lint.domain.values import (
    CPU_TENSOR,
    DTYPE,
    GPU_ABSENT,
    GPU_DEVICE,
    GPU_PRESENT,
    GUESSED,
    HOST,
    NEW_STREAM,
    UNCOALESCED,
    UNKNOWN,
    Device,
    Gradient,
    Kind,
    Value,
    contents,
    is_number,
    list_of,
    modules,
    tensor,
    tuple_of,
    with_device,
)
from gpusync_lint.inference.transfer import captures
from gpusync_lint.inference.transfer.tensor_methods import operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.inference.frame import Frame
    from gpusync_lint.inference.tables import Call

_OF_VALUES = frozenset({Kind.HOST, Kind.ARRAY, Kind.DTYPE, Kind.NONE})
"""Kinds of arguments from which a function of torch does not compute a tensor on the device."""
_PREDICATES = ("is_", "has_", "can_", "are_")
"""How the names of functions begin that return a Python bool."""
_HOST_MEMORY = frozenset({"from_numpy", "frombuffer"})
"""Functions whose results share host memory, whatever the default device."""
_COMPUTING = ("nn.functional.", "linalg.", "fft.")


def call_torch(frame: Frame, name: str, call: Call) -> Value:
    """Call a function or class of torch. `name` is its dotted name without `torch.`."""
    if torch_api.tensor_type(f"torch.{name}"):
        return _factory(frame, name, call)
    for entry in torch_api.returns(name):
        made = _RESULTS[entry.gives](frame, name, call)
        if made is not None:
            return made
    return _tensor_function(frame, name, call)


def made_with(call: Call, *names: str) -> tuple[tuple[str, Value], ...]:
    """Some keyword arguments of a call, for `Value.made_with`."""
    return tuple((name, call.kwargs[name]) for name in names if name in call.kwargs)


def _constant(value: Value) -> Callable[[Frame, str, Call], Value]:
    def constant(frame: Frame, name: str, call: Call) -> Value:
        return value

    return constant


def _device(frame: Frame, name: str, call: Call) -> Value:
    """`torch.device(...)`."""
    given = call.first
    if given.const == "meta":
        return Value(Kind.DEVICE, Device.UNKNOWN)
    device = device_of(given)
    return Value(Kind.DEVICE, frame.assumed_device() if device is None else device)


def _stream(frame: Frame, name: str, call: Call) -> Value:
    """A stream that is created, or one that is asked for: `torch.cuda.current_stream()`."""
    device = accelerators.of_module(name)
    const = NEW_STREAM if name.endswith("Stream") else None
    return Value(Kind.STREAM, const=const) if device is None else Value(Kind.STREAM, device, const=const)


def _event(frame: Frame, name: str, call: Call) -> Value:
    device = accelerators.of_module(name)
    return Value(Kind.EVENT) if device is None else Value(Kind.EVENT, device)


def _current_device(frame: Frame, name: str, call: Call) -> Value:
    device = accelerators.of_module(name)
    return GPU_DEVICE if device is None else Value(Kind.DEVICE, device)


def _present(frame: Frame, name: str, call: Call) -> Value:
    """Whether there is a GPU. A file that names CUDA too may run on either kind of device."""
    device = accelerators.of_module(name)
    mixed = device is not None and device is not Device.XPU and frame.analysis.devices.names_cuda(frame.fn.file)
    return HOST if mixed else GPU_PRESENT


def _mps_present(frame: Frame, name: str, call: Call) -> Value:
    """Whether there is a GPU of Apple. Where there is one of CUDA too, the project runs on that one."""
    return GPU_ABSENT if frame.analysis.devices.names_cuda(frame.fn.file) else GPU_PRESENT


def _distribution(frame: Frame, name: str, call: Call) -> Value:
    of_numbers = bool(call.args) and all(is_number(value) for value in call.args)
    default = Device.CPU if of_numbers and not frame.device_blocks else Device.UNKNOWN
    where = max((value.device for value in call.values if value.kind is Kind.TENSOR), default=default)
    last = name.rpartition(".")[2]
    for value in call.values:  # `Independent(Normal(...), 1)` samples like the distribution that it contains
        if value.kind is Kind.DISTRIBUTION:
            where, last = max(where, value.device), value.ref or last
    return Value(Kind.DISTRIBUTION, where, ref=last, made_with=made_with(call, "validate_args"))


def _scheduler(frame: Frame, name: str, call: Call) -> Value:
    return Value(Kind.SCHEDULER, ref=name.rpartition(".")[2])


def _optimizer(frame: Frame, name: str, call: Call) -> Value:
    made = made_with(call, "lr", "capturable", "fused")
    return Value(Kind.OPTIMIZER, ref=name.rpartition(".")[2], made_with=made)


def _parameter(frame: Frame, name: str, call: Call) -> Value | None:
    if not call.args:
        return None
    given = call.args[0]
    if given.kind is not Kind.TENSOR:
        return UNKNOWN
    return with_device(given, max(given.device, frame.assumed_device()))._replace(gradient=Gradient.FLOWS)


def _argument(frame: Frame, name: str, call: Call) -> Value | None:
    return call.args[0] if call.args else None


def _compiled(frame: Frame, name: str, call: Call) -> Value | None:
    """`torch.compile(f)`: the function itself."""
    captures.record_compiled(frame, call.first, call.kwargs)
    return call.first if call.args else None


def _graphed(frame: Frame, name: str, call: Call) -> Value | None:
    """`torch.cuda.make_graphed_callables(f, sample_args)`: calls the function, and returns what replays its graph."""
    captures.record_graphed(frame, call)
    return call.first if call.args else None


def _module(frame: Frame, name: str, call: Call) -> Value:
    made = made_with(call, "reduction", "momentum")
    parts = _parts_of_container(call, name) if name in _MODULE_CONTAINERS else None
    return Value(Kind.MODULE, Device.CPU, ref=f"torch.{name}", elem=parts, made_with=made)


_CONTAINERS = frozenset({Kind.TUPLE, Kind.LIST, Kind.DICT})
_MODULE_CONTAINERS = frozenset({"nn.Sequential", "nn.ModuleList", "nn.ModuleDict"})


def _parts_of_container(call: Call, name: str) -> Value | None:
    """Any of the modules that a container is made of; None if nothing is known of their classes.

    What a `Sequential` of layers of torch returns is known without them.
    """
    given = [one for value in call.args for one in (contents(value) if value.kind in _CONTAINERS else (value,))]
    given = [element(one) if one.kind is Kind.TUPLE else one for one in given]  # `OrderedDict([("name", module)])`
    parts = join_all([one for one in given if one.kind is Kind.MODULE])
    if parts.ref is not None and name != "nn.Sequential":
        return parts
    return parts if any(part.definition is not None for part in modules(parts)) else None


def _sequence(frame: Frame, name: str, call: Call) -> Value:
    """`pad_sequence` and similar functions, of a list of tensors or of one."""
    given = call.first
    item = element(given) if given.kind in (Kind.LIST, Kind.TUPLE) else given
    return CPU_TENSOR._replace(certain=False) if item.kind is Kind.RECORDS else item


def _padded_sequence(frame: Frame, name: str, call: Call) -> Value:
    """`pad_packed_sequence`: the lengths are on the host."""
    return tuple_of([call.first, CPU_TENSOR])


def _number_on_device(frame: Frame, name: str, call: Call) -> Value:
    return Value(Kind.TENSOR, frame.assumed_device(), zero_dim=True)


def _factory(frame: Frame, name: str, call: Call) -> Value:
    """A tensor that is created from sizes or data. It is on the host by default."""
    args, kwargs = call.args, call.kwargs
    device = _device_of_factory(frame, name, call)
    from_data = bool(args) and name in torch_api.tensors().from_data
    if (from_data or name.startswith("sparse")) and args and args[0].on_device and "device" not in kwargs:
        device = args[0].device
    dtype = kwargs.get("dtype", UNKNOWN)
    boolean = dtype.boolean or name.endswith("BoolTensor")
    if from_data and args[0].kind is Kind.TENSOR and dtype.kind is Kind.UNKNOWN:
        boolean = args[0].boolean
    elif dtype.kind is Kind.UNKNOWN and (from_data or name == "full") and call.node.args:
        boolean = boolean or _is_truth(call.node.args[-1 if name == "full" else 0])
    single = bool(args) and (
        isinstance(args[0].const, (int, float))
        if name in ("tensor", "scalar_tensor", "as_tensor")
        else args[0].kind is Kind.TUPLE and not args[0].items  # a shape without dimensions
    )
    pinned = kwargs.get("pin_memory", UNKNOWN).const is True
    gradient = Gradient.FLOWS if kwargs.get("requires_grad", UNKNOWN).const is True else Gradient.NONE
    made = tensor(device, zero_dim=True if single else None, boolean=boolean, pinned=pinned, gradient=gradient)
    return made._replace(ref=UNCOALESCED) if "sparse" in name else made


def _is_truth(node: ast.expr) -> bool:
    """Whether an expression is a truth value or a list of them: `[True, False]`, `[True] * n`, `[a > 0 for a in b]`."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return bool(node.elts) and all(map(_is_truth, node.elts))
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List) and _is_truth(node.left)
    if isinstance(node, ast.ListComp):
        return _is_truth(node.elt)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Constant) and isinstance(node.value, bool))


def _device_of_factory(frame: Frame, name: str, call: Call) -> Device:
    if name in _HOST_MEMORY:
        return Device.CPU
    given = call.kwargs.get("device")
    if given is not None:
        if given.const == "meta":
            return Device.UNKNOWN
        device = device_of(given)
        if device is not None:
            return device
        return Device.CPU if given.kind is Kind.NONE else frame.assumed_device()
    if frame.device_blocks:
        return frame.device_blocks[-1]
    if name.startswith("cuda.") or frame.analysis.devices.uses_gpu_by_default(frame.fn.file):
        return Device.GPU
    if frame.fn.name == "__init__" and frame.analysis.devices.is_built_on_device(frame.reader):
        return Device.UNKNOWN  # `with device: Model()` creates even plain attributes there
    return Device.CPU


def _tensor_function(frame: Frame, name: str, call: Call) -> Value:
    """A function that computes a tensor from tensors."""
    last = name.rpartition(".")[2]
    if last.startswith(_PREDICATES):
        return HOST
    first = _operands(frame, name, last, call)
    if first is None:
        return UNKNOWN
    if last in torch_api.tensors().zero_dim_losses:
        reduced = call.kwargs.get("reduction", UNKNOWN).const != "none"
        return tensor(first.device, first.certain, reduced or None, gradient=first.gradient)
    if last.endswith("_like"):
        return _like(first, call)
    if last == "where":
        one = first._replace(boolean=False)
        return list_of(one) if len(call.args) == 1 else combine(call.values[0], first)._replace(boolean=False)
    result = operation(last, first, call.args[1:], call.kwargs)
    if last in ("mm", "matmul", "spmm") and len(call.args) > 1 and result.gradient:
        result = result._replace(gradient=multiplied_gradient(*call.args[:2]))
    if result.kind is Kind.TENSOR and not result.certain:
        return result._replace(certain=True)  # functions of torch return tensors
    return result


def _operands(frame: Frame, name: str, last: str, call: Call) -> Value | None:
    """The combined tensors among the arguments of a function; None if there are none."""
    flat = [element(value) if value.kind in (Kind.LIST, Kind.TUPLE) else value for value in call.values]
    tensors = [value for value in flat if value.kind is Kind.TENSOR]
    if tensors:
        first = tensors[0]
        for other in tensors[1:]:
            boolean = first.boolean and other.boolean
            first = combine(first, other)
            if boolean:
                first = first._replace(boolean=True)
        return first
    known = torch_api.tensors()
    if all(value.kind in _OF_VALUES for value in flat) or last[:1].isupper():
        return None
    if not name.startswith(_COMPUTING) and last not in known.torch_only and last not in known.functions:
        return None
    moved = any(value.kind is Kind.MOVED for value in flat)
    if moved:
        return Value(Kind.TENSOR, Device.GPU, certain=False)
    return Value(Kind.TENSOR, frame.assumed_device(), certain=False, ref=GUESSED)


def _like(first: Value, call: Call) -> Value:
    """`torch.zeros_like(x)` and similar functions."""
    dtype = call.kwargs.get("dtype", UNKNOWN)
    device = device_of(call.kwargs["device"]) if "device" in call.kwargs else None
    return first._replace(
        boolean=dtype.boolean if dtype.kind is Kind.DTYPE else first.boolean,
        pinned=False,
        device=first.device if device is None else device,
    )


_RESULTS: dict[str, Callable[[Frame, str, Call], Value | None]] = {
    "unknown": _constant(UNKNOWN),
    "host": _constant(HOST),
    "dtype": _constant(DTYPE),
    "gpu-device": _current_device,
    "gpu-present": _present,
    "mps-present": _mps_present,
    "stream": _stream,
    "event": _event,
    "records": _constant(Value(Kind.RECORDS)),
    "indices": _constant(list_of(HOST)),
    "index-batches": _constant(list_of(list_of(HOST))),
    "device": _device,
    "factory": _factory,
    "number-on-device": _number_on_device,
    "argument": _argument,
    "compiled": _compiled,
    "graphed": _graphed,
    "parameter": _parameter,
    "module": _module,
    "optimizer": _optimizer,
    "scheduler": _scheduler,
    "distribution": _distribution,
    "sequence": _sequence,
    "padded-sequence": _padded_sequence,
}
"""By the value of `gives` in `[[returns]]`, the result; None if the next entry applies."""
