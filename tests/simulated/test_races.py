"""What is reported as a race on the simulated device, and what is not. Values are right in both."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from race_programs import MUTANTS, PROGRAMS

from pytest_gpusync import record, simulated_cuda

if TYPE_CHECKING:
    from pathlib import Path

    from race_programs import Mutant

    from pytest_gpusync.model.measurement import Race

_HEAD = "import torch\nimport torch.distributed as dist\nN = 64\n"


@pytest.fixture
def races(tmp_path: Path):
    """`races(source)` runs a program on the simulated device and returns what raced."""

    def run(source: str, devices: int = 1, **variables: Any) -> tuple[Race, ...]:
        path = tmp_path / "program.py"
        path.write_text(source, encoding="utf-8")
        with simulated_cuda(devices), record() as seen:
            exec(compile(source, str(path), "exec"), {"__name__": "program", **variables})
        return seen.races

    return run


@pytest.fixture
def group():
    """A process group of one process."""
    import torch.distributed as dist

    with simulated_cuda():
        dist.init_process_group("nccl", rank=0, world_size=1)
        yield
        dist.destroy_process_group()


def _lines(source: str) -> dict[int, str]:
    """The comment of each line that ends in one."""
    return {
        number: found[1]
        for number, text in enumerate(source.splitlines(), 1)
        if (found := re.search(r"# (\w+)$", text))
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_waits_for_all_it_needs_is_silent(name, races, group):
    assert [race.message for race in races(_HEAD + PROGRAMS[name])] == []


def _mutated(mutant: Mutant) -> str:
    source = _HEAD + PROGRAMS[mutant.program]
    for old, new in mutant.changes:
        assert old in source
        source = source.replace(old, new, 1)
    return "\n".join(line for line in source.splitlines() if not line.startswith("assert")) + "\n"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.program}-{mutant.name}")
def test_a_missing_wait_is_reported_on_its_lines(mutant, races, group):
    source = _mutated(mutant)
    comments = _lines(source)
    found = races(source)
    pairs = {(comments.get(race.site.line), comments.get(race.other.line)) for race in found}
    assert (mutant.later, mutant.earlier) in pairs
