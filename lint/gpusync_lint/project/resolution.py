"""The files of a run as one project: what names refer to across files, and which files use a framework."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.catalogue.roots import engines, frameworks
from gpusync_lint.domain.values import UNKNOWN, Kind, Value, external_name
from gpusync_lint.project.class_hierarchy import ClassHierarchy
from gpusync_lint.project.disjoint_sets import DisjointSets
from gpusync_lint.project.host_fields import host_fields
from gpusync_lint.project.imports import beginnings, last_words, lookup
from gpusync_lint.project.lazy_modules import LazyModules
from gpusync_lint.project.symbols import ModuleDef, device_use, uses_device

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gpusync_lint.model.function_key import Key
    from gpusync_lint.project.imports import Module
    from gpusync_lint.project.lazy_modules import Component


_MAX_NESTED = 50
"""How deeply the resolution of a name may be nested in that of others before it is put off."""


class _PutOffError(Exception):
    """A name has to be resolved first, because its resolution would be nested too deeply."""

    def __init__(self, file: ModuleDef, dotted: str) -> None:
        super().__init__(dotted)
        self.file = file
        self.dotted = dotted


class Project:
    """Files that are analyzed together."""

    def __init__(
        self, files: Sequence[ModuleDef], roots: frozenset[str] = frozenset(), component: Component | None = None
    ) -> None:
        """Index files.

        Args:
            files: the files.
            roots: modules, other than those of frameworks, whose import makes a file relevant.
            component: the component of which the files are a part; None if they are all there is.
        """
        self.files = list(files)
        self._component_uses_device = component is not None and component.uses_device
        self._roots = roots
        self._index = {file.parts: file for file in files}
        self.lazy = LazyModules(component, self._index) if component is not None else None
        """The other files of the component; None without one."""
        self._star_modules: dict[tuple[ModuleDef, str], tuple[str, ...]] = {}
        """By file and star import, the module that it names if it had not been read at first use; else empty."""
        names = self.lazy.beginnings if self.lazy is not None else beginnings(self._index)
        self._may_exist = names.__contains__
        self._first_words = last_words(names)
        """The words with which absolute names of modules of the project begin, wherever they are looked for."""
        self._resolved: dict[tuple[tuple[str, ...], str], Value] = {}
        self._unfinished: set[tuple[tuple[str, ...], str]] = set()
        """The keys of `_resolved` that are being resolved."""
        self._nested = 0
        """How deeply the current resolution is nested in others."""
        self._names: dict[ModuleDef, dict[str, Value | None]] = {}
        self._resolving: set[tuple[ModuleDef, str]] = set()
        """The names that are being resolved."""
        self._cycles = 0
        """The number of cycles found while resolving names."""
        self._device: dict[ModuleDef, bool] = {}
        self._relevant: set[ModuleDef] = set()
        self._host_fields: dict[ModuleDef, frozenset[str]] = {}
        self._starred: dict[ModuleDef, tuple[ModuleDef, ...]] = {}
        self.unread_functions: dict[str, Key] = {}
        """The keys of functions that exceeded the budget for reading, by the dotted names that stand for them."""
        self.classes = ClassHierarchy(self)
        if component is None:
            self._connect()
        else:
            for file in self.files:
                file.called_only = file.path in component.without_framework
                self._admit(file)

    def relevant(self, file: ModuleDef) -> bool:
        """Whether a file uses a framework, itself or through files of the project that it imports."""
        return file in self._relevant

    def uses_device(self, file: ModuleDef) -> bool:
        """Whether a file, or one that imports connect it with, mentions a device."""
        return self._device[file]

    def host_fields(self, file: ModuleDef) -> frozenset[str]:
        """The names of tensors that a file, or one that it imports from, declares to be kept on the host.

        There are none for a file that is read on demand: only a part of its text is known.
        """
        known = self._host_fields.get(file)
        if known is None:
            known = frozenset()
            if file.outline is None:
                known = host_fields(file.text).union(*map(self._fields_of, self._modules_imported(file)))
            self._host_fields[file] = known
        return known

    def imported_from(self, files: Iterable[ModuleDef]) -> frozenset[ModuleDef]:
        """The files of the project that files import, directly or through others, as far as they have been read."""
        found: set[ModuleDef] = set()
        stack = list(files)
        while stack:
            imported = (self._index.get(module) for module in self._modules_imported(stack.pop()))
            added = [file for file in imported if file is not None and file not in found]
            found.update(added)
            stack += added
        return frozenset(found)

    def _modules_imported(self, file: ModuleDef) -> set[tuple[str, ...]]:
        """The modules of the project that a file may import."""
        modules: Collection[tuple[str, ...]] = self._index if self.lazy is None else self.lazy.modules
        found = set()
        for dotted in {*file.imports.values(), *file.stars}:
            candidates = self._candidates(file, dotted)
            found.update([next((module for module, _ in candidates if module in modules), file.parts)])
        return found

    def _candidates(self, file: ModuleDef, dotted: str) -> Iterable[tuple[Module, Module]]:
        """The modules that an imported name may mean, as `lookup` finds them; most names are of other projects."""
        if dotted[:1] != "." and dotted.partition(".")[0] not in self._first_words:
            return ()
        return lookup(file.folder, dotted, self._may_exist)

    def _fields_of(self, module: tuple[str, ...]) -> frozenset[str]:
        if self.lazy is not None:
            return self.lazy.host_fields(module)
        return host_fields(self._index[module].text)

    def _admit(self, file: ModuleDef) -> None:
        self._device[file] = self._component_uses_device
        self._relevant.add(file)

    def _file_of(self, module: tuple[str, ...]) -> ModuleDef | None:
        """The file of a module. One in another part of the component is read on first use."""
        found = self._index.get(module)
        if found is None and self.lazy is not None:
            found = self.lazy.read(module)
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

    def named(self, file: ModuleDef, identifier: str) -> Value | None:
        """What a file binds a name to by import, `def` or `class`; None if it does not.

        Names are resolved one by one, so that files are not read for names that nothing uses.
        """
        known = self._names.setdefault(file, {})
        if identifier in known:
            return known[identifier]
        key = (file, identifier)
        if key in self._resolving:  # modules of packages import each other
            self._cycles += 1
            return None
        cycles = self._cycles
        self._resolving.add(key)
        try:
            found = self._exported(file, identifier)
        finally:
            self._resolving.discard(key)
        if self._cycles == cycles or not self._resolving:  # within a cycle, the result may be incomplete
            known[identifier] = found
        return found

    def resolve(self, file: ModuleDef, dotted: str) -> Value:
        """What an imported dotted name refers to: a file, class or function of the project, or a name outside.

        Modules may pass a name on in chains of any length, so the recursion is limited: a name that is nested too
        deeply is resolved first, on its own, and then the names that need it once more.
        """
        key = (file.folder, dotted)
        found = self._resolved.get(key)
        if found is not None:
            if key in self._unfinished:
                self._cycles += 1
            return found
        if self._nested:
            return self._resolve_nested(file, dotted)
        stack = [(file, dotted)]
        while True:
            file, dotted = stack[-1]
            self._nested = 1
            try:
                found = self._resolve_nested(file, dotted)
            except _PutOffError as deeper:
                self._resolved[file.folder, dotted] = UNKNOWN  # still ends cycles
                stack.append((deeper.file, deeper.dotted))
                continue
            finally:
                self._nested = 0
            stack.pop()
            if not stack:
                return found

    def _resolve_nested(self, file: ModuleDef, dotted: str) -> Value:
        if self._nested > _MAX_NESTED:
            raise _PutOffError(file, dotted)
        key = (file.folder, dotted)
        self._resolved[key] = UNKNOWN  # ends cycles of imports
        self._unfinished.add(key)
        self._nested += 1
        cycles = self._cycles
        try:
            found = self._resolved[key] = self._resolve(file, dotted)
        except _PutOffError:
            del self._resolved[key]
            raise
        finally:
            self._nested -= 1
            self._unfinished.discard(key)
        if found is UNKNOWN and self._cycles != cycles and self._resolving:  # outside of the cycle it may be known
            del self._resolved[key]
        return found

    def member(self, file: ModuleDef, attribute: str) -> Value:
        """An attribute of a module of the project."""
        bound = file.scope.get(attribute, UNKNOWN)
        if bound.kind:
            return bound
        found = self.named(file, attribute)
        if found is not None:
            return found
        child = self._file_of((*file.parts, attribute))
        return Value(Kind.NAME, ref=child) if child is not None else UNKNOWN

    def _exported(self, file: ModuleDef, identifier: str) -> Value | None:
        """What a file binds a name to by `def`, `class` or import, itself or through star imports."""
        found = self._defined(file, identifier)
        if found is not None:
            return found
        seen = {file}
        stack = [(file, reversed(file.stars))]
        while stack:
            file, stars = stack[-1]
            star = next(stars, None)
            if star is None:
                stack.pop()
                continue
            if self.lazy is not None and not self._may_export(file, star, identifier, len(seen)):
                continue
            target = self.resolve(file, star)
            if target.kind is not Kind.NAME or not isinstance(target.ref, ModuleDef) or target.ref in seen:
                continue
            found = self._defined(target.ref, identifier)
            if found is None:
                seen.add(target.ref)
                stack.append((target.ref, reversed(target.ref.stars)))
            elif found.kind:  # it is unknown in a cycle of imports
                return found
        return None

    def starred(self, file: ModuleDef) -> tuple[ModuleDef, ...]:
        """The modules of the project from which a file takes names with star imports, through others too.

        The last import counts, so its module comes first. There are none in a part of a component, whose modules are
        not read as a whole.
        """
        if self.lazy is not None:
            return ()
        known = self._starred.get(file)
        if known is None:
            found: dict[ModuleDef, None] = {file: None}
            stack = [file]
            while stack:
                one = stack.pop()
                targets = [self.resolve(one, star) for star in one.stars]
                new = [each.ref for each in targets if each.kind is Kind.NAME and isinstance(each.ref, ModuleDef)]
                new = [each for each in new if each not in found]
                found.update(dict.fromkeys(reversed(new)))
                stack += new
            known = self._starred[file] = tuple(found)[1:]
        return known

    def _defined(self, file: ModuleDef, identifier: str) -> Value | None:
        """What a file binds a name to by `def`, `class` or import, without star imports."""
        if file.outline is not None and self.lazy is not None and not self.lazy.define(file, identifier):
            return self._unread(file.parts, identifier, ".".join((*file.parts, identifier)))
        if identifier in file.functions:
            return Value(Kind.FUNCTION, ref=file.functions[identifier])
        if identifier in file.classes:
            return Value(Kind.CLASS, ref=file.classes[identifier])
        if identifier in file.imports:
            dotted = file.imports[identifier]
            # The catalogue says more of a library's engine than its source, also in the examples of the library.
            return external_name(dotted) if dotted in engines() else self.resolve(file, dotted)
        return None

    def _may_export(self, file: ModuleDef, star: str, identifier: str, depth: int) -> bool:
        """Whether the module of a star import may bind a name. If it has not been read, its text is searched."""
        assert self.lazy is not None
        module = self._star_modules.get((file, star))
        if module is None:
            found = lookup(file.folder, star, self._may_exist)
            module = next((each for each, rest in found if not rest and self.lazy.number(each) is not None), ())
            self._star_modules[file, star] = module
        number = self.lazy.number(module) if module else None
        return number is None or self.lazy.may_export(number, identifier, depth)

    def _resolve(self, file: ModuleDef, dotted: str) -> Value:
        bare = dotted.lstrip(".")
        for module, words in self._candidates(file, dotted):
            found = self._file_of(module)
            if found is not None and found is not file:
                if bare == dotted and self._hides_framework(module, bare, words):
                    continue
                if not words and (bare != dotted or "." in bare):
                    return self._of_package(file, module) or self._walk(found, words)
                return self._walk(found, words)
            if self.lazy is not None and module in self.lazy.unreadable:
                return self._unread(module, words[0], bare) if len(words) == 1 else external_name(bare)
        return external_name(bare)

    def _of_package(self, file: ModuleDef, module: tuple[str, ...]) -> Value | None:
        """What a package binds the name of one of its modules to, as `from .integrate import integrate` does.

        A file that imports the name from the package gets that, and not the module. None if it is the module.
        """
        package = self._file_of(module[:-1])
        if package is None or package is file:
            return None
        found = self._defined(package, module[-1])
        return found if found is not None and found.kind in (Kind.FUNCTION, Kind.CLASS) else None

    def variable(self, file: ModuleDef, dotted: str) -> tuple[ModuleDef, str] | None:
        """The module in which the body assigns what `from module import name` binds, and the name there.

        Modules may pass the name on. None if it is not of a module of the project.
        """
        for _ in range(_MAX_NESTED):
            origin = self._origin(file, dotted)
            if origin is None or origin[1] not in origin[0].imports:
                return origin
            file, dotted = origin[0], origin[0].imports[origin[1]]
        return None

    def _origin(self, file: ModuleDef, dotted: str) -> tuple[ModuleDef, str] | None:
        for module, words in lookup(file.folder, dotted, self._may_exist):
            found = self._file_of(module)
            if found is not None and found is not file:
                return (found, words[0]) if len(words) == 1 else None
        return None

    def _hides_framework(self, module: tuple[str, ...], dotted: str, words: tuple[str, ...]) -> bool:
        """Whether a module has the name of a framework, but lies in a package: `import torch` is not `pkg/torch`."""
        name = dotted.partition(".")[0]
        if name not in frameworks():
            return False
        folder = module[: len(module) - (dotted.count(".") + 1 - len(words))]
        package = self._file_of(folder) if folder else None
        return package is not None and package.path.endswith("__init__.py")

    def _unread(self, module: tuple[str, ...], identifier: str, dotted: str) -> Value:
        """A definition that exceeded the budget for reading, as a name outside whose function key is recorded."""
        assert self.lazy is not None
        if dotted not in self.unread_functions:
            key = self.lazy.function_key(module, identifier)
            if key is not None:
                self.unread_functions[dotted] = key
        return external_name(dotted)

    def _walk(self, file: ModuleDef, words: tuple[str, ...]) -> Value:
        value = Value(Kind.NAME, ref=file)
        for word in words:
            if value.kind is not Kind.NAME or not isinstance(value.ref, ModuleDef):
                return UNKNOWN
            value = self.member(value.ref, word)
        return value

    def _connect(self) -> None:
        """Propagate two facts along imports: the use of a framework to importers, that of a device both ways."""
        if not any(self._imports_framework(file) for file in self.files):
            self._device = dict.fromkeys(self.files, False)
            return
        connected = DisjointSets(self.files)
        importers: dict[ModuleDef, list[ModuleDef]] = {}
        for file in self.files:
            for target in self._imported(file):
                importers.setdefault(target, []).append(file)
                connected.join(file, target)
        groups: dict[ModuleDef, list[ModuleDef]] = {}
        for file in self.files:
            if file.uses_framework:
                groups.setdefault(connected.find(file), []).append(file)
        used = {
            root for root, files in groups.items() if uses_device(device_use(file.path, file.text) for file in files)
        }
        self._device = {file: connected.find(file) in used for file in self.files}
        queue = [file for file in self.files if self._imports_framework(file)]
        self._relevant = set(queue)
        while queue:
            for importer in importers.get(queue.pop(), ()):
                if importer not in self._relevant:
                    self._relevant.add(importer)
                    queue.append(importer)

    def _imports_framework(self, file: ModuleDef) -> bool:
        """Whether a file imports a framework, or a module with barriers that the project describes."""
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
        """What an expression refers to, by imports and definitions alone."""
        if isinstance(node, ast.Name):
            return self.named(file, node.id) or UNKNOWN
        if isinstance(node, ast.Attribute):
            base = self.static(file, node.value)
            if base.kind is Kind.NAME:
                if isinstance(base.ref, ModuleDef):
                    return self.member(base.ref, node.attr)
                return external_name(f"{base.ref}.{node.attr}")
        if isinstance(node, ast.Subscript):
            return self.static(file, node.value)
        return UNKNOWN
