"""Calls of functions and classes outside the project, by their dotted names."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain import accelerators, python_api
from gpusync_lint.domain.external_names import engine_of, is_module_name, is_no_module
from gpusync_lint.domain.lattice import element
from gpusync_lint.domain.tensor_ops import combine, device_of
from gpusync_lint.domain.torch_api import engines
from gpusync_lint.domain.values import (
    ARRAY,
    ARRAY_ELEMENT,
    BATCH,
    CPU_TENSOR,
    GPU_DEVICE,
    GPU_PRESENT,
    GUESSED,
    HOST,
    UNKNOWN,
    Device,
    Kind,
    Value,
    any_tensor,
    dict_of,
    external_name,
    is_number,
    list_of,
    tensor,
    tuple_of,
    with_device,
)
from gpusync_lint.inference.tables import Call, calls
from gpusync_lint.inference.transfer.builtin_calls import call_builtin, dict_from
from gpusync_lint.inference.transfer.calling import call_value
from gpusync_lint.inference.transfer.foreign_calls import call_foreign_function
from gpusync_lint.inference.transfer.iterators import call_itertools, reduced
from gpusync_lint.inference.transfer.names import tensor_attributes
from gpusync_lint.inference.transfer.torch_calls import call_torch, made_with
from gpusync_lint.model.levels import Heat

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame

_PROGRESS_BARS = frozenset({"TQDM", "tqdm", "trange", "track", "progress_bar", "Bar", "alive_it"})
_COPIES = frozenset({"deepcopy", "copy"})
_ANY_OBJECT = frozenset({"pickle.load", "pickle.loads"})
"""Functions of the standard library that may return an object of any class."""
_DICTS = frozenset({"OrderedDict", "Counter"})
_OPERATORS = frozenset({"add", "iadd", "mul", "sub", "truediv", "matmul"})
_DRAWS = frozenset({"choice", "choices", "sample"})
_PARTIAL = frozenset({Kind.FUNCTION, Kind.CLASS, Kind.MODULE, Kind.INSTANCE, Kind.LAMBDA, Kind.UNION, Kind.PARTIAL})
_DRAWS_ONE = frozenset({"choice", "randint", "integers"})
"""Functions of `numpy.random` that draw one element, or one number, unless they are given a size."""
_SEQUENCES = frozenset({Kind.LIST, Kind.TUPLE})
NAMED_TUPLE = "collections.namedtuple()"
"""The dotted name of classes that `namedtuple` creates. The value has the names of the fields as its constant."""
_MODEL_FACTORIES = frozenset({"create_model", "from_pretrained"})
_REARRANGING = frozenset({"rearrange", "repeat", "reduce", "einsum", "pack", "unpack"})
"""Functions of einops that return tensors."""
_OF_DATACLASSES = frozenset({"replace", "asdict", "astuple"})
_COMMAND_LINES = frozenset({"cli", "parse"})
"""Functions that create an instance of a class of settings from the command line."""


class _Name(NamedTuple):
    """A dotted name in parts."""

    dotted: str
    root: str
    rest: str
    """The name without the root."""
    last: str
    is_torch: bool
    """Whether torch's catalogue describes it."""


@lru_cache(20_000)
def _parts(dotted: str) -> _Name:
    root, _, rest = dotted.partition(".")
    last = dotted.rpartition(".")[2]
    special = is_data_loader(dotted) or last in _COMMAND_LINES or last == "GradScaler"
    return _Name(dotted, root, rest, last, root == "torch" and not special)


@lru_cache(20_000)
def is_data_loader(dotted: str) -> bool:
    """Whether a class is a data loader."""
    last = dotted.rpartition(".")[2]
    if last.endswith(("DataLoader", "NeighborLoader", "NeighborSampler")):
        return True
    return dotted.startswith("torch_geometric.loader.")


