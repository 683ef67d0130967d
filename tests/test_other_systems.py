"""Windows and macOS: nothing that only POSIX has is needed to lint, or to start pytest with the plugin.

The tests run a Python without the modules, functions and signals that Windows lacks. They show that ours do not need
these; they do not replace a run on Windows or macOS, which ci/other-systems.yml is for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PREAMBLE = """\
import os, runpy, signal, sys

# The standard library is loaded first: on Windows it takes other ways, which depend on sys.platform.
import asyncio, concurrent.futures, ctypes.util, logging, multiprocessing, pathlib, random, selectors, shutil
import socket, subprocess, tempfile, threading, unittest
if {pytest}:
    import _pytest.pytester, pytest

class NotHere:
    def find_spec(self, name, path=None, target=None):
        if name in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotHere())
for name in {modules!r}:
    sys.modules.pop(name, None)
for name in {functions!r}:
    if hasattr(os, name):
        delattr(os, name)
for name in {signals!r}:
    if hasattr(signal, name):
        delattr(signal, name)
sys.argv = {arguments!r}
{program}
"""

MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog", "curses", "readline", "posix")
FUNCTIONS = (
    "fork", "forkpty", "register_at_fork", "getuid", "geteuid", "getgid", "getegid", "sched_getaffinity", "setsid",
    "getpgid", "killpg", "WNOHANG", "O_CLOEXEC", "O_NONBLOCK", "mkfifo", "uname", "wait", "wait4", "waitid", "sysconf",
)  # fmt: skip
# subprocess needs SIGKILL here, but not on Windows.
SIGNALS = (
    "SIGALRM", "SIGHUP", "SIGUSR1", "SIGCHLD", "SIGPIPE", "SIGQUIT", "pthread_sigmask", "pthread_kill",
    "setitimer", "alarm", "sigwait", "siginterrupt",
)  # fmt: skip

LINT = "from gpusync_lint.run import parallel, schedule\nschedule.WORTH_SHARING = schedule.WORTH_SPAWNING = 1\n"
LINT += "from pytest_gpusync.commands.cli import main\nsys.exit(main())"
READS = """\
import torch
x = torch.zeros(3, device="cuda")
for batch in loader:
    x.sum().item()
"""


def run(folder: Path, program: str, *arguments: str, uses_pytest: bool = False) -> subprocess.CompletedProcess[str]:
    code = PREAMBLE.format(
        modules=MODULES,
        functions=FUNCTIONS,
        signals=SIGNALS,
        arguments=["gpusync", *arguments],
        program=program,
        pytest=uses_pytest,
    )
    path = os.pathsep.join([str(ROOT / "lint"), str(ROOT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_linter_needs_nothing_that_windows_lacks(tmp_path: Path, jobs: str) -> None:
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text(READS)
    (tmp_path / ".gitignore").write_text("c.py\n")
    ended = run(tmp_path, LINT, "lint", "--jobs", jobs, "--output-format", "concise")
    assert ended.stderr == ""
    assert [line.partition(" ")[0] for line in ended.stdout.splitlines()] == ["a.py:4:13:", "b.py:4:13:", "Found"]
    assert ended.returncode == 1
    again = run(tmp_path, LINT, "lint", "--jobs", jobs, "--output-format", "concise")
    assert (again.stdout, again.returncode) == (ended.stdout, 1), "from the cache"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["lint", "--fix", "a.py"], 1),
        (["lint", "--write-baseline", "."], 0),
        (["lint", "-o", "out.txt", "."], 1),
        (["lint", "--show-settings"], 0),
        (["rule", "GS201"], 0),
        (["--version"], 0),
        (["trace", "--help"], 0),
        (["report", "--help"], 0),
    ],
)
def test_the_commands_need_nothing_that_windows_lacks(tmp_path: Path, arguments: list[str], code: int) -> None:
    (tmp_path / "a.py").write_text(READS)
    ended = run(tmp_path, LINT, *arguments)
    assert "Traceback" not in ended.stderr
    assert ended.returncode == code, ended.stderr


def test_pytest_starts_with_the_plugin_and_runs_tests_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_it(): pass\n")
    # The other plugins of this environment may need what is missing here.
    program = (
        "os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'pytest_gpusync.plugin']))"
    )
    ended = run(tmp_path, program, uses_pytest=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout


def test_no_module_of_the_linter_imports_what_windows_lacks() -> None:
    import ast

    for file in (ROOT / "lint" / "gpusync_lint").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not set(names) & set(MODULES), file


def test_every_file_is_opened_with_an_encoding() -> None:
    """On Windows the default is not UTF-8."""
    import ast

    missing = []
    for folder in ("lint/gpusync_lint", "pytest_gpusync/plugin", "pytest_gpusync/reporting"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or any(one.arg == "encoding" for one in node.keywords):
                    continue
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if (name == "read_text" and not node.args) or (name == "write_text" and len(node.args) < 2):
                    missing.append(f"{file}:{node.lineno}")
                elif name == "open" and isinstance(node.func, ast.Name):
                    modes = [one.value for one in node.args[1:2] if isinstance(one, ast.Constant)]
                    if not any("b" in str(mode) for mode in modes):
                        missing.append(f"{file}:{node.lineno}")
    assert missing == []
