"""The schema of catalogue files: files are read by it and checked against it, and docs/catalogue.md is written from it.

A file describes one framework: torch (`torch.toml`), a library on top of it (`on = "torch"`), or another framework with
values of its own. Each class below is a table of a file, and each field a key of the table, with its type, default and
docstring. To add a key, add a field.
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
    """Statements that run before it and are not linted."""
    meant: bool = False
    """In `silent`: it waits, but on purpose, for example next to a clock, so it is not reported."""


@dataclass(frozen=True, slots=True)
class RuleDoc:
    """The page of a code. `code` and `name` stand first, on lines of their own: they are read without the rest."""

    code: str
    """`GS` and three digits."""
    name: str
    """A few words joined by hyphens, which read well after "allow"."""
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
    frequency: str = "every step"
    """How often a line has to run to be reported: "every step", "every iteration" of any loop, "in a capture" of a CUDA
    graph, or "any line"."""
    timing: bool = False
    """Whether such a wait next to a clock is on purpose, because it ends what is timed. Its confidence is then low."""
    framework: str = field(default="", metadata=_NOT_A_KEY)


@dataclass(frozen=True, slots=True)
class Barrier:
    """One operation, or one family of operations, that makes the host wait."""

    id: str
    """Unique in the file. Outside `torch.toml` the framework is put before it: `jax.read`."""
    code: str
    """The code of the findings. A `[[rule]]`, in this file or another, documents it."""
    message: str
    """One sentence that says what waits and why. `{call}` stands for what is called, as the source writes it."""
    remedy: str
    """What to write instead, as an imperative."""
    waits: tuple[Example, ...]
    """Statements that make the host wait. Each is a test: it has to be reported in a step loop."""
    silent: tuple[Example, ...]
    """Similar statements that do not wait. Each is a test: it must not be reported in a step loop."""
    functions: tuple[str, ...] = ()
    """Dotted names of functions. In files of other frameworks, a name that ends in `.*` matches all names below it. In
    files of libraries on top of torch, the key is only for accelerators; other libraries use `calls`."""
    methods: tuple[str, ...] = field(default=(), metadata=_only(TORCH, OTHER))
    """Names of methods of device tensors (in `torch.toml`), or of values of the type `of`."""
    calls: tuple[str, ...] = field(default=(), metadata=_only(LIBRARY))
    """Ends of dotted names of functions, methods and classes: `nms`, `Accelerator.reduce`, `MeanMetric.__call__`."""
    takes: Literal["", "tensor", "number"] = field(default="", metadata=_only(TORCH, LIBRARY))
    """The argument with which a function waits: `tensor` (some argument is, or contains, a device tensor) or `number`
    (the last positional argument is a number on the host). Without the key it always waits."""
    unless_keywords: tuple[str, ...] = ()
    """It does not wait if any of these keyword arguments is given."""
    unless_all_keywords: tuple[str, ...] = ()
    """It does not wait if all of these keyword arguments are given."""
    only_if: Values = ()
    """It waits only if each of these keyword arguments has this value."""
    unless: Values = ()
    """It does not wait if any of these keyword arguments has this value."""
    unless_made_with: Values = field(default=(), metadata=_only(LIBRARY))
    """It does not wait if its object was created with any of these keyword arguments."""
    max_positional: int | None = None
    """It does not wait with more positional arguments."""
    within: tuple[str, ...] = ()
    """It waits only in functions of these names."""
    among_processes: bool = field(default=False, metadata=_only(LIBRARY))
    """It waits only if several processes run, which the source does not show. Findings are of low confidence."""
    until_torch: tuple[int, int] | None = None
    """The first version of torch that does not wait: `[2, 14]`."""
    own_rule: bool = False
    """Whether a rule of its own decides which calls wait; the generic rules then leave them alone."""
    of: TypeName = field(default=TypeName(""), metadata=_only(OTHER))
    """The type of value that is read. A function waits if some argument is of this type."""
    not_functions: tuple[str, ...] = field(default=(), metadata=_only(OTHER))
    """Names that match a pattern in `functions` but do not wait."""
    builtins: tuple[str, ...] = field(default=(), metadata=_only(OTHER))
    """Builtin functions that read a value of the type `of`: `float`, `print`. `format` includes f-strings; `tracker`
    means experiment trackers and progress bars."""
    conditions: bool = field(default=False, metadata=_only(OTHER))
    """Whether a branch on a value of the type `of` waits."""
    masks: bool = field(default=False, metadata=_only(OTHER))
    """Whether indexing a value of the type `of` by a comparison waits."""
    operators: tuple[str, ...] = field(default=(), metadata=_only(TORCH))
    """The operators of aten behind it that torch tags as data-dependent."""
    framework: str = field(default="torch", metadata=_NOT_A_KEY)


@dataclass(frozen=True, slots=True)
class ForeignType:
    """A type of value of a framework other than torch, and the results of operations on such a value."""

    name: TypeName
    """The name by which other keys of the file refer to the type."""
    made_by: tuple[str, ...] = ()
    """Dotted names of functions and classes that create one. A name that ends in `.*` matches all names below it."""
    not_made_by: tuple[str, ...] = ()
    """Names that match a pattern in `made_by` but do not create one."""
    annotations: tuple[str, ...] = ()
    """The dotted names of the type in annotations."""
    host_attributes: frozenset[str] = frozenset()
    """Attributes whose values are on the host: `shape`."""
    host_methods: frozenset[str] = frozenset()
    """Methods whose results are on the host: `item`."""
    only_methods: frozenset[str] = frozenset()
    """Methods that no other object has: something unknown that has one is of this type, in a file of the framework."""
    shown_by: frozenset[str] = frozenset()
    """Methods whose first argument is of this type: where nothing else is known of a name, such a call shows it."""
    methods: dict[str, TypeName] = field(default_factory=dict, hash=False)
    """The types of single attributes and method results, if they differ from `attribute`."""
    attribute: TypeName = TypeName("")
    """The type of all other attributes and method results. Without the key they are unknown."""
    item: TypeName = TypeName("")
    """The type of the results of indexing and iteration."""
    call: TypeName = TypeName("")
    """The type of the result of calling it."""
    result: TypeName = TypeName("")
    """The type of the results of operators."""
    elementwise: frozenset[str] = frozenset()
    """The last names of functions in `made_by` that compute on the host if all arguments are numbers."""
    makes_step: bool = False
    """Whether a loop that makes such a value, or calls one, is likely to be a loop of steps."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """Decorators and transforms of functions: `jax.jit`."""

    names: tuple[str, ...]
    """Their dotted names."""
    gives: TypeName
    """The type of the wrapped function."""


@dataclass(frozen=True, slots=True)
class Maker:
    """A function of a library on top of torch that returns objects of the library's classes."""

    name: str
    """The end of its dotted name."""
    gives: tuple[str, ...]
    """The dotted names of the classes. With several names it returns a tuple; an empty name means an unknown object."""
    module: bool = False
    """Whether the first object is a module on the device."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A class whose objects move models and data to the device: Accelerate's `Accelerator`."""

    name: str
    """The last part of its dotted name."""
    prepares: frozenset[str]
    """Methods that return their arguments (models, optimizers and loaders), moved to the device."""
    keeps: frozenset[str] = frozenset()
    """Methods that return their arguments unchanged."""
    gathers: frozenset[str] = frozenset()
    """Methods that return the tensors of all processes, on the device."""
    numbers: frozenset[str] = frozenset()
    """Methods that return a 0-dimensional tensor on the device."""


