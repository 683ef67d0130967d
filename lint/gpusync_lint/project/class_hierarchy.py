"""The bases of classes, inside and outside of the project, and inherited methods."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Protocol

from gpusync_lint.domain.external_names import is_module_name, is_unknown_class
from gpusync_lint.domain.values import Kind, Value
from gpusync_lint.project.symbols import ClassDef, FunctionDef, ModuleDef

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class _Names(Protocol):
    """What the hierarchy uses of the project."""

    files: list[ModuleDef]

    def static(self, file: ModuleDef, node: ast.expr) -> Value:
        """What an expression refers to, by imports and definitions alone."""

    def relevant(self, file: ModuleDef) -> bool:
        """Whether a file uses a framework, itself or through its imports."""


MAX_LINEAGE = 500
"""The maximum number of bases of a class. Thousands of them would take quadratic time and memory."""
_MAX_OVERRIDES = 6
"""Overrides of a method without a body that are all taken for what a call may run."""


_AUTOGRAD_FUNCTIONS = frozenset(
    {
        "torch.autograd.Function", "torch.autograd.function.Function", "torch.autograd.function.InplaceFunction",
        "torch.autograd.function.NestedIOFunction",
    }
)  # fmt: skip
_DICTS = frozenset({"Counter", "OrderedDict", "UserDict", "defaultdict", "dict"})
_LISTS = frozenset({"UserList", "deque", "list"})
_WITH_CONTEXT = frozenset({"forward", "setup_context", "backward", "vjp", "jvp"})
"""The methods of a `torch.autograd.Function` whose first parameter is its context."""


def is_stub(node: ast.AST) -> bool:
    """Whether a function does nothing but raise an error, or nothing at all: an abstract method."""
    body = getattr(node, "body", [])
    return all(
        isinstance(statement, (ast.Pass, ast.Raise))
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in body
    )


class ClassHierarchy:
    """The classes of a project. Results are cached."""

    def __init__(self, names: _Names) -> None:
        self._names = names
        self._lineages: dict[ClassDef, tuple[ClassDef | str, ...]] = {}
        self._containers: dict[ClassDef, str] = {}
        self._project_lineages: dict[ClassDef, tuple[ClassDef, ...]] = {}
        self._modules: dict[ClassDef, bool] = {}
        self._methods: dict[tuple[ClassDef, str], FunctionDef | None] = {}
        self._next_methods: dict[tuple[ClassDef, str], FunctionDef | None] = {}
        self._overrides: dict[FunctionDef, list[FunctionDef]] = {}
        self._methods_by_name: dict[str, list[FunctionDef]] | None = None
        self._subclasses: dict[ClassDef, list[ClassDef]] | None = None

    def lineage(self, cls: ClassDef) -> tuple[ClassDef | str, ...]:
        """A class and its bases, nearest first; bases outside the project as dotted names.

        Bases beyond the first `MAX_LINEAGE` are left out, which the limits of the file say.
        """
        known = self._lineages.get(cls)
        if known is not None:
            return known
        stack = [(cls, self._bases(cls))]
        self._lineages[cls] = (cls,)  # ends cycles of bases
        while stack:
            top, bases = stack[-1]
            waiting = next((base for base in bases if isinstance(base, ClassDef) and base not in self._lineages), None)
            if waiting is not None:
                self._lineages[waiting] = (waiting,)
                stack.append((waiting, self._bases(waiting)))
                continue
            line: dict[ClassDef | str, None] = {top: None}
            for base in bases:
                line.update(dict.fromkeys([base] if isinstance(base, str) else self._lineages[base]))
            if len(line) > MAX_LINEAGE:
                message = f"a class has more than {MAX_LINEAGE} base classes; the others are left out"
                top.file.limits.setdefault(message, top.node.lineno)
            self._lineages[top] = tuple(line)[:MAX_LINEAGE]
            stack.pop()
        return self._lineages[cls]

    def _bases(self, cls: ClassDef) -> list[ClassDef | str]:
        values = [self._names.static(cls.file, base) for base in cls.node.bases]
        return [
            value.ref
            for value in values
            if value.kind is Kind.CLASS or (value.kind is Kind.NAME and isinstance(value.ref, str))
        ]

    def project_lineage(self, cls: ClassDef) -> tuple[ClassDef, ...]:
        """A class and its bases in the project, nearest first."""
        known = self._project_lineages.get(cls)
        if known is None:
            known = tuple(base for base in self.lineage(cls) if isinstance(base, ClassDef))
            self._project_lineages[cls] = known
        return known

    def external_bases(self, cls: ClassDef) -> Sequence[str]:
        """The dotted names of the bases of a class that are outside the project."""
        return [base for base in self.lineage(cls) if isinstance(base, str)]

    def is_module(self, cls: ClassDef) -> bool:
        """Whether instances are `torch.nn.Module`s.

        A class with an unknown base outside the project is taken for one if it has a method `forward`.
        """
        known = self._modules.get(cls)
        if known is None:
            known = self._modules[cls] = self._is_module(cls)
        return known

    def _is_module(self, cls: ClassDef) -> bool:
        external = self.external_bases(cls)
        if any(is_module_name(base) for base in external):
            return True
        if not cls.file.uses_framework or not any(is_unknown_class(base) for base in external):
            return False
        forward = self.method(cls, "forward")
        return forward is not None and forward.kind == "function"

    def is_autograd_function(self, cls: ClassDef) -> bool:
        """Whether a class is a `torch.autograd.Function`, whose `apply` calls `forward`."""
        return any(base in _AUTOGRAD_FUNCTIONS for base in self.external_bases(cls))

    def is_optimizer(self, cls: ClassDef) -> bool:
        """Whether a class is a `torch.optim.Optimizer`."""
        return any(base.startswith("torch.optim.") for base in self.external_bases(cls))

    def container(self, cls: ClassDef) -> str:
        """`dict` or `list` for a class that is derived from such a container; empty for others."""
        known = self._containers.get(cls)
        if known is None:
            names = {base.rpartition(".")[2] for base in self.external_bases(cls)}
            for base in self.project_lineage(cls):
                names.update(node.id for node in base.node.bases if isinstance(node, ast.Name))
            known = self._containers[cls] = "dict" if names & _DICTS else "list" if names & _LISTS else ""
        return known

    def receives_context(self, fn: FunctionDef) -> bool:
        """Whether autograd passes its context to a function first: `forward(ctx, x)`, `backward(ctx, grad)`."""
        if fn.cls is None or fn.kind != "static" or fn.name not in _WITH_CONTEXT:
            return False
        if not self.is_autograd_function(fn.cls):
            return False
        return fn.name != "forward" or self.method(fn.cls, "setup_context") is None

    def method(self, cls: ClassDef, name: str) -> FunctionDef | None:
        """The method of a name, its own or inherited."""
        key = (cls, name)
        if key not in self._methods:
            defined = (base.methods[name] for base in self.project_lineage(cls) if name in base.methods)
            self._methods[key] = next(defined, None)
        return self._methods[key]

    def next_method(self, cls: ClassDef, name: str) -> FunctionDef | None:
        """The method that `super().name` in a method of a class refers to."""
        key = (cls, name)
        if key not in self._next_methods:
            defined = (base.methods[name] for base in self.project_lineage(cls)[1:] if name in base.methods)
            self._next_methods[key] = next(defined, None)
        return self._next_methods[key]

    def subclasses(self, cls: ClassDef) -> Sequence[ClassDef]:
        """The classes that inherit from a class, directly or not; none if there are too many to be told apart."""
        if self._subclasses is None:
            self._subclasses = {}
            for file in self._names.files:
                if self._names.relevant(file):
                    for one in file.classes.values():
                        for base in self.project_lineage(one)[1:]:
                            self._subclasses.setdefault(base, []).append(one)
        found = self._subclasses.get(cls, ())
        return found if len(found) <= _MAX_OVERRIDES else ()

    def implementations(self, method: FunctionDef) -> list[FunctionDef]:
        """What a call of a method may run: the overrides of a method that has no body of its own, or the method."""
        overrides = self.overrides(method)
        return overrides if 0 < len(overrides) <= _MAX_OVERRIDES else [method]

    def overrides(self, method: FunctionDef) -> list[FunctionDef]:
        """The overrides of a method that has no body of its own; none for other methods."""
        known = self._overrides.get(method)
        if known is None:
            known = self._overrides[method] = list(self._find_overrides(method))
        return known

    def _find_overrides(self, method: FunctionDef) -> Iterator[FunctionDef]:
        if method.cls is not None and is_stub(method.node):
            for other in self.methods_named(method.name):
                inherits = other.cls is not None and method.cls in self.project_lineage(other.cls)
                if inherits and other is not method and not is_stub(other.node):
                    yield other

    def methods_named(self, name: str) -> list[FunctionDef]:
        """The methods of a name in all classes of the project, except properties and static methods."""
        if self._methods_by_name is None:
            self._methods_by_name = {}
            for file in self._names.files:
                if self._names.relevant(file):
                    for fn in file.all_functions:
                        if fn.cls is not None and fn.kind == "function":
                            self._methods_by_name.setdefault(fn.name, []).append(fn)
        return self._methods_by_name.get(name, [])

    def is_none_by_default(self, cls: ClassDef, name: str) -> bool:
        """Whether an annotated field of a class without `__init__` is None by default."""
        if self.method(cls, "__init__") is not None:
            return False
        for statement in cls.node.body:
            if isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", "") == name:
                return isinstance(statement.value, ast.Constant) and statement.value.value is None
        return False
