"""A catalogue file read by the dataclasses of the schema: an unknown key or a value of another type is refused."""

from __future__ import annotations

import sys
from dataclasses import MISSING, Field, fields, is_dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gpusync_lint.catalogue.schema import LIBRARY, OTHER, TORCH, Barrier, Catalogue, RuleDoc, TypeName
from gpusync_lint.messages import did_you_mean, wrong_type

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")


class CatalogueError(ValueError):
    """A catalogue file that cannot be used, in one line: the file, the entry and the key, the problem."""


def load(path: Path) -> Catalogue:
    """Read a catalogue file.

    Raises:
        CatalogueError: it is not valid TOML, or does not obey the schema.
    """
    data = _parsed(path)
    reader = _Reader(path, TORCH if path.stem == "torch" else LIBRARY if data.get("on") else OTHER)
    found = reader.table(Catalogue, data, "")
    if found.framework != path.stem:
        raise reader.problem("", f"framework is {found.framework!r}; it must be the name of the file, {path.stem!r}")
    reader.check_type_names({one.name for one in found.types})
    if found.on and found.accelerator is None:
        for barrier in found.barriers.values():
            if barrier.functions:
                raise reader.problem(f"barrier {barrier.id!r}", "'functions' is for accelerators; write 'calls'")
    return found


def read_tables(path: Path, key: str, cls: type[T]) -> tuple[T, ...]:
    """Read a file that is one array of tables, `[[key]]`, as instances of a class.

    Raises:
        CatalogueError: it is not valid TOML, or does not obey the class.
    """
    data = _parsed(path)
    reader = _Reader(path, OTHER)
    if list(data) != [key] or not isinstance(data[key], list):
        raise reader.problem("", f"must hold [[{key}]] and nothing else")
    return tuple(reader.table(cls, one, f"{key} number {number}") for number, one in enumerate(data[key], 1))


