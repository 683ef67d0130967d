"""What ends a step, as the program or the test says: an optimizer, a class of optimizers, or a function."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

StepOn: TypeAlias = Any
"""An optimizer, a class of optimizers or its name, or a function that makes one step, or its name as
``module.function`` or ``module.Class.method``."""


class StepOnError(ValueError):
    """What was given ends no step; the message says what does."""


class StepEndFollower:
    """Follows what ends the steps of one region."""

    def __init__(self, step_on: StepOn) -> None:
        """Understand `step_on`, without changing anything.

        Raises:
            StepOnError: it is not one of the things in :data:`StepOn`.
        """
        self.ends_step: Callable[[Any], bool] | None = None
        """Tells of an optimizer whether its calls end steps; None if a function ends them."""
        self._places: list[tuple[Any, str]] = []
        """Where the function is found, by owner and name."""
        self._restore: list[Callable[[], None]] = []
        given = _find(step_on) if isinstance(step_on, str) and "." in step_on else step_on
        if isinstance(given, str):
            self.name = f"{given}.step()"
            self.ends_step = lambda optimizer: any(kind.__name__ == given for kind in type(optimizer).__mro__)
        elif _is_optimizer_class(given):
            self.name = f"{given.__name__}.step()"
            self.ends_step = lambda optimizer: isinstance(optimizer, given)
        elif hasattr(given, "param_groups") and callable(getattr(given, "step", None)):
            self.name = f"step() of the given {type(given).__name__}"
            own = (given, getattr(given, "optimizer", None))  # a wrapper, such as that of accelerate, holds the one
            self.ends_step = lambda optimizer: any(optimizer is one for one in own)
        elif callable(given) and hasattr(given, "__name__"):
            self.name = f"{given.__name__}()"
            self._places = _places_of(given)
        else:
            raise StepOnError(
                "step_on takes an optimizer, a class of optimizers or its name, or a function or its name such as "
                f'"train.train_step", not {step_on!r}'
            )

    @property
    def why_no_step(self) -> str:
        """Why no step has ended."""
        return f"step_on is {self.name}, which was not called"

    def start(self, mark_step: Callable[[], None], entered: Callable[[], None] = lambda: None) -> None:
        """Call `mark_step` whenever the function has returned; does nothing where optimizers end steps."""
        for owner, name in self._places:
            original = inspect.getattr_static(owner, name) if inspect.isclass(owner) else getattr(owner, name)
            is_own = name in getattr(owner, "__dict__", {})
            wrapper = _wrapped(original, mark_step)
            setattr(owner, name, wrapper)
            self._restore.append(functools.partial(_put_back, owner, name, wrapper, original, is_own))

    def stop(self) -> None:
        """Restore the function."""
        while self._restore:
            self._restore.pop()()


def _put_back(owner: Any, name: str, wrapper: Any, original: Any, is_own: bool) -> None:
    if owner.__dict__.get(name) is not wrapper:
        return  # the program has replaced it since
    if is_own:
        setattr(owner, name, original)
    else:
        delattr(owner, name)


def _wrapped(original: Any, mark_step: Callable[[], None]) -> Any:
    if isinstance(original, (staticmethod, classmethod)):
        return type(original)(_wrapped(original.__func__, mark_step))
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def step(*arguments: Any, **named: Any) -> Any:
            result = await original(*arguments, **named)
            mark_step()
            return result

        return step

    @functools.wraps(original)
    def step_now(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        mark_step()
        return result

    return step_now


def _is_optimizer_class(given: object) -> bool:
    module = sys.modules.get("torch.optim.optimizer")
    return module is not None and inspect.isclass(given) and issubclass(given, module.Optimizer)


def _places_of(function: Any) -> list[tuple[Any, str]]:
    """Return every place in which the program looks the function up."""
    owner = getattr(function, "__self__", None)
    if owner is not None and not inspect.isclass(owner):
        return [(owner, function.__name__)]
    path = getattr(function, "__qualname__", function.__name__).split(".")
    if "<locals>" in path or path[-1] == "<lambda>":
        raise StepOnError(
            f"step_on cannot follow {function.__qualname__}, which is defined inside a function: "
            "give the optimizer, or end the steps with mark_step()"
        )
    if len(path) == 1:
        # The function may have been imported into other modules by its name.
        modules = [module for module in list(sys.modules.values()) if _holds(module, path[0], function)]
        if modules:
            return [(module, path[0]) for module in modules]
    found: Any = sys.modules.get(function.__module__)
    for part in path[:-1]:
        found = getattr(found, part, None)
    if found is None:
        raise StepOnError(f"step_on cannot find where {function.__qualname__} is defined")
    return [(found, path[-1])]


def _holds(module: Any, name: str, function: Any) -> bool:
    return getattr(module, "__dict__", {}).get(name) is function


def _find(name: str) -> Any:
    """Return what a dotted name stands for."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part, None)
        if found is not None:
            return found
    raise StepOnError(f"step_on: there is no {name!r}")
