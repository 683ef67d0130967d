"""The published schema of run files, and a check of what it asks."""

from __future__ import annotations

import json
from pathlib import Path

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/run-1.schema.json").read_text())

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def violations(value, schema, where="run"):
    """Return what in `value` breaks `schema`, for the keywords that it uses; a property it does not name is one."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if "const" in schema and value != schema["const"]:
        return [f"{where} is {value!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where} is {value!r}"]
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(is_a(value, name) for name in names):
            return [f"{where} is a {type(value).__name__}"]
    found = []
    if isinstance(value, dict):
        found += [f"{where}.{name} is missing" for name in schema.get("required", []) if name not in value]
        for name, entry in value.items():
            described = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if described is None:
                found.append(f"{where}.{name} is not described")
            else:
                found += violations(entry, described, f"{where}.{name}")
    if isinstance(value, list):
        for number, entry in enumerate(value):
            found += violations(entry, schema["items"], f"{where}[{number}]")
    return found


def is_a(value, name):
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
