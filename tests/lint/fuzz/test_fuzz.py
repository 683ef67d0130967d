"""Random programs and notebooks: the linter ends, within the time that is due, and says what it could not read.

`GPUSYNC_FUZZ=seconds` runs for so long, with seeds from `GPUSYNC_FUZZ_SEED` on, and prints how many inputs it tried.
"""

from __future__ import annotations

import ast
import io
import json
import os
import random
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gpusync_lint.cli import main
from gpusync_lint.files.discovery import DecodeError, decode
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.project import partition
from gpusync_lint.run import schedule
from programs import generated, mutated

if TYPE_CHECKING:
    from collections.abc import Iterator

INPUTS = 500
SECONDS = float(os.environ.get("GPUSYNC_FUZZ", "0"))
SEED = int(os.environ.get("GPUSYNC_FUZZ_SEED", "20261123"))
MAX_SECONDS = 10.0
"""The CPU time of an input of some thousand characters, on the slowest machine."""
GOOD = "import torch\nfor x in loader:\n    loss = torch.ones(3).cuda().sum()\n    loss.backward()\n    loss.item()\n"
CORPUS = [path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parents[3] / "examples").rglob("*.py"))]


def seeds() -> Iterator[int]:
    end = time.monotonic() + SECONDS
    seed = SEED
    while time.monotonic() < end if SECONDS else seed < SEED + INPUTS:
        yield seed
        seed += 1


def program(rng: random.Random) -> str:
    text = generated(rng)
    if rng.random() < 0.5:
        return text
    other = rng.choice(CORPUS)
    start = rng.randrange(len(other))
    return mutated(rng, rng.choice([text, other[start : start + 3000]]), rng.choice([other, generated(rng)]))


def test_random_programs_are_analyzed() -> None:
    tried = parsed = found = 0
    for seed in seeds():
        rng = random.Random(seed)
        sources = [Source(f"{'abc'[number]}.py", program(rng)) for number in range(rng.choice([1, 1, 1, 2, 3]))]
        start = time.process_time()
        imported = [partition.imports(source.text) for source in sources]
        parts = schedule.analyze_sources(sources, EngineSettings(), imported)
        analysis = schedule.combined([part.analysis for part in parts], len(sources))
        assert time.process_time() - start < MAX_SECONDS, seed
        assert not any(part.tracebacks for part in parts), (seed, parts[0].tracebacks)
        assert {error.path for error in analysis.errors} <= {source.path for source in sources}, seed
        for source in sources:
            errors = [error for error in analysis.errors if error.path == source.path]
            assert _parses(source.text) or errors or sys.version_info < (3, 14), (seed, "an error is missing")
            assert all("\n" not in error.message for error in errors), seed
        tried += len(sources)
        parsed += sum(_parses(source.text) for source in sources)
        found += len(analysis.findings)
    print(f"{tried} programs from seed {SEED} on, {parsed} valid, {found} findings")
    assert parsed > tried // 20
    assert found > tried // 20


def _parses(text: str) -> bool:
    try:
        ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def test_random_bytes_are_decoded_or_refused() -> None:
    for seed in seeds():
        rng = random.Random(seed)
        encoding = rng.choice(
            ["utf-8", "latin-1", "utf-16", "rot13", "idna", "hex", "utf-7", "é", "x" * 99, "utf-8-sig"]
        )
        head = rng.choice([b"", b"\xef\xbb\xbf", b"\xff\xfe", f"# coding: {encoding}\n".encode()])
        data = head + program(rng).encode(errors="surrogatepass")
        start = rng.randrange(len(data) + 1)
        data = data[:start] + rng.randbytes(rng.choice([0, 1, 9])) + data[start:]
        try:
            decode(data, "a.py", Path("a.py"))
        except DecodeError as error:
            assert "\n" not in str(error), seed


def test_random_files_are_linted_and_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole runs: files and notebooks, with --fix and comments, in every format. The good file keeps its findings."""
    monkeypatch.chdir(tmp_path)
    tried = 0
    for seed in seeds():
        if not SECONDS and seed >= SEED + 40:
            break
        rng = random.Random(seed)
        (tmp_path / "good.py").write_text(GOOD)
        for name in ("a.py", "b.py"):
            (tmp_path / name).write_bytes(program(rng).encode(errors="surrogatepass"))
        cells = [{"cell_type": "code", "source": program(rng)}, {"cell_type": "code", "source": ["%time x\n", "y"]}]
        document = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells})
        document = mutated(rng, document, "[{]}") if rng.random() < 0.5 else document
        (tmp_path / "c.ipynb").write_bytes(document.encode(errors="surrogatepass"))
        out, err = io.StringIO(), io.StringIO()
        how = rng.choice([["--fix", "--unsafe-fixes"], ["--add-ignores", "wanted"], ["--diff"], []])
        options = ["--select", "GS", "--no-cache", "--jobs", "1", "--heat", "once", "--confidence", "low"]
        before = {name: (tmp_path / name).read_bytes() for name in ("a.py", "b.py", "c.ipynb")}
        with redirect_stdout(out), redirect_stderr(err):
            code = main([*options, *how, "good.py", "a.py", "b.py", "c.ipynb", "--no-context"])
        message = err.getvalue()
        assert code in (0, 1, 2), seed
        assert "internal error" not in message, (seed, message)
        assert "bug" not in message, (seed, message)
        assert how != [] or "good.py:5" in out.getvalue(), seed
        for name in ("a.py", "b.py"):
            if _parses_bytes(before[name]):
                assert _parses_bytes((tmp_path / name).read_bytes()), (seed, name)
        if not how or how == ["--diff"]:
            assert before == {name: (tmp_path / name).read_bytes() for name in before}, seed
        tried += 1
    print(f"{tried} runs from seed {SEED} on")


def _parses_bytes(data: bytes) -> bool:
    try:
        ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


@pytest.mark.skipif(not SECONDS, reason="long form: GPUSYNC_FUZZ=seconds, with hypothesmith installed")
def test_programs_of_hypothesmith_are_analyzed() -> None:
    hypothesmith = pytest.importorskip("hypothesmith")
    hypothesis = pytest.importorskip("hypothesis")

    @hypothesis.settings(
        max_examples=int(SECONDS * 4), deadline=None, suppress_health_check=list(hypothesis.HealthCheck), database=None
    )
    @hypothesis.seed(SEED)
    @hypothesis.given(hypothesmith.from_grammar() | hypothesmith.from_node())
    def run(text: str) -> None:
        source = Source("a.py", f"import torch\n{text}")
        (part,) = schedule.analyze_sources([source], EngineSettings(), [partition.imports(source.text)])
        assert not part.tracebacks
        assert _parses(source.text) == (not part.analysis.errors) or part.analysis.errors or sys.version_info < (3, 14)

    run()
