"""Which functions of a project are handlers of requests: by their decorators and by the classes that they belong to."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from gpusync_lint.catalogue import entry_points
from gpusync_lint.model.units import Unit
from gpusync_lint.syntax.names import dotted_path
from gpusync_lint.syntax.parameters import with_defaults
from gpusync_lint.syntax.traversal import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.catalogue.entry_points import HandlerClass, Registration, Server, Stage
    from gpusync_lint.project.class_hierarchy import ClassHierarchy
    from gpusync_lint.project.symbols import ClassDef, FunctionDef, ModuleDef

_SET_UP = frozenset({"reconfigure", "check_health", "record_autoscaling_stats"})
"""Methods of a deployment that its framework calls, but not for requests."""


def unit_of_convention(fn: FunctionDef, classes: ClassHierarchy) -> Unit | None:
    """What a framework calls a function once per; None if nothing shows that it does."""
    decorators = getattr(fn.node, "decorator_list", ())
    if any(_handles(fn.file, decorator) for decorator in decorators):
        return Unit.REQUEST
    if fn.cls is None:
        return None
    return Unit.REQUEST if _is_deployed(fn, fn.cls) else _unit_of_method(fn.name, fn.cls, classes)


def registered(file: ModuleDef, name: str, dotted: str | None) -> Registration | None:
    """The registration of a handler that a call makes; None for any other call.

    Args:
        file: the file of the call.
        name: the last part of the name of what is called.
        dotted: its dotted name, if it is a function or class outside the project.
    """
    for server, registration in entry_points.registrations().get(name, ()):
        if registration.name == name:
            if dotted is None and _imports(file, server):
                return registration
        elif dotted == registration.name:
            return registration
    return None


class Injection(NamedTuple):
    """A function or class that a server calls before a handler, for an argument of it if `parameter` is not empty."""

    called: ast.expr
    handler: ast.FunctionDef | ast.AsyncFunctionDef | None = None
    parameter: str = ""


def injections(file: ModuleDef) -> Iterator[Injection]:
    """What a file declares to be called before handlers: `value=Depends(read)`, `Annotated[Model, Depends(load)]`."""
    if not any(module in file.text for module in _injecting_modules()):
        return
    if not any(f"{name.rpartition('.')[2]}(" in file.text for name in entry_points.injections()):
        return
    given: dict[ast.expr, Injection] = {}
    for node in walk(file.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for arg, default in with_defaults(node.args):
                annotation = arg.annotation
                annotated = list(_annotated(annotation))
                for one in (default, *annotated[1:]):
                    if isinstance(one, ast.Call) and (called := _injected(file, one, annotated[0])) is not None:
                        given[one] = Injection(called, node, arg.arg)
        elif isinstance(node, ast.Call) and node not in given and (called := _injected(file, node, None)) is not None:
            given[node] = Injection(called)
    yield from given.values()


@cache
def _injecting_modules() -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in entry_points.injections())


def _annotated(annotation: ast.expr | None) -> Iterator[ast.expr | None]:
    """The type of an annotation, and what `Annotated` adds to it."""
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple):
        is_plain = (dotted_path(annotation.value) or "").rpartition(".")[2] != "Annotated"
        yield from [annotation] if is_plain else annotation.slice.elts
    else:
        yield annotation


def _injected(file: ModuleDef, node: ast.Call, declared: ast.expr | None) -> ast.expr | None:
    """What a call declares to be called: its argument, or else the class of the annotation. None for other calls."""
    if _dotted(file, node) not in entry_points.injections():
        return None
    named = [word.value for word in node.keywords if word.arg == "dependency"]
    return next(iter([*node.args[:1], *named]), declared)


def _handles(file: ModuleDef, decorator: ast.expr) -> bool:
    """Whether a decorator makes a function a handler."""
    dotted = _dotted(file, decorator)
    last = dotted.rpartition(".")[2]
    for server in entry_points.servers():
        if dotted in server.decorators:
            return True
        is_route = last in server.routes and isinstance(decorator, ast.Call) and "." in dotted
        if is_route and (_imports(file, server) or _has_path(decorator)):
            return True
    return False


def _has_path(decorator: ast.expr) -> bool:
    """Whether the first argument is the path of a route: `@router.get("/health")`."""
    first = decorator.args[0] if isinstance(decorator, ast.Call) and decorator.args else None
    return isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.startswith("/")


def _is_deployed(fn: FunctionDef, cls: ClassDef) -> bool:
    """Whether a method belongs to a deployment: `__call__`, and what is called remotely."""
    decorators = cls.node.decorator_list
    if not decorators or not any(_dotted(cls.file, decorator) in _class_decorators() for decorator in decorators):
        return False
    if fn.name == "__call__":
        return True
    own = getattr(fn.node, "decorator_list", ())
    if fn.name.startswith("_") or fn.name in _SET_UP or any(_dotted(fn.file, one) in _set_up() for one in own):
        return False
    return isinstance(fn.node, ast.AsyncFunctionDef) or f".{fn.name}.remote(" in fn.file.text


def flow_of(cls: ClassDef, classes: ClassHierarchy) -> tuple[Stage, ...]:
    """The methods of a class that a request passes through, in this order; empty if it is no class of handlers."""
    return next((one.flow for _, one in _handler_classes(cls, classes) if one.flow), ())


@cache
def _set_up() -> frozenset[str]:
    return frozenset(name for server in entry_points.servers() for name in server.set_up_decorators)


@cache
def _class_decorators() -> frozenset[str]:
    return frozenset(name for server in entry_points.servers() for name in server.class_decorators)


def _unit_of_method(name: str, cls: ClassDef, classes: ClassHierarchy) -> Unit | None:
    """What a framework calls a method of a class of the project once per."""
    if name not in _handler_methods():
        return None
    return next((Unit(server.unit) for server, one in _handler_classes(cls, classes) if name in one.methods), None)


@cache
def _handler_methods() -> frozenset[str]:
    return frozenset(name for server in entry_points.servers() for one in server.classes for name in one.methods)


def _handler_classes(cls: ClassDef, classes: ClassHierarchy) -> Iterator[tuple[Server, HandlerClass]]:
    """What the catalogue says about a class."""
    known = _classes_by_name()
    for server, one in known.get(cls.name, ()):
        if cls.name == one.name:
            yield server, one
    for base in classes.lineage(cls)[1:]:
        for server, one in known.get(base.rpartition(".")[2] if isinstance(base, str) else base.name, ()):
            if one.base and _is_base(base, one.base, server):
                yield server, one


@cache
def _classes_by_name() -> dict[str, list[tuple[Server, HandlerClass]]]:
    """The classes of handlers by their own names and by the names of their base classes."""
    found: dict[str, list[tuple[Server, HandlerClass]]] = {}
    for server in entry_points.servers():
        for one in server.classes:
            for name in {one.name, one.base} - {"", None}:
                found.setdefault(name, []).append((server, one))
    return found


def _is_base(base: ClassDef | str, name: str, server: Server) -> bool:
    """Whether a base class is one of the server's; its own sources may belong to the project."""
    if not isinstance(base, str):
        return base.name == name and not set(server.modules).isdisjoint(base.file.parts)
    root, _, rest = base.partition(".")
    return root in server.modules and rest.rpartition(".")[2] == name


def _imports(file: ModuleDef, server: Server) -> bool:
    return any(dotted.partition(".")[0] in server.modules for dotted in (*file.imports.values(), *file.stars))


def _dotted(file: ModuleDef, decorator: ast.expr) -> str:
    """The dotted name of a decorator, with or without arguments, by the imports of its file."""
    path = dotted_path(decorator.func if isinstance(decorator, ast.Call) else decorator) or ""
    root, dot, rest = path.partition(".")
    return f"{file.imports.get(root, root)}{dot}{rest}"
