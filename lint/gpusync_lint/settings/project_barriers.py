"""``[[tool.gpusync.barriers]]``: what a project says makes the host wait, as entries of the catalogue."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpusync_lint.settings.selection import UnknownCodeError, resolve
from gpusync_lint.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpusync_lint.catalogue.schema import Barrier

KEYS = ("call", "code", "message", "remedy", "takes", "unless")
_TAKES = ("anything", "tensor")
_NAME = re.compile(r"\.?[^\W\d]\w*(\.[^\W\d]\w*)*")


def read(value: object, fail: Callable[[str, str], Exception], names: Mapping[str, str]) -> tuple[Barrier, ...]:
    """The entries of the table. `fail(key, problem)` makes the error to raise; `names` maps codes to rule names."""
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise fail("barriers", f"must be a list of tables, written [[tool.gpusync.barriers]], not {kind_of(value)}")
    if not value:
        return ()
    from gpusync_lint.catalogue import registry

    template = registry.catalogue("torch").barriers["project-barrier"]
    return tuple(
        _Entry(entry, f"barriers[{place}]", fail, names).barrier(template, place) for place, entry in enumerate(value)
    )


class _Entry:
    """Checks one entry, key by key."""

    def __init__(
        self, entry: dict[str, Any], place: str, fail: Callable[[str, str], Exception], names: Mapping[str, str]
    ) -> None:
        self._entry = entry
        self._place = place
        self._fail = fail
        self._names = names

    def barrier(self, template: Barrier, number: int) -> Barrier:
        for key in self._entry:
            if key not in KEYS:
                hint = did_you_mean(key, KEYS, f"the keys are {', '.join(KEYS)}")
                raise self._fail(f"{self._place}.{key}", f"unknown key; {hint}")
        calls = self._calls()
        takes = self._text("takes") or _TAKES[0]
        if takes not in _TAKES:
            raise self._fail(f"{self._place}.takes", f"must be one of {', '.join(_TAKES)}, not {takes!r}")
        return replace(
            template,
            id=f"project.{number}",
            code=self._code(template.code),
            message=self._text("message") or template.message,
            remedy=self._text("remedy") or template.remedy,
            calls=calls,
            takes="tensor" if takes == "tensor" else "",
            unless_keywords=self._words("unless"),
            framework="project",
        )

    def _calls(self) -> tuple[str, ...]:
        given = self._entry.get("call")
        calls = self._words("call") if isinstance(given, list) else (self._text("call"),)
        if not calls or not all(calls):
            raise self._fail(f"{self._place}.call", 'is missing; write call = "package.module.function"')
        for name in calls:
            if not _NAME.fullmatch(name):
                forms = '"package.function", "package.Class.method" or ".method"'
                raise self._fail(f"{self._place}.call", f"{name!r} is no name; write {forms}")
        return calls

    def _code(self, default: str) -> str:
        word = self._text("code")
        if not word:
            return default
        try:
            code = resolve(word, self._names)
        except UnknownCodeError as error:
            raise self._fail(f"{self._place}.code", str(error)) from None
        if code not in self._names:
            raise self._fail(f"{self._place}.code", f"must be one code, not the prefix {word!r}")
        return code

    def _text(self, key: str) -> str:
        value = self._entry.get(key, "")
        if not isinstance(value, str):
            raise self._fail(f"{self._place}.{key}", f"must be a string, not {kind_of(value)}")
        return value

    def _words(self, key: str) -> tuple[str, ...]:
        value = self._entry.get(key, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self._fail(f"{self._place}.{key}", f"must be a list of strings, not {kind_of(value)}")
        return tuple(value)


def kind_of(value: object) -> str:
    """The TOML name of a value's type."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, list):
        return "a list of other things"
    names = {str: "a string", int: "an integer", float: "a float", dict: "a table"}
    return names.get(type(value), f"a {type(value).__name__}")
