"""What each file defines: imports, classes, functions. One walk over statements, none over expressions."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpusync_lint.catalogue import foreign, roots
from gpusync_lint.project.imports import module_of, of_statement
from gpusync_lint.syntax.blocks import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.domain.lattice import Device, Value
    from gpusync_lint.inference.entry_state import Parameter
    from gpusync_lint.model.function_key import Key
    from gpusync_lint.model.levels import Heat
    from gpusync_lint.project.outline import Definitions

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module

_LINE_END = re.compile("\n")
_ATTRIBUTE = re.compile(r"\.(\w+)")


@dataclass(eq=False, slots=True, repr=False)
class CallSite:
    """A call of one project function by another."""

    callee: FunctionInfo
    statement: ast.stmt
    repeated: bool
    """Inside a comprehension."""


@dataclass(eq=False, slots=True, repr=False)
class Trace:
    """What the interpretation of a function left behind, for the heat and for the rules."""

    calls: list[CallSite] = field(default_factory=list)
    unread: list[tuple[Key, ast.stmt, bool]] = field(default_factory=list)
    """Calls of functions that there was no room for, otherwise like `calls`."""
    marks: list[tuple[str, ast.stmt]] = field(default_factory=list)
    """Signs of a step and the statements that hold them: `strong` (backward, optimizer), `weak` (a model call),
    `layer` (a module calls a part of itself)."""
    batch_loops: set[int] = field(default_factory=set)
    """`id` of loops that iterate over a data loader."""
    unexplained: bool = False
    """Whether it hands tensors to something of which nothing is known."""
    dead: set[int] = field(default_factory=set)
    """`id` of statements that run only where there is no GPU."""


@dataclass(eq=False, slots=True, repr=False)
class FunctionInfo:
    """A function, a method, or the body of a module (`name` is `<module>`)."""

    node: FunctionNode
    name: str
    qualname: str
    file: FileInfo
    cls: ClassInfo | None = None
    outer: FunctionInfo | None = None
    kind: str = "function"
    """`function`, `static`, `class` or `property`: how a method is bound."""
    bound: dict[str, Value] = field(default_factory=dict)
    """What call sites passed, joined."""
    entered: dict[str, Value] | None = None
    """What its parameters held when it was interpreted last."""
    parameters: tuple[int, list[Parameter], dict[object, int], Device | None] | None = None
    """What it says of its parameters itself, with the round of the inference in which that was read, what was read for
    it, as in `reads`, and the device that was assumed, where that matters."""
    returns: Value | None = None
    """None until the function has been interpreted."""
    scope: dict[str, Value] = field(default_factory=dict)
    """Its local names after the last interpretation; what closures see."""
    trace: Trace = field(default_factory=Trace)
    values: dict[int, Value] = field(default_factory=dict)
    """What its last run knew of its expressions, by their `id`; what is missing is unknown."""
    runs: int = 0
    is_module: bool = field(init=False)
    """Whether this is the body of a file."""
    seen: int = 0
    """The clock of the inference when the last run began."""
    reads: dict[object, int] = field(default_factory=dict)
    """What its last run read that other functions may change: keys that the inference makes and compares, each with
    the clock of the inference when it was read first."""
    missed: dict[object, tuple[ClassInfo, str]] = field(default_factory=dict)
    """Attributes of classes that its last run asked for in vain."""
    busy: bool = False
    nested: dict[int, FunctionInfo] = field(default_factory=dict)
    """Functions defined inside it, by `id` of their node."""
    evidence: tuple[frozenset[str], frozenset[str]] | None = None
    assigned: dict[str, tuple[int, list[ast.expr]]] | None = None
    """By name: how often it is bound, and what is assigned to it alone; None until it was asked for."""
    wrapper: str | None = None
    """The sort that a decorator makes of it; empty for none, None until it was asked for."""
    called: Heat | None = None
    """How often the framework that it was handed to calls it; None when it was handed to none."""
    traced: bool = False
    """Whether a framework other than torch traces or compiles it, rather than running it line by line."""
    small: bool | None = None
    """Whether it is short enough to be interpreted anew for each kind of arguments."""

    def __post_init__(self) -> None:
        self.is_module = self.name == "<module>"


@dataclass(eq=False, slots=True, repr=False)
class ClassInfo:
    """A class, its methods, and what its attributes were seen to hold."""

    node: ast.ClassDef
    name: str
    file: FileInfo
    methods: dict[str, FunctionInfo] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)
    moved: bool = False
    """Whether some instance was moved to a device."""
    lineage: tuple[Any, ...] | None = None
    """Its base classes, nearest first: ClassInfo, or dotted names of classes outside the project."""
    is_module: bool | None = None
    """Whether its instances are `torch.nn.Module`s; None until it was asked for."""
    mentions: dict[str, list[FunctionInfo]] | None = None
    """By the name of an attribute: its methods that mention one of that name; None until it was asked for."""

    def mentioning(self, label: str) -> list[FunctionInfo]:
        """Its methods in which `.label` stands."""
        if self.mentions is None:
            self.mentions = {}
            for method in self.methods.values():
                for word in set(_ATTRIBUTE.findall(self.file.source_of(method.node))):
                    self.mentions.setdefault(word, []).append(method)
        return self.mentions.get(label, [])


@dataclass(eq=False, slots=True, repr=False)
class FileInfo:
    """One source file."""

    path: str
    text: str
    tree: ast.Module
    parts: tuple[str, ...]
    """Its path without the suffix; a package's `__init__` stands under the folder."""
    folder: tuple[str, ...]
    imports: dict[str, str] = field(default_factory=dict)
    """Local name to dotted name; relative ones begin with dots."""
    stars: list[str] = field(default_factory=list)
    classes: dict[str, ClassInfo] = field(default_factory=dict)
    functions: dict[str, FunctionInfo] = field(default_factory=dict)
    all_functions: list[FunctionInfo] = field(default_factory=list)
    body: FunctionInfo = field(init=False)
    uses_framework: bool = False
    uses_foreign: bool = False
    """Imports a framework that a catalogue other than torch's describes."""
    uses_others: bool = False
    """Imports another array library as well, whose arrays have methods of the same names."""
    called_only: bool = False
    """Its functions are interpreted where others call them: it uses no framework, or nobody asked about it."""
    definitions: Definitions | None = None
    """Of a file around, where its definitions are found that have not been asked for; None where all have been read."""
    pieces: dict[str, FunctionInfo] = field(default_factory=dict)
    """Of a file around, what binds a name in its body, or stands in the body of a class: interpreted by itself."""
    bindings: dict[str, list[ast.stmt]] | None = None
    """Of a file around, the statements of its body that bind a name; None until it was asked for."""
    _starts: list[int] | None = None
    """Where each line begins; None until it was asked for."""
    evidence_lines: list[int] | None = None
    """Lines that hold a word by which names may show what they are; None until they were looked for."""

    def __post_init__(self) -> None:
        self.body = FunctionInfo(self.tree, "<module>", "<module>", self)
        self.all_functions.append(self.body)

    def source_of(self, node: ast.stmt | ast.Module) -> str:
        """The lines that a statement stands on."""
        if isinstance(node, ast.Module):
            return self.text
        if self._starts is None:
            self._starts = [0, *(match.end() for match in _LINE_END.finditer(self.text)), len(self.text)]
        return self.text[self._starts[node.lineno - 1] : self._starts[node.end_lineno or node.lineno]]


