"""From a Python frame to the line that is charged.

A sync is charged to the innermost frame of the user's project. Frames of torch, of installed packages and of the
standard library in between are not the user's to change on that line; the innermost of them is named as `via`. Autograd
runs operators of ``backward()`` on threads that have no Python frame at all, or none of the user's: such a sync is
charged to the line of the thread that is inside ``backward()``, while a hook written by the user is charged to itself.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import gpusync_lint

from pytest_gpusync.model.measurement import Charge, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    _Place = tuple[int, int]
    """An instruction: identity of its code object and offset. To hash the code object itself is to hash all its
    constants, and those of two files compare equal when they were compiled from the same text."""

_INTERNAL: Final = 0
"""This package, the linter and the import machinery: never a site, never named."""
_LIBRARY: Final = 1
_USER: Final = 2
_TORCH: Final = 3
"""A library too, but never the line of a program without lines of the user's."""
_BROKEN: Final = 4
"""The user's, in a function where torch.compile breaks its graph: what waits there may be why."""

_GRAPH_BREAK = "graph break of torch.compile"
_RESUMED = re.compile(r"torch_dynamo_resume_in_(\w+)_at_\d+")
"""Name that torch.compile gives to the rest of a function after a graph break."""
_GENERATED = f"{os.sep}torchinductor_"
"""In the path of code that torch.compile wrote, as torch/_inductor/runtime/cache_dir_utils.py makes it up."""

_OWN_FOLDERS = tuple(
    str(folder) + os.sep
    for folder in (Path(__file__).resolve().parents[1], Path(gpusync_lint.__file__).resolve().parent)
)
_STDLIB_FOLDERS = tuple(
    {
        str(Path(folder).resolve()) + os.sep
        for name in ("stdlib", "platstdlib")
        if (folder := sysconfig.get_paths().get(name))
    }
)
_PACKAGE_FOLDERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_BACKWARD_FUNCTION = "_engine_run_backward"
_STACK_ENTRY = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>\S+)')
_BACKWARD_FILE = os.path.join("torch", "autograd", "graph.py")

made_at: Callable[[int], str | None] | None = None
"""Where autograd's operator of a number was made, while a recorder can tell; line and function."""

_version = 0
_class_of_file: dict[str, int] = {}
_shown_path: dict[tuple[str, str], str] = {}
_sites: dict[tuple[str, str, int, str | None], Site] = {}

_MOST_PLACES: Final = 1 << 14
"""Instructions remembered. A program that compiles code in a loop would fill any memory."""

_direct: dict[_Place, tuple[CodeType, Charge]] = {}
"""Charges of calls that the main thread made straight from a line of the user's. The code object is kept, so that no
other gets its identity."""
_described: dict[_Place, tuple[CodeType, str]] = {}
_class_of_code: dict[int, tuple[CodeType, int]] = {}


def charge(frame: FrameType | None, thread: int) -> Charge:
    """Return the site of a sync made on `thread`, whose innermost Python frame is `frame`."""
    if frame is not None:
        # This is asked at every sync: first what is true of nearly all.
        known = _direct.get((id(frame.f_code), frame.f_lasti))
        if known is not None and known[1].thread == thread:
            return known[1]
    site = _site_of(frame)
    if site is not None and thread == threading.main_thread().ident:
        if runs_backward(frame):
            return Charge(_with_operator(site[0]), thread)
        charged = Charge(site[0], thread)
        if frame is not None and _class_of_code.get(id(frame.f_code), (None, None))[1] in (_USER, _BROKEN):
            _remember(_direct, (id(frame.f_code), frame.f_lasti), (frame.f_code, charged))
        return charged
    owner = _thread_in_backward(thread) if _may_belong_to_autograd(frame, thread) else None
    if site is not None and site[1]:
        # A hook of the user's is charged to its own line, and to the thread whose backward() runs it.
        return Charge(site[0], owner[0] if owner is not None else thread)
    if owner is not None:
        found = _site_of(owner[1])
        if found is not None:
            return Charge(_with_operator(found[0]), owner[0])
    if site is not None:
        return Charge(site[0], thread)
    return Charge(Site("<unknown>", 0, f"thread {thread}"), thread)


def runs_backward(frame: FrameType | None) -> bool:
    """Tell whether autograd's engine is what `frame` called: which operator it runs, the frame does not tell."""
    while frame is not None and _class_of(frame) == _INTERNAL:
        frame = frame.f_back
    return frame is not None and _is_engine(frame)


