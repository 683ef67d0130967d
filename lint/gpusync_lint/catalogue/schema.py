"""What a catalogue file may hold: the one schema that files are read by, checked against and documented from.

A file describes one framework: torch itself (`torch.toml`), a library on top of it (`on = "torch"`), or another
framework with values of its own. Each class below is a table of such a file and each field a key of that table, with
the field's type, default and docstring. A new field is a new key: nothing else has to be written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NewType

TypeName = NewType("TypeName", str)
"""The name of a `[[type]]` of the same file; once read, with the framework before it: `jax.array`."""

Values = tuple[tuple[str, Any], ...]
"""Keyword arguments and their values; written as a table: `{ normalize = true }`."""


TORCH, LIBRARY, OTHER = "torch.toml", "libraries on top of torch", "other frameworks"
"""The kinds of files."""


def _only(*kinds: str, key: str | None = None, by: str = "") -> dict[str, Any]:
    """Metadata of a field.

    Args:
        kinds: the kinds of files that may hold the key; without one, all.
        key: the key, where it is not the name of the field; empty for a field that is not written in the file.
        by: of an array of tables, `[[key]]`, the key of theirs that tells them apart.
    """
    return {"kinds": kinds, "by": by} | ({} if key is None else {"key": key})


_NOT_A_KEY = _only(key="")


@dataclass(frozen=True, slots=True)
class Example:
    """A statement that can be run after the catalogue's prelude. Without a set-up it is written as a string alone."""

    run: str
    """The statement, or several."""
    setup: str = ""
    """What runs before it, and is not looked at."""
    meant: bool = False
    """In `silent`: it does wait, but its author means it to, as next to a clock, so it is not reported."""


@dataclass(frozen=True, slots=True)
class RuleDoc:
    """The page of a code. `code` and `name` stand first, on lines of their own: they are read without the rest."""

    code: str
    """`GS` and three digits."""
    name: str
    """A few words joined by hyphens; reads well after "allow"."""
    summary: str
    """What is reported, as a sentence."""
    why: str
    """What the wait costs, measured where possible."""
    example: str
    """A few lines that are reported."""
    use_instead: str
    """The same lines without the wait."""
    fix_safety: str
    """What `--fix` does: whether the fix is safe and why, or that there is none."""
    ignore_when: str
    """When the wait does not matter."""
    timing: bool = False
    """Whether such a wait next to a clock is meant, because it ends what is timed: then it is of low confidence."""
    framework: str = field(default="", metadata=_NOT_A_KEY)


