"""Finding, reading and checking ``[tool.gpusync]`` in pyproject.toml."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpusync_lint.files.regular_file import MAX_DOCUMENT, NotRegularError, TooLargeError, read_regular
from gpusync_lint.messages import did_you_mean, wrong_type
from gpusync_lint.model.findings import UserError
from gpusync_lint.model.levels import FREQUENCIES, Heat
from gpusync_lint.settings import project_barriers
from gpusync_lint.settings.options import OPTIONS
from gpusync_lint.settings.selection import Layer, UnknownCodeError, glob_pattern, resolve_all

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path, PurePath

    from gpusync_lint.catalogue.schema import Barrier

TABLE = "tool.gpusync"


class ConfigError(UserError):
    """The configuration cannot be used. The message is one line that names the file and the key."""


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of a project. The defaults of the fields are those without a configuration."""

    root: Path | None = None
    """The folder that patterns are relative to; None without a configuration file."""
    codes: Layer = field(default_factory=Layer)
    exclude: tuple[re.Pattern[str], ...] = ()
    respect_gitignore: bool = True
    """Whether files that git ignores are left out."""
    per_file_ignores: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = ()
    heat: Heat = Heat.STEP
    step_functions: tuple[str, ...] = ()
    barriers: tuple[Barrier, ...] = ()
    """Barriers that the project describes."""
    baseline: Path | None = None
    """An absolute path."""
    torch_version: tuple[int, int] | None = None
    """None for the default of the engine."""

    def excludes(self, path: str | PurePath) -> bool:
        """Whether an absolute path is excluded by the configuration."""
        if self.root is None or not self.exclude:
            return False
        top, at = os.path.join(self.root, ""), os.fspath(path)
        if not f"{at}{os.sep}".startswith(top):
            return False
        relative = at[len(top) :].replace(os.sep, "/") or "."
        return any(pattern.match(relative) for pattern in self.exclude)


def find(start: Path) -> Path | None:
    """The nearest pyproject.toml with a ``[tool.gpusync]`` table, from the folder `start` upward."""
    for folder in (start, *start.parents):
        candidate = folder / "pyproject.toml"
        try:
            raw = read_regular(candidate, MAX_DOCUMENT)
        except (NotRegularError, TooLargeError) as error:
            raise ConfigError(f"{candidate}: cannot be read: {error.strerror}") from None
        except OSError:
            continue
        # A file without the word has no such table. It is not parsed, so it may even be invalid.
        if b"gpusync" in raw and _table(_parse(candidate, raw), candidate) is not None:
            return candidate
    return None


def table_of(path: Path) -> dict[str, Any]:
    """The table in a file that was loaded before, as it is written there."""
    return _table(_parse(path, path.read_bytes()), path) or {}


def load(path: Path, names: Mapping[str, str]) -> Config:
    """Read the configuration in a file.

    Args:
        path: the file.
        names: the rule name of every code.

    Raises:
        ConfigError: the file cannot be read, or a key or a value is wrong.
    """
    try:
        raw = read_regular(path, MAX_DOCUMENT)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    table = _table(_parse(path, raw), path)
    return _Reader(path, {} if table is None else table, names).config()


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document: dict[str, Any] = tomllib.loads(raw.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except ValueError:  # an integer of thousands of digits
        raise ConfigError(f"{path}: not valid TOML: an integer has too many digits") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: nested too deeply") from None
    return document


def _table(document: dict[str, Any], path: Path) -> dict[str, Any] | None:
    tool = document.get("tool")
    table = tool.get("gpusync") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: {TABLE} must be a table, written [{TABLE}]")
    return table


class _Reader:
    """Reads and checks the table, key by key."""

    def __init__(self, path: Path, table: dict[str, Any], names: Mapping[str, str]) -> None:
        self.path = path
        self.table = table
        self.names = names

    def config(self) -> Config:
        for key in self.table:
            if key not in OPTIONS:
                hint = did_you_mean(key.replace("_", "-").lower(), OPTIONS, f"the keys are {', '.join(OPTIONS)}")
                raise self._fail(key, f"unknown key; {hint}")
        select = self._codes("select")
        version = self.table.get("torch-version")
        return Config(
            root=self.path.parent.absolute(),
            codes=Layer(select=select, ignore=self._codes("ignore") or ()),
            exclude=tuple(self._pattern("exclude", pattern) for pattern in self._strings("exclude") or ()),
            per_file_ignores=self._per_file_ignores(),
            respect_gitignore=self._switch("respect-gitignore", default=True),
            heat=self._heat(),
            baseline=self._baseline(),
            step_functions=tuple(self._strings("step-functions") or ()),
            barriers=project_barriers.read(self.table.get("barriers", []), self._fail, self.names),
            torch_version=None if version is None else self._version(version),
        )

    def _fail(self, key: str, problem: str) -> ConfigError:
        return ConfigError(f"{self.path}: {TABLE}.{key}: {problem}")

    def _strings(self, key: str) -> list[str] | None:
        value = self.table.get(key)
        if value is None:
            return None
        if isinstance(value, str):
            raise self._fail(key, f'must be a list of strings; write {key} = ["{value}"]')
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._fail(key, wrong_type("a list of strings", value))
        return value

    def _codes(self, key: str) -> tuple[str, ...] | None:
        words = self._strings(key)
        return None if words is None else self._resolve(key, words)

    def _resolve(self, key: str, words: list[str]) -> tuple[str, ...]:
        try:
            return resolve_all(words, self.names)
        except UnknownCodeError as error:
            raise self._fail(key, str(error)) from None

    def _pattern(self, key: str, pattern: str) -> re.Pattern[str]:
        try:
            return glob_pattern(pattern)
        except ValueError as error:
            raise self._fail(key, str(error)) from None

    def _per_file_ignores(self) -> tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]:
        table = self.table.get("per-file-ignores", {})
        if not isinstance(table, dict):
            raise self._fail("per-file-ignores", wrong_type("a table of pattern = [codes]", table))
        result = []
        for pattern, words in table.items():
            key = f'per-file-ignores."{pattern}"'
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise self._fail(key, wrong_type("a list of codes", words))
            result.append((self._pattern(key, pattern), self._resolve(key, words)))
        return tuple(result)

    def _switch(self, key: str, *, default: bool) -> bool:
        value = self.table.get(key, default)
        if not isinstance(value, bool):
            raise self._fail(key, wrong_type("true or false", value))
        return value

    def _heat(self) -> Heat:
        value = self.table.get("heat", Heat.STEP.value)
        if value in [heat.value for heat in FREQUENCIES]:
            return Heat(value)
        raise self._fail("heat", f"must be one of {', '.join(heat.value for heat in FREQUENCIES)}, not {value!r}")

    def _baseline(self) -> Path | None:
        value = self.table.get("baseline")
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._fail("baseline", wrong_type("the path of a file", value))
        if not value:
            raise self._fail("baseline", "must be the path of a file, not empty")
        return self.path.parent.absolute() / value

    def _version(self, value: object) -> tuple[int, int]:
        if isinstance(value, str) and (match := re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?", value)):
            return int(match[1]), int(match[2])
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise self._fail("torch-version", f'must be a string; write torch-version = "{value}"')
        raise self._fail("torch-version", f'must be a version like "2.11", not {value!r}')
