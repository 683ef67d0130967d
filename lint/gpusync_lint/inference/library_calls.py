"""What functions outside the project give back: torch's, Python's own, other frameworks', and the rest."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain import torch_api
from gpusync_lint.domain.lattice import (
    ARRAY,
    ARRAY_ELEMENT,
    CPU_TENSOR,
    DTYPE,
    GPU_ABSENT,
    GPU_DEVICE,
    GPU_PRESENT,
    HOST,
    UNKNOWN,
    Device,
    Kind,
    Value,
    any_tensor,
    dict_of,
    element,
    foreign_value,
    join_all,
    list_of,
    name,
    tensor,
    tuple_of,
    with_device,
)
from gpusync_lint.domain.tensor_ops import combine
from gpusync_lint.inference.expressions import Expressions
from gpusync_lint.model.levels import Heat
from gpusync_lint.project.resolution import is_module_name

if TYPE_CHECKING:
    import ast

Args = list[Value]
Kwargs = dict[str, Value]
_NONE: Kwargs = {}

_WRAPPERS = frozenset({"tqdm", "trange", "track", "progress_bar", "Bar", "alive_it"})


_TELLING_BUILTINS = frozenset(
    {
        "super", "list", "tuple", "set", "reversed", "iter", "frozenset", "sorted", "next", "dict", "enumerate", "zip",
        "max", "min", "sum", "abs", "round", "pow", "getattr", "map", "filter", "vars", "open", "object", "type",
        "slice",
    }
)  # fmt: skip
"""Functions that give back something else than what lies on the host for sure."""
_DTYPES = frozenset({"get_default_dtype", "promote_types", "result_type", "get_autocast_dtype"})
_DEVICES_AND_QUEUES = frozenset(
    {"current_accelerator", "current_device", "Stream", "current_stream", "default_stream", "Event"}
)
_PARTS = (
    "cuda.", "backends.", "accelerator.", "version.", "random.", "autograd.set", "distributions.", "optim.",
    "utils.data.", "utils.rnn", "nn.utils.", "nn.init.",
)  # fmt: skip
"""Parts of torch whose functions are told apart one by one."""
_OF_TENSORS = torch_api.TORCH_ONLY_METHODS | torch_api.TENSOR_FUNCTIONS


@lru_cache(20_000)
def _facts(dotted: str) -> tuple[str, str, str, bool]:
    """The first word of a name, those after it, the last one, and whether it is torch's alone."""
    root, _, rest = dotted.partition(".")
    last = dotted.rpartition(".")[2]
    flag = dotted in torch_api.PRESENCE or dotted in torch_api.ABSENCE
    named = flag or is_data_loader(dotted) or last in ("cli", "parse", "GradScaler")
    return root, rest, last, root == "torch" and not named


@lru_cache(20_000)
def _computes(rest: str, last: str) -> bool:
    """Whether a name of torch is that of a function on tensors, or of one that makes them, and of nothing else."""
    return not (
        rest == "device"
        or torch_api.tensor_type(f"torch.{rest}")
        or last in _DEVICES_AND_QUEUES | {"Parameter", "Buffer"} | torch_api.MODULE_FUNCTIONS
        or rest.startswith(_PARTS)
        or (rest.startswith("nn.") and last[:1].isupper())
        or rest in _DTYPES | torch_api.HOST_FUNCTIONS
        or rest in ("load", "jit.load")
    )


def is_data_loader(dotted: str) -> bool:
    """Whether an outside class is a loader of batches."""
    last = dotted.rpartition(".")[2]
    return last.endswith(("DataLoader", "NeighborLoader", "NeighborSampler")) or dotted.startswith(
        "torch_geometric.loader.",
    )


