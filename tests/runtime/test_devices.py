"""What device is found, without importing torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_gpusync.machine import devices


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: 'str | None' = None\n", ("2.13.0+cpu", None)),
        ("__version__ = '2.15.0+cu132'\ncuda = '13.2'\n", ("2.15.0+cu132", "13.2")),
        ("from x import y\n__version__ = '2.11.0'\n", ("2.11.0", None)),
        ("cuda = '13.0'\n", None),
        ("this is not python", None),
    ],
)
def test_the_build_is_read_from_torchs_version_file(tmp_path, monkeypatch, text, expected):
    (tmp_path / "version.py").write_text(text)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(
        devices, "_values_of_version_file", lambda: devices._read_version_file(str(tmp_path / "version.py"))
    )
    assert devices.torch_build() == expected


@pytest.mark.parametrize(("values", "found"), [({"hip": "6.4.1"}, "rocm"), ({"xpu": "20250302"}, "xpu"), ({}, None)])
def test_a_build_whose_version_does_not_name_its_accelerator_is_known_by_the_version_file(monkeypatch, values, found):
    monkeypatch.setattr(devices, "torch_build", lambda: ("2.7.1+gite2d141d", None))
    monkeypatch.setattr(devices, "_values_of_version_file", lambda: values)
    monkeypatch.setattr(devices, "_PLUGINS", {})
    monkeypatch.delitem(sys.modules, "torch.version", raising=False)
    assert devices.detect().gpu == found


def test_a_cpu_build_has_no_gpu(monkeypatch):
    monkeypatch.setattr(devices, "torch_build", lambda: ("2.13.0+cpu", None))
    assert devices.detect() == devices.Device("none", reason="torch 2.13.0+cpu is a CPU build")


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpus_are_no_gpus(monkeypatch, value):
    monkeypatch.setattr(devices, "torch_build", lambda: ("2.15.0+cu132", "13.2"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert devices.detect().reason == "CUDA_VISIBLE_DEVICES hides every GPU"


def test_detection_imports_neither_torch_nor_pytest():
    code = (
        "import sys; from pytest_gpusync.machine import devices; devices.detect(); "
        "print([m for m in ('torch', 'pytest', 'libcst') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_imports_nothing_heavy():
    code = (
        "import sys, pytest_gpusync; "
        "print([m for m in ('torch', 'pytest', 'libcst', 'pynvml', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
