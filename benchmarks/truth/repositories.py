"""The list of repositories, ``repositories.toml``: which ones run, at which commit, and how each is started.

[environments.NAME]
requirements = ["torch==2.13.0", ...]

[[repository]]
name = "OWNER/NAME"
commit = "..."
kinds = ["vision"]
environment = "NAME"

[[repository.run]]
name = "..."              # unique in the whole list
...                       # the keys of record.Job: script, args, data, before, step, ...
"""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from record import Job

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LIST = Path(__file__).with_name("repositories.toml")
Half = Literal["learn", "scored"]
HALVES: tuple[Half, ...] = ("learn", "scored")
_JOB_KEYS = {key.name for key in fields(Job)} - {"root", "output"}


class ListError(ValueError):
    """The list is wrong; the message is one line with the place and the remedy."""


@dataclass(frozen=True)
class Run:
    """One way to start a repository."""

    name: str
    repository: Repository
    job: dict[str, Any]
    env: dict[str, str]
    """Environment variables."""


@dataclass(frozen=True)
class Repository:
    """A public repository at a commit."""

    name: str
    """OWNER/NAME on GitHub."""
    commit: str
    kinds: tuple[str, ...]
    environment: str

    @property
    def folder(self) -> str:
        return self.name.replace("/", "+")

    @property
    def url(self) -> str:
        return f"https://github.com/{self.name}"

    @property
    def half(self) -> Half:
        return half_of(self.name)


def half_of(name: str) -> Half:
    """Return which half a repository belongs to, by its name alone, so that nobody chooses."""
    return HALVES[hashlib.sha256(name.lower().encode()).digest()[0] & 1]


@dataclass(frozen=True)
class RepositoryList:
    """Everything that can be run."""

    runs: tuple[Run, ...]
    requirements: dict[str, list[str]]
    """What each environment installs, by its name."""


def load(path: Path = LIST) -> RepositoryList:
    """Read the list.

    Raises:
        ListError: something is missing, unknown or there twice.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ListError(f"{path}: {error}") from None
    requirements = {name: table["requirements"] for name, table in document.get("environments", {}).items()}
    runs: dict[str, Run] = {}
    for table in document.get("repository", []):
        repository = _repository(path, table, requirements)
        for entry in table.get("run", []):
            run = _run(path, repository, entry)
            if run.name in runs:
                raise ListError(f"{path}: two runs are named {run.name!r}; names are unique in the list")
            runs[run.name] = run
    return RepositoryList(tuple(runs.values()), requirements)


def _repository(path: Path, table: dict[str, Any], requirements: dict[str, list[str]]) -> Repository:
    name = table.get("name", "")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ListError(f"{path}: {name!r} is not the name of a repository; write OWNER/NAME")
    if not re.fullmatch(r"[0-9a-f]{40}", table.get("commit", "")):
        raise ListError(f"{path}: {name}: commit must be the 40 digits of a commit")
    environment = table.get("environment", "base")
    if environment not in requirements:
        raise ListError(f"{path}: {name}: there is no [environments.{environment}]")
    return Repository(name, table["commit"], tuple(table.get("kinds", ())), environment)


def _run(path: Path, repository: Repository, entry: dict[str, Any]) -> Run:
    job = {key: value for key, value in entry.items() if key not in ("name", "env")}
    name = entry.get("name", "")
    if not re.fullmatch(r"[\w.-]+", name):
        raise ListError(f"{path}: {repository.name}: a run needs a name of letters, digits and dashes")
    unknown = sorted(job.keys() - _JOB_KEYS)
    if unknown:
        raise ListError(f"{path}: run {name}: unknown key {unknown[0]!r}; there are {', '.join(sorted(_JOB_KEYS))}")
    if sum(key in job for key in ("script", "module", "code")) != 1:
        raise ListError(f"{path}: run {name}: give one of script, module and code")
    return Run(name, repository, job, dict(entry.get("env", {})))
