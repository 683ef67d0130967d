"""The pre-commit hooks name commands that exist."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from gpusync_lint.cli import main

yaml = pytest.importorskip("yaml")

HOOKS = yaml.safe_load((Path(__file__).parents[3] / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))


def test_both_hooks_are_there() -> None:
    assert [hook["id"] for hook in HOOKS] == ["gpusync-lint", "gpusync-fix"]


@pytest.mark.parametrize("hook", HOOKS, ids=[hook["id"] for hook in HOOKS])
def test_a_hook_runs_the_linter_on_the_files_it_is_given(
    hook: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, command, *options = shlex.split(str(hook["entry"]))
    assert (program, command) == ("gpusync", "lint")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("x = 1\n")
    assert main([*options, "a.py"]) == 0


@pytest.mark.parametrize("hook", HOOKS, ids=[hook["id"] for hook in HOOKS])
def test_a_hook_sees_all_files_at_once(hook: dict[str, object]) -> None:
    """How often a function runs is known from its callers, which may stand in another file."""
    assert hook["require_serial"] is True
    assert hook["types_or"] == ["python", "jupyter"]