@calls(Kind.NAME)
def call_external(frame: Frame, call: Call) -> Value | None:
    """Call a function or class outside the project."""
    dotted = call.callee.ref
    if dotted.__class__ is not str:
        return None
    if dotted == NAMED_TUPLE:
        return _named_tuple(call)
    if call.callee.made_with and dotted[-1:] != ")":  # a partial, and no object
        call = call._replace(kwargs=dict(call.callee.made_with) | call.kwargs)
    parts = _parts(dotted)
    if parts.root == "builtins":
        return call_builtin(frame, parts.rest, call)
    effects = frame.summary.effects
    unread = frame.analysis.project.unread_functions.get(dotted)
    if unread is not None:
        effects.unread.append((unread, frame.statement, frame.comprehensions > 0))
    if parts.root != "torch" and any_tensor(call.args, call.kwargs):
        effects.calls_unknown = True
    if parts.root in foreign.modules():
        result = call_foreign_function(frame, dotted, call)
        if result is not None:
            return result
    if frame.analysis.named.knows(dotted):
        made = frame.analysis.named.made(dotted, call.kwargs)
        return made if made is not None else tensor(frame.assumed_device())
    return call_torch(frame, parts.rest, call) if parts.is_torch else _call_by_name(frame, parts, call)


def field_names(node: ast.expr) -> tuple[str, ...]:
    """The names of the fields in a call of `namedtuple`; none if they are not literals."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return tuple(node.value.replace(",", " ").split())
    elements = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
    names = [one.value for one in elements if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return tuple(names) if len(names) == len(elements) else ()


def _named_tuple(call: Call) -> Value:
    names: tuple[str, ...] = call.callee.const or ()
    if len(call.node.args) == 1 and isinstance(call.node.args[0], ast.Starred) and len(call.args) == 1:
        return Value(Kind.TUPLE, items=(call.args[0],) * len(names), ref=names)  # a list of unknown length
    given = dict(zip(names, call.args, strict=False)) | call.kwargs
    return Value(Kind.TUPLE, items=tuple(given.get(name, UNKNOWN) for name in names), ref=names)


def _call_by_name(frame: Frame, parts: _Name, call: Call) -> Value:
    """The result of a function that no catalogue describes, by its name."""
    root, last = parts.root, parts.last
    if is_data_loader(parts.dotted):
        dataset = call.args[0] if call.args else call.kwargs.get("dataset", UNKNOWN)
        return data_loader(frame, parts.dotted, dataset, call.kwargs)
    device = accelerators.of_loader(parts.dotted)
    if device is not None:
        return _loaded(call.first, device)
    if last in _COMMAND_LINES and call.args and call.args[0].kind is Kind.CLASS:
        return Value(Kind.INSTANCE, ref=call.args[0].ref)
    if last == "GradScaler":
        return Value(Kind.SCALER, made_with=made_with(call, "enabled"))
    if root == "einops" and last in _REARRANGING:
        return _call_einops(frame, last, call)
    if root == "dataclasses" and last in _OF_DATACLASSES and call.first.kind is Kind.INSTANCE:
        return _call_dataclass(frame, last, call)
    if root == "ignite":
        return _call_ignite(frame, last, call)
    if root == "torch":
        return call_torch(frame, parts.rest, call)
    if root in python_api.HOST_MODULES:
        return UNKNOWN if parts.dotted in _ANY_OBJECT else _call_standard_library(frame, root, last, call)
    if root in python_api.ARRAY_MODULES:
        return _call_array_library(root, last, call)
    if root == "torchtext" and last.endswith("Iterator") and last[:1].isupper():  # moves its batches itself
        where = device_of(call.kwargs["device"]) if "device" in call.kwargs else None
        device = Device.CPU if where is None else where
        return Value(Kind.LOADER, device, elem=Value(Kind.TENSOR, device, certain=False))
    if last in _PROGRESS_BARS or root == "tqdm":
        return call.args[0] if call.args else list_of(HOST)
    return _call_model_library(frame, parts, call)


def _call_model_library(frame: Frame, parts: _Name, call: Call) -> Value:
    """Models, datasets, and engines that move models and data, by the name of the function or class."""
    dotted, last = parts.dotted, parts.last
    if last == "from_pretrained" and is_no_module(dotted.rpartition(".")[0]):
        return external_name(f"{dotted.rpartition('.')[0]}()")
    if is_module_name(dotted) or last in _MODEL_FACTORIES or dotted.startswith("torchvision.models."):
        placed = call.kwargs.get("device_map")
        moved = placed is not None and placed.kind is not Kind.NONE and placed.const != "cpu"
        return Value(Kind.MODULE, Device.GPU if moved else Device.CPU, ref=dotted)
    if parts.root == "torchvision" or (last.endswith("Dataset") and last[:1].isupper()) or ".datasets." in dotted:
        return Value(Kind.RECORDS)
    if last in engines():
        return external_name(f"{dotted}()")
    if engine_of(dotted.rpartition(".")[0]) is not None:
        return _call_engine(frame, parts, call)
    return GPU_DEVICE if last == "get_device" else UNKNOWN


def _call_einops(frame: Frame, last: str, call: Call) -> Value:
    """A function of einops: a tensor of the kind that it is given, or of those in a list."""
    flat = [element(value) if value.kind in _SEQUENCES else value for value in call.args]
    known = [value for value in flat if value.kind is Kind.TENSOR]
    if known:
        made = known[0]
        for other in known[1:] if last == "einsum" else ():
            made = combine(made, other)
        made = made._replace(zero_dim=None, pinned=False, boolean=made.boolean and last not in ("reduce", "einsum"))
    elif Kind.MOVED in (value.kind for value in flat):
        made = tensor(Device.GPU, certain=False)
    elif flat and flat[0].kind is Kind.UNKNOWN:
        made = Value(Kind.TENSOR, frame.assumed_device(), certain=False, ref=GUESSED)
    else:
        return flat[0] if flat and flat[0].kind is Kind.ARRAY else UNKNOWN
    if last == "pack":
        return tuple_of([made, list_of(HOST)])
    return list_of(made) if last == "unpack" else made


def _call_ignite(frame: Frame, last: str, call: Call) -> Value:
    if last == "Engine" and call.args and call.args[0].kind is Kind.FUNCTION:
        frame.analysis.record_callback(call.args[0].ref, Heat.STEP)
        frame.analysis.pass_batches(call.args[0].ref)
    return UNKNOWN


def _call_standard_library(frame: Frame, root: str, last: str, call: Call) -> Value:
    if root == "itertools":
        return call_itertools(frame, last, call)
    if last in _DRAWS and call.args:
        drawn = element(call.args[0])
        return drawn if last == "choice" else list_of(drawn)
    if last == "namedtuple" and len(call.args) > 1:
        names = field_names(call.node.args[1])
        return Value(Kind.NAME, ref=NAMED_TUPLE, const=names) if names else UNKNOWN
    if last in _COPIES and call.args:
        return call.args[0]
    if last == "deque":
        return list_of(element(call.args[0])) if call.args and call.args[0].kind in _SEQUENCES else list_of(None)
    if last in _DICTS:
        return dict_from(frame, call)
    if last == "defaultdict":
        made = call_value(frame, call._replace(callee=call.args[0], args=[], kwargs={})) if call.args else None
        return dict_of((), made)
    if last == "reduce" and len(call.args) > 1:
        return reduced(frame, call)
    if last == "partial" and call.args:
        return _partial(call)
    if root == "operator" and last in _OPERATORS and len(call.args) == 2:
        return combine(*call.args) if Kind.TENSOR in (call.args[0].kind, call.args[1].kind) else HOST
    return HOST


def _call_dataclass(frame: Frame, last: str, call: Call) -> Value:
    """`dataclasses.replace(batch, x=x)`, `asdict(batch)`, `astuple(batch)`."""
    if last == "replace":
        for name, value in call.kwargs.items():
            frame.analysis.instances.set_attribute(call.first, name, value)
        return call.first
    held = tensor_attributes(frame, call.first)
    if held is None:
        return UNKNOWN
    return dict_of((), held) if last == "asdict" else list_of(held)


def _partial(call: Call) -> Value:
    """`functools.partial`. A function outside the project stays what it is, so that rules know it by its name."""
    given = call.args[0]
    if given.kind not in _PARTIAL:
        if given.kind is not Kind.NAME:
            return UNKNOWN
        return given._replace(made_with=tuple(call.kwargs.items())) if call.kwargs else given
    return Value(Kind.PARTIAL, elem=given, items=tuple(call.args[1:]), made_with=tuple(call.kwargs.items()))


def _call_array_library(root: str, last: str, call: Call) -> Value:
    if last in _DRAWS_ONE and len(call.args) < 3 and "size" not in call.kwargs:
        draws_one = len(call.args) == 1 if last == "choice" else all(map(is_number, call.args))
        if draws_one and call.args:
            return ARRAY_ELEMENT
    if root == "numpy" and (last in python_api.NUMPY_SEVERAL or (last == "where" and len(call.values) == 1)):
        return list_of(ARRAY)
    of_numbers = root == "numpy" and last in python_api.NUMPY_OF_NUMBERS and bool(call.args)
    return ARRAY_ELEMENT if of_numbers and all(map(is_number, call.args)) else ARRAY


def _call_engine(frame: Frame, parts: _Name, call: Call) -> Value:
    """A method of an engine that moves models and data: Accelerate's `Accelerator`, Lightning's `Fabric`."""
    engine, last, args = engine_of(parts.dotted.rpartition(".")[0]), parts.last, call.args
    assert engine is not None
    if last in engine.prepares:
        made = [_prepared(value) for value in args]
        return made[0] if len(made) == 1 else tuple_of(made)
    if last in engine.keeps and args:
        return args[0]
    if last in engine.gathers and args:
        return with_device(args[0], Device.GPU)
    return Value(Kind.TENSOR, frame.assumed_device(), zero_dim=True) if last in engine.numbers else UNKNOWN


def _prepared(value: Value) -> Value:
    """A model, an optimizer or a loader that an engine has prepared."""
    if value.kind is Kind.MODULE:
        return value._replace(device=Device.GPU)
    return _loaded(value, Device.GPU) if value.kind is Kind.LOADER else value


def _loaded(loader: Value, device: Device) -> Value:
    """A loader that moves its batches to a device."""
    elem = loader.elem if loader.kind is Kind.LOADER else BATCH
    return Value(Kind.LOADER, device, elem=with_device(elem, device) if elem is not None else None)


def data_loader(frame: Frame, dotted: str, dataset: Value, kwargs: dict[str, Value]) -> Value:
    """A data loader, with batches of host tensors that are pinned if it pins them.

    `dotted` is the name of its class; empty for a class of the project.
    """
    pin = kwargs.get("pin_memory")
    pinned = pin is not None and (pin.const is True or pin == GPU_PRESENT)
    elem = CPU_TENSOR._replace(certain=False, pinned=pinned)
    if dotted and (pin is None or pin.const is False):
        elem = elem._replace(pageable=True)
    if dotted.startswith("torch_geometric"):
        elem = Value(Kind.RECORDS, pinned=pinned)
    collate = kwargs.get("collate_fn", UNKNOWN)
    if collate.kind is Kind.INSTANCE:
        method = frame.analysis.project.classes.method(collate.ref, "__call__")
        collate = UNKNOWN if method is None else Value(Kind.FUNCTION, ref=method, bound=collate)
    if collate.kind is Kind.FUNCTION:
        bound = [collate.bound] if collate.bound is not None else []
        made = frame.analysis.call(frame, collate.ref, [*bound, list_of(_sample(frame, dataset))], {})
        elem = _batch(made, elem)
    return Value(Kind.LOADER, Device.CPU, pinned=pinned, elem=elem)


def _sample(frame: Frame, dataset: Value) -> Value:
    """What the `__getitem__` of a dataset of the project returns, as far as it is known."""
    definition = dataset.definition
    method = None if definition is None else frame.analysis.project.classes.method(dataset.ref, "__getitem__")
    if method is None:
        return Value(Kind.RECORDS)
    return _as_record(frame.analysis.call(frame, method, [dataset, HOST], {}))


def _as_record(value: Value) -> Value:
    """A part of a sample: an object of the project, or a container of such; records if it may be anything else."""
    if value.kind is Kind.TUPLE:
        return tuple_of(map(_as_record, value.items or ()))
    if value.kind is Kind.INSTANCE or value.kind is Kind.UNION:
        return value
    return Value(Kind.RECORDS)


def _batch(made: Value, plain: Value) -> Value:
    """A batch of a loader, from the result of its collate function. `plain` is a batch of a loader without one."""
    kind = made.kind
    if kind is Kind.TENSOR:
        return made if made.device > Device.ASSUMED else plain
    if kind is Kind.TUPLE:
        return tuple_of([_batch(item, plain) for item in made.items or ()])
    if kind is Kind.DICT and made.items:
        return dict_of(tuple((key, _batch(item, plain)) for key, item in made.items), plain)
    return plain if kind in (Kind.UNKNOWN, Kind.NONE, Kind.MOVED, Kind.DICT) else made
