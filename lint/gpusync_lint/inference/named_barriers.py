"""Barriers that a dotted name tells: those of libraries on top of torch, and those that a project adds itself.

Libraries export the same function or class under several names (`lightning.pytorch.LightningModule`,
`pytorch_lightning.LightningModule`), so their catalogues give the ends of names only, and the modules they begin with.
A project's own names are ends of names too, wherever they begin; one with a leading dot is a method of anything.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import roots
from gpusync_lint.domain.external_names import is_module_name
from gpusync_lint.domain.values import UNKNOWN, Device, Kind, Value, tuple_of
from gpusync_lint.project.symbols import ClassDef, FunctionDef

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator, Sequence

    from gpusync_lint.catalogue.schema import Barrier, Catalogue
    from gpusync_lint.project.class_hierarchy import ClassHierarchy

_OBJECT = "()"
"""What the dotted name of a class is followed by to name its instances, as in `accelerate.Accelerator()`."""

_CALL = "__call__"
_NONE: tuple[Barrier, ...] = ()


@cache
def _classes() -> dict[str, frozenset[str]]:
    """By root, the last names of the classes whose methods the catalogues speak of."""
    return {
        root: frozenset(end.split(".")[-2] for barrier in each.barriers.values() for end in barrier.calls if "." in end)
        for root, each in roots.library_of().items()
    }


class NamedBarriers:
    """Which names wait."""

    def __init__(self, own: Sequence[Barrier] = ()) -> None:
        self.ends: dict[str, list[tuple[str, Barrier]]] = {}
        """The ends of names that barriers are called by, under their last words."""
        for barrier in (*(b for each in roots.libraries() for b in each.barriers.values()), *own):
            for end in barrier.calls:
                self.ends.setdefault(_key(end), []).append((end, barrier))
        self._known: dict[str, bool] = {}
        self.roots = frozenset(
            end.partition(".")[0] for barrier in own for end in barrier.calls if not end.startswith(".")
        )
        """First words of the project's own names: a file that imports one of them is of interest."""
        self._own_classes = frozenset(
            end.rpartition(".")[0] for barrier in own for end in barrier.calls if end.rpartition(".")[0]
        )

    def barriers(self, func: ast.expr, callee: Value, receiver: Value, classes: ClassHierarchy) -> Sequence[Barrier]:
        """The barriers that the name of what is called tells; `receiver` is unknown for a plain function."""
        label: str = getattr(func, "attr", "")
        key = _last(label, callee)
        if label not in self.ends and key not in self.ends:
            return _NONE
        found = [barrier for end, barrier in self.ends.get(label, ()) if end == f".{label}"]
        for dotted in _names(label, callee, receiver, classes):
            for end, barrier in self.ends.get(key, ()):
                if _ends(dotted, end) and barrier not in found and _speaks_of(barrier, dotted):
                    found.append(barrier)
        return found

    def knows(self, dotted: str) -> bool:
        """Whether `made` or `gives_tensor` tells something of an outside name."""
        known = self._known.get(dotted)
        if known is None:
            known = self._known[dotted] = self.made(dotted, {}) is not None or self.gives_tensor(dotted)
        return known

    def made(self, dotted: str, kwargs: dict[str, Value]) -> Value | None:
        """The object that a function or class of a library gives back; None when its catalogue does not say."""
        each = roots.library_of().get(dotted.partition(".")[0])
        for maker in each.makers if each is not None else ():
            if _ends(dotted, maker.name):
                objects = [Value(Kind.NAME, ref=name + _OBJECT) if name else UNKNOWN for name in maker.gives]
                if maker.module:
                    objects[0] = Value(Kind.MODULE, Device.GPU, ref=maker.gives[0])
                return objects[0] if len(objects) == 1 else tuple_of(objects)
        theirs = each is not None and dotted.rpartition(".")[2] in _classes()[dotted.partition(".")[0]]
        if not theirs and not any(_ends(dotted, name) for name in self._own_classes):
            return None
        said = _constants(kwargs)
        if is_module_name(dotted):
            return Value(Kind.MODULE, Device.CPU, ref=dotted, made_with=said)
        return Value(Kind.NAME, ref=dotted + _OBJECT, made_with=said)

    def made_of(self, cls: ClassDef, kwargs: dict[str, Value]) -> tuple[tuple[str, Value], ...] | None:
        """How an object of a library's class was made, where the project is the library itself."""
        each = _library(cls.file.parts)
        return _constants(kwargs) if each is not None and cls.name in _classes()[each.modules[0]] else None

    def gives_tensor(self, dotted: str) -> bool:
        """Whether a function or method of a library gives back a tensor on the device."""
        each = roots.library_of().get(dotted.partition(".")[0])
        return each is not None and any(_ends(dotted, end) for end in each.tensors)