@dataclass(frozen=True, slots=True)
class Barrier:
    """One operation, or one family of operations, that makes the host wait."""

    id: str
    """Unique in the file. Outside `torch.toml` it is known with the framework before it: `jax.read`."""
    code: str
    """The code of the findings. Some `[[rule]]`, in this file or another, documents it."""
    message: str
    """One sentence that says what waits and why. `{call}` stands for what is called, as the source writes it."""
    remedy: str
    """What to write instead, as an imperative."""
    waits: tuple[Example, ...]
    """Statements that make the host wait. Each is a test: it has to be reported when it stands in a step loop."""
    silent: tuple[Example, ...]
    """Statements much like these that do not. Each is a test: it must not be reported."""
    functions: tuple[str, ...] = field(default=(), metadata=_only(TORCH, OTHER))
    """Dotted names of functions. Outside `torch.toml`, a name that ends in `.*` covers all names below it."""
    methods: tuple[str, ...] = field(default=(), metadata=_only(TORCH, OTHER))
    """Names of methods of device tensors (in `torch.toml`), or of values of the type `of`."""
    calls: tuple[str, ...] = field(default=(), metadata=_only(LIBRARY))
    """Ends of dotted names of functions, methods and classes: `nms`, `Accelerator.reduce`, `MeanMetric.__call__`."""
    takes: Literal["", "tensor", "number"] = field(default="", metadata=_only(TORCH, LIBRARY))
    """What a function must be given to wait: `tensor` (some argument is, or holds, a device tensor), `number` (the last
    positional argument is a number of the host); without it, anything."""
    unless_keywords: tuple[str, ...] = ()
    """It does not wait where any of these keyword arguments is given."""
    unless_all_keywords: tuple[str, ...] = ()
    """It does not wait where all of these keyword arguments are given."""
    only_if: Values = ()
    """It waits only where each of these keyword arguments has the value."""
    unless: Values = ()
    """It does not wait where any of these keyword arguments has the value."""
    unless_made_with: Values = field(default=(), metadata=_only(LIBRARY))
    """It does not wait where the object was made with any of these keyword arguments."""
    max_positional: int | None = None
    """With more positional arguments it does not wait."""
    within: tuple[str, ...] = ()
    """It waits only in functions of these names."""
    among_processes: bool = field(default=False, metadata=_only(LIBRARY))
    """It waits only where several processes run, which the source does not tell: findings are of low confidence."""
    until_torch: tuple[int, int] | None = None
    """The first version of torch that does not wait: `[2, 14]`."""
    own_rule: bool = False
    """Whether a rule of its own decides which calls wait; the generic rules then leave them alone."""
    of: TypeName = field(default=TypeName(""), metadata=_only(OTHER))
    """The type of value that is read. A function with one waits where some argument is of that type."""
    not_functions: tuple[str, ...] = field(default=(), metadata=_only(OTHER))
    """Names that a pattern in `functions` covers, but that do not wait."""
    builtins: tuple[str, ...] = field(default=(), metadata=_only(OTHER))
    """Python's own functions that read a value of the type `of`: `float`, `print`; `format` stands for f-strings as
    well, `tracker` for experiment trackers and progress bars."""
    conditions: bool = field(default=False, metadata=_only(OTHER))
    """Whether a branch on a value of the type `of` waits."""
    masks: bool = field(default=False, metadata=_only(OTHER))
    """Whether indexing a value of the type `of` by a comparison waits."""
    operators: tuple[str, ...] = field(default=(), metadata=_only(TORCH))
    """Operators of aten that it stands for and that torch itself tags as data-dependent."""
    framework: str = field(default="torch", metadata=_NOT_A_KEY)


@dataclass(frozen=True, slots=True)
class ForeignType:
    """A type of value of a framework other than torch, and what comes of operations on such a value."""

    name: TypeName
    """How the file calls the type."""
    made_by: tuple[str, ...] = ()
    """Dotted names of functions and classes that make one; a name that ends in `.*` covers all names below it."""
    not_made_by: tuple[str, ...] = ()
    """Names that a pattern in `made_by` covers, but that do not make one."""
    annotations: tuple[str, ...] = ()
    """Dotted names that stand for the type in annotations."""
    host_attributes: frozenset[str] = frozenset()
    """Attributes whose values are on the host: `shape`."""
    host_methods: frozenset[str] = frozenset()
    """Methods whose results are on the host: `item`."""
    methods: dict[str, TypeName] = field(default_factory=dict, hash=False)
    """The types of single attributes and method results, where they differ from `attribute`."""
    attribute: TypeName = TypeName("")
    """The type of every other attribute and method result; unknown without it."""
    item: TypeName = TypeName("")
    """The type of what indexing gives, and of what a loop over it gives."""
    call: TypeName = TypeName("")
    """The type of what calling it gives."""
    result: TypeName = TypeName("")
    """The type of what operators give."""
    elementwise: frozenset[str] = frozenset()
    """Last names of the functions in `made_by` that compute on the host where they are given numbers only."""
    sign: Literal["", "weak"] = ""
    """`weak`: a loop that makes such a value, or calls one, is likely to be a step loop."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """Decorators and transforms of functions: `jax.jit`."""

    names: tuple[str, ...]
    """Their dotted names."""
    gives: TypeName
    """The type of what they make of a function."""


@dataclass(frozen=True, slots=True)
class Maker:
    """A function of a library on top of torch that gives back objects of the library's classes."""

    name: str
    """The end of its dotted name."""
    gives: tuple[str, ...]
    """Dotted names of the classes. With several names it gives a tuple; an empty name is an object that is unknown."""
    module: bool = False
    """Whether the first of them is a module that lies on the device."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A class whose objects move what they are given to the device: Accelerate's `Accelerator`."""

    name: str
    """The last part of its dotted name."""
    prepares: frozenset[str]
    """Methods that give back the models, optimizers and loaders that they are given, on the device."""
    keeps: frozenset[str] = frozenset()
    """Methods that give back what they are given."""
    gathers: frozenset[str] = frozenset()
    """Methods that give back the tensors of all processes, on the device."""
    numbers: frozenset[str] = frozenset()
    """Methods that give back a 0-dimensional tensor on the device."""


