"""The JSON schema of ``[tool.gpusync]``, for editors that check and complete TOML, in the form of SchemaStore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusync_lint.model.levels import FREQUENCIES
from gpusync_lint.settings import project_barriers
from gpusync_lint.settings.options import OPTIONS, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusync_lint.settings.options import Option

ID = "https://json.schemastore.org/partial-gpusync.json"


def schema(names: Mapping[str, str]) -> dict[str, Any]:
    """The schema.

    Args:
        names: the rule name of every code.
    """
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": ID,
        "title": "pytest-gpusync",
        "description": "The settings of gpusync lint, in the table [tool.gpusync] of pyproject.toml",
        "type": "object",
        "additionalProperties": False,
        "definitions": {
            "rule": {"description": "A code, a prefix of codes or the name of a rule", "enum": _selectors(names)},
            "rules": {"type": "array", "items": {"$ref": "#/definitions/rule"}},
            "code": {"description": "A code or the name of a rule", "enum": [*names, *names.values()]},
            "barrier": _barrier(),
        },
        "properties": {key: _property(option) for key, option in OPTIONS.items()},
    }


def _selectors(names: Mapping[str, str]) -> list[str]:
    """Everything that selects rules: prefixes from the shortest to complete codes, then names."""
    prefixes = {code[:length] for code in names for length in range(2, len(code) + 1)}
    return [*sorted(prefixes), *names.values()]


def _property(option: Option) -> dict[str, Any]:
    strings = {"type": "array", "items": {"type": "string"}}
    values: dict[Kind, dict[str, Any]] = {
        Kind.CODES: {"$ref": "#/definitions/rules"},
        Kind.PATTERNS: strings,
        Kind.CODES_BY_PATTERN: {"type": "object", "additionalProperties": {"$ref": "#/definitions/rules"}},
        Kind.HEAT: {"enum": [heat.value for heat in FREQUENCIES]},
        Kind.PATH: {"type": "string", "minLength": 1},
        Kind.SWITCH: {"type": "boolean"},
        Kind.NAMES: strings,
        Kind.BARRIERS: {"type": "array", "items": {"$ref": "#/definitions/barrier"}},
        Kind.VERSION: {"type": "string", "pattern": r"^\d+\.\d+(\.\d+)?$"},
    }
    value = values[option.kind]
    if "$ref" in value:  # in this draft, what stands beside a reference does not count
        value = {"allOf": [value]}
    default = {} if option.default is None else {"default": option.default}
    return {"description": option.meaning, **value, **default}


def _barrier() -> dict[str, Any]:
    name = {"type": "string", "pattern": project_barriers.NAME_PATTERN}
    text = {"type": "string"}
    values: dict[str, dict[str, Any]] = {
        "call": {
            "description": 'The functions: "package.function", "package.Class.method" or ".method"',
            "anyOf": [name, {"type": "array", "items": name, "minItems": 1}],
        },
        "code": {"description": "The rule; by default GS699", "allOf": [{"$ref": "#/definitions/code"}]},
        "message": {"description": "The message; {call} is the call", **text},
        "remedy": {"description": "What to do instead", **text},
        "takes": {
            "description": 'With "tensor", only calls with a device tensor are reported',
            "enum": list(project_barriers.TAKES),
            "default": project_barriers.TAKES[0],
        },
        "unless": {
            "description": "Keyword arguments with which the call is not reported",
            "type": "array",
            "items": text,
        },
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["call"],
        "properties": {key: values[key] for key in project_barriers.KEYS},
    }