def codes_to_the_users(frame: FrameType | None) -> list[CodeType]:
    """Return the code objects of a stack from its innermost frame to the first of the user's; empty without one."""
    codes: list[CodeType] = []
    while frame is not None:
        codes.append(frame.f_code)
        if _class_of(frame) in (_USER, _BROKEN):
            return codes
        frame = frame.f_back
    return []


def version() -> int:
    """Return how often what is known of lines was forgotten: a charge of an earlier version may be out of date."""
    return _version


def clear_caches() -> None:
    """Forget shown paths; for tests, and after the working directory changed."""
    global _version
    _version += 1
    _shown_path.clear()
    _sites.clear()
    _direct.clear()
    _described.clear()


def is_users(filename: str) -> bool:
    """Tell whether code of this file is the user's project: no installed package, standard library or exec()."""
    return not filename.startswith("<") and _classify_path(filename) == _USER


def _site_of(frame: FrameType | None) -> tuple[Site, bool] | None:
    """Return the site for a stack and whether its frame is the user's; None for a stack of our own frames only."""
    via: str | None = None
    innermost_library: FrameType | None = None
    innermost_outside_torch: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        classified = _class_of_code.get(id(code))
        kind = _classify_code(code, frame) if classified is None else classified[1]
        if kind == _BROKEN:
            return _intern(frame, f"{via}, in a {_GRAPH_BREAK}" if via else _GRAPH_BREAK), True
        if kind == _USER:
            return _intern(frame, via), True
        if kind != _INTERNAL:
            if innermost_library is None:
                innermost_library = frame
                via = _describe(frame)
            if innermost_outside_torch is None and kind != _TORCH:
                innermost_outside_torch = frame
        frame = frame.f_back
    # No line of the user's: a library's own program (python -m something) is charged to its own line.
    chosen = innermost_outside_torch or innermost_library
    if chosen is None:
        return None
    return _intern(chosen, via if chosen is not innermost_library else None), False


def _intern(frame: FrameType, via: str | None) -> Site:
    code, line = frame.f_code, frame.f_lineno or 0
    key = (code.co_filename, code.co_name, line, via)
    site = _sites.get(key)
    if site is None:
        site = Site(shown_path(code.co_filename), line, _function(code), via)
        _remember(_sites, key, site)
    return site


