"""From a Python frame to the source line that is charged.

A sync is charged to the innermost frame of the user's project. Frames of torch, of installed packages and of the
standard library between it and the call are not the user's code; the innermost of them is named as `via`. Autograd runs
operators of ``backward()`` on threads that have no Python frame, or none of the user's. Such a sync is charged to the
line of the thread inside ``backward()``; a hook written by the user is charged to its own line.
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

from pytest_gpusync.model.measurement import Attribution, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    _Place = tuple[int, int]
    """An instruction: the identity of its code object, and its offset. Hashing a code object itself would hash all its
    constants, and code objects compiled from the same text in two files compare equal."""

_INTERNAL: Final = 0
"""This package, the linter and the import machinery: never a site, never named."""
_LIBRARY: Final = 1
_USER: Final = 2
_TORCH: Final = 3
"""Also a library, but never the line of a program without user code."""
_USER_GRAPH_BREAK: Final = 4
"""User code in a function in which torch.compile breaks its graph: a sync there may be the reason."""

_GRAPH_BREAK = "graph break of torch.compile"
_RESUMED = re.compile(r"torch_dynamo_resume_in_(\w+)_at_\d+")
"""The name torch.compile gives to the rest of a function after a graph break."""
_FUNCTION = r"\1"
_INDUCTOR_FOLDER = f"{os.sep}torchinductor_"
"""Part of the path of code written by torch.compile, see torch/_inductor/runtime/cache_dir_utils.py."""

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

forward_line_of: Callable[[int], str | None] | None = None
"""Returns the line and function that created autograd's operator of a given number; set by a recorder that knows."""

_cache_version = 0
_class_of_file: dict[str, int] = {}
_display_paths: dict[tuple[str, str], str] = {}
_sites: dict[tuple[str, str, int, str | None], Site] = {}

_MAX_CACHED: Final = 1 << 14
"""Most instructions cached. A program that compiles code in a loop would fill any memory."""

_direct: dict[_Place, tuple[CodeType, Attribution]] = {}
"""Attributions of calls that the main thread made directly from user code. The code object is kept, so that no other
object gets its identity."""
_described: dict[_Place, tuple[CodeType, str]] = {}
_class_of_code: dict[int, tuple[CodeType, int]] = {}


def charge(frame: FrameType | None, thread: int) -> Attribution:
    """Return the site and thread of a sync made on `thread`, whose innermost Python frame is `frame`."""
    if frame is not None:
        # This runs for every sync: check the most common case first.
        known = _direct.get((id(frame.f_code), frame.f_lasti))
        if known is not None and known[1].thread == thread:
            return known[1]
    site = _site_of(frame)
    if site is not None and thread == threading.main_thread().ident:
        if runs_backward(frame):
            return Attribution(_with_operator(site[0]), thread)
        charged = Attribution(site[0], thread)
        if frame is not None and _class_of_code.get(id(frame.f_code), (None, None))[1] in (_USER, _USER_GRAPH_BREAK):
            _cache(_direct, (id(frame.f_code), frame.f_lasti), (frame.f_code, charged))
        return charged
    owner = _thread_in_backward(thread) if _may_belong_to_autograd(frame, thread) else None
    if site is not None and site[1]:
        # A user's hook is charged to its own line, and to the thread whose backward() runs it.
        return Attribution(site[0], owner[0] if owner is not None else thread)
    if owner is not None:
        found = _site_of(owner[1])
        if found is not None:
            return Attribution(_with_operator(found[0]), owner[0])
    if site is not None:
        return Attribution(site[0], thread)
    return Attribution(Site("<unknown>", 0, f"thread {thread}"), thread)


def runs_backward(frame: FrameType | None) -> bool:
    """Return whether `frame` called autograd's engine. Which operator it runs cannot be seen from the frame."""
    while frame is not None and _class_of(frame) == _INTERNAL:
        frame = frame.f_back
    return frame is not None and _is_engine(frame)


def codes_up_to_user_frame(frame: FrameType | None) -> list[CodeType]:
    """Return the code objects of a stack from its innermost frame to the user's first one; empty if there is none."""
    codes: list[CodeType] = []
    while frame is not None:
        codes.append(frame.f_code)
        if _class_of(frame) in (_USER, _USER_GRAPH_BREAK):
            return codes
        frame = frame.f_back
    return []