class Functions(Expressions):
    """Adds the meaning of functions outside the project to the expressions."""

    def mark(self, kind: str) -> None:
        """Note a sign of a step."""
        self.fn.trace.marks.append((kind, self.statement))

    def unexplained(self, args: Args, kwargs: Kwargs) -> None:
        """Note that something of which nothing is known is called."""
        trace = self.fn.trace
        if not trace.unexplained:
            trace.unexplained = any_tensor(args, kwargs)

    def call_value(self, node: ast.Call, callee: Value, args: Args, kwargs: Kwargs) -> Value:
        """Call a value that is not a method of a known kind; in `Calls`."""
        raise NotImplementedError

    def device_of(self, value: Value) -> Device | None:
        """The device that a value names; in `Calls`."""
        raise NotImplementedError

    def tensor_call(self, attr: str, receiver: Value, args: Args, kwargs: Kwargs) -> Value:
        """The result of a tensor method; in `Calls`."""
        raise NotImplementedError

    def external(self, node: ast.Call, dotted: str, args: Args, kwargs: Kwargs) -> Value:
        """Call a function or class by its dotted name."""
        root, rest, last, plain = _facts(dotted)
        if root == "builtins":
            return self._builtin(node, rest, args, kwargs)
        inference = self.inference
        trace = self.fn.trace
        unread = inference.project.unread.get(dotted)
        if unread is not None:
            trace.unread.append((unread, self.statement, self.repeated > 0))
        if root != "torch" and any_tensor(args, kwargs):
            trace.unexplained = True
        if root in foreign.modules():
            result = self._foreign_function(dotted, args, kwargs)
            if result is not None:
                return result
        if inference.named.knows(dotted):
            made = inference.named.made(dotted, kwargs)
            return made if made is not None else tensor(self.assumed())
        if plain:
            return self._torch(dotted, rest, last, args, kwargs)
        return self._by_dotted_name(dotted, args, kwargs)

    def _by_dotted_name(self, dotted: str, args: Args, kwargs: Kwargs) -> Value:
        """Call what no catalogue speaks of."""
        root, rest, last, _ = _facts(dotted)
        if dotted in torch_api.PRESENCE:
            return GPU_PRESENT
        if dotted in torch_api.ABSENCE:
            return GPU_ABSENT
        if is_data_loader(dotted):
            return self.loader(dotted, args, kwargs)
        if (
            last in ("cli", "parse") and args and args[0].kind is Kind.CLASS
        ):  # a class of settings, read from the command line
            return Value(Kind.INSTANCE, ref=args[0].ref)
        if last == "GradScaler":
            return Value(Kind.SCALER, const=kwargs.get("enabled", UNKNOWN).const)
        if root == "ignite":
            if last == "Engine" and args and args[0].kind is Kind.FUNCTION:
                self._handed_over(args[0], Heat.STEP)
                self.inference.handed_batches(args[0].ref)
            return UNKNOWN
        if root == "torch":
            return self._torch(dotted, rest, last, args, kwargs)
        if root in torch_api.HOST_MODULES:
            if last in ("deepcopy", "copy") and args:
                return args[0]
            if last in ("chain", "cycle", "islice"):
                return list_of(join_all([element(value) for value in args])) if args else UNKNOWN
            return list_of(None) if last == "deque" else HOST if last != "partial" else UNKNOWN
        if root in torch_api.ARRAY_MODULES:
            numbers = (
                root == "numpy" and args and all(value.kind is Kind.HOST or value == ARRAY_ELEMENT for value in args)
            )
            return ARRAY_ELEMENT if numbers and last in torch_api.NUMPY_OF_NUMBERS else ARRAY
        if last in _WRAPPERS or root == "tqdm":
            return args[0] if args else list_of(HOST)
        if (
            is_module_name(dotted)
            or last in ("create_model", "from_pretrained")
            or dotted.startswith("torchvision.models.")
        ):
            return Value(Kind.MODULE, Device.CPU, ref=dotted)
        if root == "torchvision" or (last.endswith("Dataset") and last[:1].isupper()) or ".datasets." in dotted:
            return Value(Kind.RECORDS)
        if dotted.rpartition(".")[0].endswith(torch_api.ENGINES):
            return self._engine_call(last, args)
        if f"{last}()" in torch_api.ENGINES:
            return name(f"{dotted}()")
        if last == "get_device":
            return GPU_DEVICE
        return UNKNOWN

    def _handed_over(self, value: Value, heat: Heat | None) -> None:
        """A function is handed to a framework that calls it this often."""
        if value.kind is Kind.FUNCTION and heat is not None:
            value.ref.called = heat

    def _engine_call(self, last: str, args: Args) -> Value:
        """A method of Accelerate's `Accelerator` or Lightning's `Fabric`, which move what they are given."""
        if last in torch_api.ENGINE_PREPARES:
            prepared = [_prepared(value) for value in args]
            return prepared[0] if len(prepared) == 1 else tuple_of(prepared)
        if last in torch_api.ENGINE_KEEPS and args:
            return args[0]
        if last in torch_api.ENGINE_GATHERS and args:
            return with_device(args[0], Device.GPU)
        return Value(Kind.TENSOR, self.assumed(), zero_dim=True) if last == "clip_grad_norm_" else UNKNOWN

    def _foreign_function(self, dotted: str, args: Args, kwargs: Kwargs) -> Value | None:
        """Call a function of another framework; None when no catalogue speaks of it."""
        module = foreign.module_from().get(dotted)
        if module is not None:
            return name(module)
        wrapped = foreign.wrappers().get(dotted)
        if wrapped is not None or dotted.startswith(foreign.tracing_modules()):
            for value in (*args, *kwargs.values()):
                if value.kind is Kind.FUNCTION:
                    value.ref.traced = True
        if wrapped is not None:
            return foreign_value(wrapped)
        made = foreign.made_by(dotted)
        if made is None:
            return None
        if dotted.rpartition(".")[2] in made.elementwise and all(value.kind is not Kind.FOREIGN for value in args):
            return HOST if all(value.kind is Kind.HOST for value in args) else UNKNOWN
        if made.sign:
            self.mark(made.sign)
        return foreign_value(made.name)

    def loader(self, dotted: str, args: Args, kwargs: Kwargs) -> Value:
        """A loader of batches: its tensors lie on the host, pinned when it was told to pin them."""
        pin = kwargs.get("pin_memory")
        pinned = pin is not None and (pin.const is True or pin == GPU_PRESENT)
        elem = CPU_TENSOR._replace(sure=False, pinned=pinned)
        if dotted and (pin is None or pin.const is False):
            elem = elem._replace(items=("pageable",))
        if dotted.startswith("torch_geometric"):
            elem = Value(Kind.RECORDS, pinned=pinned)
        collate = kwargs.get("collate_fn", UNKNOWN)
        if collate.kind is Kind.FUNCTION:
            bound = [collate.const] if isinstance(collate.const, Value) else []
            made = self.inference.call(self, collate.ref, [*bound, list_of(Value(Kind.RECORDS))], {}, [])
            elem = _handed_out(made, elem)
        return Value(Kind.LOADER, Device.CPU, pinned=pinned, elem=elem)

    def _torch(self, dotted: str, rest: str, last: str, args: Args, kwargs: Kwargs) -> Value:
        if _computes(rest, last):
            return self._tensor_function(rest, last, args, kwargs)
        if rest == "device":
            device = self.device_of(args[0]) if args else None
            if args and args[0].const == "meta":
                device = Device.UNKNOWN
            return Value(Kind.DEVICE, self.assumed() if device is None else device)
        if torch_api.tensor_type(dotted):
            return self._factory(rest, args, kwargs)
        if last in ("current_accelerator",) or dotted == "torch.cuda.current_device":
            return GPU_DEVICE
        if last == "Stream" or last == "current_stream" or last == "default_stream":
            return Value(Kind.STREAM)
        if last == "Event":
            return Value(Kind.EVENT)
        if rest.startswith(("cuda.", "backends.", "accelerator.", "version.", "random.", "autograd.set")):
            return HOST
        if rest.startswith("distributions."):
            where = max((v.device for v in (*args, *kwargs.values()) if v.kind is Kind.TENSOR), default=Device.UNKNOWN)
            return Value(Kind.DISTRIBUTION, where, const=kwargs.get("validate_args", UNKNOWN).const)
        if rest.startswith("optim."):
            if last == "AveragedModel":
                return Value(Kind.SCHEDULER, ref=last)
            if "lr_scheduler" in rest:
                return Value(Kind.SCHEDULER, ref=last)
            return _optimizer(last, kwargs) if last[:1].isupper() else UNKNOWN
        if rest.startswith("utils.data."):
            return Value(Kind.RECORDS) if last[:1].isupper() else UNKNOWN
        if last in ("Parameter", "Buffer") and args:
            return with_device(args[0], max(args[0].device, self.assumed())) if args[0].kind is Kind.TENSOR else UNKNOWN
        if last in torch_api.MODULE_FUNCTIONS and args:
            return args[0]
        if rest.startswith("nn.") and last[:1].isupper():
            reduction = kwargs.get("reduction", UNKNOWN).const
            said = ("cumulative",) if kwargs.get("momentum", UNKNOWN).kind is Kind.NONE else None
            return Value(Kind.MODULE, Device.CPU, ref=dotted, const=reduction, items=said)
        if rest.startswith(("utils.rnn", "nn.utils.rnn")):
            return self._packed(last, args)
        if rest.startswith(("nn.utils.", "nn.init.")):
            return (
                Value(Kind.TENSOR, self.assumed(), zero_dim=True)
                if last.startswith(("clip_grad_norm", "get_total_norm"))
                else UNKNOWN
            )
        if rest in _DTYPES:
            return DTYPE
        if rest in torch_api.HOST_FUNCTIONS:
            return HOST
        if rest == "load" or rest == "jit.load":
            return UNKNOWN
        return self._tensor_function(rest, last, args, kwargs)

    def _packed(self, last: str, args: Args) -> Value:
        value = args[0] if args else UNKNOWN
        if last == "pad_packed_sequence":
            return tuple_of([value, CPU_TENSOR])
        return element(value) if value.kind is Kind.LIST else value

    def _tensor_function(self, rest: str, last: str, args: Args, kwargs: Kwargs) -> Value:
        if rest in torch_api.FACTORIES:
            return self._factory(rest, args, kwargs)
        values = [*args, *kwargs.values()]
        flat = [element(v) if v.kind in (Kind.LIST, Kind.TUPLE) else v for v in values]
        tensors = [value for value in flat if value.kind is Kind.TENSOR]
        if not tensors:
            known = all(value.kind in (Kind.HOST, Kind.ARRAY, Kind.DTYPE, Kind.NONE) for value in flat)
            if known or not rest.replace("_", "a").replace(".", "a").isalnum() or last[:1].isupper():
                return UNKNOWN
            if rest.startswith(("nn.functional.", "linalg.", "fft.")) or last in _OF_TENSORS:
                where = Device.GPU if any(v.kind is Kind.MOVED for v in flat) else self.assumed()
                tensors = [Value(Kind.TENSOR, where, sure=False)]
            else:
                return UNKNOWN
        first = tensors[0]
        for other in tensors[1:]:
            first = combine(first, other)._replace(boolean=first.boolean and other.boolean)
        if last in torch_api.ZERO_DIM_LOSSES:
            return Value(
                Kind.TENSOR, first.device, first.sure, zero_dim=kwargs.get("reduction", UNKNOWN).const != "none" or None
            )
        if last.endswith("_like"):
            dtype = kwargs.get("dtype", UNKNOWN)
            device = self.device_of(kwargs["device"]) if "device" in kwargs else None
            boolean = dtype.boolean if dtype.kind is Kind.DTYPE else first.boolean
            return first._replace(boolean=boolean, pinned=False, device=first.device if device is None else device)
        if last == "where" and len(args) == 1:
            return list_of(first._replace(boolean=False))
        if last == "where":
            return combine(args[0], first)._replace(boolean=False)
        result = self.tensor_call(last, first, args[1:], kwargs)
        return result._replace(sure=True) if result.kind is Kind.TENSOR else result  # torch gives back tensors

    def _factory(self, rest: str, args: Args, kwargs: Kwargs) -> Value:
        device = Device.CPU
        if rest.startswith("cuda."):
            device = Device.GPU
        if "device" in kwargs:
            given = kwargs["device"]
            named = self.device_of(given)
            if named is None:
                named = Device.CPU if given.kind is Kind.NONE else self.assumed()
            device = Device.UNKNOWN if given.const == "meta" else named
        elif self.placed:
            device = self.placed[-1]
        elif self.inference.default_device(self.fn.file):
            device = Device.GPU
        elif self.fn.name == "__init__" and self.inference.built_on_device(self.fn):
            device = Device.UNKNOWN  # `with device: Model()` makes even plain attributes there
        if rest in torch_api.FROM_DATA and args and args[0].on_device and "device" not in kwargs:
            device = args[0].device
        dtype = kwargs.get("dtype", UNKNOWN)
        boolean = dtype.boolean or rest.endswith("BoolTensor")
        if rest in torch_api.FROM_DATA and args and args[0].kind is Kind.TENSOR and dtype.kind is Kind.UNKNOWN:
            boolean = args[0].boolean
        single = bool(args) and (
            isinstance(args[0].const, (int, float))
            if rest in ("tensor", "scalar_tensor", "as_tensor")
            else args[0].kind is Kind.TUPLE and not args[0].items  # a shape without dimensions
        )
        pinned = kwargs.get("pin_memory", UNKNOWN).const is True
        return Value(Kind.TENSOR, device, zero_dim=True if single else None, boolean=boolean, pinned=pinned)

    def next_batch(self, iterator: Value) -> Value:
        """What `next` takes out of an iterator; a loop that asks a data loader for batches is a step loop."""
        if iterator.kind is Kind.LOADER:
            self.mark("weak")
        return element(iterator)

    # builtins

    def _builtin(self, node: ast.Call, label: str, args: Args, kwargs: Kwargs) -> Value:
        if label not in _TELLING_BUILTINS:
            return HOST
        if label == "super":
            return self.inference.super_of(self)
        first = args[0] if args else UNKNOWN
        if label in ("list", "tuple", "set", "reversed", "iter", "frozenset"):
            if label == "iter" and first.kind is Kind.LOADER:
                return first
            return list_of(element(first)) if args else list_of(None)
        if label == "sorted":
            return list_of(element(first))
        if label == "next":
            return self.next_batch(first)
        if label == "dict":
            return dict_of(tuple(kwargs.items()), None) if not args else first
        if label == "enumerate":
            return list_of(tuple_of([HOST, element(self.iterated(first, node.args[0]) if node.args else first)]))
        if label == "zip":
            return list_of(tuple_of([element(value) for value in args]))
        if label in ("max", "min", "sum", "abs", "round", "pow"):
            given = next((value for value in args if value.kind is Kind.FOREIGN), None)
            if given is not None:
                return given
            values = [element(value) if value.kind in (Kind.LIST, Kind.TUPLE) else value for value in args]
            tensors = [value for value in values if value.kind is Kind.TENSOR]
            if tensors:
                return join_all(tensors)._replace(zero_dim=None if label != "sum" else tensors[0].zero_dim)
            return ARRAY if any(value.kind is Kind.ARRAY for value in values) else HOST
        if label == "getattr" and len(node.args) >= 2 and isinstance(args[1].const, str):
            return self.attribute_of(first, args[1].const)
        if label in ("map", "filter"):
            if label == "map" and len(args) > 1:
                return list_of(self.call_value(node, first, [element(value) for value in args[1:]], {}))
            return list_of(element(args[-1])) if args else UNKNOWN
        if label in ("vars", "open", "object", "type", "slice"):
            return UNKNOWN
        return HOST


