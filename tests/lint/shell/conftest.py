"""A stand-in for the engine, so that these tests say what is found and check only what the shell makes of it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from gpusync_lint import rule_pages
from gpusync_lint.accept.rules import RULES
from gpusync_lint.catalogue.schema import RuleDoc
from gpusync_lint.model import codes
from gpusync_lint.model.findings import Analysis, EngineSettings, FileError, Finding, Fix, Source
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.operations import RemoveComment, RenameCalled
from gpusync_lint.model.spans import Span
from gpusync_lint.project import partition
from gpusync_lint.run import engine as run_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

NAMES = {
    "GS101": "synchronize",
    "GS201": "item-read",
    "GS202": "tolist-read",
    "GS301": "branch-on-value",
    "GS501": "blocking-copy",
    **{code: doc.name for code, doc in RULES.items()},
}

DOCS = {
    code: RULES.get(code)
    or RuleDoc(code, name, f"About {name}. More of it.", "It waits.", "x.item()", "x", "Safe.", "Never.", "torch")
    for code, name in NAMES.items()
}

WORDS: dict[str, tuple[str, Heat, Confidence]] = {
    "item": ("GS201", Heat.STEP, Confidence.HIGH),
    "item_medium": ("GS201", Heat.STEP, Confidence.MEDIUM),
    "item_low": ("GS201", Heat.STEP, Confidence.LOW),
    "item_guarded": ("GS201", Heat.GUARDED, Confidence.HIGH),
    "item_epoch": ("GS201", Heat.EPOCH, Confidence.HIGH),
    "item_once": ("GS201", Heat.ONCE, Confidence.HIGH),
    "tolist": ("GS202", Heat.STEP, Confidence.HIGH),
    "copy_safe": ("GS501", Heat.STEP, Confidence.HIGH),
    "copy_twice": ("GS501", Heat.STEP, Confidence.HIGH),
    "copy_unsafe": ("GS501", Heat.STEP, Confidence.HIGH),
    "copy_broken": ("GS501", Heat.STEP, Confidence.HIGH),
    "copy_unwritable": ("GS501", Heat.STEP, Confidence.HIGH),
    "copy_ping": ("GS501", Heat.STEP, Confidence.HIGH),
    "copy_pong": ("GS501", Heat.STEP, Confidence.HIGH),
}
"""What the stand-in reports for a call of each word, ``item()``: code, heat and confidence."""

REPLACEMENTS = {
    "copy_safe": ("fixed", True),
    "copy_twice": ("copy_safe", True),
    "copy_unsafe": ("fixed", False),
    "copy_broken": ("fixed(", True),
    "copy_unwritable": ("fixed", True),
    "copy_ping": ("copy_pong", True),
    "copy_pong": ("copy_ping", True),
}
"""What its fix puts in the place of the word, and whether it is safe."""

_CALL = re.compile(r"\b(\w+)\(\)")


def analyze(
    sources: Sequence[Source], settings: EngineSettings, context: Sequence[Source] = (), around: object = None
) -> Analysis:
    """Reports each ``word()`` of WORDS; ``syntax_error()`` is a syntax error and ``boom()`` a bug of the engine."""
    findings: list[Finding] = []
    ordinals: Counter[tuple[str, str]] = Counter()
    errors: list[FileError] = []
    for source in sources:
        if "boom()" in source.text:
            raise RuntimeError("boom\nin two lines")
        if "syntax_error()" in source.text:
            errors.append(FileError(source.path, 3, "invalid syntax"))
            continue
        for number, line in enumerate(source.text.split("\n"), 1):
            for match in _CALL.finditer(line):
                if match[1] in WORDS:
                    ordinals[source.path, match[1]] += 1
                    findings.append(_finding(source.path, number, match, ordinals[source.path, match[1]]))
    return Analysis(tuple(findings), tuple(errors), len(sources))


def _finding(path: str, line: int, match: re.Match[str], ordinal: int) -> Finding:
    word = match[1]
    code, heat, confidence = WORDS[word]
    column = match.start() + 1
    fix = None
    if word in REPLACEMENTS:
        replacement, safe = REPLACEMENTS[word]
        call = Span(line, column, line, column + len(match[0]))
        renamed = RenameCalled(call, replacement)
        comment = RemoveComment(call)  # there is none
        operations = (renamed, comment) if word == "copy_unwritable" else (renamed,)
        fix = Fix(f"Use {replacement}", operations, safe, None if safe else "the copy may race")
    return Finding(
        code=code,
        name=NAMES[code],
        path=path,
        span=Span(line, column, line, column + len(match[0])),
        message=f"`{word}()` waits for the GPU",
        remedy="keep it on the device",
        heat=heat,
        confidence=confidence,
        framework="torch",
        key=f"{path}::<module>::{code}::{word}()::{ordinal}",
        fix=fix,
    )


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for caches of the user, so that tests do not create the key of whoever runs them."""
    folder = tmp_path_factory.mktemp("cache_home")
    monkeypatch.setenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the command runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def analyzed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The paths that the engine was asked about, call by call."""
    calls: list[list[str]] = []
    real = run_engine.analyze

    def analyze(sources: Sequence[Source], *rest: Any) -> Analysis:
        calls.append([source.path for source in sources])
        return real(sources, *rest)

    monkeypatch.setattr(run_engine, "analyze", analyze)
    return calls


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in in the engine's place; it is asked about files that import no framework, too."""
    module = ModuleType("gpusync_lint.run.engine")
    module.analyze = analyze  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpusync_lint.run.engine", module)
    monkeypatch.setattr(partition._Graph, "imported_by", lambda graph, start: frozenset(range(len(graph._paths))))
    monkeypatch.setattr(rule_pages, "docs", lambda: dict(DOCS))
    monkeypatch.setattr(codes, "names", lambda: dict(NAMES))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: None) -> Callable[..., Path]:
    """Write files into a fresh folder, the working directory: ``project({"a.py": "item()"})``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def write(files: dict[str, str | bytes]) -> Path:
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path

    return write
