"""Abstract values: what the inference can know about the value of an expression.

A `Value` has a kind (`TENSOR`, `MODULE`, `LIST`, ...) and fields that depend on the kind. The most important field is
`device`, the place of a tensor's data, which four levels describe: `GPU` if the code creates the tensor there or moves
it there (or the member for another kind of accelerator), `ASSUMED` if convention says so (training code of a project
that uses a GPU), `CPU`, and `UNKNOWN`. `certain` is False if only a convention says that the value is a tensor, or if
the paths to this point disagree.

Values are immutable and compared by their fields. The most frequent ones are created once and shared, so that comparing
them is a comparison of addresses.

`lattice` joins values; `environment` maps names to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


class _Enumeration(int):
    """An enumeration: each annotation of a subclass is a member, numbered from 0 in the order of the annotations.

    `IntEnum` reads its members through a property in Python before 3.12. That is four times as slow, and the inference
    reads several members for each expression.
    """

    def __init_subclass__(cls) -> None:
        for number, label in enumerate(cls.__annotations__):
            setattr(cls, label, cls(number))

    def __repr__(self) -> str:
        return list(self.__class__.__annotations__)[self]


class Kind(_Enumeration):
    """The kinds of values."""

    UNKNOWN: ClassVar[Kind]
    """Nothing is known. The only kind that is false in a boolean context."""
    HOST: ClassVar[Kind]
    """A number, a string, or another object on the host."""
    NONE: ClassVar[Kind]
    ARRAY: ClassVar[Kind]
    """A NumPy array or scalar, or a pandas object: on the host, with methods that tensors have too."""
    TENSOR: ClassVar[Kind]
    MODULE: ClassVar[Kind]
    """An instance of `torch.nn.Module`. `ref` is its class in the project, or the dotted name of its class."""
    OPTIMIZER: ClassVar[Kind]
    SCHEDULER: ClassVar[Kind]
    LOADER: ClassVar[Kind]
    """A `DataLoader`. `elem` is a batch, `device` the device of the batches, `pinned` whether it pins them."""
    DEVICE: ClassVar[Kind]
    """A `torch.device`. `device` says which."""
    DTYPE: ClassVar[Kind]
    """A torch dtype. `boolean` is True for `torch.bool`."""
    SCALER: ClassVar[Kind]
    """A `GradScaler`."""
    DISTRIBUTION: ClassVar[Kind]
    """An object of `torch.distributions`. `ref` is the name of its class, or of the class that it samples from."""
    STREAM: ClassVar[Kind]
    """A stream. `const` is `NEW_STREAM` if it was created, and is not one that was asked for."""
    EVENT: ClassVar[Kind]
    TUPLE: ClassVar[Kind]
    """A tuple. `ref` of a named tuple are the names of its fields."""
    LIST: ClassVar[Kind]
    """A list, a set, an iterator or another iterable with one value for all its elements, `elem`."""
    DICT: ClassVar[Kind]
    FUNCTION: ClassVar[Kind]
    """A function of the project, its `ref`."""
    CLASS: ClassVar[Kind]
    """A class of the project, its `ref`."""
    INSTANCE: ClassVar[Kind]
    """An instance of a class of the project, its `ref`, that is not a module."""
    NAME: ClassVar[Kind]
    """Anything outside the project (a module, a function, a class, an object), or a module of the project.

    `ref` is its dotted name, `torch.zeros`; of a module of the project its definition. The dotted name of an object is
    that of its class, followed by `()`: `accelerate.Accelerator()`.
    """
    MOVED: ClassVar[Kind]
    """An object of unknown type that was moved to the device as a whole: `batch.to("cuda")` of a graph or a dict."""
    FLAG: ClassVar[Kind]
    """A condition that says whether there is a GPU. `const` is its value on a machine with one."""
    RECORDS: ClassVar[Kind]
    """A dataset or a sample of one. The tensors in it are on the host until they are moved."""

    FOREIGN: ClassVar[Kind]
    """A value of a framework other than torch. `ref` is its type in the catalogue: `jax.array`."""
    UNION: ClassVar[Kind]
    """An object of one of several classes of the project, or one of several functions or classes: `items`."""
    LAMBDA: ClassVar[Kind]
    """A lambda. `ref` is its `ast` node and the function that contains it."""
    PARTIAL: ClassVar[Kind]
    """A `functools.partial` of a function, class or object of the project, `elem`.

    `items` are the positional arguments that it passes first, `made_with` its keyword arguments.
    """


class Device(_Enumeration):
    """The place of a tensor. Ordered so that `max` is the place to assume if two paths disagree.

    Members above `ASSUMED` are devices that the code names.
    """

    CPU: ClassVar[Device]
    UNKNOWN: ClassVar[Device]
    ASSUMED: ClassVar[Device]
    XLA: ClassVar[Device]
    MPS: ClassVar[Device]
    XPU: ClassVar[Device]
    NPU: ClassVar[Device]
    HPU: ClassVar[Device]
    MLU: ClassVar[Device]
    MUSA: ClassVar[Device]
    GPU: ClassVar[Device]
    """A GPU of CUDA or ROCm, or an accelerator of unknown kind."""


class Gradient(_Enumeration):
    """What the backward pass through a tensor does. Ordered so that `max` is that of a result of several operands."""

    NONE: ClassVar[Gradient]
    """There is none, or nothing is known about it."""
    FLOWS: ClassVar[Gradient]
    """It reaches parameters: the tensor is an output of a module, or computed from one."""
    THROUGH_COPY: ClassVar[Gradient]
    """It passes through a copy to the host, so that the gradient is copied to the device, and the host waits."""
    THROUGH_SPARSE: ClassVar[Gradient]
    """It passes through a product with a sparse tensor, and the host waits."""
    THROUGH_PRODUCT: ClassVar[Gradient]
    """It passes through `prod` or `cumprod`, and the host waits."""
    THROUGH_INDEX: ClassVar[Gradient]
    """It passes through an index on the host, which is copied to the device once more."""
    THROUGH_MASK: ClassVar[Gradient]
    """It passes through a boolean mask, and the host waits for the number of selected elements."""


def wider(one: Device, other: Device) -> Device:
    """The place to assume if two paths disagree. Of two kinds of accelerators it is an accelerator of unknown kind."""
    if one is not other and min(one, other) > Device.ASSUMED:
        return Device.GPU
    return max(one, other)


class Value(NamedTuple):
    """An abstract value."""

    kind: Kind
    device: Device = Device.UNKNOWN
    """The device of a tensor, of the weights of a module, or of the batches of a loader; which device a device is."""
    certain: bool = True
    """Whether it certainly is a tensor; False if only a convention says so, or if the paths to here disagree."""
    zero_dim: bool | None = None
    """Whether a tensor is 0-dimensional; None if that is unknown."""
    boolean: bool = False
    """Whether a tensor or a dtype is boolean."""
    pinned: bool = False
    """Whether the tensor, or the batches of a loader, are in pinned host memory."""
    pageable: bool = False
    """Whether the host memory is known not to be pinned: batches of a loader that does not pin them."""
    elem: Value | None = None
    """Each element of a list, each batch of a loader, or the value of every key of a dict that `items` lacks.

    Of a module that contains others: any of those, if one of them is of a class of the project. Of a tensor: the tuple,
    list or dict that it may be instead, where paths meet; unknown if it may be several of these.

    None if there is none: the list is empty, as far as is known.
    """
    items: tuple[Any, ...] | None = None
    """The elements of a tuple, the (key, value) pairs of a dict, or the values of a union.

    The keys are strings. Of a module without `ref`: the modules that it may be.
    """
    ref: Any = None
    """What it refers to: a definition in the project, or the dotted name of something outside the project.

    Of a tensor, `GUESSED` if only a test of its class or an operation on something unknown shows that it is one;
    `NESTED` if it is an attribute of something that was taken for a tensor and has attributes that tensors lack;
    `UNCOALESCED` of a sparse one whose indices may repeat, `COALESCED` of one whose indices do not.
    """
    const: Any = None
    """A known constant: a string, a number or a boolean."""
    bound: Value | None = None
    """The object that a method is bound to: `model` for the value of `model.train`, the class around `super()`."""
    made_with: tuple[tuple[str, Value], ...] | None = None
    """The keyword arguments that an object was created with, as far as they matter; None if they are unknown.

    Of a name, those that a `functools.partial` adds to its calls.
    """
    gradient: Gradient = Gradient.NONE
    """What the backward pass through a tensor does."""

    def __repr__(self) -> str:
        """The kind, and the fields that differ from their defaults: `Value(TENSOR, GPU, zero_dim=True)`."""
        words = [repr(self.kind)]
        if self.device is not Device.UNKNOWN:
            words.append(repr(self.device))
        for field in self._fields[2:]:
            value = getattr(self, field)
            if value != self._field_defaults[field]:
                words.append(f"{field}={value!r}")
        return f"Value({', '.join(words)})"

    def argument(self, name: str) -> Value:
        """The keyword argument that an object was created with; unknown if it was not given."""
        return next((value for label, value in self.made_with or () if label == name), UNKNOWN)

    @property
    def on_device(self) -> bool:
        """Whether it is a tensor that is, or is assumed to be, on the device."""
        return self.kind is Kind.TENSOR and self.device >= Device.ASSUMED

    @property
    def dotted_name(self) -> str:
        """The dotted name of something outside the project; empty for any other value."""
        return self.ref if self.kind is Kind.NAME and self.ref.__class__ is str else ""

    @property
    def definition(self) -> Any:
        """The definition in the project that `ref` refers to; None if there is none, or if it is outside."""
        return None if self.ref.__class__ is str else self.ref


GUESSED = "guessed"
UNPACKED = "**..."
"""The key among the keyword arguments of a call under which it has others that are not known: `update(**losses)`."""
NESTED = "nested"
UNCOALESCED = "uncoalesced"
COALESCED = "coalesced"
UNKNOWN = Value(Kind.UNKNOWN)
HOST = Value(Kind.HOST)
NONE = Value(Kind.NONE)
ARRAY = Value(Kind.ARRAY)
ARRAY_ELEMENT = Value(Kind.ARRAY, certain=False)
"""An element of an array, which may be a number: `array[0]`."""
GPU_TENSOR = Value(Kind.TENSOR, Device.GPU)
CPU_TENSOR = Value(Kind.TENSOR, Device.CPU)
MOVED = Value(Kind.MOVED, Device.GPU)
MOVED_TENSOR = Value(Kind.TENSOR, Device.GPU, certain=False)
"""A tensor that comes out of an object that was moved to the device as a whole."""
BATCH = Value(Kind.TENSOR, Device.CPU, certain=False)
"""A batch of a loader about which nothing else is known."""
LOADER = Value(Kind.LOADER, Device.CPU, elem=BATCH)
"""A loader about which nothing else is known."""
GPU_DEVICE = Value(Kind.DEVICE, Device.GPU)
CPU_DEVICE = Value(Kind.DEVICE, Device.CPU)
DTYPE = Value(Kind.DTYPE)
BOOL_DTYPE = Value(Kind.DTYPE, boolean=True)
NEW_STREAM = "new"
GPU_PRESENT = Value(Kind.FLAG, const=True)
"""True if there is a GPU: `torch.cuda.is_available()`."""
GPU_ABSENT = Value(Kind.FLAG, const=False)
"""True if there is none: `args.no_cuda`."""

MAX_DEPTH = 4
"""The nesting of containers beyond which their contents are not looked at."""
_MAX_SIZE = 500
"""The maximum number of values in a container."""
_MAX_STRING = 24
"""The longest string that is shared."""
_MAX_SHARED = 40_000
CONSTANTS: dict[tuple[type, object], Value] = {}
"""The values of constants that are shared, by type and constant: `1`, `1.0` and `True` are equal."""
_EXTERNAL_NAMES: dict[str, Value] = {}
_TENSORS: dict[tuple[Device, bool, bool | None, bool, bool, Gradient], Value] = {}
_MAY_HOLD_TENSORS = frozenset({Kind.TENSOR, Kind.TUPLE, Kind.LIST, Kind.DICT, Kind.LOADER})


def host_constant(const: Any) -> Value:
    """The value of a constant. Constants other than strings, numbers and booleans are plain host values."""
    cls = const.__class__
    if cls is str:
        if len(const) > _MAX_STRING:
            return Value(Kind.HOST, const=const)
    elif not isinstance(const, (int, float)):
        return HOST
    value = CONSTANTS.get((cls, const))
    if value is None:
        value = Value(Kind.HOST, const=const)
        if len(CONSTANTS) < _MAX_SHARED:
            CONSTANTS[cls, const] = value
    return value


def external_name(dotted: str) -> Value:
    """The value of a dotted name outside the project."""
    value = _EXTERNAL_NAMES.get(dotted)
    if value is None:
        value = Value(Kind.NAME, ref=dotted)
        if len(_EXTERNAL_NAMES) < _MAX_SHARED:
            _EXTERNAL_NAMES[dotted] = value
    return value


def tensor(
    device: Device,
    certain: bool = True,
    zero_dim: bool | None = None,
    boolean: bool = False,
    pinned: bool = False,
    gradient: Gradient = Gradient.NONE,
) -> Value:
    """A tensor."""
    key = (device, certain, zero_dim, boolean, pinned, gradient)
    value = _TENSORS.get(key)
    if value is None:
        value = Value(Kind.TENSOR, device, certain, zero_dim, boolean, pinned, gradient=gradient)
        _TENSORS[key] = value
    return value


def tensor_like(
    other: Value, certain: bool, zero_dim: bool | None, boolean: bool, pinned: bool, gradient: Gradient
) -> Value:
    """A tensor on the device of another one, and in pageable memory if the other one is."""
    if not other.pageable and other.ref is None:
        return tensor(other.device, certain, zero_dim, boolean, pinned, gradient)
    return other._replace(
        certain=certain, zero_dim=zero_dim, boolean=boolean, pinned=pinned, elem=None, gradient=gradient
    )


def tuple_of(items: Iterable[Value]) -> Value:
    """A tuple with these elements."""
    known = tuple(items)
    return Value(Kind.TUPLE, items=known if _is_small(known) else (UNKNOWN,) * len(known))


def list_of(elem: Value | None) -> Value:
    """A list, set or iterator with one value for all its elements; None if it is empty."""
    return Value(Kind.LIST, elem=elem if elem is None or _is_small((elem,)) else UNKNOWN)


def dict_of(pairs: tuple[tuple[str, Value], ...], rest: Value | None) -> Value:
    """A dict with these keys, and one value for all other keys; None if there are no other keys."""
    values = [value for _, value in pairs]
    if not _is_small(values if rest is None else [*values, rest]):
        return Value(Kind.DICT, elem=UNKNOWN)
    return Value(Kind.DICT, elem=rest, items=pairs)


def _is_small(values: Sequence[Value]) -> bool:
    """Whether containers among some values hold at most `_MAX_SIZE` values, at any depth.

    What is in a container several times counts as often, because that is how often it is compared and joined. Without
    the limit, `x = (x, x)` in a row would take exponential time.
    """
    stack = [value for value in values if value.items or value.elem is not None]
    size = 0
    while stack:
        inside = contents(stack.pop())
        size += len(inside)
        if size > _MAX_SIZE:
            return False
        stack += [value for value in inside if value.items or value.elem is not None]
    return True


def foreign_value(type_name: str) -> Value:
    """A value of a type of a framework other than torch; unknown for the empty name."""
    return Value(Kind.FOREIGN, ref=type_name) if type_name else UNKNOWN


def alternatives(value: Value) -> tuple[Value, ...]:
    """What a value may be: the values of a union, or the value alone."""
    return value.items or () if value.kind is Kind.UNION else (value,)


def modules(value: Value) -> tuple[Value, ...]:
    """The modules that a module may be: one of several classes of the project, or the module alone."""
    if value.items is None or value.ref is not None:
        return (value,)
    return tuple(module._replace(device=value.device) for module in value.items)


def is_number(value: Value) -> bool:
    """Whether a value is a number, or an element of an array."""
    return value.kind is Kind.HOST or value == ARRAY_ELEMENT


def with_device(value: Value, device: Device, depth: int = 0) -> Value:
    """The same value, with every tensor and module in it on a device."""
    if depth > MAX_DEPTH:
        return value
    kind = value.kind
    if kind is Kind.TENSOR or kind is Kind.MODULE:
        if value.device is device and not value.pinned:
            return value
        return value._replace(device=device, pinned=False)
    elem = with_device(value.elem, device, depth + 1) if value.elem is not None else None
    if kind is Kind.TUPLE:
        return tuple_of(with_device(item, device, depth + 1) for item in value.items or ())
    if kind is Kind.LIST:
        return list_of(elem)
    if kind is Kind.DICT:
        return dict_of(tuple((key, with_device(item, device, depth + 1)) for key, item in value.items or ()), elem)
    return value


def with_gradient(value: Value, gradient: Gradient) -> Value:
    """The same value, through whose tensors, also those in a tuple, the backward pass does this."""
    if value.kind is Kind.TUPLE and value.items:
        return value._replace(items=tuple(with_gradient(item, gradient) for item in value.items))
    if value.kind is not Kind.TENSOR or value.gradient is gradient:
        return value
    return value._replace(gradient=gradient)


def contents(value: Value) -> list[Value]:
    """The values directly inside a container."""
    items = value.items or ()
    inside: list[Value] = [item for _, item in items] if value.kind is Kind.DICT else list(items)
    if value.elem is not None:
        inside.append(value.elem)
    return inside


def foreign_inside(value: Value) -> Value | None:
    """The first value of a framework other than torch in a value, at any depth; None if there is none."""
    if value.kind is Kind.FOREIGN:
        return value
    if value.items or value.elem is not None:
        return next((item for item in _inside([value]) if item.kind is Kind.FOREIGN), None)
    return None


def any_foreign(values: Iterable[Value]) -> bool:
    """Whether some value is or contains, at any depth, one of a framework other than torch."""
    return any(item.kind is Kind.FOREIGN for item in _inside(values))


def has_tensor(value: Value, depth: int = 0) -> bool:
    """Whether a value is or contains, at any depth, a tensor that is, or is assumed to be, on the device."""
    if value.on_device:
        return True
    if value.items or value.elem is not None:
        return any(item.on_device for item in _inside([value], depth))
    return False


def _inside(values: Iterable[Value], depth: int = 0) -> Iterator[Value]:
    """Some values and those in them, containers before their contents, up to `MAX_DEPTH`.

    Containers may share their contents, so a value is visited again only if it is less deep than before.
    """
    depths: dict[int, int] = {}
    stack = [(value, depth) for value in values]
    while stack:
        value, depth = stack.pop()
        yield value
        if depth <= MAX_DEPTH and depths.get(id(value), depth + 1) > depth and (value.items or value.elem is not None):
            depths[id(value)] = depth
            stack += [(item, depth + 1) for item in reversed(contents(value))]


def any_tensor(args: Iterable[Value], kwargs: Mapping[str, Value]) -> bool:
    """Whether an argument of a call is or contains a tensor that is, or is assumed to be, on the device."""
    for value in args:
        if value.kind in _MAY_HOLD_TENSORS and has_tensor(value, 1):
            return True
    for value in kwargs.values() if kwargs else ():
        if value.kind in _MAY_HOLD_TENSORS and has_tensor(value, 1):
            return True
    return False