def _optimizer(label: str, kwargs: Kwargs) -> Value:
    """An optimizer: `const` is whether it is fused, `items` what else matters of how it was made."""
    said = []
    if kwargs.get("lr", UNKNOWN).on_device:
        said.append("rate-on-device")
    if kwargs.get("capturable", UNKNOWN).const is True:
        said.append("capturable")
    return Value(Kind.OPTIMIZER, ref=label, const=kwargs.get("fused", UNKNOWN).const, items=tuple(said))


def _handed_out(made: Value, plain: Value) -> Value:
    """What a loader hands out, given what its collate function makes; `plain` is a tensor of a loader without one."""
    kind = made.kind
    if kind is Kind.INSTANCE:
        return made
    if kind is Kind.TENSOR:
        return made if made.device is Device.GPU else plain
    if kind is Kind.TUPLE:
        return tuple_of([_handed_out(item, plain) for item in made.items or ()])
    if kind is Kind.DICT and made.items:
        return dict_of(tuple((key, _handed_out(item, plain)) for key, item in made.items), plain)
    return plain if kind in (Kind.UNKNOWN, Kind.NONE, Kind.MOVED) or kind is Kind.DICT else made


def _prepared(value: Value) -> Value:
    """What `accelerator.prepare` makes of a model, an optimizer or a loader."""
    if value.kind is Kind.MODULE:
        return value._replace(device=Device.GPU)
    if value.kind is Kind.LOADER:
        elem = with_device(value.elem, Device.GPU) if value.elem is not None else None
        return Value(Kind.LOADER, Device.GPU, elem=elem)
    return value