def speaks_of_device(text: str) -> bool:
    """Whether a text mentions a device."""
    parts, words = roots.device_words()
    if any(part in text for part in parts):
        return True
    # A plain search is ten times as fast as an alternation, and most texts hold none of them.
    return any(word in text and re.search(rf"\b{word}\b", text) for word in words)


def weight(text: str) -> int:
    """How much a text counts for: its characters, rounded up so that a small edit leaves the units as they are."""
    size = len(text)
    unit = 1 << max(0, size.bit_length() - 3)
    return -(-size // unit) * unit


def read_symbols(path: str, text: str, tree: ast.Module) -> FileInfo:
    """Collect what a file defines."""
    folder = tuple(path.split("/")[:-1])
    file = FileInfo(path, text, tree, module_of(path), folder)
    _collect(file, tree.body, None, file.body, "")
    imported = [
        dotted for dotted in (*file.imports.values(), *file.stars) if not dotted.startswith(roots.only_logging())
    ]
    modules = {dotted.partition(".")[0] for dotted in imported}
    file.uses_framework = not modules.isdisjoint(roots.torch_family())
    file.uses_foreign = not modules.isdisjoint(foreign.modules())
    file.uses_others = not modules.isdisjoint(roots.lookalikes())
    return file


def define(file: FileInfo, label: str, tree: ast.Module) -> None:
    """Add the definitions of a name to a file that was read without them; `tree` holds them, and maybe more."""
    statements = [statement for statement in tree.body if getattr(statement, "name", "") == label]
    _collect(file, statements, None, file.body, "")
    if any(isinstance(statement, ast.ClassDef) for statement in statements):
        _piece(file, label, statements)


def binding(file: FileInfo, label: str) -> FunctionInfo | None:
    """What binds a name in the body of a file around, as a body of its own; None where nothing does."""
    if file.bindings is None:
        file.bindings = {}
        for statement in file.tree.body:
            for name in set(_bound(statement)):
                file.bindings.setdefault(name, []).append(statement)
    if label not in file.pieces and label in file.bindings:
        _piece(file, label, file.bindings[label])
    return file.pieces.get(label)


def _piece(file: FileInfo, label: str, statements: list[ast.stmt]) -> None:
    body = file.body
    piece = FunctionInfo(ast.Module(statements, []), body.name, body.qualname, file, nested=body.nested)
    file.pieces[label] = piece
    file.all_functions.append(piece)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement assigns to, those in its blocks included."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets += statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor)):
        targets.append(statement.target)
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        targets += [item.optional_vars for item in statement.items if item.optional_vars is not None]
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Name):
            yield target.id
        elif isinstance(target, (ast.Tuple, ast.List)):
            targets += target.elts
        elif isinstance(target, (ast.Starred, ast.Subscript, ast.Attribute)):
            targets.append(target.value)
    if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        for block in blocks(statement):
            for inner in block:
                yield from _bound(inner)