@dataclass(frozen=True, slots=True)
class Timer:
    """A class of a library whose objects read a clock and do not wait for the device."""

    name: str
    """The end of its dotted name."""
    times_block: bool = False
    """Whether it times the body of a `with` statement."""
    starts: frozenset[str] = frozenset()
    """Methods that start a measurement; `__init__` if creating an object does."""
    stops: frozenset[str] = frozenset()
    """Methods that end a measurement."""


@dataclass(frozen=True, slots=True)
class Returns:
    """The results of functions and classes of torch. The first entry that matches a name applies."""

    gives: Literal[
        "unknown", "host", "dtype", "device", "gpu-device", "gpu-present", "mps-present", "stream", "event", "factory",
        "number-on-device", "argument", "parameter", "module", "optimizer", "scheduler", "distribution", "records",
        "sequence", "padded-sequence", "indices", "index-batches", "compiled", "graphed",
    ]  # fmt: skip
    """The kind of result: `argument` is the first argument itself, as are `compiled` and `graphed`, which may capture
    CUDA graphs of it, `factory` a tensor made from sizes or data,
    `records` a collection of host objects."""
    functions: tuple[str, ...] = ()
    """Dotted names without `torch.`. A name that ends in `*` matches all names with that beginning."""
    anywhere: tuple[str, ...] = ()
    """Last names, in any module of torch."""
    classes: bool = False
    """Whether it matches only names that begin with a capital letter."""


