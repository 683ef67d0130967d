"""The assumption about tensors whose device the code does not show.

Training code that uses a GPU keeps its tensors there. Code that prepares data does not, and neither do tests:

    def collate(samples):                       # data preparation: nothing is assumed
        return torch.stack([resize(sample) for sample in samples])

    def loss_of(prediction, target):            # both are assumed to be on the device
        return (prediction - target).abs().mean()
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from gpusync_lint.domain.training_idioms import is_test_path
from gpusync_lint.domain.values import Device
from gpusync_lint.inference.dependencies import BUILT_ON_DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpusync_lint.inference.callers import Callers
    from gpusync_lint.inference.class_facts import ClassFacts
    from gpusync_lint.inference.dependencies import Reader, Revisions
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import ClassDef, FunctionDef, ModuleDef

_T = TypeVar("_T")
_DEFAULT_DEVICE = re.compile(r"set_default_device\(|set_default_tensor_type\(.*cuda")
_DATA_FOLDER = re.compile(
    r"(^|/)(data|dataset|datasets|dataloaders?|data_loaders?|data_utils|preprocess(ing)?)/(?!.*eval)"
)
"""Folders for data; not what evaluates the outputs of a model, which is often kept beside the data."""
_MOVES_TO_DEVICE = re.compile(r"cuda|\.to\([\w.]*device")
_DATA_CLASSES = (
    "Transform", "Sampler", "Collator", "Collate", "Tokenizer", "TokenizerFast", "FeatureExtractor",
    "FeatureExtractionMixin", "ImageProcessor", "ImageProcessorFast", "ImageProcessingMixin", "VideoProcessor",
    "ProcessorMixin",
)  # fmt: skip
"""Endings of the names of classes whose methods prepare data."""


class DevicePolicy:
    """The assumed device of each function, cached for one round of the inference."""

    def __init__(self, project: Project, classes: ClassFacts, callers: Callers, revisions: Revisions) -> None:
        self._project = project
        self._classes = classes
        self._callers = callers
        self._revisions = revisions
        self._uses_callers = False
        self._assumed: dict[FunctionDef, Device] = {}
        self._assumed_before: dict[FunctionDef, Device] = {}
        """The assumptions of the previous round, for functions that have not run in this one."""
        self._prepares: dict[FunctionDef, bool] = {}
        self._data_classes: dict[ClassDef, bool] = {}
        self._data_files: dict[ModuleDef, bool] = {}
        self._defaults: dict[ModuleDef, bool] = {}
        self._names_cuda: dict[ModuleDef, bool] = {}
        self._built_on_device = False
        self._run_with_gpu_default: frozenset[ModuleDef] | None = None

    def begin_round(self, *, uses_callers: bool) -> None:
        """Discard the assumptions. `uses_callers`: whether enough calls are known to decide by the callers."""
        self._uses_callers = uses_callers
        self._assumed_before, self._assumed = self._assumed, {}
        self._prepares.clear()

    def assumed_device(self, fn: FunctionDef) -> Device:
        """The device of the tensors of a function, if nothing else shows it: `ASSUMED` or `UNKNOWN`."""
        device = self._assumed.get(fn)
        if device is None:
            is_training = not self.prepares_data(fn) and not is_test_path(fn.file.path)
            uses_device = is_training and self._project.uses_device(fn.file)
            device = self._assumed[fn] = Device.ASSUMED if uses_device else Device.UNKNOWN
        return device

    def has_changed(self, fn: FunctionDef) -> bool:
        """Whether a function ran last in the previous round, under another assumption."""
        before = self._assumed_before.get(fn)
        return before is not None and before is not self.assumed_device(fn)

    def record_run(self, fn: FunctionDef) -> None:
        """Record that a function runs in this round."""
        self._assumed_before.pop(fn, None)

    def observe(self, fn: FunctionDef, compute: Callable[[], _T]) -> tuple[_T, Device | None]:
        """Call a function. Returns its result, and the assumed device of `fn` if it was read; else None."""
        before = self._assumed.pop(fn, None)
        result = compute()
        read = self._assumed.get(fn)
        if before is not None:
            self._assumed[fn] = before
        return result, read

    def prepares_data(self, fn: FunctionDef) -> bool:
        """Whether a function prepares data on the host: by its name or class, or because all its callers do."""
        result = self._prepares.get(fn)
        if result is None:
            self._prepares[fn] = False  # in a cycle of calls, the callers outside of it decide
            callers = self._callers.of(fn) if self._uses_callers else ()
            result = self._prepares_itself(fn) or (bool(callers) and all(map(self.prepares_data, callers)))
            self._prepares[fn] = result
        return result

    def _prepares_itself(self, fn: FunctionDef) -> bool:
        if fn.name.startswith("collate") or (fn.name == "__getitem__" and not self._can_be_moved(fn.cls)):
            return True
        if self._is_data_file(fn.file) and not (fn.cls is not None and self._project.classes.is_module(fn.cls)):
            return True
        if fn.cls is None:
            return fn.outer is not None and not fn.outer.is_module and self.prepares_data(fn.outer)
        if fn.name.startswith("post_process"):  # processes the output of a model
            return False
        result = self._data_classes.get(fn.cls)
        if result is None:
            result = self._data_classes[fn.cls] = self._is_data_class(fn.cls)
        return result

    def _can_be_moved(self, cls: ClassDef | None) -> bool:
        """Whether the instances of a class have a method `to`, as containers of boxes or graphs have."""
        return cls is not None and self._project.classes.method(cls, "to") is not None

    def _is_data_file(self, file: ModuleDef) -> bool:
        """Whether a file is in a folder for data, and moves nothing to a device."""
        result = self._data_files.get(file)
        if result is None:
            result = self._data_files[file] = bool(
                file.outline is None and _DATA_FOLDER.search(file.path) and not _MOVES_TO_DEVICE.search(file.text)
            )
        return result

    def _is_data_class(self, cls: ClassDef) -> bool:
        if self._classes.is_records(cls):
            return True
        classes = self._project.classes
        if classes.is_module(cls):  # a `FeatureExtractor` or a `Transform` of the project that has weights is a model
            names: Iterable[str] = classes.external_bases(cls)
        else:
            names = (base if isinstance(base, str) else base.name for base in classes.lineage(cls))
        return any(name.rpartition(".")[2].endswith(_DATA_CLASSES) for name in names)

    def uses_gpu_by_default(self, file: ModuleDef) -> bool:
        """Whether the default device of new tensors is the GPU: `torch.set_default_device("cuda")`.

        What a program sets also holds in the files that it imports.
        """
        result = self._defaults.get(file)
        if result is None:
            result = self._defaults[file] = _sets_gpu_default(file) or file in self._of_programs_with_gpu_default()
        return result

    def _of_programs_with_gpu_default(self) -> frozenset[ModuleDef]:
        """The files that programs import which make the GPU the default."""
        if self._run_with_gpu_default is None:
            programs = [file for file in self._project.files if _sets_gpu_default(file) and _is_program(file)]
            self._run_with_gpu_default = self._project.imported_from(programs)
        return self._run_with_gpu_default

    def names_cuda(self, file: ModuleDef) -> bool:
        """Whether a file names CUDA, so that it may run there, and not only on other accelerators that it names."""
        result = self._names_cuda.get(file)
        if result is None:
            result = self._names_cuda[file] = "cuda" in _text_of(file)
        return result

    def is_built_on_device(self, reader: Reader) -> bool:
        """Whether the project creates modules in a `with device:` block."""
        reader.dependencies.setdefault(BUILT_ON_DEVICE, self._revisions.current)
        return self._built_on_device

    def record_built_on_device(self) -> None:
        """Record that there is such a block."""
        if not self._built_on_device:
            self._built_on_device = True
            self._revisions.change(BUILT_ON_DEVICE)


def _sets_gpu_default(file: ModuleDef) -> bool:
    text = _text_of(file)
    return "set_default_" in text and _DEFAULT_DEVICE.search(text) is not None


def _is_program(file: ModuleDef) -> bool:
    """Whether a file is started as a program, and no test."""
    return file.outline is None and "__main__" in file.text and not is_test_path(file.path)


def _text_of(file: ModuleDef) -> str:
    """The text of a file; of one that is read on demand, only the code outside of its definitions."""
    return file.text if file.outline is None else file.outline.frame
