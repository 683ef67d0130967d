"""``gpusync lint --show-settings``: the settings of a run, and where each comes from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpusync_lint.settings.config import table_of
from gpusync_lint.settings.options import OPTIONS

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from gpusync_lint.run.runner import Request
    from gpusync_lint.settings.config import Config


def settings(arguments: argparse.Namespace, path: Path | None, config: Config, request: Request) -> str:
    """The settings as lines of TOML, each with its source, and the rules that are enabled.

    Args:
        arguments: the command line.
        path: the file with the configuration; None if there is none.
        config: its content.
        request: the settings of the run.
    """
    table = {} if path is None else table_of(path)
    given: dict[str, Any] = {
        "select": arguments.select,
        "ignore": arguments.ignore,
        "heat": arguments.heat,
        "baseline": arguments.baseline,
        "respect-gitignore": arguments.respect_gitignore,
    }
    rows = []
    for key, option in OPTIONS.items():
        if given.get(key) is not None:
            flag = "--no-respect-gitignore" if given[key] is False else f"--{key}"
            rows.append((f"{key} = {_toml(given[key])}", flag))
        elif key in table:
            rows.append((f"{key} = {_toml(table[key])}", "configuration"))
        elif option.default is not None:
            rows.append((f"{key} = {_toml(option.default)}", "default"))
        else:
            rows.append((f"# {key} is not set", "default"))
    for key in ("extend-select", "confidence"):
        value = getattr(arguments, key.replace("-", "_"))
        if value is not None and value != "medium":
            rows.append((f"# {key} = {_toml(value)}", f"--{key}"))
    width = min(max(len(row) for row, _ in rows), 60)
    enabled = [code for code in request.names if request.selection.enabled(code)]
    off = [code for code in request.names if code not in enabled]
    lines = [f"# Configuration: {'none' if path is None else path}"]
    if config.root is not None:
        lines.append(f"# Patterns are relative to: {config.root}")
    lines += [f"{row:<{width}}  # {source}" for row, source in rows]
    lines.append(
        f"# Enabled: {len(enabled)} of {len(request.names)} rules" + (f", without {', '.join(off)}" * bool(off))
    )
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value as TOML, on one line."""
    if isinstance(value, dict):
        items = ", ".join(f"{json.dumps(key, ensure_ascii=False)} = {_toml(item)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
