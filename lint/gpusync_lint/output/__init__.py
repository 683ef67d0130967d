"""The output formats. Each module contains one, and is loaded when it is needed."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from gpusync_lint.output.base.format import Format, MergeableFormat

DEFAULT = "text"


@cache
def names() -> tuple[str, ...]:
    """The names of the formats: those of the modules, without the underscore that keeps `json_` apart from `json`."""
    modules = (path.stem for path in Path(__file__).parent.glob("*.py") if path.name != "__init__.py")
    return tuple(sorted((name.removesuffix("_") for name in modules), key=lambda name: (name != DEFAULT, name)))


@cache
def named(name: str) -> Format:
    """The format of a name.

    Raises:
        TypeError: its module contains no subclass of `Format`, several, or an incomplete one.
    """
    folder = Path(__file__).parent
    module = import_module(f"{__name__}.{name if (folder / f'{name}.py').is_file() else f'{name}_'}")
    found = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Format) and item.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise TypeError(
            f"{module.__name__.replace('.', '/')}.py: must contain one subclass of Format, not {len(found)}"
        )
    return found[0]()


def mergeable() -> list[MergeableFormat]:
    """The formats whose files can be merged."""
    return [each for each in map(named, names()) if isinstance(each, MergeableFormat)]


def described() -> str:
    """The formats and their readers, for `--help`."""
    return ", ".join(f"{name} ({named(name).audience})" for name in names())


def table() -> str:
    """What each format shows, as a table in Markdown for the documentation."""
    adds = " | ".join(f"`{option}` adds" for option in ("--show-suppressed", "--statistics", "--observed"))
    rows = [f"| `--output-format` | for | warnings | notes | files with errors | {adds} | merges |", f"|{'---|' * 9}"]
    for name in names():
        shows = named(name).shows
        refused = "not possible: exit 2"
        cells = [f"`{name}`", named(name).audience, shows.warnings, shows.notes or "-", shows.errors]
        cells += [shows.suppressed or "-", shows.statistics or refused, shows.observed or refused]
        cells.append("yes" if isinstance(named(name), MergeableFormat) else "-")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"