@dataclass(frozen=True, slots=True)
class Wording:
    """What findings of some barriers of torch say about an accelerator, where its own words are not enough."""

    barriers: tuple[str, ...]
    """The ids of the barriers, in `torch.toml`."""
    message: str = ""
    """The message, instead of that of the barrier."""
    remedy: str = ""
    """The remedy, instead of that of the barrier."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A kind of device of torch other than CUDA's. The barriers of torch are those of its tensors as well.

    Entries about what happens inside operators (GS407, GS408) were measured with CUDA's libraries: for it, their
    findings are of low confidence.
    """

    type: str
    """The type of its `torch.device`: `npu`."""
    noun: str
    """What messages call it, instead of "GPU"."""
    copies: str
    """Which copies between host and device wait, and what pinned memory changes. A sentence for the documentation."""
    source: str
    """Where the entries come from: documentation, or source at a version. A sentence for the documentation."""
    was_run: bool = False
    """Whether the examples were run on such a device."""
    module: str = ""
    """Its module of torch, which has functions and classes like those of `torch.cuda`. A remedy or a fix that names
    `torch.cuda` names this module instead."""
    moves: tuple[str, ...] = ()
    """Names of methods of tensors and modules that move to it."""
    devices: tuple[str, ...] = ()
    """Dotted names of functions that return such a device."""
    loaders: tuple[str, ...] = ()
    """Dotted names of classes that wrap a loader, whose batches they move to it."""
    replaces_cuda: tuple[str, ...] = ()
    """Modules whose import makes code that names CUDA run on it."""
    copies_in_background: bool = True
    """Whether `non_blocking=True` is safe: a fix may then add it."""
    silent: tuple[str, ...] = ()
    """The ids of barriers of torch that do not wait there."""
    wordings: tuple[Wording, ...] = field(default=(), metadata=_only(key="wording"))
    """The messages and remedies of single barriers."""


@dataclass(frozen=True, slots=True)
class TensorOperations:
    """The results of attributes and methods of tensors, and of torch's functions of the same names."""

    host_methods: frozenset[str]
    """Methods whose results are on the host."""
    host_attributes: frozenset[str]
    """Attributes that are on the host."""
    same_attributes: frozenset[str]
    """Attributes that are tensors on the same device."""
    booleans: frozenset[str]
    """Operations that return a boolean tensor."""
    keep_boolean: frozenset[str]
    """Operations that return a boolean tensor for a boolean tensor."""
    reshapes: frozenset[str]
    """Methods whose arguments are sizes and dimensions, which do not show where the tensor is."""
    reduces: frozenset[str]
    """Operations that return a 0-dimensional tensor if no dimension is given."""
    keep_dimensions: frozenset[str]
    """Operations that return a 0-dimensional tensor for a 0-dimensional tensor."""
    elementwise: frozenset[str]
    """Operations that return a 0-dimensional tensor if all operands are 0-dimensional."""
    with_indices: frozenset[str]
    """Operations that return values and indices if a dimension is given."""
    always_with_indices: frozenset[str]
    """Those of them that always do."""
    splits: frozenset[str]
    """Operations that return several tensors."""
    in_place: frozenset[str]
    """Methods that write into the tensor, whatever their arguments, and return it."""
    makes_another: frozenset[str]
    """Methods that return another tensor of the same kind on the same device."""
    torch_only: frozenset[str]
    """Methods that NumPy and pandas do not have, so that an object with one is a tensor."""
    evidence: frozenset[str]
    """Methods that only tensors have, which therefore show that a name of which nothing else is known is a tensor."""
    functions: frozenset[str]
    """Functions that return a tensor, whatever is known of their arguments."""
    zero_dim_losses: frozenset[str]
    """Losses, which are 0-dimensional unless `reduction="none"` is given."""
    from_data: frozenset[str]
    """Factories that copy their argument; with `device=` the copy waits."""
    movable_factories: frozenset[str]
    """Factories with the same result on every device: no random numbers, no data to copy."""
    batch_attributes: frozenset[str]
    """Attributes of batch objects that are on the host. A name that ends in `*` matches all that begin with it."""


