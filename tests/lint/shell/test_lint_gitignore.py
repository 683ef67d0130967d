"""Files that git ignores are not linted, unless they are given."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gpusync_lint.cli import main
from gpusync_lint.files.discovery import discover

Project = Callable[..., Path]
Captured = pytest.CaptureFixture[str]

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def listed(root: Path, *paths: str, **options: bool) -> list[str]:
    found = discover(
        paths or (".",),
        cwd=root,
        excludes=lambda path: False,
        stdin=bytes,
        unneeded=lambda files: frozenset(),
        **options,
    )
    return [file.source.path for file in found.files]


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "ignored"),
    [
        ({".gitignore": "gen/\n"}, {"gen/a.py", "pkg/gen/b.py"}),
        ({".gitignore": "/gen\n"}, {"gen/a.py"}),
        ({".gitignore": "b.py\n"}, {"pkg/b.py", "pkg/gen/b.py"}),
        ({".gitignore": "pkg/*\n!pkg/b.py\n"}, {"pkg/gen/b.py"}),
        ({".gitignore": "*.py\n!b.py\n"}, {"a.py", "gen/a.py"}),
        ({".gitignore": "gen/\n!gen/a.py\n"}, {"gen/a.py", "pkg/gen/b.py"}),
        ({".gitignore": "# *.py\n\n"}, set()),
        ({"pkg/.gitignore": "b.py\n"}, {"pkg/b.py", "pkg/gen/b.py"}),
        ({".gitignore": "b.py\n", "pkg/.gitignore": "!b.py\n"}, set()),
        ({".gitignore": "pkg/\n", "pkg/.gitignore": "!b.py\n"}, {"pkg/b.py", "pkg/gen/b.py"}),
        ({".git/info/exclude": "a.py\n"}, {"a.py", "gen/a.py"}),
        ({".git/info/exclude": "a.py\n", ".gitignore": "!/a.py\n"}, {"gen/a.py"}),
        ({"pkg/.git/HEAD": "", ".gitignore": "b.py\n"}, set()),
        ({"pkg/.git": "gitdir: ../.git/modules/pkg\n", ".git/modules/pkg/info/exclude": "gen\n"}, {"pkg/gen/b.py"}),
    ],
)
def test_what_is_ignored(tmp_path: Path, files: dict[str, str], ignored: set[str]) -> None:
    sources = {"a.py": "", "gen/a.py": "", "pkg/b.py": "", "pkg/gen/b.py": ""}
    root = tree(tmp_path, {".git/HEAD": "", **sources, **files})
    assert set(listed(root)) == set(sources) - ignored
    assert set(listed(root, respect_gitignore=False)) == set(sources)


def test_the_patterns_of_a_worktree_are_those_of_its_repository(tmp_path: Path) -> None:
    tree(tmp_path, {"main/.git/worktrees/w/commondir": "../..\n", "main/.git/info/exclude": "a.py\n"})
    root = tree(tmp_path / "w", {".git": f"gitdir: {tmp_path}/main/.git/worktrees/w\n", "a.py": "", "b.py": ""})
    assert listed(root) == ["b.py"]


def test_a_gitignore_outside_a_repository_counts_from_the_given_folder_on(tmp_path: Path) -> None:
    tree(tmp_path, {".gitignore": "*.py\n", "src/.gitignore": "a.py\n", "src/a.py": "", "src/b.py": ""})
    assert listed(tmp_path / "src") == ["b.py"]


@pytest.mark.parametrize("path", ["gen/a.py", "gen", "gen/deep"])
def test_a_path_that_is_given_is_linted_although_it_is_ignored(tmp_path: Path, path: str) -> None:
    root = tree(tmp_path, {".git/HEAD": "", ".gitignore": "gen/\n/gen\n", "gen/a.py": "", "gen/deep/a.py": ""})
    assert listed(root, path)


def test_a_folder_below_a_repository_obeys_the_patterns_above_it(tmp_path: Path) -> None:
    root = tree(tmp_path, {".git/HEAD": "", ".gitignore": "/src/gen\n", "src/gen/a.py": "", "src/b.py": ""})
    assert listed(root, "src") == ["src/b.py"]


def test_a_gitignore_that_is_no_text_is_no_error(tmp_path: Path) -> None:
    root = tree(tmp_path, {"a.py": "", "b.py": ""})
    (root / ".gitignore").write_bytes(b"\xff\xfe\na.py\n")
    assert listed(root) == ["b.py"]


@pytest.mark.parametrize(
    ("settings", "arguments", "files"),
    [
        ("", [], ["a.py"]),
        ("", ["--no-respect-gitignore"], ["a.py", "gen/b.py"]),
        ("respect-gitignore = false", [], ["a.py", "gen/b.py"]),
        ("respect-gitignore = false", ["--respect-gitignore"], ["a.py"]),
        ("respect-gitignore = true", ["--no-respect-gitignore"], ["a.py", "gen/b.py"]),
    ],
)
def test_it_is_an_option_and_a_setting(
    project: Project, capsys: Captured, settings: str, arguments: list[str], files: list[str]
) -> None:
    project({"pyproject.toml": f"[tool.gpusync]\n{settings}\n", ".gitignore": "gen\n", "a.py": "", "gen/b.py": ""})
    assert main(["--show-files", *arguments]) == 0
    assert capsys.readouterr().out.splitlines() == files


def test_a_project_without_patterns_does_not_load_pathspec(tmp_path: Path) -> None:
    tree(tmp_path, {"a.py": "", ".gitignore": "# nothing\n"})
    code = (
        "import sys\nfrom pathlib import Path\nfrom gpusync_lint.files.discovery import discover\n"
        "discover(['.'], cwd=Path.cwd(), excludes=lambda path: False, stdin=bytes)\n"
        "sys.exit('pathspec' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False).returncode == 0


_NAMES = ["a", "b", "ab", "x.py", "y.py", "a.py"]
_PIECES = [*_NAMES, "*", "*.py", "?", "a*", "**", "[ab]"]


def _pattern(chance: random.Random) -> str:
    body = "/".join(chance.choice(_PIECES) for _ in range(chance.choice([1, 1, 1, 2, 2, 3])))
    return chance.choice(["", "", "", "!"]) + chance.choice(["", "", "/"]) + body + chance.choice(["", "", "/"])


@needs_git
@pytest.mark.parametrize("seed", range(40))
def test_random_patterns_ignore_what_git_ignores(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    folders = {"/".join(chance.choice(_NAMES[:3]) for _ in range(chance.randint(1, 3))) for _ in range(8)}
    root = tree(tmp_path, {f"{folder}/{name}": "" for folder in folders for name in ("x.py", "a.py")})
    tree(root, {"x.py": "", "y.py": ""})
    for folder in ["", *folders]:
        if not folder or chance.random() < 0.3:
            lines = [_pattern(chance) for _ in range(chance.randint(1, 5))]
            tree(root, {f"{folder}/.gitignore".lstrip("/"): "\n".join(lines) + "\n"})
    quiet = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", "init", "-q"], cwd=root, env=quiet, check=True)
    command = ["git", "ls-files", "--others", "--exclude-standard", "--", "*.py"]
    expected = subprocess.run(command, cwd=root, env=quiet, check=True, capture_output=True, text=True)
    assert listed(root) == sorted(expected.stdout.split())
