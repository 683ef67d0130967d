"""Graph breaks and recompilations of ``torch.compile``, at the moment Dynamo decides on them.

Dynamo calls two functions of its own for them, in torch 2.11 to 2.15: a translator logs each graph break with the
exception that explains it, and a frame whose guards failed is looked at for the reasons. Both are wrapped while
somebody listens, and Dynamo's decisions, counters and logs stay as they are. Nothing runs in compiled code, and torch's
compiler is not imported: where it is not loaded yet, the functions are wrapped right after its import.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.machine.import_hooks import AfterImport
from pytest_gpusync.machine.replacements import Replacements
from pytest_gpusync.model.measurement import CompilerEvent
from pytest_gpusync.source.attribution import is_user_code, site_of_stack

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from pytest_gpusync.model.measurement import Effect

    Listener = Callable[[CompilerEvent], None]

_COMPILER: Final = "torch._dynamo"
_FRAMES: Final = "torch._dynamo.convert_frame"
_TRANSLATOR: Final = "torch._dynamo.symbolic_convert"

_EFFECTS: Final[tuple[tuple[str, Effect], ...]] = (
    ("Failed to handle graph break gracefully", "function_eager"),
    ("Encountered graph break that we cannot resume from", "rest_eager"),
)
"""How the reason of a graph break begins if the function is not resumed."""

_IN_LOOP: Final = "graph break in loop"
_COMPILE_ID: Final = re.compile(r"^[\w!/]+: ")
"""Before the reason of a recompilation: ``0/0: tensor 'x' size mismatch at index 0``."""
_SENTENCE_END: Final = re.compile(r"(?<=[.)]) (?=[A-Z])")
_LIMIT: Final = 300
"""Most characters of a reason."""


class _Hub:
    """Wraps Dynamo's functions while there are listeners, and tells them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listeners: tuple[Listener, ...] = ()
        """Replaced, never changed in place."""
        self._replaced = Replacements()
        self._waiting: AfterImport | None = None
        self.problem: str | None = None
        """Why the events cannot be seen; None if they can, or the compiler is not loaded."""

    @property
    def is_attached(self) -> bool:
        """Whether Dynamo is loaded and its functions are wrapped."""
        return bool(self._replaced)

    def renew_lock(self) -> None:
        """Make the lock of a forked child."""
        self._lock = threading.RLock()

    def add(self, listener: Listener) -> None:
        with self._lock:
            if not self._listeners:
                self.problem = None
                self._waiting = AfterImport(_COMPILER, self._attach)
                self._waiting.start()
            self._listeners = (*self._listeners, listener)

    def remove(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other != listener)
            if not self._listeners:
                if self._waiting is not None:
                    self._waiting.remove()
                    self._waiting = None
                self._replaced.restore()

    def _attach(self) -> None:
        if self._replaced:
            return
        translator = getattr(sys.modules.get(_TRANSLATOR), "InstructionTranslatorBase", None)
        frames = sys.modules.get(_FRAMES)
        log_break = getattr(translator, "log_graph_break", None)
        explain = getattr(frames, "get_and_maybe_log_recompilation_reasons", None)
        if log_break is None or explain is None:
            self.problem = "this version of torch reports graph breaks in another way than 2.11 to 2.15"
            return

        def log_graph_break(translator: Any, *args: Any, **kwargs: Any) -> Any:
            self._broke(translator, *args, **kwargs)
            return log_break(translator, *args, **kwargs)

        def get_and_maybe_log_recompilation_reasons(*args: Any, **kwargs: Any) -> Any:
            reasons = explain(*args, **kwargs)
            self._recompiled(reasons, *args, **kwargs)
            return reasons

        self._replaced.put(translator, "log_graph_break", log_graph_break)
        self._replaced.put(frames, explain.__name__, get_and_maybe_log_recompilation_reasons)

    def _broke(self, translator: Any, code_options: Any = None, reason: Any = "", exc: Any = None) -> None:
        try:
            if exc is None or getattr(exc, "logged", False):
                return
            frames = getattr(exc, "real_stack", None) or ()
            stack = [(frame.filename, frame.lineno or 0, frame.name) for frame in frames]
            if not stack:
                stack = [(code_options["co_filename"], code_options["co_firstlineno"], code_options["co_name"])]
            if not any(is_user_code(filename) for filename, _, _ in stack):
                stack = [*_callers(), *stack]  # Dynamo compiles functions of libraries that it could not inline
            name, text = _explained(exc)
            effect = _effect(name, str(reason))
            self._tell(CompilerEvent("graph_break", site_of_stack(stack), text, name, effect))
        except Exception as error:  # must not reach Dynamo, which would report it as its own
            self.problem = f"a graph break could not be read: {type(error).__name__}: {error}"

    def _recompiled(self, reasons: Any, _entries: Any, frame: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("skip_logging") or (len(args) > 1 and args[1]):  # a second question about the same compilation
            return
        try:
            code = frame.f_code
            site = site_of_stack([(code.co_filename, code.co_firstlineno, code.co_name)])
            text = _COMPILE_ID.sub("", _line(str(reasons[0]))) if reasons else "no guard is known to have failed"
            self._tell(CompilerEvent("recompilation", site, text))
        except Exception as error:
            self.problem = f"a recompilation could not be read: {type(error).__name__}: {error}"

    def _tell(self, event: CompilerEvent) -> None:
        for listener in self._listeners:
            listener(event)


_hub = _Hub()
if hasattr(os, "register_at_fork"):  # the thread that held the lock does not exist in the child
    os.register_at_fork(after_in_child=_hub.renew_lock)


def listen(listener: Listener) -> None:
    """Call `listener` for each graph break and recompilation from now on, on the thread that compiles."""
    _hub.add(listener)


def stop_listening(listener: Listener) -> None:
    """Restore Dynamo once nobody listens. Does nothing for one who does not."""
    _hub.remove(listener)


def is_attached() -> bool:
    """Return whether Dynamo is loaded and tells of its events."""
    return _hub.is_attached


def problem() -> str | None:
    """Return why events could not be seen, as a clause; None if they could, or Dynamo is not loaded."""
    return _hub.problem


def compilations() -> int | None:
    """Return how often Dynamo has begun to compile a frame since it was last reset; None if it is not loaded."""
    counter: Any = getattr(sys.modules.get(_FRAMES), "FRAME_COMPILE_COUNTER", None)
    return None if counter is None else sum(counter.values())


def _explained(exc: Any) -> tuple[str, str]:
    """Return Dynamo's name of a graph break and its explanation as one line."""
    name = getattr(exc, "gb_type", None)
    # A graph break in a loop is told after the one that it is due to.
    message = str(getattr(exc, "msg", None) or exc).partition("\n\n***")[0]
    title, _, rest = message.partition("\n")
    explanation = rest.partition("Explanation:")[2].partition("\n  Hint:")[0].partition("\n  Developer")[0]
    sentence = _SENTENCE_END.split(" ".join(explanation.split()), maxsplit=1)[0]
    return name or title.strip(), _line(f"{title}: {sentence}" if sentence else title)


def _callers() -> list[tuple[str, int, str]]:
    """Return the frames that run on this thread, the outermost first."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return found[::-1]


def _effect(name: str, reason: str) -> Effect:
    if name == _IN_LOOP:
        return "function_eager"
    return next((effect for start, effect in _EFFECTS if reason.startswith(start)), "resumed")


def _line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= _LIMIT else joined[: _LIMIT - 1] + "…"