def _collect(file: FileInfo, body: list[ast.stmt], cls: ClassInfo | None, outer: FunctionInfo, prefix: str) -> None:
    for statement in body:
        kind = type(statement)
        if kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
            _collect_function(file, statement, cls, outer, prefix)  # type: ignore[arg-type]
        elif kind is ast.ClassDef:
            _collect_class(file, statement, outer, prefix)  # type: ignore[arg-type]
        elif kind is ast.Import or kind is ast.ImportFrom:
            for one in of_statement(statement):  # type: ignore[arg-type]
                if one.name == "*":
                    file.stars.append(one.module)
                else:
                    file.imports[one.bound] = one.target
        else:
            for block in blocks(statement):
                _collect(file, block, cls, outer, prefix)


def _collect_function(
    file: FileInfo,
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    cls: ClassInfo | None,
    outer: FunctionInfo,
    prefix: str,
) -> None:
    kind = "function"
    for decorator in node.decorator_list:
        label = decorator.id if isinstance(decorator, ast.Name) else getattr(decorator, "attr", "")
        if label in ("staticmethod", "classmethod", "property", "cached_property"):
            kind = {"staticmethod": "static", "classmethod": "class"}.get(label, "property")
    info = FunctionInfo(node, node.name, prefix + node.name, file, cls, outer, kind)
    file.all_functions.append(info)
    if cls is not None:
        cls.methods.setdefault(node.name, info)
    elif outer.is_module:
        file.functions[node.name] = info
    outer.nested[id(node)] = info
    _collect(file, node.body, None, info, f"{prefix}{node.name}.")


def _collect_class(file: FileInfo, node: ast.ClassDef, outer: FunctionInfo, prefix: str) -> None:
    info = ClassInfo(node, node.name, file)
    if outer.is_module and not prefix:
        file.classes[node.name] = info
    else:
        file.classes.setdefault(f"{prefix}{node.name}", info)
        file.classes.setdefault(node.name, info)
    _collect(file, node.body, info, outer, f"{prefix}{node.name}.")