def user_instruction(frame: FrameType | None) -> tuple[FrameType, CodeType, int] | None:
    """Return the user's innermost frame of a stack with its code and the offset of its instruction; None without one.

    It takes a fraction of the time of :func:`charge`, for what happens in every operator; :func:`site_of` names the
    line later.
    """
    while frame is not None:
        code = frame.f_code
        known = _class_of_code.get(id(code))
        kind = _classify_code(code, frame) if known is None else known[1]
        if kind in (_USER, _USER_GRAPH_BREAK):
            return frame, code, frame.f_lasti
        frame = frame.f_back
    return None


def site_of(code: CodeType, instruction: int) -> Site:
    """Return the site of an instruction of the user's code."""
    line = next(
        (line for start, end, line in code.co_lines() if start <= instruction < end and line is not None),
        code.co_firstlineno,
    )
    return Site(display_path(code.co_filename), line, _function(code))


def cache_version() -> int:
    """Return how often the caches were cleared: an attribution from before the last time may be out of date."""
    return _cache_version


def clear_caches() -> None:
    """Clear the caches; for tests, and after the working directory changed."""
    global _cache_version
    _cache_version += 1
    _display_paths.clear()
    _sites.clear()
    _direct.clear()
    _described.clear()


def is_user_code(filename: str) -> bool:
    """Return whether a file belongs to the user's project: not an installed package, the standard library or exec()."""
    return not filename.startswith("<") and _classify_path(filename) == _USER


def site_of_stack(stack: Sequence[tuple[str, int, str]]) -> Site:
    """Return the site of a stack that was kept as text: file, line and function of each frame, the innermost last.

    It is the innermost frame of the user's project, or of the stack if none is.
    """
    for index in range(len(stack) - 1, -1, -1):
        filename, line, function = stack[index]
        if is_user_code(filename):
            break
    else:
        index = len(stack) - 1
        filename, line, function = stack[index]
    via = None
    if index < len(stack) - 1:
        inner = stack[-1]
        via = f"{package_path(inner[0])}:{inner[1]} {_RESUMED.sub(_FUNCTION, inner[2])}"
    return Site(display_path(filename), line, _RESUMED.sub(_FUNCTION, function), via)


def _site_of(frame: FrameType | None) -> tuple[Site, bool] | None:
    """Return the site of a stack and whether its frame is the user's; None if all frames are our own."""
    via: str | None = None
    innermost_library: FrameType | None = None
    innermost_outside_torch: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        classified = _class_of_code.get(id(code))
        kind = _classify_code(code, frame) if classified is None else classified[1]
        if kind == _USER_GRAPH_BREAK:
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
    # No user code: a library's own program (python -m something) is charged to its own line.
    chosen = innermost_outside_torch or innermost_library
    if chosen is None:
        return None
    return _intern(chosen, via if chosen is not innermost_library else None), False


def _intern(frame: FrameType, via: str | None) -> Site:
    code, line = frame.f_code, frame.f_lineno or 0
    key = (code.co_filename, code.co_name, line, via)
    site = _sites.get(key)
    if site is None:
        site = Site(display_path(code.co_filename), line, _function(code), via)
        _cache(_sites, key, site)
    return site


