"""Where the tensors of a function lie, where the code does not say it: on the device, by convention.

Training code that uses a device at all keeps its tensors there. Code that prepares data does not, nor do tests.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from gpusync_lint.domain.lattice import Device
from gpusync_lint.domain.training_idioms import is_test_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.inference.callers import Callers
    from gpusync_lint.inference.class_facts import ClassFacts
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import FunctionDef, ModuleDef

_T = TypeVar("_T")
_DEFAULT_DEVICE = re.compile(r"set_default_device\(|set_default_tensor_type\(.*cuda")
_PREPARING = (
    "Transform", "Sampler", "Collator", "Collate", "Tokenizer", "TokenizerFast", "FeatureExtractor",
    "FeatureExtractionMixin", "ImageProcessor", "ImageProcessorFast", "ImageProcessingMixin", "VideoProcessor",
    "ProcessorMixin",
)  # fmt: skip
"""How the names of classes end that make batches on the host."""


class DevicePolicy:
    """What is assumed of each function, and remembered for one round of the inference."""

    def __init__(self, project: Project, classes: ClassFacts, callers: Callers) -> None:
        self._project = project
        self._classes = classes
        self._callers = callers
        self._uses_callers = False
        """Whether callers are known, so that they may decide."""
        self._assumed: dict[FunctionDef, Device] = {}
        self._assumed_before: dict[FunctionDef, Device] = {}
        """What was assumed in the round before, of the functions that have not run since."""
        self._preparing: dict[FunctionDef, bool] = {}
        self._preparing_classes: dict[object, bool] = {}
        self._defaults: dict[ModuleDef, bool] = {}

    def begin_round(self, *, uses_callers: bool) -> None:
        """Forget what was assumed, which callers may now decide otherwise."""
        self._uses_callers = uses_callers
        self._assumed_before, self._assumed = self._assumed, {}
        self._preparing.clear()

    def assumed_device(self, fn: FunctionDef) -> Device:
        """Where the tensors of a function lie, if its code is conventional."""
        known = self._assumed.get(fn)
        if known is None:
            aside = self.prepares_data(fn) or is_test_path(fn.file.path)
            uses = not aside and self._project.uses_device(fn.file)
            known = self._assumed[fn] = Device.ASSUMED if uses else Device.UNKNOWN
        return known

    def has_changed(self, fn: FunctionDef) -> bool:
        """Whether the last run of a function was in the round before, and assumed something else."""
        before = self._assumed_before.get(fn)
        return before is not None and before is not self.assumed_device(fn)

    def note_run(self, fn: FunctionDef) -> None:
        """Note that a function runs in this round."""
        self._assumed_before.pop(fn, None)

    def observed(self, fn: FunctionDef, reading: Callable[[], _T]) -> tuple[_T, Device | None]:
        """What is derived of a function, and the device that was assumed on the way; None where none was."""
        before = self._assumed.pop(fn, None)
        found = reading()
        asked = self._assumed.get(fn)
        if before is not None:
            self._assumed[fn] = before
        return found, asked

    def prepares_data(self, fn: FunctionDef) -> bool:
        """Whether a function prepares batches on the host, itself or because only such functions call it."""
        known = self._preparing.get(fn)
        if known is None:
            self._preparing[fn] = False  # in a cycle of calls, those from outside decide
            callers = self._callers.of(fn) if self._uses_callers else ()
            known = self._prepares_itself(fn) or (bool(callers) and all(map(self.prepares_data, callers)))
            self._preparing[fn] = known
        return known

    def _prepares_itself(self, fn: FunctionDef) -> bool:
        if fn.name.startswith("collate") or fn.name == "__getitem__":
            return True
        if fn.cls is None:
            return fn.outer is not None and not fn.outer.is_module and self.prepares_data(fn.outer)
        if fn.name.startswith("post_process"):  # reads what a model gave
            return False
        known = self._preparing_classes.get(fn.cls)
        if known is None:
            known = self._preparing_classes[fn.cls] = self._classes.is_records(fn.cls) or any(
                (base if isinstance(base, str) else base.name).rpartition(".")[2].endswith(_PREPARING)
                for base in self._project.classes.lineage(fn.cls)
            )
        return known

    def uses_gpu_by_default(self, file: ModuleDef) -> bool:
        """Whether new tensors are made on the GPU unless told otherwise."""
        known = self._defaults.get(file)
        if known is None:
            # Of a file read on demand, definitions that were not read do not count.
            text = file.text if file.outline is None else file.outline.frame
            known = self._defaults[file] = bool(_DEFAULT_DEVICE.search(text))
        return known
