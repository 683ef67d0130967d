"""What an expression may hold: the lattice of the inference.

A `Value` says what is known, never what is guessed from a name. Its device tells where a tensor's data lives:
`gpu` (moved or created there), `assumed` (conventional training code in a project that uses a device), `cpu`, and
`unknown`. `sure` is False where two branches disagree, or where only a convention says that this is a tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from gpusync_lint.catalogue import foreign

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_Members = TypeVar("_Members", bound="type[int]")


def _numbered(members: _Members) -> _Members:
    """Make the members of an enumeration from its annotations, numbered in their order.

    Those of an `IntEnum` are looked up through a property written in Python before 3.12, four times as slow, and the
    inference asks for one several times per expression.
    """
    for number, label in enumerate(members.__annotations__):
        setattr(members, label, members(number))
    return members


@_numbered
class Kind(int):
    """What a value is."""

    UNKNOWN: ClassVar[Kind]
    HOST: ClassVar[Kind]
    """A number, string, or another object that lives on the host."""
    NONE: ClassVar[Kind]
    ARRAY: ClassVar[Kind]
    """A numpy array or scalar, a pandas object: on the host, but with tensor-like methods."""
    TENSOR: ClassVar[Kind]
    MODULE: ClassVar[Kind]
    """An instance of `torch.nn.Module`; `ref` is its project class or its dotted name."""
    OPTIMIZER: ClassVar[Kind]
    SCHEDULER: ClassVar[Kind]
    LOADER: ClassVar[Kind]
    """A `DataLoader`; `pinned` when it pins, `device` when its batches already lie on one."""
    DEVICE: ClassVar[Kind]
    DTYPE: ClassVar[Kind]
    """A torch dtype; `boolean` for `torch.bool`."""
    SCALER: ClassVar[Kind]
    DISTRIBUTION: ClassVar[Kind]
    """A `torch.distributions` object; `const` is False when it does not validate."""
    STREAM: ClassVar[Kind]
    EVENT: ClassVar[Kind]
    TUPLE: ClassVar[Kind]
    LIST: ClassVar[Kind]
    DICT: ClassVar[Kind]
    FUNCTION: ClassVar[Kind]
    CLASS: ClassVar[Kind]
    INSTANCE: ClassVar[Kind]
    NAME: ClassVar[Kind]
    """Something outside the project; `ref` is its dotted name."""
    MOVED: ClassVar[Kind]
    """An object of unknown type that was moved to a device as a whole: a batch, a graph."""
    FLAG: ClassVar[Kind]
    """A condition that says whether a GPU is there; `const` is its value when there is one."""
    RECORDS: ClassVar[Kind]
    """A collection of host objects of a library whose tensors stay on the host until moved (a dataset)."""

    FOREIGN: ClassVar[Kind]
    """A value of a framework other than torch; `ref` is its type in the catalogue: `jax.array`."""
    LAMBDA: ClassVar[Kind]
    """A lambda; `ref` is its ast node and the function that it stands in."""


@_numbered
class Device(int):
    """Where a tensor lies, ordered so that `max` is what to assume when two paths meet."""

    CPU: ClassVar[Device]
    UNKNOWN: ClassVar[Device]
    ASSUMED: ClassVar[Device]
    GPU: ClassVar[Device]


class Value(NamedTuple):
    """An abstract value. Immutable."""

    kind: Kind
    device: Device = Device.UNKNOWN
    """Where a tensor, the weights of a module or the batches of a loader lie; for a device itself, which it is."""
    certain: bool = True
    """False where two branches disagree, or where only a convention says that this is a tensor."""
    zero_dim: bool | None = None
    """Whether a tensor has no dimensions; None where that is not known."""
    boolean: bool = False
    """Whether a tensor, or a dtype, is boolean."""
    pinned: bool = False
    """Whether host memory is pinned."""
    pageable: bool = False
    """Whether host memory is known not to be pinned: batches of a loader that does not pin them."""
    elem: Value | None = None
    """What every element of a list holds, every batch of a loader, or every key of a dict that is not in `items`."""
    items: tuple[Any, ...] | None = None
    """The elements of a tuple, or the (key, value) pairs of a dict."""
    ref: Any = None
    """What it refers to: a definition of the project, or the dotted name of something outside it."""
    const: Any = None
    """A short string, a number or a switch that is known."""
    bound: Value | None = None
    """Of a function, the object that it is bound to."""
    made_with: tuple[tuple[str, Value], ...] | None = None
    """Of an object of a library, the keyword arguments of interest that it was made with; None where not known."""

    def argument(self, name: str) -> Value:
        """The keyword argument of a name that an object was made with; unknown where it was not given."""
        return next((value for label, value in self.made_with or () if label == name), UNKNOWN)

    @property
    def on_device(self) -> bool:
        """A tensor that lies, or is assumed to lie, on the device."""
        return self.kind is Kind.TENSOR and self.device >= Device.ASSUMED


UNKNOWN = Value(Kind.UNKNOWN)
HOST = Value(Kind.HOST)
NONE = Value(Kind.NONE)
ARRAY = Value(Kind.ARRAY)
ARRAY_ELEMENT = Value(Kind.ARRAY, certain=False)
"""A part of an array: perhaps a number."""
GPU_TENSOR = Value(Kind.TENSOR, Device.GPU)
CPU_TENSOR = Value(Kind.TENSOR, Device.CPU)
MOVED = Value(Kind.MOVED, Device.GPU)
LOADER = Value(Kind.LOADER, Device.CPU, elem=CPU_TENSOR._replace(certain=False))
"""A loader of which no more is known."""
GPU_DEVICE = Value(Kind.DEVICE, Device.GPU)
CPU_DEVICE = Value(Kind.DEVICE, Device.CPU)
DTYPE = Value(Kind.DTYPE)
BOOL_DTYPE = Value(Kind.DTYPE, boolean=True)
GPU_PRESENT = Value(Kind.FLAG, const=True)
GPU_ABSENT = Value(Kind.FLAG, const=False)

_MAX_DEPTH = 4
_SHORT = 24
_MANY = 40_000
CONSTANTS: dict[tuple[type, object], Value] = {}
"""Short strings, numbers and switches as values, made once."""
_NAMES: dict[str, Value] = {}
"""Outside names as values, made once."""
_TENSORS: dict[tuple[Device, bool, bool | None, bool, bool], Value] = {}
"""Tensors as values, made once."""
_OPTIMISTIC = frozenset(
    {
        Kind.MODULE, Kind.OPTIMIZER, Kind.SCHEDULER, Kind.LOADER, Kind.DEVICE, Kind.SCALER, Kind.DISTRIBUTION,
        Kind.FUNCTION, Kind.CLASS, Kind.INSTANCE, Kind.STREAM, Kind.EVENT, Kind.MOVED,
    }
)  # fmt: skip
"""What a value is taken for that is of such a kind on one path and unknown on another."""
_MAY_HOLD_TENSORS = frozenset({Kind.TENSOR, Kind.TUPLE, Kind.LIST, Kind.DICT, Kind.LOADER})


def host(const: Any) -> Value:
    """A host value that is known."""
    kind = const.__class__
    if kind is str:
        if len(const) > _SHORT:
            return Value(Kind.HOST, const=const)
    elif not isinstance(const, (int, float)):
        return HOST
    known = CONSTANTS.get((kind, const))
    if known is None:
        known = Value(Kind.HOST, const=const)
        if len(CONSTANTS) < _MANY:
            CONSTANTS[kind, const] = known
    return known


def name(dotted: str) -> Value:
    """Something outside the project, by its dotted name."""
    known = _NAMES.get(dotted)
    if known is None:
        known = Value(Kind.NAME, ref=dotted)
        if len(_NAMES) < _MANY:
            _NAMES[dotted] = known
    return known


def tensor(
    device: Device, certain: bool = True, zero_dim: bool | None = None, boolean: bool = False, pinned: bool = False
) -> Value:
    """A tensor."""
    key = (device, certain, zero_dim, boolean, pinned)
    known = _TENSORS.get(key)
    if known is None:
        known = _TENSORS[key] = Value(Kind.TENSOR, device, certain, zero_dim, boolean, pinned)
    return known


def tensor_like(value: Value, certain: bool, zero_dim: bool | None, boolean: bool, pinned: bool) -> Value:
    """A tensor on the device of another one."""
    if not value.pageable:
        return tensor(value.device, certain, zero_dim, boolean, pinned)
    return value._replace(certain=certain, zero_dim=zero_dim, boolean=boolean, pinned=pinned)


def tuple_of(items: list[Value] | tuple[Value, ...]) -> Value:
    """A tuple whose elements are known one by one."""
    return Value(Kind.TUPLE, items=tuple(items))


def list_of(elem: Value | None) -> Value:
    """A list, set or iterator; None while nothing is known about what it holds."""
    return Value(Kind.LIST, elem=elem)


def dict_of(pairs: tuple[tuple[str, Value], ...], rest: Value | None) -> Value:
    """A dictionary with known string keys and one value for all other keys."""
    return Value(Kind.DICT, elem=rest, items=pairs)


def element(value: Value) -> Value:
    """What iterating over, or indexing into, a value gives."""
    kind = value.kind
    if kind is Kind.TENSOR:
        return value if value.zero_dim is None else value._replace(zero_dim=None)
    if kind is Kind.TUPLE:
        return join_all(value.items or ())
    if kind is Kind.LIST:
        return value.elem or UNKNOWN
    if kind is Kind.LOADER:
        return value.elem or UNKNOWN
    if kind in (Kind.HOST, Kind.DICT):
        return HOST
    if kind is Kind.ARRAY:
        return ARRAY_ELEMENT
    if kind is Kind.RECORDS:
        return Value(Kind.RECORDS)
    if kind is Kind.MODULE:  # a ModuleList, a Sequential
        return Value(Kind.MODULE, value.device)
    if kind is Kind.FOREIGN:
        return foreign_value(foreign.types()[value.ref].item)
    return MOVED if kind is Kind.MOVED else UNKNOWN


def foreign_value(type_name: str) -> Value:
    """A value of a type that a catalogue describes; unknown for the empty name."""
    return Value(Kind.FOREIGN, ref=type_name) if type_name else UNKNOWN


def lookup(value: Value, key: object) -> Value:
    """The value under a constant key or index."""
    if value.kind is Kind.DICT:
        for known, item in value.items or ():
            if known == key:
                return item  # type: ignore[no-any-return]
        if key is None and value.items:  # any of them
            return join_all([*(item for _, item in value.items), *([value.elem] if value.elem is not None else [])])
        return value.elem or UNKNOWN
    if value.kind is Kind.TUPLE and isinstance(key, int) and not isinstance(key, bool):
        items = value.items or ()
        if -len(items) <= key < len(items):
            return items[key]  # type: ignore[no-any-return]
    return element(value)


def join_all(values: tuple[Value, ...] | list[Value]) -> Value:
    """The join of several values; unknown for none."""
    if not values:
        return UNKNOWN
    result = values[0]
    for value in values[1:]:
        result = join(result, value)
    return result


def join(a: Value, b: Value, depth: int = 0) -> Value:
    """What holds after two paths meet. Optimistic where that loses no silence: see the branches below."""
    if a is b or a == b:
        return a
    if depth > _MAX_DEPTH:
        return UNKNOWN
    ka, kb = a.kind, b.kind
    if ka is kb is Kind.HOST:
        return HOST
    if ka is Kind.NONE:
        return b
    if kb is Kind.NONE:
        return a
    if ka is kb:
        return _join_same(a, b, depth)
    if kb is Kind.TENSOR or (kb in _OPTIMISTIC and ka is Kind.UNKNOWN):
        a, b, ka, kb = b, a, kb, ka
    if ka is Kind.TENSOR:
        # A number that becomes a tensor (`total = 0; total += loss`) is a tensor on every path that matters.
        return a._replace(certain=False) if kb in (Kind.UNKNOWN, Kind.HOST, Kind.ARRAY, Kind.MOVED) else UNKNOWN
    if ka in _OPTIMISTIC and kb is Kind.UNKNOWN:
        return a
    if Kind.MOVED in (ka, kb):  # a batch stays where it is, whatever library object it passes through
        return a if ka is Kind.MOVED else b
    if Kind.DEVICE in (ka, kb) and Kind.HOST in (ka, kb):
        return a if ka is Kind.DEVICE else b
    if {ka, kb} == {Kind.TUPLE, Kind.LIST}:
        return list_of(join(element(a), element(b), depth + 1))
    return UNKNOWN


def widened(old: Value, new: Value) -> Value:
    """What a parameter, or an attribute, holds that was given both.

    Where they have nothing in common, what tells more stays, whichever came first: else each would undo what the one
    before said, and what is known in the end would depend on their order.
    """
    joined = join(old, new)
    if joined.kind:
        return joined
    if Kind.TENSOR in (old.kind, new.kind):
        return (old if old.kind is Kind.TENSOR else new)._replace(certain=False)
    if old.kind in _OPTIMISTIC:
        return old
    return new if new.kind in _OPTIMISTIC else joined


def _join_same(a: Value, b: Value, depth: int) -> Value:
    kind = a.kind
    if kind is Kind.TENSOR:
        return tensor(
            max(a.device, b.device),
            # A tensor that only one path moved is on the device: the other path is the machine without a GPU.
            certain=a.certain and b.certain and (a.device >= Device.ASSUMED) == (b.device >= Device.ASSUMED),
            zero_dim=a.zero_dim if a.zero_dim == b.zero_dim else None,
            boolean=a.boolean and b.boolean,
            pinned=a.pinned and b.pinned,
        )
    if kind is Kind.DEVICE:
        return a if a.device >= b.device else b
    if kind is Kind.MODULE:
        same = a.ref if a.ref == b.ref else None
        return Value(
            Kind.MODULE,
            max(a.device, b.device),
            ref=same,
            made_with=a.made_with if a.made_with == b.made_with else None,
        )
    if kind is Kind.TUPLE:
        first, second = a.items or (), b.items or ()
        if len(first) == len(second):
            return tuple_of([join(x, y, depth + 1) for x, y in zip(first, second, strict=True)])
        return list_of(join(element(a), element(b), depth + 1))
    if kind is Kind.LIST:
        if a.elem is None or b.elem is None:
            return a if b.elem is None else b
        return list_of(join(a.elem, b.elem, depth + 1))
    if kind is Kind.DICT:
        return _join_dicts(a, b, depth)
    if kind is Kind.LOADER:
        elem = join(a.elem or UNKNOWN, b.elem or UNKNOWN, depth + 1)
        return Value(Kind.LOADER, min(a.device, b.device), pinned=a.pinned and b.pinned, elem=elem)
    if kind in (Kind.HOST, Kind.FLAG):
        return HOST
    if kind is Kind.FOREIGN:
        return a if a.ref == b.ref else UNKNOWN
    if kind is Kind.NAME and isinstance(a.ref, str) and isinstance(b.ref, str):
        return _join_names(a, b)
    if kind is Kind.DISTRIBUTION:
        return a if a.argument("validate_args").const is not False else b
    return Value(kind) if kind in (Kind.ARRAY, Kind.OPTIMIZER, Kind.DTYPE, Kind.SCALER) else UNKNOWN


def _join_names(a: Value, b: Value) -> Value:
    """`torch.cuda.FloatTensor` where there is a GPU, `torch.FloatTensor` elsewhere: the first is what counts."""
    same = a.ref.replace("torch.cuda.", "torch.") == b.ref.replace("torch.cuda.", "torch.")
    return UNKNOWN if not same else a if a.ref.startswith("torch.cuda.") else b


def _join_dicts(a: Value, b: Value, depth: int) -> Value:
    left, right = dict(a.items or ()), dict(b.items or ())
    rest = a.elem if b.elem is None else b.elem if a.elem is None else join(a.elem, b.elem, depth + 1)
    merged = {
        key: join(left[key], right[key], depth + 1) if key in left and key in right else left.get(key, right.get(key))
        for key in (*left, *(k for k in right if k not in left))
    }
    return dict_of(tuple(merged.items()), rest)  # type: ignore[arg-type]


def with_device(value: Value, device: Device, depth: int = 0) -> Value:
    """The same value with every tensor in it on one device."""
    if depth > _MAX_DEPTH:
        return value
    kind = value.kind
    if kind is Kind.TENSOR or kind is Kind.MODULE:
        if value.device is device and not value.pinned:
            return value
        return value._replace(device=device, pinned=False)
    if kind is Kind.TUPLE:
        return tuple_of([with_device(item, device, depth + 1) for item in value.items or ()])
    if kind is Kind.LIST:
        return list_of(with_device(value.elem, device, depth + 1)) if value.elem else value
    if kind is Kind.DICT:
        pairs = tuple((key, with_device(item, device, depth + 1)) for key, item in value.items or ())
        return dict_of(pairs, with_device(value.elem, device, depth + 1) if value.elem else None)
    return value


def foreign_inside(value: Value, depth: int = 0) -> Value | None:
    """The first value of a framework other than torch in a value, at any depth."""
    if value.kind is Kind.FOREIGN:
        return value
    if depth > _MAX_DEPTH:
        return None
    inside: list[Value] = [] if value.elem is None else [value.elem]
    if value.kind is Kind.TUPLE:
        inside += value.items or ()
    elif value.kind is Kind.DICT:
        inside += [item for _, item in value.items or ()]
    return next((found for item in inside if (found := foreign_inside(item, depth + 1)) is not None), None)


def has_tensor(value: Value, depth: int = 0) -> bool:
    """Whether a tensor that lies, or is assumed to lie, on the device is in the value at any depth."""
    if value.on_device:
        return True
    if depth > _MAX_DEPTH:
        return False
    if value.elem is not None and has_tensor(value.elem, depth + 1):
        return True
    if value.kind is Kind.TUPLE:
        return any(has_tensor(item, depth + 1) for item in value.items or ())
    if value.kind is Kind.DICT:
        return any(has_tensor(item, depth + 1) for _, item in value.items or ())
    return False


def any_tensor(args: Iterable[Value], kwargs: Mapping[str, Value]) -> bool:
    """Whether one of the arguments of a call holds a tensor that lies, or is assumed to lie, on the device."""
    for value in args:
        if value.kind in _MAY_HOLD_TENSORS and has_tensor(value, 1):
            return True
    for value in kwargs.values() if kwargs else ():
        if value.kind in _MAY_HOLD_TENSORS and has_tensor(value, 1):
            return True
    return False