def _describe(frame: FrameType) -> str:
    code = frame.f_code
    place = (id(code), frame.f_lasti)
    known = _described.get(place)
    if known is not None:
        return known[1]
    text = f"{package_path(code.co_filename)}:{frame.f_lineno} {_function(code)}"
    _cache(_described, place, (code, text))
    return text


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _cache(cache: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    if len(cache) >= _MAX_CACHED:
        cache.clear()
    cache[key] = value


def _function(code: CodeType) -> str:
    # co_qualname exists from Python 3.11 on.
    name: str = getattr(code, "co_qualname", code.co_name)
    return _RESUMED.sub(_FUNCTION, name)


def package_path(filename: str) -> str:
    """Return the path of an installed file starting at its package: ``torch/nn/modules/module.py``."""
    for folder in _PACKAGE_FOLDERS:
        if folder in filename:
            return filename.rsplit(folder, 1)[1].replace(os.sep, "/")
    for folder in _STDLIB_FOLDERS:
        if filename.startswith(folder):
            return filename[len(folder) :].replace(os.sep, "/")
    if _INDUCTOR_FOLDER in filename:
        return "torch.compile's code"
    return display_path(filename)


def display_path(filename: str) -> str:
    """Return `filename` relative to the working directory if it is below it, with forward slashes."""
    cwd = os.getcwd()
    key = (filename, cwd)
    shown = _display_paths.get(key)
    if shown is None:
        shown = filename
        if not filename.startswith("<"):
            relative = os.path.relpath(os.path.realpath(filename), os.path.realpath(cwd))
            if not relative.startswith(os.pardir):
                shown = relative
        shown = shown.replace(os.sep, "/")
        _cache(_display_paths, key, shown)
    return shown


def _class_of(frame: FrameType) -> int:
    known = _class_of_code.get(id(frame.f_code))
    return _classify_code(frame.f_code, frame) if known is None else known[1]


def _classify_code(code: CodeType, frame: FrameType) -> int:
    filename = code.co_filename
    if filename == "<string>":
        # exec() and dataclasses also compile "<string>": only a program given with -c is the user's.
        return _USER if frame.f_globals.get("__name__") == "__main__" else _INTERNAL
    kind = _class_of_file.get(filename)
    if kind is None:
        kind = _classify_path(filename)
        generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or _INDUCTOR_FOLDER
        of_torch = kind == _LIBRARY and package_path(filename).startswith("torch/")
        if of_torch or _INDUCTOR_FOLDER in filename or filename.startswith(generated):
            kind = _TORCH
        _cache(_class_of_file, filename, kind)
    if kind == _USER and _has_graph_break(code):
        kind = _USER_GRAPH_BREAK
    _cache(_class_of_code, id(code), (code, kind))
    return kind


def _has_graph_break(code: CodeType) -> bool:
    """Return whether torch.compile made this code and put the rest of the function into another code object."""
    if any(name.startswith("__resume_at_") for name in code.co_names):
        return True
    # torch 2.11 nests the rest of a closure inside it.
    return any(isinstance(part, CodeType) and _RESUMED.fullmatch(part.co_name) for part in code.co_consts)


def _classify_path(filename: str) -> int:
    if filename.startswith("<"):
        # Notebook cells and doctests have such names; so do the import system and torch.fx.
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
    """Return whether this may be one of autograd's device threads, which C++ started, rather than a Python thread
    without user code.
    """
    if frame is None:
        return True
    if thread == threading.main_thread().ident:
        return False
    known = threading._active  # type: ignore[attr-defined]
    owner: threading.Thread | None = known.get(thread)
    # A thread that C++ started and that ran Python once is a dummy thread to threading.
    return owner is None or isinstance(owner, threading._DummyThread)


def _thread_in_backward(asking: int) -> tuple[int, FrameType] | None:
    """Return the only thread inside ``backward()``, the main thread if there are several, or else the main thread."""
    # The frames include that of this call. Keeping or returning it would make a reference cycle with the caller, which
    # would keep the caller's tensors alive until the garbage collector runs, perhaps in a forked child that cannot free
    # them.
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
    """Add the operator whose gradient this thread computes to `via`, and its line in forward if known."""
    current: Any = getattr(sys.modules.get("torch._C"), "_current_autograd_node", None)
    node = None if current is None else current()
    if node is None:
        return site
    operator = f"in {node.name()}"
    forward = _innermost_user_line(node.metadata.get("traceback_", ()))
    if forward is not None:
        operator += f" of {forward}"
    elif forward_line_of is not None:
        created = forward_line_of(node._sequence_nr())
        if created is not None:
            operator += f", created at {created} or just before"
    via = operator if site.via is None else f"{site.via}, {operator}"
    key = (site.path, site.function, site.line, via)
    named = _sites.get(key)
    if named is None:
        named = Site(site.path, site.line, site.function, via)
        _cache(_sites, key, named)
    return named


def _innermost_user_line(entries: Sequence[str]) -> str | None:
    """Return the innermost line of user code among entries in the format of ``traceback.format_stack``."""
    for entry in reversed(entries):
        found = _STACK_ENTRY.match(entry)
        if found and is_user_code(found["file"]):
            return f"{display_path(found['file'])}:{found['line']} {found['function']}"
    return None
