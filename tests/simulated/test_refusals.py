"""What brings machine code for a GPU is refused in one line that names it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
import torch

REMEDY = "or run on a GPU$"


def test_an_operator_without_a_cpu_kernel(cuda):
    x = torch.ones(4, device=cuda)
    with pytest.raises(
        NotImplementedError, match=f"^the simulated device does not simulate aten::_fused_dropout, .*{REMEDY}"
    ):
        torch._fused_dropout(x, 0.5)


def test_an_operator_that_a_program_defines_for_cuda_alone_runs_or_is_refused(cuda):
    library = torch.library.Library("gpusync_refusals", "DEF")
    library.define("only_declared(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match=f"does not simulate gpusync_refusals::only_declared, .*{REMEDY}"):
        torch.ops.gpusync_refusals.only_declared(torch.ones(2, device=cuda))


def test_building_a_cuda_extension(cuda):
    pytest.importorskip("setuptools")
    from torch.utils import cpp_extension

    for build in (
        lambda: cpp_extension.load_inline("mine", "", "__global__ void f() {}"),
        lambda: cpp_extension.load_inline("mine", cpp_sources="", with_cuda=True),
        lambda: cpp_extension.load("mine", ["mine.cpp", "mine.cu"]),
    ):
        with pytest.raises(NotImplementedError, match=rf"does not simulate CUDA extensions \(mine\): .*{REMEDY}"):
            build()


@pytest.fixture
def extension(tmp_path):
    """`extension()` imports a CUDA extension: that of another library, made to name CUDA's; it needs no compiler."""
    native = Path(importlib.util.find_spec("libcst.native").origin)

    def load(library: bytes = b"libc10_cuda.so"):
        copy = tmp_path / native.name
        shutil.copyfile(native, copy)
        with copy.open("ab") as file:
            file.write(library)
        spec = importlib.util.spec_from_file_location("fast_kernels.native", copy)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_a_function_of_a_cuda_extension_refuses_tensors_of_the_device_and_takes_others(cuda, extension):
    module = extension()
    with pytest.raises(
        NotImplementedError,
        match=rf"does not simulate CUDA extensions \(fast_kernels.native.parse_expression\): .*{REMEDY}",
    ):
        module.parse_expression(torch.ones(2, device=cuda))
    assert module.parse_expression("x + y") is not None
    with pytest.raises(TypeError):
        module.parse_expression(torch.ones(2))


def test_an_extension_without_cuda_is_left_alone(cuda, extension):
    module = extension(b"libm.so")
    with pytest.raises(TypeError):
        module.parse_expression(torch.ones(2, device=cuda))


NO_LIBRARY = "libc10_cuda.so: cannot open shared object file: No such file or directory"


def test_the_error_of_a_cuda_extension_on_a_cpu_build_is_one_line(run_python):
    """It stays an ImportError: libraries that can do without the extension go on."""
    done = run_python(f"""
import importlib.machinery, importlib.util
load = importlib.machinery.ExtensionFileLoader.create_module
def create_module(self, spec):
    if spec.name == "fast_kernels":
        raise ImportError({NO_LIBRARY!r})
    return load(self, spec)
importlib.machinery.ExtensionFileLoader.create_module = create_module
import torch
from pytest_gpusync.simulated import switch_on
switch_on()
spec = importlib.util.spec_from_file_location("fast_kernels", "/nowhere/fast_kernels.so")
try:
    importlib.util.module_from_spec(spec)
except ImportError as error:
    print(error)
""")
    assert done.stdout.startswith("fast_kernels is a CUDA extension, which this CPU build of torch cannot load"), (
        done.stderr
    )
    assert NO_LIBRARY in done.stdout
    assert done.stdout.endswith("or run on a GPU\n")


def test_triton_kernels(cuda):
    triton = pytest.importorskip("triton", reason="Triton comes with CUDA builds of torch")

    def add_kernel(x):
        pass

    for kernel in (triton.jit(add_kernel), triton.autotune([triton.Config({})], [])(triton.jit(add_kernel))):
        with pytest.raises(NotImplementedError, match=rf"does not simulate Triton kernels \(add_kernel\): .*{REMEDY}"):
            kernel[(1,)](torch.ones(2, device=cuda))


@pytest.fixture
def cupy(tmp_path, monkeypatch):
    """A library of that name is installed, and not imported."""
    (tmp_path / "cupy.py").write_text("array = list\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    yield
    sys.modules.pop("cupy", None)


def test_cupy_is_not_there_for_libraries_that_can_do_without(cupy, cuda):
    with pytest.raises(ImportError, match=f"the simulated device does not simulate CuPy: .*{REMEDY}"):
        import cupy  # noqa: F401
    # Asking whether it is installed is no use of it.
    assert importlib.util.find_spec("cupy") is not None


def test_cupy_is_back_when_the_device_is_off(cupy):
    from pytest_gpusync.simulated import simulated_cuda

    with simulated_cuda():
        pass
    import cupy

    assert cupy.array is list


def test_without_cupy_its_import_fails_as_ever(cuda):
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    with pytest.raises(ModuleNotFoundError, match="No module named 'cupy'"):
        import cupy  # noqa: F401


def test_memory_is_not_handed_to_other_libraries_through_dlpack(cuda):
    numpy = pytest.importorskip("numpy")
    x = torch.ones(2, device=cuda)
    with pytest.raises(NotImplementedError, match="cannot be passed to CuPy, JAX or other CUDA libraries"):
        x.__dlpack__()
    assert numpy.from_dlpack(torch.ones(2)).tolist() == [1, 1]


def test_a_tensor_goes_through_dlpack_to_torch_itself(cuda):
    x = torch.ones(2, device=cuda)
    assert torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)).device == x.device


def test_allocators_of_the_program_as_for_managed_memory(cuda):
    with pytest.raises(NotImplementedError, match="CUDAPluggableAllocator is not simulated: run on a GPU"):
        torch.cuda.memory.CUDAPluggableAllocator("managed.so", "allocate", "free")
