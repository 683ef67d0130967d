"""Barriers that are identified by dotted names: those of libraries on top of torch, and those of the project itself.

Libraries export a function or class under several names (`lightning.pytorch.LightningModule`,
`pytorch_lightning.LightningModule`). Their catalogues therefore contain suffixes of names, and the modules that the
names begin with. The names of a project's own barriers are suffixes too, of names that begin with any module. A name
with a leading dot is a method of any object.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import roots
from gpusync_lint.domain import accelerators
from gpusync_lint.domain.external_names import is_module_name
from gpusync_lint.domain.values import UNKNOWN, Device, Kind, Value, tuple_of
from gpusync_lint.project.symbols import ClassDef, FunctionDef

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator, Sequence

    from gpusync_lint.catalogue.schema import Barrier, Catalogue
    from gpusync_lint.project.class_hierarchy import ClassHierarchy

_OBJECT = "()"
"""The suffix that makes the dotted name of a class that of its instances: `accelerate.Accelerator()`."""

_CALL = "__call__"
_NONE: tuple[Barrier, ...] = ()


@cache
def _classes() -> dict[str, frozenset[str]]:
    """By root, the last names of the classes whose methods the catalogues describe."""
    return {
        root: frozenset(end.split(".")[-2] for barrier in each.barriers.values() for end in barrier.calls if "." in end)
        | {timer.name.rpartition(".")[2] for timer in each.timers}
        for root, each in roots.library_of().items()
    }


class NamedBarriers:
    """The barriers of libraries and of a project, by dotted name."""

    def __init__(self, own: Sequence[Barrier] = ()) -> None:
        self.suffixes: dict[str, list[tuple[str, Barrier]]] = {}
        """By the last word of a name, the suffixes of names and their barriers."""
        for barrier in (*(b for library in roots.libraries() for b in library.barriers.values()), *own):
            for suffix in barrier.calls:
                self.suffixes.setdefault(_key(suffix), []).append((suffix, barrier))
        self._known: dict[str, bool] = {}
        self.roots = frozenset(
            suffix.partition(".")[0] for barrier in own for suffix in barrier.calls if not suffix.startswith(".")
        )
        """The top-level modules of the project's own barriers. Files that import one of them are analyzed."""
        self._own_classes = frozenset(
            suffix.rpartition(".")[0] for barrier in own for suffix in barrier.calls if suffix.rpartition(".")[0]
        )

    def barriers(self, func: ast.expr, callee: Value, receiver: Value, classes: ClassHierarchy) -> Sequence[Barrier]:
        """The barriers that a call reaches.

        Args:
            func: the expression that is called.
            callee: its value.
            receiver: the object whose method is called; unknown for a plain function.
            classes: the classes of the project.
        """
        name: str = getattr(func, "attr", "")
        key = _callee_key(name, callee)
        if name not in self.suffixes and key not in self.suffixes:
            return _NONE
        found = [barrier for suffix, barrier in self.suffixes.get(name, ()) if suffix == f".{name}"]
        for dotted in _names(name, callee, receiver, classes):
            for suffix, barrier in self.suffixes.get(key, ()):
                if _has_suffix(dotted, suffix) and barrier not in found and _applies_to(barrier, dotted):
                    found.append(barrier)
        return found

    def knows(self, dotted: str) -> bool:
        """Whether `made` or `gives_tensor` knows an external name."""
        known = self._known.get(dotted)
        if known is None:
            known = self._known[dotted] = self.made(dotted, {}) is not None or self.gives_tensor(dotted)
        return known

    def made(self, dotted: str, kwargs: dict[str, Value]) -> Value | None:
        """The object that a function or class of a library returns; None if the catalogue does not describe it."""
        device = accelerators.returned(dotted)
        if device is not None:
            return Value(Kind.DEVICE, device)
        library = roots.library_of().get(dotted.partition(".")[0])
        for maker in library.makers if library is not None else ():
            if _has_suffix(dotted, maker.name):
                objects = [Value(Kind.NAME, ref=name + _OBJECT) if name else UNKNOWN for name in maker.gives]
                if maker.module:
                    objects[0] = Value(Kind.MODULE, Device.GPU, ref=maker.gives[0])
                return objects[0] if len(objects) == 1 else tuple_of(objects)
        has_methods = library is not None and dotted.rpartition(".")[2] in _classes()[dotted.partition(".")[0]]
        if not has_methods and not any(_has_suffix(dotted, name) for name in self._own_classes):
            return None
        made_with = _constants(kwargs)
        if is_module_name(dotted):
            return Value(Kind.MODULE, Device.CPU, ref=dotted, made_with=made_with)
        return Value(Kind.NAME, ref=dotted + _OBJECT, made_with=made_with)

    def made_of(self, cls: ClassDef, kwargs: dict[str, Value]) -> tuple[tuple[str, Value], ...] | None:
        """The `made_with` of an instance of a class of the project, if the project is such a library; else None."""
        library = _library(cls.file.parts)
        return _constants(kwargs) if library is not None and cls.name in _classes()[library.modules[0]] else None

    def gives_tensor(self, dotted: str) -> bool:
        """Whether a function or method of a library returns a tensor on the device."""
        library = roots.library_of().get(dotted.partition(".")[0])
        return library is not None and any(_has_suffix(dotted, suffix) for suffix in library.tensors)


