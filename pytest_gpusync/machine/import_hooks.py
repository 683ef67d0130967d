"""Import finders that wait for a module to be imported."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class AfterImport(MetaPathFinder):
    """Calls back once, right after a module was first imported. The usual finders find and load it.

    It takes effect at the front of ``sys.meta_path``, where :meth:`start` puts it.
    """

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback
        self._searches = False
        """True while the usual finders look for the module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as the other finders do, and call back after it has run."""
        if fullname != self._name or self._searches:
            return None
        self._searches = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searches = False
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def execute_and_call_back(module: ModuleType) -> None:
            self.remove()
            execute(module)
            vars(loader).pop("exec_module", None)
            self._callback()

        # Set on the instance, because other modules use the same loader class. A module that is only searched for, not
        # imported, leaves the instance unused.
        loader.exec_module = execute_and_call_back  # type: ignore[method-assign]
        return spec

    def start(self) -> None:
        """Wait for the module; call back at once if it is imported already."""
        if self._name in sys.modules:
            self._callback()
        else:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop waiting; does nothing if the module was imported already."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
