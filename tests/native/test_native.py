"""The native code by itself: compiled with its tests as one program, also with sanitizers and for aarch64."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
C = ("-std=c11", "-pthread")
CPP = ("-std=c++17", "-fno-rtti", "-pthread", "-Wno-invalid-offsetof")
WARNINGS = ("-g", "-Wall", "-Wextra", "-Werror")
BUILDS = {
    "plain": ("gcc", "g++", ("-O2",), ()),
    "address and undefined behaviour sanitizers": (
        "gcc",
        "g++",
        ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
        (),
    ),
    "thread sanitizer": ("gcc", "g++", ("-O1", "-fsanitize=thread"), ()),
    "aarch64": (
        "aarch64-linux-gnu-gcc",
        "aarch64-linux-gnu-g++",
        ("-O2",),
        ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"),
    ),
}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("source", sorted(path.name for path in HERE.glob("*_test.c*")))
def test_native_code(source, build, tmp_path):
    c, cpp, options, runner = BUILDS[build]
    compiler, standard = (c, C) if source.endswith(".c") else (cpp, CPP)
    for tool in (compiler, *runner[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool}")
    program = tmp_path / "program"
    subprocess.run([compiler, *standard, *WARNINGS, *options, source, "-o", str(program)], cwd=HERE, check=True)
    done = subprocess.run(
        [*runner, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
    )
    assert done.returncode == 0, done.stdout
    assert "FAILED" not in done.stdout
