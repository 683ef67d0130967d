"""What each file defines: imports, classes and functions, found in one traversal of its statements."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from gpusync_lint.catalogue import foreign, roots
from gpusync_lint.domain.training_idioms import is_test_path
from gpusync_lint.project.imports import module_of, of_statement
from gpusync_lint.syntax.blocks import blocks
from gpusync_lint.syntax.traversal import walk, walk_block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusync_lint.domain.values import Value
    from gpusync_lint.project.outline import Outline

TOO_DEEP = "a statement is nested too deeply to analyze; it is left out"

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
Binding = Literal["function", "static", "class", "property"]
"""How a method is bound to the object on which it is called."""

_ATTRIBUTE = re.compile(r"\.(\w+)")
_QUOTED = re.compile(r"""["'](\w+)["']""")
_SIMPLE = frozenset({ast.Assign, ast.Return, ast.Expr, ast.AugAssign, ast.AnnAssign, ast.Raise, ast.Pass, ast.Assert})
_TRAINING = (".backward(", "DataLoader(", "optimizer.step(", "import lightning", "pytorch_lightning")
_KEEPS = re.compile(r"regist|^(append|add|insert|update|setdefault)$", re.IGNORECASE)
"""Names of functions and methods that store what they are passed."""
_SHORT = 8
"""The maximum number of statements of a short function."""


@dataclass(frozen=True, eq=False, repr=False)
class FunctionDef:
    """A function, a method, or the body of a module."""

    node: FunctionNode
    name: str
    """`<module>` for the body of a module."""
    qualname: str
    file: ModuleDef
    cls: ClassDef | None = None
    outer: FunctionDef | None = None
    kind: Binding = "function"
    nested: dict[ast.stmt, FunctionDef] = field(default_factory=dict)
    """The functions defined inside it, by their nodes."""
    is_module: bool = field(init=False)
    """Whether this is the body of a module."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_module", self.name == "<module>")

    @cached_property
    def is_short(self) -> bool:
        """Whether it has few statements, and neither definitions nor loops, except over its `*args`."""
        if self.is_module or self.name == "__init__":
            return False
        count, stack = 0, list(self.node.body)
        while stack:
            count += 1
            statement = stack.pop()
            if count > _SHORT or isinstance(statement, (ast.While, ast.FunctionDef, ast.ClassDef)):
                return False
            if isinstance(statement, ast.For) and not self._iterates_over_arguments(statement):
                return False
            if statement.__class__ not in _SIMPLE:
                for block in blocks(statement):
                    stack += block
        return True

    @cached_property
    def keeps_arguments(self) -> bool:
        """Whether it, or a function inside it, stores an argument in a container or registers it, by its text."""
        nodes = list(ast.walk(self.node))
        names = {node.arg for node in nodes if isinstance(node, ast.arg)}
        for node in nodes:
            if isinstance(node, ast.Assign):
                stored = [node.value] if any(isinstance(target, ast.Subscript) for target in node.targets) else []
            elif isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                stored = [*node.args, *(keyword.value for keyword in node.keywords)] if _KEEPS.search(called) else []
            else:
                continue
            if any(isinstance(one, ast.Name) and one.id in names for value in stored for one in ast.walk(value)):
                return True
        return False

    def _iterates_over_arguments(self, loop: ast.For) -> bool:
        """Whether a loop iterates over the `*args` of the function, to return the first that is not None."""
        rest = None if isinstance(self.node, ast.Module) else self.node.args.vararg
        return rest is not None and isinstance(loop.iter, ast.Name) and loop.iter.id == rest.arg

    @cached_property
    def assignments(self) -> dict[str, tuple[int, list[ast.expr]]]:
        """By name, how often the function binds it, and the values of the assignments to this name alone."""
        stores: dict[str, int] = {}
        values: dict[str, list[ast.expr]] = {}
        for node in walk_block(self.node.body):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                stores[node.id] = stores.get(node.id, 0) + 1
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                values.setdefault(node.targets[0].id, []).append(node.value)
        return {name: (count, values.get(name, [])) for name, count in stores.items()}

    @cached_property
    def loop_names(self) -> frozenset[str]:
        """The names that the loops and comprehensions of the function bind."""
        loops = (node for node in walk(self.node) if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)))
        return frozenset(item.id for loop in loops for item in walk(loop.target) if isinstance(item, ast.Name))


@dataclass(frozen=True, eq=False, repr=False)
class ClassDef:
    """A class and its methods."""

    node: ast.ClassDef
    name: str
    file: ModuleDef
    methods: dict[str, FunctionDef] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)
    """What the attributes of its instances hold; filled by the inference."""

    @cached_property
    def _mentions(self) -> dict[str, list[FunctionDef]]:
        mentions: dict[str, list[FunctionDef]] = {}
        for method in self.methods.values():
            for word in set(_ATTRIBUTE.findall(self.file.source_of(method.node))):
                mentions.setdefault(word, []).append(method)
        return mentions

    def mentioning(self, name: str) -> list[FunctionDef]:
        """Its methods whose source contains `.name`."""
        return self._mentions.get(name, [])


@dataclass(eq=False, repr=False)
class ModuleDef:
    """A source file and what it defines."""

    path: str
    text: str
    tree: ast.Module
    parts: tuple[str, ...]
    """The module, as in `imports.Module`."""
    folder: tuple[str, ...]
    imports: dict[str, str] = field(default_factory=dict)
    """Dotted names by local names; relative ones begin with dots."""
    stars: list[str] = field(default_factory=list)
    classes: dict[str, ClassDef] = field(default_factory=dict)
    functions: dict[str, FunctionDef] = field(default_factory=dict)
    all_functions: list[FunctionDef] = field(default_factory=list)
    body: FunctionDef = field(init=False)
    scope: dict[str, Value] = field(default_factory=dict)
    """What the names of its body hold; filled by the inference."""
    uses_framework: bool = False
    uses_foreign: bool = False
    """Whether it imports a framework other than torch that a catalogue describes."""
    uses_others: bool = False
    """Whether it imports an array library whose arrays have methods of the same names as tensors."""
    called_only: bool = False
    """Whether its functions are run only where others call them: it uses no framework, or was read on demand."""
    outline: Outline | None = None
    """For a file that was read on demand, its outline, from which definitions are read; None if all have been read."""
    limits: dict[str, int] = field(default_factory=dict)
    """What was not analyzed because of a limit, as messages, each with the first line that it is about."""
    pieces: dict[str, FunctionDef] = field(default_factory=dict)
    """For a file that was read on demand, the statements that bind a name, as module bodies of their own."""

    def __post_init__(self) -> None:
        self.body = FunctionDef(self.tree, "<module>", "<module>", self)
        self.all_functions.append(self.body)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of its text."""
        return self.text.split("\n")

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *accumulate(map((1).__add__, map(len, self.lines)))]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names in its code."""
        return frozenset(node.id for node in walk(self.tree) if isinstance(node, ast.Name))

    @cached_property
    def quoted_words(self) -> frozenset[str]:
        """The words in its text that are strings of their own: `"after_step"`."""
        return frozenset(_QUOTED.findall(self.text))

    @cached_property
    def binding_statements(self) -> dict[str, list[ast.stmt]]:
        """By name, the statements of its body that bind it."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in self.tree.body:
            for name in set(_bound(statement)):
                found.setdefault(name, []).append(statement)
        return found

    def source_of(self, node: ast.stmt | ast.Module) -> str:
        """The source lines of a statement."""
        if isinstance(node, ast.Module):
            return self.text
        starts = self._line_starts
        return self.text[starts[node.lineno - 1] : starts[node.end_lineno or node.lineno]]

    def release(self) -> None:
        """Break the reference cycles between its definitions, so that they are freed without the garbage collector."""
        for fn in self.all_functions:
            vars(fn).clear()
        for cls in set(self.classes.values()):
            vars(cls).clear()
        vars(self).clear()


