"""Write docs/reference.md anew from the docstrings of the public names.

usage: python docs/write_reference.py
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PUBLIC: dict[str, dict[str, list[str]]] = {
    "Functions and exceptions": {
        "measure.region": ["record"],
        "measure.recording": ["allow"],
        "simulated.activation": ["simulated_cuda"],
        "elapsed.in_flight": ["limit_in_flight"],
        "elapsed.deferred": ["deferred", "Deferred"],
        "model.budgets": ["BudgetExceeded", "NotMeasured"],
        "model.measurement": ["MeasurementError"],
    },
    "Regions and measurements": {
        "measure.region": ["Region"],
        "model.measurement": ["Measurement", "Sync", "Race", "Site", "SiteCount", "Environment"],
        "model.budgets": ["Budget", "Verdict"],
    },
    "Fixtures": {
        "plugin.fixtures": ["GpuSync", "GpuMemory", "GpuElapsed"],
        "plugin.training": ["GpuTrain", "TrainingRun", "StepFigures"],
        "elapsed.paired": ["Ratio"],
        "elapsed.stalls": ["Stalls", "Stall"],
    },
    "Callbacks": {
        "callbacks.guard": ["BudgetedTraining"],
        "callbacks.lightning": ["SyncBudget"],
        "callbacks.transformers": ["SyncBudget"],
    },
}
"""The sections of the page: the names in each, by module within ``pytest_gpusync``."""

HEAD = """\
# Python reference

Written from the docstrings by `docs/write_reference.py`. The functions and exceptions, and `Measurement`, are imported
from `pytest_gpusync`, the callbacks from the modules in their headings. The other classes are what these return, listed
for their attributes and methods.
"""

_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Attributes):$")
_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    for section, modules in PUBLIC.items():
        parts.append(f"## {section}\n")
        for module, names in modules.items():
            tree = ast.parse(_source(f"pytest_gpusync.{module}").read_text(encoding="utf-8"))
            found = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
            prefix = f"pytest_gpusync.{module}." if section == "Callbacks" else ""
            parts += [_entry(found[name], prefix) for name in names]
    return "\n".join(parts)


def _source(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"


def _entry(node: ast.FunctionDef | ast.ClassDef, prefix: str = "") -> str:
    if isinstance(node, ast.FunctionDef):
        return f"### `{_signature(node)}`\n\n{_prose(node)}\n"
    init = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    is_data = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    title = f"{node.name}{_arguments(init)}" if init is not None and not is_data else node.name
    lines = [f"### `{prefix}{title}`", "", _prose(node), ""]
    members = [
        f"- `{_member(item)}`: {_first_line(item)}"
        for item in node.body
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_") and ast.get_docstring(item)
    ]
    fields = [f"- `{ast.unparse(item)}`{_said_below(node, number)}" for number, item in _fields(node)]
    return "\n".join([*lines, *fields, *members]) + ("\n" if members or fields else "")


def _fields(node: ast.ClassDef) -> list[tuple[int, ast.AnnAssign]]:
    return [
        (number, item)
        for number, item in enumerate(node.body)
        if isinstance(item, ast.AnnAssign)
        and not ast.unparse(item.target).startswith("_")
        and "ClassVar" not in ast.unparse(item.annotation)
    ]


def _said_below(node: ast.ClassDef, number: int) -> str:
    """Return the docstring that stands below an attribute."""
    following = node.body[number + 1] if number + 1 < len(node.body) else None
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        return ": " + _plain(" ".join(str(following.value.value).split()))
    return ""


def _member(node: ast.FunctionDef) -> str:
    is_property = any(ast.unparse(one).endswith("property") for one in node.decorator_list)
    return node.name if is_property else f"{node.name}{_arguments(node)}"


def _signature(node: ast.FunctionDef) -> str:
    return f"{node.name}{_arguments(node)}"


def _arguments(node: ast.FunctionDef) -> str:
    text = ast.unparse(node.args)
    text = re.sub(r"^self(, )?", "", text)
    return f"({text})"


def _first_line(node: ast.FunctionDef) -> str:
    return _plain(" ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()))


def _prose(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Return a docstring as Markdown: its sections become lists."""
    lines: list[str] = []
    inside = False
    for line in (ast.get_docstring(node) or "").splitlines():
        section = _SECTION.match(line)
        if section:
            inside = True
            lines += [f"**{section[1]}**", ""]
        elif inside and re.match(r"^ {4}\*{0,2}\w+: ", line):
            name, _, text = line.strip().partition(": ")
            lines.append(f"- `{name}`: {text}")
        elif inside and line.startswith("    "):
            lines.append(("  " if lines and lines[-1].startswith(("-", "  ")) else "") + line.strip())
        else:
            lines.append(line)
    return _plain("\n".join(lines))


def _plain(text: str) -> str:
    """Return a docstring's text in Markdown's own marks."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def main() -> None:
    """Write the page."""
    (ROOT / "docs" / "reference.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