def _describe(frame: FrameType) -> str:
    code = frame.f_code
    place = (id(code), frame.f_lasti)
    known = _described.get(place)
    if known is not None:
        return known[1]
    text = f"{package_path(code.co_filename)}:{frame.f_lineno} {_function(code)}"
    _remember(_described, place, (code, text))
    return text


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _remember(cache: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    if len(cache) >= _MOST_PLACES:
        cache.clear()
    cache[key] = value


def _function(code: CodeType) -> str:
    # co_qualname exists from Python 3.11 on.
    name: str = getattr(code, "co_qualname", code.co_name)
    return _RESUMED.sub(r"\1", name)


def package_path(filename: str) -> str:
    """Return the path of an installed file from its package on: ``torch/nn/modules/module.py``."""
    for folder in _PACKAGE_FOLDERS:
        if folder in filename:
            return filename.rsplit(folder, 1)[1].replace(os.sep, "/")
    for folder in _STDLIB_FOLDERS:
        if filename.startswith(folder):
            return filename[len(folder) :].replace(os.sep, "/")
    if _GENERATED in filename:
        return "torch.compile's code"
    return shown_path(filename)


def shown_path(filename: str) -> str:
    """Return `filename` relative to the working directory where it lies below it, with forward slashes."""
    cwd = os.getcwd()
    key = (filename, cwd)
    shown = _shown_path.get(key)
    if shown is None:
        shown = filename
        if not filename.startswith("<"):
            relative = os.path.relpath(os.path.realpath(filename), os.path.realpath(cwd))
            if not relative.startswith(os.pardir):
                shown = relative
        shown = shown.replace(os.sep, "/")
        _remember(_shown_path, key, shown)
    return shown


def _class_of(frame: FrameType) -> int:
    known = _class_of_code.get(id(frame.f_code))
    return _classify_code(frame.f_code, frame) if known is None else known[1]


def _classify_code(code: CodeType, frame: FrameType) -> int:
    filename = code.co_filename
    if filename == "<string>":
        # exec() and dataclasses both compile "<string>": only a program given with -c is the user's.
        return _USER if frame.f_globals.get("__name__") == "__main__" else _INTERNAL
    kind = _class_of_file.get(filename)
    if kind is None:
        kind = _classify_path(filename)
        generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or _GENERATED
        of_torch = kind == _LIBRARY and package_path(filename).startswith("torch/")
        if of_torch or _GENERATED in filename or filename.startswith(generated):
            kind = _TORCH
        _remember(_class_of_file, filename, kind)
    if kind == _USER and _is_broken(code):
        kind = _BROKEN
    _remember(_class_of_code, id(code), (code, kind))
    return kind


def _is_broken(code: CodeType) -> bool:
    """Whether torch.compile made this code and had to leave the rest of the function to another one."""
    if any(name.startswith("__resume_at_") for name in code.co_names):
        return True
    # torch 2.11 makes the rest of a closure within it.
    return any(isinstance(part, CodeType) and _RESUMED.fullmatch(part.co_name) for part in code.co_consts)


def _classify_path(filename: str) -> int:
    if filename.startswith("<"):
        # Notebook cells and doctests have names of this form; the import system and torch.fx too.
        return _USER if filename.startswith(("<ipython", "<stdin", "<doctest")) else _INTERNAL
    resolved = os.path.realpath(filename)
    if resolved.startswith(_OWN_FOLDERS):
        return _INTERNAL
    if any(folder in filename or folder in resolved for folder in _PACKAGE_FOLDERS):
        return _LIBRARY
    if resolved.startswith(_STDLIB_FOLDERS):
        return _LIBRARY
    return _USER


def _may_belong_to_autograd(frame: FrameType | None, thread: int) -> bool:
    """Tell autograd's device threads, which C++ started, from Python threads without a line of the user's."""
    if frame is None:
        return True
    if thread == threading.main_thread().ident:
        return False
    known = threading._active  # type: ignore[attr-defined]
    owner: threading.Thread | None = known.get(thread)
    # A thread that C++ started and that ran Python once is known to threading as a dummy.
    return owner is None or isinstance(owner, threading._DummyThread)


def _thread_in_backward(asking: int) -> tuple[int, FrameType] | None:
    """Return the one thread inside ``backward()``, the main thread if several are, or failing both the main thread."""
    # Among them is the frame of this call: kept, or returned, it would make a cycle with what called it, and keep the
    # caller's tensors until the garbage collector comes by, which may be in a forked child that cannot free them.
    frames = sys._current_frames()
    main = threading.main_thread().ident
    inside = [ident for ident, frame in frames.items() if ident != asking and _is_in_backward(frame)]
    chosen = inside[0] if len(inside) == 1 else main
    frame = frames.get(chosen) if chosen is not None and chosen != asking else None
    del frames
    while frame is not None and frame.f_code.co_filename == _thread_in_backward.__code__.co_filename:
        frame = frame.f_back
    return None if chosen is None or frame is None else (chosen, frame)


def _is_in_backward(frame: FrameType | None) -> bool:
    while frame is not None:
        if _is_engine(frame):
            return True
        frame = frame.f_back
    return False


def _is_engine(frame: FrameType) -> bool:
    return frame.f_code.co_name == _BACKWARD_FUNCTION and frame.f_code.co_filename.endswith(_BACKWARD_FILE)


def _with_operator(site: Site) -> Site:
    """Name the operator whose gradient this thread is computing, and its line in forward where that is known."""
    current: Any = getattr(sys.modules.get("torch._C"), "_current_autograd_node", None)
    node = None if current is None else current()
    if node is None:
        return site
    operator = f"in {node.name()}"
    forward = _line_of_the_users(node.metadata.get("traceback_", ()))
    if forward is not None:
        operator += f" of {forward}"
    elif made_at is not None:
        made = made_at(node._sequence_nr())
        if made is not None:
            operator += f", made at {made} or just before"
    via = operator if site.via is None else f"{site.via}, {operator}"
    key = (site.path, site.function, site.line, via)
    named = _sites.get(key)
    if named is None:
        named = Site(site.path, site.line, site.function, via)
        _remember(_sites, key, named)
    return named


def _line_of_the_users(entries: Sequence[str]) -> str | None:
    """Return the innermost line of the user's among entries as ``traceback.format_stack`` writes them."""
    for entry in reversed(entries):
        found = _STACK_ENTRY.match(entry)
        if found and is_users(found["file"]):
            return f"{shown_path(found['file'])}:{found['line']} {found['function']}"
    return None
