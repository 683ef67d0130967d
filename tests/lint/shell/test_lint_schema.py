"""The JSON schema of ``[tool.gpusync]`` and the reader agree."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from gpusync_lint.model import codes
from gpusync_lint.settings import json_schema
from gpusync_lint.settings.config import ConfigError, load
from gpusync_lint.settings.options import OPTIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

jsonschema = pytest.importorskip("jsonschema")

SCHEMA = json_schema.schema(codes.names())


def valid(value: object, schema: dict[str, Any] = SCHEMA) -> bool:
    return bool(jsonschema.Draft7Validator(schema).is_valid(value))


def accepted(table: str, folder: Path) -> tuple[bool, bool]:
    """Whether the schema accepts a table, and whether the reader does."""
    file = folder / "pyproject.toml"
    file.write_text(f"[tool.gpusync]\n{table}\n", encoding="utf-8")
    try:
        load(file, codes.names())
    except ConfigError:
        read = False
    else:
        read = True
    return valid(tomllib.loads(file.read_text(encoding="utf-8"))["tool"]["gpusync"]), read


@pytest.mark.parametrize("key", OPTIONS)
def test_both_accept_the_example_and_the_default_of_each_key(tmp_path: Path, key: str) -> None:
    assert accepted(f"{key} = {OPTIONS[key].example}", tmp_path) == (True, True)
    if OPTIONS[key].default is not None:
        assert valid({key: OPTIONS[key].default})


@pytest.mark.parametrize(
    "table",
    [
        "",
        'select = ["GS", "GS20", "GS201", "item"]',
        "select = []",
        'barriers = [{ call = ["a.b", ".c"], code = "GS102", message = "m", remedy = "r", takes = "tensor" }]',
        'barriers = [{ call = "a", unless = ["stream"] }]',
        'torch-version = "2.11.1"',
    ],
)
def test_both_accept_a_correct_table(tmp_path: Path, table: str) -> None:
    assert accepted(table, tmp_path) == (True, True)


@pytest.mark.parametrize(
    "table",
    [
        "slect = []",
        'select = "GS2"',
        'select = ["E501"]',
        'select = ["GS2001"]',
        "ignore = [1]",
        'exclude = "a"',
        "exclude = [1]",
        'respect-gitignore = "no"',
        'per-file-ignores = ["a"]',
        '[tool.gpusync.per-file-ignores]\n"a.py" = "GS2"',
        '[tool.gpusync.per-file-ignores]\n"a.py" = ["XX"]',
        'heat = "hot"',
        "heat = 1",
        'baseline = ""',
        "baseline = 1",
        'step-functions = "train"',
        "barriers = {}",
        "barriers = [{}]",
        'barriers = [{ call = "" }]',
        "barriers = [{ call = [] }]",
        'barriers = [{ call = "a b" }]',
        'barriers = [{ call = "a", code = "GS1" }]',
        'barriers = [{ call = "a", takes = "tensors" }]',
        'barriers = [{ call = "a", unless = "b" }]',
        'barriers = [{ call = "a", unless = [1] }]',
        'barriers = [{ cal = "a" }]',
        "torch-version = 2.11",
        'torch-version = "new"',
    ],
)
def test_both_refuse_a_wrong_table(tmp_path: Path, table: str) -> None:
    assert accepted(table, tmp_path) == (False, False)


def test_it_is_in_the_form_that_schemastore_asks_of_a_table_of_pyproject() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert SCHEMA["$id"] == "https://json.schemastore.org/partial-gpusync.json"
    assert all(one["description"] for one in SCHEMA["properties"].values())
    published = Path(__file__).parents[3] / "docs/schemas/partial-gpusync.json"
    assert json.loads(published.read_text(encoding="utf-8")) == json.loads(json.dumps(SCHEMA))