@dataclass(frozen=True, slots=True)
class ModuleOperations:
    """The results of methods of a `torch.nn.Module`."""

    same: frozenset[str]
    """Methods that return the module itself."""
    tensors: frozenset[str]
    """Methods that iterate over tensors. With `named_` before it, a method returns names as well."""
    modules: frozenset[str]
    """Methods that iterate over modules. With `named_` before it, a method returns names as well."""
    unknown: frozenset[str]
    """Methods whose results are unknown."""
    evidence: frozenset[str]
    """Methods that show that their receiver is a module."""
    with_hidden_state: frozenset[str]
    """Classes whose instances return an output and a state when they are called."""
    without_weights: tuple[str, ...]
    """Endings of the names of classes whose instances have neither parameters nor buffers."""


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
    """The beginning of all examples."""
    rules: dict[str, RuleDoc] = field(default_factory=dict, metadata=_only(key="rule", by="code"))
    """The pages of codes. A code is documented once; several frameworks may have barriers of that code."""
    barriers: dict[str, Barrier] = field(default_factory=dict, metadata=_only(key="barrier", by="id"))
    """The operations that make the host wait."""
    on: Literal["", "torch"] = ""
    """`torch` for a library on top of torch, whose values are torch's tensors."""
    shows_torch: bool = field(default=True, metadata=_only(LIBRARY))
    """Whether importing it shows that a file works with tensors. It does not for experiment trackers, to which numbers
    are passed as well."""
    lookalikes: tuple[str, ...] = ()
    """Top-level modules of array libraries whose arrays have methods of the same names as torch's tensors. In a file
    that imports one, the name of a method is no evidence of a tensor."""
    module_classes: tuple[str, ...] = field(default=(), metadata=_only(TORCH, LIBRARY))
    """The beginnings of the dotted names of classes that are `torch.nn.Module`s."""
    device_words: tuple[str, ...] = ()
    """Words that show that a file uses a GPU. A word that ends in `*` may be a part of another word."""
    no_device_words: tuple[str, ...] = ()
    """Text that contains a device word and shows nothing: `cuda.is_available()`, `cuda.manual_seed`."""
    only_logging: tuple[str, ...] = field(default=(), metadata=_only(TORCH, LIBRARY))
    """Modules that only write logs, so that importing them does not show that a file works with tensors."""
    returns: tuple[Returns, ...] = field(default=(), metadata=_only(TORCH))
    """The results of functions and classes of torch. A function that no entry matches returns a tensor for tensors."""
    tensor_operations: TensorOperations | None = field(default=None, metadata=_only(TORCH))
    """The results of attributes and methods of tensors."""
    module_operations: ModuleOperations | None = field(default=None, metadata=_only(TORCH))
    """The results of methods of modules."""
    accelerator: Accelerator | None = field(default=None, metadata=_only(LIBRARY))
    """The kind of device that the library adds to torch."""
    engines: tuple[Engine, ...] = field(default=(), metadata=_only(LIBRARY, key="engine"))
    """Classes whose objects move models, loaders and tensors to the device."""
    tensors: tuple[str, ...] = field(default=(), metadata=_only(LIBRARY))
    """The ends of the dotted names of functions and methods that return a tensor on the device."""
    makers: tuple[Maker, ...] = field(default=(), metadata=_only(LIBRARY, key="maker"))
    """Functions that return objects of its classes."""
    timers: tuple[Timer, ...] = field(default=(), metadata=_only(LIBRARY, key="timer"))
    """Classes of the library that measure time."""
    types: tuple[ForeignType, ...] = field(default=(), metadata=_only(OTHER, key="type"))
    """The types of the framework's values."""
    wrappers: tuple[Wrapper, ...] = field(default=(), metadata=_only(OTHER, key="wrapper"))
    """The framework's decorators and transforms. A function that is passed to one is traced rather than run."""
    traced_bases: tuple[str, ...] = field(default=(), metadata=_only(OTHER))
    """Classes whose methods are traced rather than run."""
    tasks: tuple[str, ...] = field(default=(), metadata=_only(OTHER))
    """Decorators of functions that run elsewhere, once for each call: a call is a step."""
    modules_from: tuple[str, ...] = field(default=(), metadata=_only(OTHER))
    """Functions that return the first of the framework's `modules`: `cupy.get_array_module`."""
    allows_one_wait: bool = field(default=False, metadata=_only(OTHER))
    """Whether one wait in each iteration of a loop is intended, because it bounds the queue. Then only further waits
    are reported."""
    step: str = ""
    """A statement that makes a loop a step loop, for the tests of the examples."""
    runnable: bool = True
    """Whether the examples can be run one by one, without a trainer, a launcher or a server."""
    by_function: dict[str, Barrier] = field(init=False, default_factory=dict)
    """The barriers by the names in their `functions`."""
    by_method: dict[str, Barrier] = field(init=False, default_factory=dict)
    """The barriers by the names in their `methods`."""

    def __post_init__(self) -> None:
        for barrier in self.barriers.values():
            self.by_function.update(dict.fromkeys(barrier.functions, barrier))
            self.by_method.update(dict.fromkeys(barrier.methods, barrier))