@dataclass(frozen=True, slots=True)
class Returns:
    """What functions and classes of torch give back. The first entry that covers a name is the one that counts."""

    gives: Literal[
        "unknown", "host", "dtype", "device", "gpu-device", "gpu-present", "gpu-absent", "stream", "event", "factory",
        "number-on-device", "argument", "parameter", "module", "optimizer", "scheduler", "distribution", "records",
        "sequence", "padded-sequence",
    ]  # fmt: skip
    """The kind of value: `argument` is the first argument itself, `factory` a tensor that is made of sizes or data,
    `records` a collection of host objects."""
    functions: tuple[str, ...] = ()
    """Dotted names without `torch.`; one that ends in `*` covers all that begin so."""
    anywhere: tuple[str, ...] = ()
    """Last names, in whichever module of torch."""
    classes: bool = False
    """Whether it covers only names that begin with a capital letter."""


@dataclass(frozen=True, slots=True)
class TensorOperations:
    """What attributes and methods of tensors give, and the functions of the same names in torch."""

    host_methods: frozenset[str]
    """Methods that give a value on the host."""
    host_attributes: frozenset[str]
    """Attributes that are on the host."""
    same_attributes: frozenset[str]
    """Attributes that are tensors on the same device."""
    booleans: frozenset[str]
    """Operations that give a boolean tensor."""
    keep_boolean: frozenset[str]
    """Operations that give a boolean tensor for a boolean tensor."""
    reshapes: frozenset[str]
    """Methods whose arguments are sizes and dimensions: they do not show where the tensor lies."""
    reduces: frozenset[str]
    """Operations that give a 0-dimensional tensor where no dimension is given."""
    keep_dimensions: frozenset[str]
    """Operations that give a 0-dimensional tensor for a 0-dimensional tensor."""
    elementwise: frozenset[str]
    """Operations that give a 0-dimensional tensor where all operands are 0-dimensional."""
    with_indices: frozenset[str]
    """Operations that give values and indices where a dimension is given."""
    always_with_indices: frozenset[str]
    """Those of them that always do."""
    splits: frozenset[str]
    """Operations that give several tensors."""
    in_place: frozenset[str]
    """Methods that write into the tensor, whatever they are given, and give it back."""
    makes_another: frozenset[str]
    """Methods that make another tensor of the same kind on the same device."""
    torch_only: frozenset[str]
    """Methods that arrays of NumPy and pandas do not have: whatever has one is a tensor."""
    functions: frozenset[str]
    """Functions that give a tensor whatever is known of their arguments."""
    zero_dim_losses: frozenset[str]
    """Losses, which are 0-dimensional unless `reduction="none"` is given."""
    from_data: frozenset[str]
    """Factories that copy what they are given; with `device=` the copy waits."""
    movable_factories: frozenset[str]
    """Factories whose result is the same on every device: no random numbers, no data to copy."""
    batch_attributes: frozenset[str]
    """Attributes of batch objects that are on the host; one that ends in `*` covers all that begin so."""


