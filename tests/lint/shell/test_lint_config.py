from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gpusync_lint.model.levels import Heat
from gpusync_lint.settings.config import Config, ConfigError, find, load
from gpusync_lint.settings.selection import Layer

if TYPE_CHECKING:
    from pathlib import Path

NAMES = {"GS201": "item-read", "GS501": "blocking-copy"}


def _load(folder: Path, body: str) -> Config:
    path = folder / "pyproject.toml"
    path.write_text(body)
    return load(path, NAMES)


def test_every_key_is_read(tmp_path: Path) -> None:
    config = _load(
        tmp_path,
        """
        [tool.gpusync]
        select = ["GS2", "blocking-copy"]
        ignore = ["GS201"]
        exclude = ["vendor"]
        heat = "epoch"
        step-functions = ["train_one", "engine.step"]
        torch-version = "2.13.1"
        [tool.gpusync.per-file-ignores]
        "tests/**" = ["GS5"]
        """,
    )
    assert config.codes == Layer(("GS2", "GS501"), ("GS201",))
    assert config.excludes(tmp_path / "vendor" / "a.py")
    assert not config.excludes(tmp_path / "a.py")
    assert config.heat is Heat.EPOCH
    assert config.step_functions == ("train_one", "engine.step")
    assert config.torch_version == (2, 13)
    ((pattern, codes),) = config.per_file_ignores
    assert pattern.match("tests/a.py")
    assert codes == ("GS5",)


def test_barriers_of_the_project_are_read(tmp_path: Path) -> None:
    config = _load(
        tmp_path,
        """
        [[tool.gpusync.barriers]]
        call = ["ourlib.metrics.to_host", ".fetch"]
        code = "GS201"
        message = "It waits"
        remedy = "Do not"
        takes = "tensor"
        unless = ["stream"]
        [[tool.gpusync.barriers]]
        call = "clib.wait"
        """,
    )
    first, second = config.barriers
    assert (first.calls, first.code, first.message) == (("ourlib.metrics.to_host", ".fetch"), "GS201", "It waits")
    assert (first.remedy, first.takes, first.unless_keywords) == ("Do not", "tensor", ("stream",))
    assert (second.calls, second.code, second.takes) == (("clib.wait",), "GS699", "")
    assert first.id != second.id


def test_an_empty_table_is_the_default(tmp_path: Path) -> None:
    config = _load(tmp_path, "[tool.gpusync]\n")
    assert config == Config(root=tmp_path)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("slect = []", "tool.gpusync.slect: unknown key; did you mean 'select'?"),
        ("torch_version = '2.1'", "tool.gpusync.torch_version: unknown key; did you mean 'torch-version'?"),
        (
            "color = 1",
            "tool.gpusync.color: unknown key; the keys are select, ignore, exclude, respect-gitignore, per-file",
        ),
        ("select = 'GS2'", 'tool.gpusync.select: must be a list of strings; write select = ["GS2"]'),
        ("select = 2", "tool.gpusync.select: must be a list of strings, not an integer"),
        ("exclude = ['[z-a].py']", "tool.gpusync.exclude: not a path pattern: '[z-a].py' (bad character range z-a"),
        ("exclude = [1]", "tool.gpusync.exclude: must be a list of strings, and one of its values is not"),
        ("select = ['GS2001']", "tool.gpusync.select: no rule has the code or name 'GS2001'; did you mean GS201?"),
        (
            "ignore = ['item-reed']",
            "tool.gpusync.ignore: no rule has the code or name 'item-reed'; did you mean item-read?",
        ),
        ("heat = 'hot'", "tool.gpusync.heat: must be one of step, guarded, epoch, once, not 'hot'"),
        ("heat = true", "tool.gpusync.heat: must be one of step, guarded, epoch, once, not True"),
        ("torch-version = 2.11", 'tool.gpusync.torch-version: must be a string; write torch-version = "2.11"'),
        ("torch-version = 'new'", "tool.gpusync.torch-version: must be a version like \"2.11\", not 'new'"),
        ("per-file-ignores = ['a']", "tool.gpusync.per-file-ignores: must be a table of pattern = [codes], not "),
        (
            "per-file-ignores = {'a.py' = 'GS2'}",
            'tool.gpusync.per-file-ignores."a.py": must be a list of codes, not a string',
        ),
        (
            "barriers = {}",
            "tool.gpusync.barriers: must be a list of tables, written [[tool.gpusync.barriers]], not a table",
        ),
        ("barriers = [{}]", 'tool.gpusync.barriers[0].call: is missing; write call = "package.module.function"'),
        ("barriers = [{call = ''}]", "tool.gpusync.barriers[0].call: is missing; write call = "),
        ("barriers = [{call = 'a'}, {cal = 'a.b'}]", "tool.gpusync.barriers[1].cal: unknown key; did you mean 'call'?"),
        (
            "barriers = [{color = 'a.b'}]",
            "tool.gpusync.barriers[0].color: unknown key; the keys are call, code, message, remedy, takes, unless",
        ),
        (
            "barriers = [{call = 'a b'}]",
            "tool.gpusync.barriers[0].call: 'a b' is not a name; write \"package.function\", ",
        ),
        ("barriers = [{call = 3}]", "tool.gpusync.barriers[0].call: must be a string, not an integer"),
        ("barriers = [{call = ['a', 3]}]", "tool.gpusync.barriers[0].call: must be a list of strings, and one"),
        (
            "barriers = [{call = 'a', code = 'GS2011'}]",
            "tool.gpusync.barriers[0].code: no rule has the code or name 'GS2011'; did you mean GS201?",
        ),
        (
            "barriers = [{call = 'a', code = 'GS2'}]",
            "tool.gpusync.barriers[0].code: must be one code, not the prefix 'GS2'",
        ),
        (
            "barriers = [{call = 'a', takes = 'tensors'}]",
            "tool.gpusync.barriers[0].takes: must be one of anything, tensor, not 'tensors'",
        ),
        ("barriers = [{call = 'a', unless = 'b'}]", "tool.gpusync.barriers[0].unless: must be a list of strings, not "),
        (
            "per-file-ignores = {'a.py' = ['GS9']}",
            "tool.gpusync.per-file-ignores.\"a.py\": no rule has the code or name 'GS9'; ",
        ),
    ],
)
def test_a_wrong_entry_names_file_and_key(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, f"[tool.gpusync]\n{body}\n")
    assert str(caught.value).startswith(f"{tmp_path / 'pyproject.toml'}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"[tool.gpusync\n", "not valid TOML: "),
        (b"[tool]\ngpusync = 3\n", "tool.gpusync must be a table, written [tool.gpusync]"),
        (b"# gpusync \xff\n", "not valid TOML: "),
    ],
)
def test_an_unusable_file_is_named(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        load(path, NAMES)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read: No such file or directory"):
        load(tmp_path / "gone.toml", NAMES)


def test_the_nearest_file_with_the_table_is_found(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.gpusync]\n")
    inner = tmp_path / "pkg" / "sub"
    inner.mkdir(parents=True)
    (tmp_path / "pkg" / "pyproject.toml").write_text("[project]\nname = 'pytest-gpusync-user'\n")
    assert find(inner) == tmp_path / "pyproject.toml"


def test_a_broken_file_without_the_table_is_nobodys_business(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.gpusync]\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "pyproject.toml").write_text("[tool.other\n")
    assert find(tmp_path / "pkg") == tmp_path / "pyproject.toml"