class DeviceUse(Flag):
    """What the text of a file shows of the device that a project runs on."""

    NAMES = auto()
    """It mentions a device."""
    OFFERS = auto()
    """It defines modules, which others may run on a device."""
    TRAINS = auto()
    """It trains, or loads batches."""


def device_use(path: str, text: str) -> DeviceUse:
    """What the text of a file that uses torch shows. Tests run modules, which does not say where others run them."""
    if mentions_device(text):
        return DeviceUse.NAMES
    found = DeviceUse(0)
    if "Module)" in text and "def forward(" in text:
        found |= DeviceUse.OFFERS
    if any(word in text for word in _TRAINING) and not is_test_path(path):
        found |= DeviceUse.TRAINS
    return found


def uses_device(files: Iterable[DeviceUse]) -> bool:
    """Whether files that belong together run on a device: one names it, or they are modules for others to run."""
    found = DeviceUse(0)
    for one in files:
        if DeviceUse.NAMES in one:
            return True
        found |= one
    return DeviceUse.OFFERS in found and DeviceUse.TRAINS not in found


def mentions_device(text: str) -> bool:
    """Whether a text mentions a device."""
    parts, words = roots.device_words()
    for word in roots.no_device_words():
        if word in text:
            text = text.replace(word, "")
    if any(part in text for part in parts):
        return True
    # Searching for a string is ten times as fast as an alternation, and most texts contain none of them.
    # So is a pattern that begins with text: "input" contains the name of an accelerator.
    return any(word in text and re.search(rf"{word}\b(?<!\w{word})", text) for word in words)


