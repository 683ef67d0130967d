"""The files of a run as one project: which import means which file, and which files matter to a framework."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import roots
from gpusync_lint.domain.lattice import UNKNOWN, Kind, Value, name
from gpusync_lint.project.imports import beginnings, lookup
from gpusync_lint.project.lazy_modules import Beside
from gpusync_lint.project.symbols import ClassInfo, FileInfo, FunctionInfo, speaks_of_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusync_lint.model.function_key import Key
    from gpusync_lint.project.lazy_modules import Surroundings

_NOT_MODULES = (
    "Config",
    "Callback",
    "Tokenizer",
    "Processor",
    "Dataset",
    "DataModule",
    "Arguments",
    "Logger",
    "Trainer",
)


class Project:
    """An index over files that belong together."""

    def __init__(
        self, files: Sequence[FileInfo], roots: frozenset[str] = frozenset(), around: Surroundings | None = None
    ) -> None:
        """`roots`: modules whose import makes a file relevant, beside those of the frameworks."""
        self.files = list(files)
        self._device_around = around is not None and around.device
        self._roots = roots
        self._index = {file.parts: file for file in files}
        self.beside = Beside(around, self._index) if around is not None else None
        """What lies around the files; None where nothing does."""
        self._star_modules: dict[tuple[int, str], tuple[str, ...]] = {}
        """What the stars of files mean that has not been read when it was looked for first; empty for nothing."""
        names = self.beside.beginnings if self.beside is not None else beginnings(self._index)
        self._may_exist = names.__contains__
        self._resolved: dict[tuple[tuple[str, ...], str], Value] = {}
        self._names: dict[int, dict[str, Value | None]] = {}
        self._asking: set[tuple[int, str]] = set()
        """The names that are being looked up."""
        self._circles = 0
        """How often a look-up has come back to itself."""
        self._device: dict[int, bool] = {}
        self._relevant: set[int] = set()
        self._methods: dict[str, list[FunctionInfo]] | None = None
        self.unread: dict[str, Key] = {}
        """The functions beside the files that there was no room for, by the name they go by then."""
        if around is None:
            self._connect()
        else:
            for file in self.files:
                file.called_only = file.path in around.idle
                self._admit(file)

    def relevant(self, file: FileInfo) -> bool:
        """Whether a file uses a framework itself or through the project's files that it imports."""
        return id(file) in self._relevant

    def uses_device(self, file: FileInfo) -> bool:
        """Whether the file, or one that it is connected with by imports, speaks of a device."""
        return self._device[id(file)]

    def _admit(self, file: FileInfo) -> None:
        self._device[id(file)] = self._device_around
        self._relevant.add(id(file))

    def _file_of(self, module: tuple[str, ...]) -> FileInfo | None:
        """The file of a module; one that lies around those given is read when it is first asked for."""
        found = self._index.get(module)
        if found is None and self.beside is not None:
            found = self.beside.read(module)
            if found is not None:
                self._index[module] = found
                self.files.append(found)
                self._admit(found)
        return found

    def take_apart(self) -> None:
        """Let go of everything at once: what refers to each other in circles would wait for the garbage collector."""
        for file in self.files:
            for fn in file.all_functions:
                del fn.file, fn.cls, fn.outer, fn.nested, fn.bound, fn.returns, fn.scope, fn.trace, fn.values, fn.missed
            for cls in {id(cls): cls for cls in file.classes.values()}.values():
                del cls.file, cls.methods, cls.attributes, cls.lineage, cls.mentions
            del file.all_functions, file.functions, file.classes, file.body

    def named(self, file: FileInfo, label: str) -> Value | None:
        """What a file binds a name to by import, `def` or `class`; None for a name that it does not bind so.

        Looked up one by one: what nobody asks for need not be read.
        """
        known = self._names.setdefault(id(file), {})
        if label in known:
            return known[label]
        key = (id(file), label)
        if key in self._asking:  # packages import in circles
            self._circles += 1
            return None
        circles = self._circles
        self._asking.add(key)
        found = self._exported(file, label, set())
        self._asking.discard(key)
        if self._circles == circles or not self._asking:  # else it may be another's answer to the same question
            known[label] = found
        return found

    def resolve(self, file: FileInfo, dotted: str) -> Value:
        """What a dotted import names, seen from a file: a project's file, class or function, or an outside name."""
        key = (file.folder, dotted)
        found = self._resolved.get(key)
        if found is None:
            self._resolved[key] = UNKNOWN  # breaks circles of imports
            found = self._resolved[key] = self._resolve(file, dotted)
        return found

    def member(self, file: FileInfo, attribute: str) -> Value:
        """`attribute` of a project's module."""
        bound = file.body.scope.get(attribute, UNKNOWN)
        if bound.kind:
            return bound
        found = self.named(file, attribute)
        if found is not None:
            return found
        child = self._file_of((*file.parts, attribute))
        return Value(Kind.NAME, ref=child) if child is not None else UNKNOWN

    def _exported(self, file: FileInfo, label: str, seen: set[int]) -> Value | None:
        """One name that a file binds by `def`, `class` or import, looked up alone: packages import in circles."""
        if file.definitions is not None and self.beside is not None and not self.beside.define(file, label):
            return self._unread(file.parts, label, ".".join((*file.parts, label)))
        if label in file.functions:
            return Value(Kind.FUNCTION, ref=file.functions[label])
        if label in file.classes:
            return Value(Kind.CLASS, ref=file.classes[label])
        if label in file.imports:
            return self.resolve(file, file.imports[label])
        seen.add(id(file))
        for star in reversed(file.stars):
            if self.beside is not None and not self._may_export(file, star, label, len(seen)):
                continue
            target = self.resolve(file, star)
            if target.kind is Kind.NAME and isinstance(target.ref, FileInfo) and id(target.ref) not in seen:
                found = self._exported(target.ref, label, seen)
                if found is not None and found.kind:  # unknown: it imports the name from where it is being looked for
                    return found
        return None

    def _may_export(self, file: FileInfo, star: str, label: str, depth: int) -> bool:
        """Whether what a star of a file means may bind a name; of a module that has not been read, its text tells."""
        assert self.beside is not None
        module = self._star_modules.get((id(file), star))
        if module is None:
            found = lookup(file.folder, star, self._may_exist)
            module = next((each for each, rest in found if not rest and self.beside.number(each) is not None), ())
            self._star_modules[id(file), star] = module
        number = self.beside.number(module) if module else None
        return number is None or self.beside.may_export(number, label, depth)

    def _resolve(self, file: FileInfo, dotted: str) -> Value:
        bare = dotted.lstrip(".")
        for module, words in lookup(file.folder, dotted, self._may_exist):
            found = self._file_of(module)
            if found is not None and found is not file:
                return self._walk(found, words)
            if self.beside is not None and module in self.beside.unread:
                return self._unread(module, words[0], bare) if len(words) == 1 else name(bare)
        return name(bare)

    def _unread(self, module: tuple[str, ...], label: str, dotted: str) -> Value:
        """Something of the project that there was no room for: an outside name, of which it is kept what it is."""
        assert self.beside is not None
        if dotted not in self.unread:
            key = self.beside.unread_function(module, label)
            if key is not None:
                self.unread[dotted] = key
        return name(dotted)

    def _walk(self, file: FileInfo, words: tuple[str, ...]) -> Value:
        value = Value(Kind.NAME, ref=file)
        for word in words:
            if value.kind is not Kind.NAME or not isinstance(value.ref, FileInfo):
                return UNKNOWN
            value = self.member(value.ref, word)
        return value

    def _connect(self) -> None:
        """Spread two facts along imports: a framework to importers, the use of a device both ways."""
        if not any(self._speaks_of_one(file) for file in self.files):
            self._device = {id(file): False for file in self.files}
            return
        parent = {id(file): id(file) for file in self.files}

        def find(node: int) -> int:
            while parent[node] != node:
                parent[node] = parent[parent[node]]
                node = parent[node]
            return node

        importers: dict[int, list[FileInfo]] = {}
        for file in self.files:
            for target in self._imported(file):
                importers.setdefault(id(target), []).append(file)
                parent[find(id(file))] = find(id(target))
        used = {find(id(file)) for file in self.files if file.uses_framework and speaks_of_device(file.text)}
        self._device = {id(file): find(id(file)) in used for file in self.files}
        queue = [file for file in self.files if self._speaks_of_one(file)]
        self._relevant = {id(file) for file in queue}
        while queue:
            for importer in importers.get(id(queue.pop()), ()):
                if id(importer) not in self._relevant:
                    self._relevant.add(id(importer))
                    queue.append(importer)

    def _speaks_of_one(self, file: FileInfo) -> bool:
        """Whether a file imports a framework, or a module that the project's own barriers are in."""
        if file.uses_framework or file.uses_foreign:
            return True
        if not self._roots:
            return False
        return any(dotted.partition(".")[0] in self._roots for dotted in (*file.imports.values(), *file.stars))

    def _imported(self, file: FileInfo) -> list[FileInfo]:
        found = []
        for dotted in (*file.imports.values(), *file.stars):
            ref = self.resolve(file, dotted).ref
            target = ref if isinstance(ref, FileInfo) else getattr(ref, "file", None)
            if isinstance(target, FileInfo) and target is not file:
                found.append(target)
        return found

    def lineage(self, cls: ClassInfo) -> tuple[ClassInfo | str, ...]:
        """The base classes of a class, nearest first, itself included."""
        if cls.lineage is None:
            cls.lineage = (cls,)
            line: list[ClassInfo | str] = [cls]
            for base in cls.node.bases:
                value = self.static(cls.file, base)
                if value.kind is Kind.CLASS:
                    line.extend(item for item in self.lineage(value.ref) if item not in line)
                elif value.kind is Kind.NAME and isinstance(value.ref, str):
                    line.append(value.ref)
            cls.lineage = tuple(line)
        return cls.lineage

    def is_module_class(self, cls: ClassInfo) -> bool:
        """Whether instances are `torch.nn.Module`s.

        Of a class whose bases are not among the files, a `forward` says so.
        """
        if cls.is_module is None:
            cls.is_module = self._is_module(cls)
        return cls.is_module

    def _is_module(self, cls: ClassInfo) -> bool:
        outside = [base for base in self.lineage(cls) if isinstance(base, str)]
        if any(is_module_name(base) for base in outside):
            return True
        if not cls.file.uses_framework or not any(is_unknown_class(base) for base in outside):
            return False
        forward = self.method(cls, "forward")
        return forward is not None and forward.kind == "function"

    def method(self, cls: ClassInfo, label: str) -> FunctionInfo | None:
        """A method by name, inherited ones included."""
        for base in self.lineage(cls):
            if isinstance(base, ClassInfo) and label in base.methods:
                return base.methods[label]
        return None

    def off_by_default(self, cls: ClassInfo, label: str) -> bool:
        """Whether a field of a class of settings, one without `__init__`, is None unless someone says otherwise."""
        if self.method(cls, "__init__") is not None:
            return False
        for statement in cls.node.body:
            if isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", "") == label:
                return isinstance(statement.value, ast.Constant) and statement.value.value is None
        return False

    def methods_named(self, label: str) -> list[FunctionInfo]:
        """The methods of the project's classes that have a name, properties and static methods left out."""
        if self._methods is None:
            self._methods = {}
            for file in self.files:
                if self.relevant(file):
                    for fn in file.all_functions:
                        if fn.cls is not None and fn.kind == "function":
                            self._methods.setdefault(fn.name, []).append(fn)
        return self._methods.get(label, [])

    def attribute(self, cls: ClassInfo, label: str) -> Value | None:
        """What an attribute of instances holds, inherited ones included; None when never seen."""
        for base in self.lineage(cls):
            if isinstance(base, ClassInfo) and label in base.attributes:
                return base.attributes[label]
        return None

    def static(self, file: FileInfo, node: ast.expr) -> Value:
        """What an expression names by imports and definitions alone."""
        if isinstance(node, ast.Name):
            return self.named(file, node.id) or UNKNOWN
        if isinstance(node, ast.Attribute):
            base = self.static(file, node.value)
            if base.kind is Kind.NAME:
                if isinstance(base.ref, FileInfo):
                    return self.member(base.ref, node.attr)
                return name(f"{base.ref}.{node.attr}")
        if isinstance(node, ast.Subscript):
            return self.static(file, node.value)
        return UNKNOWN


def is_unknown_class(dotted: str) -> bool:
    """Whether nothing is known of a class outside the project: not torch's, not one that is something else by name."""
    last = dotted.rpartition(".")[2]
    return last[:1].isupper() and not dotted.startswith("torch.") and not last.endswith(_NOT_MODULES)


def is_module_name(dotted: str) -> bool:
    """Whether a class outside the project is a `torch.nn.Module`."""
    last = dotted.rpartition(".")[2]
    if dotted == "torch.nn.Module" or last in ("LightningModule", "PreTrainedModel", "MessagePassing"):
        return True
    return (
        dotted.startswith(roots.module_classes())
        and last[:1].isupper()
        and not last.endswith(_NOT_MODULES)
        and ".functional" not in dotted
        and ".utils." not in dotted
        and last not in ("Parameter", "ParameterList", "ParameterDict")
    )