@lru_cache(maxsize=4)
def named_by(own: tuple[Barrier, ...]) -> NamedBarriers:
    """`NamedBarriers` with a project's own barriers; the parts of a project share one."""
    return NamedBarriers(own)


def _constants(kwargs: dict[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple((key, value) for key, value in kwargs.items() if value.const is not None)


def _library(words: Sequence[str]) -> Catalogue | None:
    """The library that a dotted name belongs to: one that is installed, or one whose own files are looked at."""
    return next((each for word in words if (each := roots.library_of().get(word)) is not None), None)


def _key(dotted: str) -> str:
    """What a name is looked up by: its last word, and for a call of an object the class before it."""
    rest, _, last = dotted.rpartition(".")
    return f"{rest.rpartition('.')[2]}.{last}" if last == _CALL else last


def _last(label: str, callee: Value) -> str:
    """What the name of what is called is looked up by, found without a look at base classes."""
    ref = callee.ref
    if callee.kind is Kind.NAME and isinstance(ref, str):
        return _key(ref[: -len(_OBJECT)] + f".{_CALL}") if ref.endswith(_OBJECT) else ref.rpartition(".")[2]
    if callee.kind is Kind.FUNCTION and isinstance(ref, FunctionDef):
        return ref.name
    if callee.kind is Kind.MODULE:
        name = ref.rpartition(".")[2] if isinstance(ref, str) else getattr(ref, "name", "")
        return f"{name}.{_CALL}"
    return label


def _speaks_of(barrier: Barrier, dotted: str) -> bool:
    each = _library(dotted.split("."))
    return barrier.framework == "project" or (each is not None and each.framework == barrier.framework)


def _ends(dotted: str, end: str) -> bool:
    return dotted == end or dotted.endswith(f".{end}")


def _names(label: str, callee: Value, receiver: Value, classes: ClassHierarchy) -> Iterator[str]:
    """The dotted names of what is called: of a method, one for each class that may define it."""
    if callee.kind is Kind.NAME and isinstance(callee.ref, str):
        name = callee.ref.replace(_OBJECT, "")
        yield f"{name}.{_CALL}" if callee.ref.endswith(_OBJECT) else name
    elif callee.kind is Kind.FUNCTION and isinstance(callee.ref, FunctionDef):
        yield ".".join((*callee.ref.file.parts, callee.ref.qualname))
    elif callee.kind is Kind.MODULE and isinstance(callee.ref, str):
        yield f"{callee.ref}.{_CALL}"
    elif callee.kind is Kind.MODULE and isinstance(callee.ref, ClassDef):
        yield ".".join((*callee.ref.file.parts, callee.ref.name, _CALL))
    elif label and isinstance(receiver.ref, str) and receiver.kind is Kind.MODULE:
        yield f"{receiver.ref}.{label}"
    elif label and isinstance(receiver.ref, ClassDef):
        for base in classes.lineage(receiver.ref):
            yield f"{base}.{label}" if isinstance(base, str) else f"{base.name}.{label}"
