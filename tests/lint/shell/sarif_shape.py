"""What the SARIF 2.1.0 specification requires of the parts that the linter writes, checked without the JSON schema.

A name in the tables is a type of the specification (section 3), with what it must have and what it may have. A property
that is in neither is an error, so that a misspelled one does not pass. Set GPUSYNC_SARIF_SCHEMA to a copy of the
published schema (and install jsonschema) to check against that as well.
"""

from __future__ import annotations

import re
from typing import Any

_TEXT = {"text": "str"}

REQUIRED: dict[str, dict[str, str]] = {
    "log": {"version": "str", "runs": "[run]"},
    "run": {"tool": "tool"},
    "tool": {"driver": "toolComponent"},
    "toolComponent": {"name": "str"},
    "reportingDescriptor": {"id": "str"},
    "multiformat": _TEXT,
    "configuration": {},
    "result": {"message": "multiformat"},
    "location": {},
    "physicalLocation": {"artifactLocation": "artifactLocation"},
    "artifactLocation": {},
    "region": {"startLine": "position"},
    "fix": {"artifactChanges": "[artifactChange]"},
    "artifactChange": {"artifactLocation": "artifactLocation", "replacements": "[replacement]"},
    "replacement": {"deletedRegion": "region"},
    "content": _TEXT,
    "suppression": {"kind": "str"},
    "invocation": {"executionSuccessful": "bool"},
    "notification": {"message": "multiformat"},
}

OPTIONAL: dict[str, dict[str, str]] = {
    "log": {"$schema": "uri"},
    "run": {
        "results": "[result]",
        "columnKind": "str",
        "invocations": "[invocation]",
        "originalUriBaseIds": "{artifactLocation}",
        "properties": "dict",
    },
    "toolComponent": {"version": "str", "informationUri": "uri", "rules": "[reportingDescriptor]"},
    "reportingDescriptor": {
        "name": "str",
        "shortDescription": "multiformat",
        "fullDescription": "multiformat",
        "help": "multiformat",
        "helpUri": "uri",
        "defaultConfiguration": "configuration",
        "properties": "dict",
    },
    "multiformat": {"markdown": "str"},
    "configuration": {"level": "level"},
    "result": {
        "ruleId": "str",
        "ruleIndex": "index",
        "level": "level",
        "locations": "[location]",
        "partialFingerprints": "{str}",
        "suppressions": "[suppression]",
        "baselineState": "str",
        "fixes": "[fix]",
        "properties": "dict",
    },
    "location": {"physicalLocation": "physicalLocation"},
    "physicalLocation": {"region": "region"},
    "artifactLocation": {"uri": "uri", "uriBaseId": "str", "description": "multiformat"},
    "region": {"startColumn": "position", "endLine": "position", "endColumn": "position"},
    "fix": {"description": "multiformat", "properties": "dict"},
    "replacement": {"insertedContent": "content"},
    "suppression": {"status": "str", "justification": "str"},
    "invocation": {"toolExecutionNotifications": "[notification]"},
    "notification": {"level": "level", "locations": "[location]"},
}

_URI = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*")


def check(document: Any) -> None:
    """Fails with the path of the first thing that is not as the specification says."""
    _check(document, "log", "$")
    assert document["version"] == "2.1.0"
    for run in document["runs"]:
        rules = run["tool"]["driver"]["rules"]
        assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
        assert len({rule["id"] for rule in rules}) == len(rules), "3.49.3: the ids of rules differ"
        for result in run["results"]:
            assert rules[result["ruleIndex"]]["id"] == result["ruleId"], "3.27.6: the index is that of the rule"
            assert result.get("baselineState", "new") in ("none", "unchanged", "updated", "new", "absent")
            for suppression in result["suppressions"]:
                assert suppression["kind"] in ("inSource", "external")
                assert suppression["status"] in ("accepted", "underReview", "rejected")
        stated = ["baselineState" in result for result in run["results"]]
        assert all(stated) or not any(stated), "3.27.24: for every result or for none"


def _check(value: Any, kind: str, where: str) -> None:
    if kind[0] == "[":
        assert isinstance(value, list), where
        for number, one in enumerate(value):
            _check(one, kind[1:-1], f"{where}[{number}]")
    elif kind[0] == "{":
        assert isinstance(value, dict), where
        for key, one in value.items():
            _check(one, kind[1:-1], f"{where}.{key}")
    elif kind in REQUIRED:
        _check_object(value, kind, where)
    else:
        assert _SCALARS[kind](value), f"{where}: {value!r} is no {kind}"


def _check_object(value: Any, kind: str, where: str) -> None:
    assert isinstance(value, dict), where
    required = REQUIRED[kind]
    known = {**required, **OPTIONAL.get(kind, {})}
    assert required.keys() <= value.keys(), f"{where} lacks {sorted(required.keys() - value.keys())}"
    assert value.keys() <= known.keys(), f"{where} has {sorted(value.keys() - known.keys())}"
    for key, one in value.items():
        _check(one, known[key], f"{where}.{key}")
    if kind == "region" and "endLine" in value:
        start = (value["startLine"], value["startColumn"])
        assert start <= (value["endLine"], value["endColumn"]), f"{where} ends before it starts"


_SCALARS = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "dict": lambda value: isinstance(value, dict),
    "uri": lambda value: isinstance(value, str) and _URI.fullmatch(value) is not None,
    "level": lambda value: value in ("none", "note", "warning", "error"),
    "index": lambda value: isinstance(value, int) and value >= 0,
    "position": lambda value: isinstance(value, int) and value >= 1,
}