@lru_cache(maxsize=4)
def named_by(own: tuple[Barrier, ...]) -> NamedBarriers:
    """`NamedBarriers` with a project's own barriers. Cached, for the parts of a project."""
    return NamedBarriers(own)


def _constants(kwargs: dict[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple((key, value) for key, value in kwargs.items() if value.const is not None)


def _library(words: Sequence[str]) -> Catalogue | None:
    """The library that a dotted name belongs to. The words before its module are folders of its source."""
    return next((library for word in words if (library := roots.library_of().get(word)) is not None), None)


def _key(dotted: str) -> str:
    """The key of a name in `suffixes`: its last word; for `__call__` with the class before it."""
    rest, _, last = dotted.rpartition(".")
    return f"{rest.rpartition('.')[2]}.{last}" if last == _CALL else last


def _callee_key(name: str, callee: Value) -> str:
    """The key of the name of a callee. Does not need its base classes."""
    ref = callee.ref
    if callee.kind is Kind.NAME and isinstance(ref, str):
        return _key(ref[: -len(_OBJECT)] + f".{_CALL}") if ref.endswith(_OBJECT) else ref.rpartition(".")[2]
    if callee.kind is Kind.FUNCTION and isinstance(ref, FunctionDef):
        return ref.name
    if callee.kind is Kind.MODULE:
        name = ref.rpartition(".")[2] if isinstance(ref, str) else getattr(ref, "name", "")
        return f"{name}.{_CALL}"
    return name


def _applies_to(barrier: Barrier, dotted: str) -> bool:
    library = _library(dotted.split("."))
    return barrier.framework == "project" or (library is not None and library.framework == barrier.framework)


def _has_suffix(dotted: str, suffix: str) -> bool:
    return dotted == suffix or dotted.endswith(f".{suffix}")


def _names(name: str, callee: Value, receiver: Value, classes: ClassHierarchy) -> Iterator[str]:
    """The dotted names of a callee: for a method, one for each class that may define it."""
    ref = callee.ref
    if callee.dotted_name:
        plain = callee.dotted_name.replace(_OBJECT, "")
        yield f"{plain}.{_CALL}" if callee.dotted_name.endswith(_OBJECT) else plain
    elif callee.kind is Kind.FUNCTION and isinstance(ref, FunctionDef):
        yield ".".join((*ref.file.parts, ref.qualname))
    elif callee.kind is Kind.MODULE and isinstance(ref, str):
        yield f"{ref}.{_CALL}"
    elif callee.kind is Kind.MODULE and isinstance(ref, ClassDef):
        yield ".".join((*ref.file.parts, ref.name, _CALL))
    elif name:
        yield from _names_of_method(name, receiver, classes)


def _names_of_method(name: str, receiver: Value, classes: ClassHierarchy) -> Iterator[str]:
    if isinstance(receiver.ref, str) and receiver.kind is Kind.MODULE:
        yield f"{receiver.ref}.{name}"
    elif isinstance(receiver.ref, ClassDef):
        for base in classes.lineage(receiver.ref):
            yield f"{base}.{name}" if isinstance(base, str) else f"{base.name}.{name}"
