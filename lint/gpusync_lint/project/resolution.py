"""The files of a run as one project: which import means which file, and which files matter to a framework."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain.lattice import UNKNOWN, Kind, Value, name
from gpusync_lint.project.class_hierarchy import ClassHierarchy
from gpusync_lint.project.disjoint_sets import DisjointSets
from gpusync_lint.project.imports import beginnings, lookup
from gpusync_lint.project.lazy_modules import Beside
from gpusync_lint.project.symbols import ModuleDef, speaks_of_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusync_lint.model.function_key import Key
    from gpusync_lint.project.lazy_modules import Surroundings


class Project:
    """An index over files that belong together."""

    def __init__(
        self, files: Sequence[ModuleDef], roots: frozenset[str] = frozenset(), around: Surroundings | None = None
    ) -> None:
        """`roots`: modules whose import makes a file relevant, beside those of the frameworks."""
        self.files = list(files)
        self._device_around = around is not None and around.device
        self._roots = roots
        self._index = {file.parts: file for file in files}
        self.beside = Beside(around, self._index) if around is not None else None
        """What lies around the files; None where nothing does."""
        self._star_modules: dict[tuple[ModuleDef, str], tuple[str, ...]] = {}
        """What the stars of files mean that has not been read when it was looked for first; empty for nothing."""
        names = self.beside.beginnings if self.beside is not None else beginnings(self._index)
        self._may_exist = names.__contains__
        self._resolved: dict[tuple[tuple[str, ...], str], Value] = {}
        self._names: dict[ModuleDef, dict[str, Value | None]] = {}
        self._asking: set[tuple[ModuleDef, str]] = set()
        """The names that are being looked up."""
        self._circles = 0
        """How often a look-up has come back to itself."""
        self._device: dict[ModuleDef, bool] = {}
        self._relevant: set[ModuleDef] = set()
        self.unread: dict[str, Key] = {}
        """The functions beside the files that there was no room for, by the name they go by then."""
        self.classes = ClassHierarchy(self)
        if around is None:
            self._connect()
        else:
            for file in self.files:
                file.called_only = file.path in around.idle
                self._admit(file)

    def relevant(self, file: ModuleDef) -> bool:
        """Whether a file uses a framework itself or through the project's files that it imports."""
        return file in self._relevant

    def uses_device(self, file: ModuleDef) -> bool:
        """Whether the file, or one that it is connected with by imports, speaks of a device."""
        return self._device[file]

    def _admit(self, file: ModuleDef) -> None:
        self._device[file] = self._device_around
        self._relevant.add(file)

    def _file_of(self, module: tuple[str, ...]) -> ModuleDef | None:
        """The file of a module; one that lies around those given is read when it is first asked for."""
        found = self._index.get(module)
        if found is None and self.beside is not None:
            found = self.beside.read(module)
            if found is not None:
                self._index[module] = found
                self.files.append(found)
                self._admit(found)
        return found

    def release(self) -> None:
        """Break the references between definitions, which the garbage collector would have to find."""
        for file in self.files:
            file.release()
        self.__dict__.clear()

    def named(self, file: ModuleDef, label: str) -> Value | None:
        """What a file binds a name to by import, `def` or `class`; None for a name that it does not bind so.

        Looked up one by one: what nobody asks for need not be read.
        """
        known = self._names.setdefault(file, {})
        if label in known:
            return known[label]
        key = (file, label)
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

    def resolve(self, file: ModuleDef, dotted: str) -> Value:
        """What a dotted import names, seen from a file: a project's file, class or function, or an outside name."""
        key = (file.folder, dotted)
        found = self._resolved.get(key)
        if found is None:
            self._resolved[key] = UNKNOWN  # breaks circles of imports
            found = self._resolved[key] = self._resolve(file, dotted)
        return found

    def member(self, file: ModuleDef, attribute: str) -> Value:
        """`attribute` of a project's module."""
        bound = file.scope.get(attribute, UNKNOWN)
        if bound.kind:
            return bound
        found = self.named(file, attribute)
        if found is not None:
            return found
        child = self._file_of((*file.parts, attribute))
        return Value(Kind.NAME, ref=child) if child is not None else UNKNOWN

    def _exported(self, file: ModuleDef, label: str, seen: set[ModuleDef]) -> Value | None:
        """One name that a file binds by `def`, `class` or import, looked up alone: packages import in circles."""
        if file.definitions is not None and self.beside is not None and not self.beside.define(file, label):
            return self._unread(file.parts, label, ".".join((*file.parts, label)))
        if label in file.functions:
            return Value(Kind.FUNCTION, ref=file.functions[label])
        if label in file.classes:
            return Value(Kind.CLASS, ref=file.classes[label])
        if label in file.imports:
            return self.resolve(file, file.imports[label])
        seen.add(file)
        for star in reversed(file.stars):
            if self.beside is not None and not self._may_export(file, star, label, len(seen)):
                continue
            target = self.resolve(file, star)
            if target.kind is Kind.NAME and isinstance(target.ref, ModuleDef) and target.ref not in seen:
                found = self._exported(target.ref, label, seen)
                if found is not None and found.kind:  # unknown: it imports the name from where it is being looked for
                    return found
        return None

    def _may_export(self, file: ModuleDef, star: str, label: str, depth: int) -> bool:
        """Whether what a star of a file means may bind a name; of a module that has not been read, its text tells."""
        assert self.beside is not None
        module = self._star_modules.get((file, star))
        if module is None:
            found = lookup(file.folder, star, self._may_exist)
            module = next((each for each, rest in found if not rest and self.beside.number(each) is not None), ())
            self._star_modules[file, star] = module
        number = self.beside.number(module) if module else None
        return number is None or self.beside.may_export(number, label, depth)

    def _resolve(self, file: ModuleDef, dotted: str) -> Value:
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

    def _walk(self, file: ModuleDef, words: tuple[str, ...]) -> Value:
        value = Value(Kind.NAME, ref=file)
        for word in words:
            if value.kind is not Kind.NAME or not isinstance(value.ref, ModuleDef):
                return UNKNOWN
            value = self.member(value.ref, word)
        return value

    def _connect(self) -> None:
        """Propagate two facts along imports: a framework to importers, the use of a device both ways."""
        if not any(self._speaks_of_one(file) for file in self.files):
            self._device = dict.fromkeys(self.files, False)
            return
        connected = DisjointSets(self.files)
        importers: dict[ModuleDef, list[ModuleDef]] = {}
        for file in self.files:
            for target in self._imported(file):
                importers.setdefault(target, []).append(file)
                connected.join(file, target)
        used = {connected.find(file) for file in self.files if file.uses_framework and speaks_of_device(file.text)}
        self._device = {file: connected.find(file) in used for file in self.files}
        queue = [file for file in self.files if self._speaks_of_one(file)]
        self._relevant = set(queue)
        while queue:
            for importer in importers.get(queue.pop(), ()):
                if importer not in self._relevant:
                    self._relevant.add(importer)
                    queue.append(importer)

    def _speaks_of_one(self, file: ModuleDef) -> bool:
        """Whether a file imports a framework, or a module that the project's own barriers are in."""
        if file.uses_framework or file.uses_foreign:
            return True
        if not self._roots:
            return False
        return any(dotted.partition(".")[0] in self._roots for dotted in (*file.imports.values(), *file.stars))

    def _imported(self, file: ModuleDef) -> list[ModuleDef]:
        found = []
        for dotted in (*file.imports.values(), *file.stars):
            ref = self.resolve(file, dotted).ref
            target = ref if isinstance(ref, ModuleDef) else getattr(ref, "file", None)
            if isinstance(target, ModuleDef) and target is not file:
                found.append(target)
        return found

    def static(self, file: ModuleDef, node: ast.expr) -> Value:
        """What an expression names by imports and definitions alone."""
        if isinstance(node, ast.Name):
            return self.named(file, node.id) or UNKNOWN
        if isinstance(node, ast.Attribute):
            base = self.static(file, node.value)
            if base.kind is Kind.NAME:
                if isinstance(base.ref, ModuleDef):
                    return self.member(base.ref, node.attr)
                return name(f"{base.ref}.{node.attr}")
        if isinstance(node, ast.Subscript):
            return self.static(file, node.value)
        return UNKNOWN
