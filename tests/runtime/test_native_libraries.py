"""The native libraries: built, loaded, and said to be missing where they are."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpusync.machine import native_libraries
from pytest_gpusync.machine.native_libraries import NativeUnavailable
from pytest_gpusync.recorders import gate

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "hatch_build.py"
SOURCE = """
__attribute__((visibility("default"))) const char gpusync_source[] = GPUSYNC_SOURCE;
__attribute__((visibility("default"))) int seven(void) { return 7; }
"""
CROSS = "aarch64-linux-gnu-gcc"

on_linux = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in native_libraries.MACHINES, reason="no native code here"
)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A checkout with one native library to build, ``one``, instead of this package's."""
    folder = tmp_path / "pytest_gpusync"
    folder.mkdir()
    shutil.copy(BUILD, tmp_path)
    (folder / "one.c").write_text(SOURCE)
    monkeypatch.setattr(native_libraries, "_PACKAGE", folder)
    monkeypatch.delenv("GPUSYNC_NATIVE", raising=False)
    return folder


def build(package, **environment):
    command = [sys.executable, str(package.parent / "hatch_build.py")]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )


def refusal(name="one"):
    with pytest.raises(NativeUnavailable) as raised:
        native_libraries.load(name)
    return str(raised.value), raised.value.remedy


@on_linux
@needs_compiler
def test_a_library_that_was_built_is_loaded(package):
    done = build(package)
    assert (done.returncode, done.stdout) == (0, f"pytest_gpusync/libgpusync_one.so: {platform.machine()}\n")
    assert native_libraries.load("one").seven() == 7


@on_linux
@needs_compiler
def test_the_same_source_makes_the_same_library(package):
    digests = set()
    for _ in range(2):
        assert build(package).returncode == 0
        digests.add(hashlib.sha256(native_libraries.library_path("one").read_bytes()).hexdigest())
    assert len(digests) == 1


@on_linux
def test_one_that_was_not_built_is_told_with_its_remedy(package):
    assert refusal() == (
        "this installation has no native code",
        "install gcc and g++, and run `python hatch_build.py` in the checkout",
    )
    (package.parent / "hatch_build.py").unlink()
    assert refusal()[1].endswith("`pip install --force-reinstall --no-cache-dir --no-deps pytest-gpusync`")


def test_a_switch_keeps_it_from_being_loaded(package, monkeypatch):
    monkeypatch.setenv("GPUSYNC_NATIVE", "0")
    assert refusal() == ("native code is switched off by GPUSYNC_NATIVE=0", "unset GPUSYNC_NATIVE")


@pytest.mark.parametrize(
    ("system", "machine"), [("Darwin", "arm64"), ("Windows", "AMD64"), ("Linux", "riscv64"), ("Linux", "ppc64le")]
)
def test_a_platform_without_native_code_is_told(package, monkeypatch, system, machine):
    monkeypatch.setattr(sys, "platform", system.lower())
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert refusal()[0] == f"there is no native code for {system} on {machine}"


@on_linux
@pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"there is no {CROSS}")
def test_one_for_another_machine_is_told(package, monkeypatch):
    assert build(package, CC=CROSS).stdout.endswith("aarch64\n")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert refusal()[0] == "native code was built for aarch64, and this is x86_64"


@on_linux
@needs_compiler
def test_one_of_another_source_is_told(package):
    build(package)
    with (package / "one.c").open("a") as file:
        file.write("\n")
    assert refusal()[0] == "native code is out of date: one.c has changed since"


@on_linux
def test_a_file_that_is_no_library_is_told(package):
    native_libraries.library_path("one").write_bytes(b"\x7fELF")
    assert refusal()[0] == f"native code was built for another machine, and this is {platform.machine()}"


@on_linux
@needs_compiler
def test_one_that_the_system_does_not_load_is_told(package):
    build(package)
    path = native_libraries.library_path("one")
    path.write_bytes(path.read_bytes()[:64])
    assert refusal()[0].startswith("native code cannot be loaded: ")


@needs_compiler
@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_working_compiler_the_build_says_so_in_one_line(package, compiler):
    done = build(package, CC=compiler)
    assert done.returncode == 1
    assert done.stderr.startswith("one.c was not compiled: ")
    assert not native_libraries.library_path("one").exists()


PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
"""Of prctl(2): the process may make no memory executable from now on. Linux 6.3 and newer."""
EXECUTABLE = 4
"""Of mmap(2): the protection that allows to execute memory."""


@on_linux
@pytest.mark.skipif(not gate.is_available(), reason="there is no native gate")
def test_a_process_that_may_make_no_memory_executable_can_use_them():
    pytest.importorskip("torch")
    source = (
        "import ctypes, mmap, sys\n"
        f"if ctypes.CDLL(None).prctl({PR_SET_MDWE}, {PR_MDWE_REFUSE_EXEC_GAIN}, 0, 0, 0): sys.exit(77)\n"
        "from pytest_gpusync.recorders import gate\n"
        "entered = []\n"
        "opened = gate.CallGate(lambda *call: entered.append(call[1:3]), lambda: None)\n"
        "opened.set_action(gate.RUNTIME, 131, gate.PYTHON)\n"
        "data = (ctypes.c_uint64 * 6)(0)\n"
        "opened.function(opened.user_data, gate.RUNTIME, 131, ctypes.addressof(data))\n"
        "assert entered == [(gate.RUNTIME, 131)]\n"
        "import torch\n"
        "from pytest_gpusync.simulated import simulated_cuda\n"
        "from pytest_gpusync.simulated.native_path import dispatch\n"
        "with simulated_cuda():\n"
        "    x = torch.ones(3, device='cuda')\n"
        "    assert (x + x).tolist() == [2] * 3\n"
        "    assert dispatch.unavailable is None and dispatch.calls() > 0\n"
        "try:\n"
        f"    mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | {EXECUTABLE})\n"
        "except PermissionError:\n"
        "    print('refused')\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "GPUSYNC_NATIVE"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode == 77:
        pytest.skip("this kernel cannot refuse executable memory")
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