def _parsed(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CatalogueError(f"{path.name}: not valid TOML: {error}") from None
    return data


class _Reader:
    """Reads the tables of one file."""

    def __init__(self, path: Path, kind: str) -> None:
        self._name = path.name
        self._kind = kind
        self._framework = path.stem
        self._type_names: list[tuple[str, str]] = []
        """The types that are named, each with the place where."""

    def problem(self, where: str, what: str) -> CatalogueError:
        """The error about a place of the file."""
        return CatalogueError(f"{self._name}: {where}{': ' if where else ''}{what}")

    def table(self, cls: type[T], data: object, where: str) -> T:
        """A table as an instance of its class."""
        if not isinstance(data, dict):
            raise self.problem(where, wrong_type("a table", data))
        keys, hints = _keys(cls)
        values: dict[str, Any] = {}
        if "framework" in hints and "framework" not in keys:
            values["framework"] = self._framework
        self._check_keys(keys, data, where)
        for key, value in data.items():
            one = keys[key]
            if one.metadata.get("by"):
                values[one.name] = self._keyed(one, hints[one.name], value)
            else:
                values[one.name] = self._value(hints[one.name], value, f"{where}, {key}" if where else key)
        if cls is RuleDoc and list(data)[:2] != ["code", "name"]:
            raise self.problem(where, "code and name must stand first, in this order; they are read without the rest")
        if cls is Barrier and self._framework != "torch":
            values["id"] = f"{self._framework}.{values['id']}"
        return cls(**values)

    def _check_keys(self, keys: dict[str, Field[Any]], data: dict[str, Any], where: str) -> None:
        """Check that all keys of a table are known and allowed, and that none is missing."""
        for key in data:
            if key not in keys:
                raise self.problem(where, f"unknown key {key!r}; {did_you_mean(key, keys)}")
            kinds = keys[key].metadata.get("kinds")
            if kinds and self._kind not in kinds:
                raise self.problem(where, f"the key {key!r} is for {' and '.join(kinds)}, not for {self._kind}")
        for key, one in keys.items():
            if key not in data and one.default is MISSING and one.default_factory is MISSING:
                raise self.problem(where, f"the key {key!r} is missing")

    def _keyed(self, one: Field[Any], hint: Any, value: object) -> dict[str, Any]:
        """An array of tables as a dict, by one of their keys."""
        key, by = one.metadata["key"], one.metadata["by"]
        if not isinstance(value, list):
            raise self.problem(key, wrong_type(f"written as [[{key}]]", value))
        found: dict[str, Any] = {}
        for number, data in enumerate(value, 1):
            label = data.get(by) if isinstance(data, dict) else None
            item = self.table(get_args(hint)[1], data, f"{key} {label!r}" if label else f"{key} number {number}")
            if getattr(item, by) in found:
                raise self.problem(f"{key} {label!r}", "is defined twice")
            found[getattr(item, by)] = item
        return found

    def _value(self, hint: Any, value: object, where: str) -> Any:
        origin, args = get_origin(hint), get_args(hint)
        if hint is Any:
            return value
        if hint is TypeName:
            return self._type_name(value, where)
        if origin is Literal:
            choices = [arg for arg in args if arg]
            if value not in choices:
                raise self.problem(where, f"must be one of {', '.join(map(repr, choices))}, not {value!r}")
            return value
        if origin in (Union, UnionType):
            return self._value(next(arg for arg in args if arg is not type(None)), value, where)
        if is_dataclass(hint):
            return self._item(hint, value, where)  # type: ignore[arg-type]
        if origin is dict and isinstance(value, dict):
            return {key: self._value(args[1], item, f"{where}.{key}") for key, item in value.items()}
        if origin in (tuple, frozenset):
            return self._list(hint, value, where)
        if origin is None and type(value) is hint:
            return value
        raise self.problem(where, wrong_type(toml_type(hint), value))

    def _list(self, hint: Any, value: object, where: str) -> Any:
        origin, args = get_origin(hint), get_args(hint)
        pairs = get_origin(args[0]) is tuple  # written as a table
        if pairs and isinstance(value, dict):
            return tuple(value.items())
        if pairs or not isinstance(value, list):
            raise self.problem(where, wrong_type(toml_type(hint), value))
        open_ended = origin is frozenset or args[-1] is Ellipsis
        if not open_ended and len(args) != len(value):
            raise self.problem(where, f"must be a list of {len(args)}, not of {len(value)}")
        items = args[:1] * len(value) if open_ended else args
        return origin(
            self._value(item, one, f"{where}[{i}]") for i, (item, one) in enumerate(zip(items, value, strict=True))
        )

    def _item(self, cls: type[Any], value: object, where: str) -> Any:
        """A table; a string alone stands for one with its first key."""
        if isinstance(value, str):
            value = {next(iter(_keys(cls)[0])): value}
        return self.table(cls, value, where)

    def _type_name(self, value: object, where: str) -> TypeName:
        if not isinstance(value, str):
            raise self.problem(where, wrong_type("a string", value))
        if not value:
            return TypeName("")
        self._type_names.append((value, where))
        return TypeName(f"{self._framework}.{value}")

    def check_type_names(self, known: set[TypeName]) -> None:
        """Refuse the name of a type that the file does not describe."""
        own = {name.partition(".")[2] for name in known}
        for name, where in self._type_names:
            if name not in own:
                raise self.problem(where, f"no [[type]] is named {name!r}; {did_you_mean(name, own)}")


_KEYS: dict[type, tuple[dict[str, Field[Any]], dict[str, Any]]] = {}


def _keys(cls: type[Any]) -> tuple[dict[str, Field[Any]], dict[str, Any]]:
    """The keys of a table, each with its field, and the types of all fields."""
    if cls not in _KEYS:
        keys = {one.metadata.get("key", one.name): one for one in fields(cls) if one.init}
        keys.pop("", None)
        _KEYS[cls] = keys, get_type_hints(cls)
    return _KEYS[cls]


def toml_type(hint: Any) -> str:
    """What the value of a type is called in TOML: `a list of strings`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (tuple, frozenset):
        open_ended = origin is frozenset or args[-1] is Ellipsis
        count = "" if open_ended else f"{len(args)} "
        return "a table" if get_origin(args[0]) is tuple else f"a list of {count}{_NAMES.get(args[0], 'table')}s"
    if origin in (Union, UnionType):
        return toml_type(args[0])
    if origin is Literal:
        return " or ".join(f'"{arg}"' for arg in args if arg)
    if origin is dict:
        return "a table"
    return f"{'an' if hint is int else 'a'} {_NAMES.get(hint, 'table')}"


_NAMES: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "float", TypeName: "string"}