def read_symbols(path: str, text: str, tree: ast.Module) -> ModuleDef:
    """The definitions of a file."""
    folder = tuple(path.split("/")[:-1])
    file = ModuleDef(path, text, tree, module_of(path), folder)
    _collect(file, tree.body, None, file.body, "")
    imported = [
        dotted for dotted in (*file.imports.values(), *file.stars) if not dotted.startswith(roots.only_logging())
    ]
    modules = {dotted.partition(".")[0] for dotted in imported}
    file.uses_framework = not modules.isdisjoint(roots.torch_family())
    file.uses_foreign = not modules.isdisjoint(foreign.modules())
    file.uses_others = not modules.isdisjoint(roots.lookalikes())
    return file


def define(file: ModuleDef, name: str, tree: ast.Module) -> None:
    """Add the definitions of a name to a file that was read without them. `tree` contains them, and maybe others."""
    statements = [statement for statement in tree.body if getattr(statement, "name", "") == name]
    _collect(file, statements, None, file.body, "")
    if any(isinstance(statement, ast.ClassDef) for statement in statements):
        _piece(file, name, statements)


def binding(file: ModuleDef, name: str) -> FunctionDef | None:
    """The statements that bind a name in a file that was read on demand, as a module body; None if there are none."""
    if name not in file.pieces and name in file.binding_statements:
        _piece(file, name, file.binding_statements[name])
    return file.pieces.get(name)


def _piece(file: ModuleDef, name: str, statements: list[ast.stmt]) -> None:
    body = file.body
    piece = FunctionDef(ast.Module(statements, []), body.name, body.qualname, file, nested=body.nested)
    file.pieces[name] = piece
    file.all_functions.append(piece)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement assigns, including those in its blocks."""
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


def _collect(file: ModuleDef, body: list[ast.stmt], cls: ClassDef | None, outer: FunctionDef, prefix: str) -> None:
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


_BINDINGS: dict[str, Binding] = {"staticmethod": "static", "classmethod": "class"}


def _collect_function(
    file: ModuleDef,
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    cls: ClassDef | None,
    outer: FunctionDef,
    prefix: str,
) -> None:
    kind: Binding = "class" if node.name == "__init_subclass__" else "function"
    for decorator in node.decorator_list:
        name = decorator.id if isinstance(decorator, ast.Name) else getattr(decorator, "attr", "")
        if name in ("staticmethod", "classmethod", "property", "cached_property"):
            kind = _BINDINGS.get(name, "property")
    info = FunctionDef(node, node.name, prefix + node.name, file, cls, outer, kind)
    file.all_functions.append(info)
    if cls is not None:
        cls.methods.setdefault(node.name, info)
    elif outer.is_module:
        file.functions[node.name] = info
    outer.nested[node] = info
    _collect(file, node.body, None, info, f"{prefix}{node.name}.")


def _collect_class(file: ModuleDef, node: ast.ClassDef, outer: FunctionDef, prefix: str) -> None:
    info = ClassDef(node, node.name, file)
    if outer.is_module and not prefix:
        file.classes[node.name] = info
    else:
        file.classes.setdefault(f"{prefix}{node.name}", info)
        file.classes.setdefault(node.name, info)
    _collect(file, node.body, info, outer, f"{prefix}{node.name}.")
