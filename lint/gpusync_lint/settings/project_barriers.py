"""``[[tool.gpusync.barriers]]``: barriers that a project describes, as entries of a catalogue."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpusync_lint.messages import did_you_mean, wrong_type
from gpusync_lint.settings.selection import UnknownCodeError, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpusync_lint.catalogue.schema import Barrier

KEYS = ("call", "code", "message", "remedy", "takes", "unless")
TAKES = ("anything", "tensor")
NAME_PATTERN = r"^\.?[^\W\d]\w*(\.[^\W\d]\w*)*$"


def read(value: object, fail: Callable[[str, str], Exception], names: Mapping[str, str]) -> tuple[Barrier, ...]:
    """The entries of the table.

    Args:
        value: the value of the key in the configuration.
        fail: makes the error to raise from a key and a problem.
        names: the rule name of every code.
    """
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise fail("barriers", wrong_type("a list of tables, written [[tool.gpusync.barriers]]", value))
    if not value:
        return ()
    from gpusync_lint.catalogue import registry

    template = registry.catalogue("torch").barriers["project-barrier"]
    return tuple(
        _Entry(entry, f"barriers[{number}]", fail, names).barrier(template, number)
        for number, entry in enumerate(value)
    )


class _Entry:
    """Reads and checks one entry, key by key."""

    def __init__(
        self, entry: dict[str, Any], key: str, fail: Callable[[str, str], Exception], names: Mapping[str, str]
    ) -> None:
        self._entry = entry
        self._key = key
        self._fail = fail
        self._names = names

    def barrier(self, template: Barrier, number: int) -> Barrier:
        for key in self._entry:
            if key not in KEYS:
                hint = did_you_mean(key, KEYS, f"the keys are {', '.join(KEYS)}")
                raise self._fail(f"{self._key}.{key}", f"unknown key; {hint}")
        calls = self._calls()
        takes = self._text("takes") or TAKES[0]
        if takes not in TAKES:
            raise self._fail(f"{self._key}.takes", f"must be one of {', '.join(TAKES)}, not {takes!r}")
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
            raise self._fail(f"{self._key}.call", 'is missing; write call = "package.module.function"')
        for name in calls:
            if not re.match(NAME_PATTERN.removesuffix("$") + r"\Z", name):
                forms = '"package.function", "package.Class.method" or ".method"'
                raise self._fail(f"{self._key}.call", f"{name!r} is not a name; write {forms}")
        return calls

    def _code(self, default: str) -> str:
        word = self._text("code")
        if not word:
            return default
        try:
            code = resolve(word, self._names)
        except UnknownCodeError as error:
            raise self._fail(f"{self._key}.code", str(error)) from None
        if code not in self._names:
            raise self._fail(f"{self._key}.code", f"must be one code, not the prefix {word!r}")
        return code

    def _text(self, key: str) -> str:
        value = self._entry.get(key, "")
        if not isinstance(value, str):
            raise self._fail(f"{self._key}.{key}", wrong_type("a string", value))
        return value

    def _words(self, key: str) -> tuple[str, ...]:
        value = self._entry.get(key, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self._fail(
                f"{self._key}.{key}",
                wrong_type("a list of strings", value),
            )
        return tuple(value)