@dataclass(frozen=True, slots=True)
class ModuleOperations:
    """What methods of a `torch.nn.Module` give."""

    same: frozenset[str]
    """Methods that give the module itself."""
    tensors: frozenset[str]
    """Methods that iterate over tensors; `named_` before one gives names as well."""
    modules: frozenset[str]
    """Methods that iterate over modules; `named_` before one gives names as well."""
    unknown: frozenset[str]
    """Methods that give nothing of interest."""
    evidence: frozenset[str]
    """Methods that show their receiver to be a module."""
    with_hidden_state: frozenset[str]
    """Classes whose call gives an output and a state."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """One file: a framework, its barriers, and the pages of its codes."""

    framework: str
    """The name of the framework, which is that of the file."""
    title: str
    """How the framework writes its name, for the documentation."""
    modules: tuple[str, ...]
    """The top-level modules of the framework: a file that imports one of them uses it."""
    prelude: str
    """What the examples begin with."""
    rules: dict[str, RuleDoc] = field(default_factory=dict, metadata=_only(key="rule", by="code"))
    """The pages of codes. A code is documented once; several frameworks may have barriers of that code."""
    barriers: dict[str, Barrier] = field(default_factory=dict, metadata=_only(key="barrier", by="id"))
    """The operations that make the host wait."""
    on: Literal["", "torch"] = ""
    """`torch` for a library on top of torch, whose values are torch's tensors."""
    shows_torch: bool = field(default=True, metadata=_only(LIBRARY))
    """Whether a file that imports it works with tensors. Not so for experiment trackers,
    which are given numbers as well."""
    lookalikes: tuple[str, ...] = ()
    """Top-level modules of other array libraries, whose arrays have methods of the same names as torch's tensors: in a
    file that imports one, the name of a method alone is no evidence of a tensor."""
    module_classes: tuple[str, ...] = field(default=(), metadata=_only(TORCH, LIBRARY))
    """Beginnings of the dotted names of classes that are `torch.nn.Module`s."""
    device_words: tuple[str, ...] = ()
    """Words that show a text to use a GPU, because code that uses torch has few other reasons to hold them; one that
    ends in `*` may be any part of a word."""
    only_logging: tuple[str, ...] = field(default=(), metadata=_only(TORCH, LIBRARY))
    """Modules whose import does not show that a file works with tensors: they only write logs."""
    returns: tuple[Returns, ...] = field(default=(), metadata=_only(TORCH))
    """What functions and classes of torch give back; what no entry covers computes a tensor of the given tensors."""
    tensor_operations: TensorOperations | None = field(default=None, metadata=_only(TORCH))
    """What attributes and methods of tensors give."""
    module_operations: ModuleOperations | None = field(default=None, metadata=_only(TORCH))
    """What methods of modules give."""
    engines: tuple[Engine, ...] = field(default=(), metadata=_only(LIBRARY, key="engine"))
    """Classes of which an object moves models, loaders and tensors to the device."""
    tensors: tuple[str, ...] = field(default=(), metadata=_only(LIBRARY))
    """Ends of the dotted names of what gives back a tensor on the device."""
    makers: tuple[Maker, ...] = field(default=(), metadata=_only(LIBRARY, key="maker"))
    """Functions that give back objects of its classes."""
    types: tuple[ForeignType, ...] = field(default=(), metadata=_only(OTHER, key="type"))
    """The types of the framework's values."""
    wrappers: tuple[Wrapper, ...] = field(default=(), metadata=_only(OTHER, key="wrapper"))
    """The framework's decorators and transforms. What they are given is traced rather than run."""
    traced_bases: tuple[str, ...] = field(default=(), metadata=_only(OTHER))
    """Classes whose methods are traced rather than run."""
    modules_from: tuple[str, ...] = field(default=(), metadata=_only(OTHER))
    """Functions that give the framework's first module itself: `cupy.get_array_module`."""
    bounding: bool = field(default=False, metadata=_only(OTHER))
    """Whether one wait in each turn of a loop is right because it bounds the queue: then only
    further ones are reported."""
    step: str = ""
    """A statement that makes a loop a step loop, for the examples."""
    runs: bool = True
    """Whether the examples can be run one by one; not where they need a trainer, a launcher or a server."""
    by_function: dict[str, Barrier] = field(init=False, default_factory=dict)
    """The barriers by the names in their `functions`."""
    by_method: dict[str, Barrier] = field(init=False, default_factory=dict)
    """The barriers by the names in their `methods`."""

    def __post_init__(self) -> None:
        for barrier in self.barriers.values():
            self.by_function.update(dict.fromkeys(barrier.functions, barrier))
            self.by_method.update(dict.fromkeys(barrier.methods, barrier))
