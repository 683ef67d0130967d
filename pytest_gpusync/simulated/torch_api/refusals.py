"""Refuses code that contains machine code for a GPU, by name: Triton kernels, CUDA extensions, CuPy.

Each of them would pass the address of host memory to a driver that does not exist. Importing them is allowed, as
programs may import them without using them. The error comes at the first use with a tensor of the device or, for CuPy,
as the ImportError that libraries handle.
"""

from __future__ import annotations

import functools
import mmap
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

import torch

from pytest_gpusync.machine.import_hooks import AfterImport
from pytest_gpusync.simulated.kernels import registration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from pytest_gpusync.simulated.base.patches import Patches

_CUDA_LIBRARIES = ("libc10_cuda.so", "libtorch_cuda.so", "libcudart.so", "libcuda.so")
"""An extension that was built for CUDA contains the name of one of them."""
_TRITON = "triton.runtime.jit"
_BUILDER = "torch.utils.cpp_extension"

_finders: list[MetaPathFinder] = []


def _not_simulated(what: str) -> NotImplementedError:
    return NotImplementedError(f"the simulated device does not simulate {what}: use PyTorch operators, or run on a GPU")


def install(patches: Patches) -> None:
    """Refuse from now on; `patches` and :func:`reset` restore everything."""
    for name, refuse in ((_TRITON, _refuse_triton), (_BUILDER, _refuse_building)):
        if name in sys.modules:
            refuse(patches)
        else:
            _finders.append(AfterImport(name, functools.partial(refuse, patches)))
    _finders.append(_NoCuPy())
    sys.meta_path[:0] = _finders
    _guard_extensions(patches)
    if hasattr(torch.cuda, "_compile_kernel"):
        patches.set(torch.cuda, "_compile_kernel", _refusing("torch.cuda._compile_kernel"))
    patches.set(torch.Tensor, "__dlpack__", _dlpack(torch.Tensor.__dlpack__))


def reset() -> None:
    """Restore the import system."""
    for finder in _finders:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
    _finders.clear()


def _refusing(what: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise _not_simulated(what)

    return refuse


def _refuse_triton(patches: Patches) -> None:
    """Make ``kernel[grid]`` return a function that raises; Triton's interpreter, which needs no GPU, is left alone."""
    interface = sys.modules[_TRITON].KernelInterface
    launch = interface.__getitem__

    def launcher(kernel: Any, grid: Any) -> Any:
        if type(kernel).__name__ == "InterpretedFunction":
            return launch(kernel, grid)
        function = kernel
        while hasattr(function, "fn"):
            function = function.fn
        name = getattr(function, "__name__", type(kernel).__name__)
        return _refusing(f"Triton kernels ({name})")

    patches.set(interface, "__getitem__", launcher)


def _refuse_building(patches: Patches) -> None:
    """Refuse ``cpp_extension.load`` and ``load_inline`` of CUDA sources; C++ sources alone build as usual."""
    builder: Any = sys.modules[_BUILDER]
    load, load_inline = builder.load, builder.load_inline

    def load_sources(name: str, sources: Any, *arguments: Any, **keywords: Any) -> Any:
        files = [sources] if isinstance(sources, str) else sources
        if keywords.get("with_cuda") or any(str(file).endswith((".cu", ".cuh")) for file in files):
            raise _not_simulated(f"CUDA extensions ({name})")
        return load(name, sources, *arguments, **keywords)

    def load_text(name: str, cpp_sources: Any, cuda_sources: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if keywords.get("with_cuda") or cuda_sources:
            raise _not_simulated(f"CUDA extensions ({name})")
        return load_inline(name, cpp_sources, cuda_sources, *arguments, **keywords)

    patches.set(builder, "load", load_sources)
    patches.set(builder, "load_inline", load_text)


def _guard_extensions(patches: Patches) -> None:
    """Register kernels for the operators of CUDA extensions imported from now on, and guard their functions."""
    create, execute = ExtensionFileLoader.create_module, ExtensionFileLoader.exec_module

    def create_module(self: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
        try:
            return create(self, spec)
        except ImportError as error:
            if not any(library in str(error) for library in _CUDA_LIBRARIES):
                raise
            raise ImportError(
                f"{spec.name} is a CUDA extension, which this CPU build of torch cannot load and the simulated device "
                f"does not simulate ({error}): use PyTorch operators, or run on a GPU",
                name=spec.name,
                path=spec.origin,
            ) from None

    def exec_module(self: ExtensionFileLoader, module: ModuleType) -> None:
        execute(self, module)
        if _is_for_cuda(self.path):
            registration.register_late()
            for name, value in list(vars(module).items()):
                if type(value).__name__ == "builtin_function_or_method":
                    setattr(module, name, _guarded(f"{module.__name__}.{name}", value))

    patches.set(ExtensionFileLoader, "create_module", create_module)
    patches.set(ExtensionFileLoader, "exec_module", exec_module)


def _is_for_cuda(path: str) -> bool:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(library.encode()) >= 0 for library in _CUDA_LIBRARIES)


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        for value in (*arguments, *keywords.values()):
            if isinstance(value, torch.Tensor) and value.is_cuda:
                raise _not_simulated(f"CUDA extensions ({name})")
        return function(*arguments, **keywords)

    return call


def _dlpack(give: Callable[..., Any]) -> Callable[..., Any]:
    def hand_over(self: torch.Tensor, **options: Any) -> Any:
        if self.is_cuda:
            raise NotImplementedError(
                "tensors of the simulated device cannot be passed to CuPy, JAX or other CUDA libraries: run on a GPU"
            )
        return give(self, **options)

    return hand_over


class _NoCuPy(MetaPathFinder, Loader):
    """Makes ``import cupy`` an ImportError with the reason; if CuPy is not installed, its usual error."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find CuPy, if it is installed, and nothing else."""
        if fullname != "cupy" or PathFinder.find_spec(fullname, path) is None:
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Refuse to load CuPy.

        Raises:
            ImportError: always.
        """
        raise ImportError(
            "the simulated device does not simulate CuPy: use NumPy or PyTorch operators, or run on a GPU", name="cupy"
        )
