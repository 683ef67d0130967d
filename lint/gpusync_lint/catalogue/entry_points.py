"""The functions of a project that servers call for each request, and pipelines for each token or timestep:
`entry_points.toml`, read and indexed.

A server is no framework of values, so it has no file among those of the frameworks: it only decides how often functions
run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from gpusync_lint.catalogue.loading import read_tables

_FILE = Path(__file__).parent / "entry_points.toml"


@dataclass(frozen=True, slots=True)
class Stage:
    """A method that is given what the one before it has returned."""

    method: str
    takes: Literal["", "list", "item"] = ""
    """`list`: what it returned for several requests. `item`: an item of that."""


@dataclass(frozen=True, slots=True)
class HandlerClass:
    """A class whose methods a server calls."""

    methods: tuple[str, ...]
    """Those that it calls once per request, or per batch of requests."""
    base: str = ""
    """The last part of the name of its base class, which the framework has."""
    name: str = ""
    """Its own name, where the server finds the class by that."""
    flow: tuple[Stage, ...] = ()
    """The methods that a request passes through, in this order. A class need not define all of them."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A call that passes a handler to a server."""

    name: str
    """The dotted name of a function or class, or the name of a method of an object of the framework."""
    position: int
    """The position of the handler among the arguments."""
    keyword: str
    """The keyword with which it can also be passed."""
    method: str = "__init__"
    """Of a class that is passed, the method that the server calls."""


@dataclass(frozen=True, slots=True)
class Server:
    """What one framework calls for each request, or batch of requests, or for each token or timestep."""

    name: str
    modules: tuple[str, ...]
    """The top-level modules of the framework."""
    source: str
    """The documentation or source that says so."""
    unit: Literal["request", "token", "timestep"] = "request"
    """What it calls them once per."""
    routes: tuple[str, ...] = ()
    """Methods of an application or router that decorate handlers."""
    decorators: tuple[str, ...] = ()
    """Dotted names of decorators of handlers."""
    class_decorators: tuple[str, ...] = ()
    """Dotted names of decorators of classes whose `__call__` is a handler, as are methods that are called remotely."""
    set_up_decorators: tuple[str, ...] = ()
    """Dotted names of decorators of methods of such a class that are not called for each request."""
    injections: tuple[str, ...] = ()
    """Dotted names of what declares, in the parameters of a handler, a function that is called before it."""
    registrations: tuple[Registration, ...] = ()
    """Calls that pass a handler to the server."""
    classes: tuple[HandlerClass, ...] = field(default=(), metadata={"key": "class"})
    """Classes whose methods the server calls."""


@cache
def servers() -> tuple[Server, ...]:
    """Every server of the file."""
    return read_tables(_FILE, "server", Server)


@cache
def modules() -> frozenset[str]:
    """The top-level modules of all servers."""
    return frozenset(module for server in servers() for module in server.modules)


@cache
def injections() -> frozenset[str]:
    """The dotted names of what declares a function that is called before a handler."""
    return frozenset(name for server in servers() for name in server.injections)


@cache
def registrations() -> dict[str, tuple[tuple[Server, Registration], ...]]:
    """The calls that pass a handler to a server, by the last part of their name."""
    found: dict[str, tuple[tuple[Server, Registration], ...]] = {}
    for server in servers():
        for one in server.registrations:
            last = one.name.rpartition(".")[2]
            found[last] = (*found.get(last, ()), (server, one))
    return found
