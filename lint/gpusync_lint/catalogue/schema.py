"""What a catalogue file holds, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Example:
    """A statement that can be run after the catalogue's prelude and its own set-up."""

    run: str
    setup: str = ""
    meant: bool = False
    """Of those that are not reported: it waits, and its author means it to, as next to a clock."""


@dataclass(frozen=True, slots=True)
class RuleDoc:
    """What is written about one code."""

    code: str
    name: str
    """Reads well after "allow"."""
    summary: str
    why: str
    example: str
    use_instead: str
    fix_safety: str
    ignore_when: str
    framework: str


@dataclass(frozen=True, slots=True)
class Barrier:
    """One operation, or one family of operations, that makes the host wait."""

    id: str
    code: str
    message: str
    """May hold `{call}`, the name of what is called."""
    remedy: str
    functions: tuple[str, ...] = ()
    """Dotted names that match."""
    methods: tuple[str, ...] = ()
    """Names of tensor methods that match."""
    operators: tuple[str, ...] = ()
    """Operators of aten that it stands for and that torch itself tags as data-dependent."""
    unless_keywords: tuple[str, ...] = ()
    """With all of these keywords given it does not wait."""
    until_torch: tuple[int, int] | None = None
    """The first version of torch that does not wait."""
    of: str = ""
    """The sort of value that it reads; without one every call of its functions counts."""
    builtins: tuple[str, ...] = ()
    """Python's own functions that read such a value: `float`, `print`; `format` stands for f-strings too."""
    conditions: bool = False
    """Whether asking for the truth of such a value waits."""
    masks: bool = False
    """Whether indexing such a value by a comparison waits."""
    not_functions: tuple[str, ...] = ()
    """Names that the patterns in `functions` cover, but that do not wait."""
    shaped: bool = False
    """Whether a rule of its own has to look at how it is called; its name alone says nothing."""
    calls: tuple[str, ...] = ()
    """Of a library on top of torch, ends of dotted names: `nms`, `Accelerator.reduce`, `MeanMetric.__call__`."""
    takes: str = ""
    """What it must be given to wait: `tensor` (an argument lies on the device), `number` (a host number after the
    name that it is given for), or empty."""
    given: tuple[tuple[str, Any], ...] = ()
    """Keyword arguments that it waits with only."""
    unless_given: tuple[tuple[str, Any], ...] = ()
    """Any of these keyword arguments says that it does not wait."""
    unless_made: tuple[tuple[str, Any], ...] = ()
    """Any of these keyword arguments, given to what made the object, says that its method does not wait."""
    within: tuple[str, ...] = ()
    """It waits only in functions of these names."""
    among_processes: bool = False
    """It waits only where several processes run, which the source does not tell: findings are of low confidence."""
    at_most: int | None = None
    """With more positional arguments it does not wait."""
    framework: str = "torch"
    waits: tuple[Example, ...] = ()
    silent: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class Sort:
    """A sort of value of a framework other than torch, and what comes of it."""

    name: str
    """With the framework before it: `jax.array`."""
    made_by: tuple[str, ...] = ()
    """Dotted names of what makes it; a name that ends in `.*` covers all below it."""
    not_by: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    """Dotted names that annotations may give it."""
    host_attributes: frozenset[str] = frozenset()
    host_methods: frozenset[str] = frozenset()
    methods: dict[str, str] = field(default_factory=dict, hash=False)
    """The sorts that single methods, and single attributes, give."""
    attribute: str = ""
    """The sort of every other attribute and method result; empty when unknown."""
    item: str = ""
    call: str = ""
    result: str = ""
    """The sort that operators give."""
    elementwise: frozenset[str] = frozenset()
    """Last names of functions that compute on the host where they are given numbers only."""
    sign: str = ""
    """The sign of a step that making one, or calling one, gives to a loop: `weak` or empty."""


@dataclass(frozen=True, slots=True)
class Maker:
    """A function of a library on top of torch, and the objects of the library's classes that it gives back."""

    name: str
    """The end of its dotted name."""
    gives: tuple[str, ...]
    """Dotted names of classes: of several, it gives a tuple; an empty one for what is not known."""
    module: bool = False
    """Whether the first of them is a module that lies on the device."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All barriers of one framework, and the documentation of their codes."""

    framework: str
    prelude: str
    rules: dict[str, RuleDoc]
    """By code, in order."""
    barriers: dict[str, Barrier]
    """By id, in order."""
    by_function: dict[str, Barrier] = field(default_factory=dict)
    by_method: dict[str, Barrier] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    """Top-level modules whose import says that a file uses the framework."""
    sorts: tuple[Sort, ...] = ()
    wrappers: dict[str, str] = field(default_factory=dict)
    """Dotted names of decorators and transforms, and the sort of what they make of a function."""
    traced_bases: tuple[str, ...] = ()
    """Classes whose methods are traced rather than run."""
    modules_from: tuple[str, ...] = ()
    """Functions that give the framework's module itself: `cupy.get_array_module`."""
    step: str = ""
    """A statement that makes a loop a step loop, for the examples."""
    on: str = ""
    """The framework whose values a library works on: `torch`; empty for a framework of its own."""
    tensors: tuple[str, ...] = ()
    """Of such a library, ends of dotted names of what gives back a tensor on the device."""
    makers: tuple[Maker, ...] = ()
    bounding: bool = False
    """Whether one wait in each turn of a loop is right, because it bounds the queue: only further ones are reported."""
    runs: bool = True
    """Whether its examples can be run one by one; False where a trainer, a launcher or a server has to."""

    def rule_doc(self, code: str) -> RuleDoc | None:
        """The documentation of a code; None for a code that this framework does not have."""
        return self.rules.get(code)
