"""Where a run comes from: its command, commit and date, and the version that wrote it, for the heads of reports."""

from __future__ import annotations

import os
import re
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from gpusync_lint import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpusync.model.document import Document

_COMMAND_LIMIT: Final = 400
"""Longest command that is kept, in characters."""

_LABELS_KEPT: Final = 20
_LABEL_LIMIT: Final = 100
"""Longest name and value of a label, in characters."""

_SECRET: Final = re.compile(
    r"(?:token(?!s|iz)|secret|passw(?:or)?d|credential|api[-_]?key)[\w-]*(?P<value>=.+)?\Z", re.DOTALL | re.IGNORECASE
)
"""An option whose value is left out: reports are published."""

_COMMIT: Final = re.compile(r"[0-9a-f]{40,64}\Z")


def origin_document() -> Document:
    """Return the origin object of a run that this process made; what is not known is null."""
    folder = Path.cwd()
    repository = _repository(folder)
    below = "" if repository is None else folder.relative_to(repository).as_posix()
    return {
        "command": command_text([*_program(sys.argv[0]), *sys.argv[1:]]) if sys.argv and sys.argv[0] else None,
        "commit": None if repository is None else _commit(repository),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "version": __version__,
        "source_url": None if repository is None else _source_url(os.environ, below),
        "labels": labels(os.environ.get("GPUSYNC_LABELS", "")),
    }


def labels(text: str) -> dict[str, str]:
    """Return the labels in ``GPUSYNC_LABELS``, such as ``model=gpt-2, team=vision``; without a value it is ``true``."""
    found: dict[str, str] = {}
    for entry in text.split(",")[:_LABELS_KEPT]:
        key, equals, value = (part.strip()[:_LABEL_LIMIT] for part in entry.partition("="))
        if key:
            found[key] = value if equals else "true"
    return found


def _program(path: str) -> list[str]:
    """Return how a program was started, without the folder that it is in."""
    name = Path(path).name
    return ["python", "-m", Path(path).parent.name] if name == "__main__.py" else [name]


def command_text(arguments: Sequence[str]) -> str:
    """Return a command as a shell reads it, without the values of options that are named like secrets."""
    shown: list[str] = []
    hides_next = False
    for argument in arguments:
        secret = _SECRET.search(argument) if argument.startswith("-") or "=" in argument else None
        if hides_next and not argument.startswith("-"):
            shown.append("***")
        elif secret is not None and secret["value"] is not None:
            shown.append(shlex.quote(argument[: secret.start("value")]) + "=***")
        else:
            shown.append(shlex.quote(argument))
        hides_next = secret is not None and secret["value"] is None
    text = " ".join(shown)
    return text if len(text) <= _COMMAND_LIMIT else text[: _COMMAND_LIMIT - 1] + "…"


def _repository(folder: Path) -> Path | None:
    """Return the root of the git repository that a folder is in; None if it is in none."""
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), None)


def _commit(repository: Path) -> str | None:
    """Return the commit that is checked out, read from git's files: starting git could change what is measured."""
    try:
        git = repository / ".git"
        if git.is_file():  # a worktree or a submodule
            git = repository / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref:"):
            return head if _COMMIT.match(head) else None
        name = head.removeprefix("ref:").strip()
        common = git / "commondir"
        shared = git / common.read_text(encoding="utf-8").strip() if common.is_file() else git
        for folder in (git, shared):
            if (folder / name).is_file():
                found = (folder / name).read_text(encoding="utf-8").strip()
                return found if _COMMIT.match(found) else None
        packed = (line.split(" ", 1) for line in (shared / "packed-refs").read_text(encoding="utf-8").splitlines())
        return next((row[0] for row in packed if row[1:] == [name] and _COMMIT.match(row[0])), None)
    except (OSError, ValueError):
        return None


def _source_url(environ: Mapping[str, str], folder: str) -> str | None:
    """Return the address of a folder of the repository, at the commit of this job; None outside of CI."""
    below = "" if folder == "." else f"{quote(folder)}/"
    if environ.get("GITHUB_ACTIONS") == "true":
        parts = [environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "SHA")]
        address = f"{parts[0]}/{parts[1]}/blob/{parts[2]}/{below}"
    else:
        parts = [environ.get(name, "") for name in ("CI_PROJECT_URL", "CI_COMMIT_SHA")]
        address = f"{parts[0]}/-/blob/{parts[1]}/{below}"
    return address if all(parts) and address.startswith("https://") else None
