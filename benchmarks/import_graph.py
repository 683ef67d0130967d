"""Print the structure of the packages: rooms, floors, arrows, circles, long modules and complex functions.

usage: python benchmarks/import_graph.py [PACKAGE...]

A room is a direct child of a package: a module or a subpackage. An arrow is an import of one room by another, however
many of their modules make it. A room stands one floor above the highest room that it imports; rooms of a circle share
a floor. Imports inside functions and imports for type checkers count. Needs grimp, which import-linter installs.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"pytest_gpusync": ROOT, "gpusync_lint": ROOT / "lint"}
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.IfExp, ast.ExceptHandler, ast.Assert, ast.comprehension)
"""What adds a way through a function, beside the operands of ``and`` and ``or`` and the cases of ``match``."""


class Longest(NamedTuple):
    """A module and how many lines it has."""

    lines: int
    path: Path


class MostComplex(NamedTuple):
    """A function and its cyclomatic complexity."""

    complexity: int
    path: Path
    name: str


def imports_of(package: str) -> dict[str, set[str]]:
    """Return the modules that each module of a package imports from the package."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        stack.append(module)
        for imported in sorted(imports[module]):
            if imported not in index:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stack:
                lowest[module] = min(lowest[module], index[imported])
        if lowest[module] == index[module]:
            component = stack[stack.index(module) :]
            del stack[len(stack) - len(component) :]
            if len(component) > 1:
                found.append(sorted(component))

    for module in sorted(imports):
        if module not in index:
            visit(module)
    return found


def rooms_of(imports: dict[str, set[str]], package: str) -> dict[str, set[str]]:
    """Return the rooms that each room of a package imports; the package's own ``__init__`` is none."""

    def room(module: str) -> str | None:
        parts = module.removeprefix(package).split(".")
        return parts[1] if len(parts) > 1 and module.startswith(f"{package}.") else None

    rooms: dict[str, set[str]] = {}
    for module, imported in imports.items():
        own = room(module)
        if own is not None:
            rooms.setdefault(own, set()).update(r for r in map(room, imported) if r is not None and r != own)
    return rooms


def floors(rooms: dict[str, set[str]]) -> dict[str, int]:
    """Return the floor of each room, from 1 at the bottom."""
    together = {room: tuple(circle) for circle in circles(rooms) for room in circle}
    known: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in known:
            group = together.get(room, (room,))
            below = {other for member in group for other in rooms[member]} - set(group)
            height = 1 + max(map(floor, below), default=0)
            known.update(dict.fromkeys(group, height))
        return known[room]

    return {room: floor(room) for room in rooms}


def sources(package: str) -> list[Path]:
    """Return the Python files of a package."""
    return sorted((FOLDERS[package] / package).rglob("*.py"))


def longest_modules(files: list[Path]) -> list[Longest]:
    """Return the modules by length, the longest first."""
    return sorted((Longest(len(path.read_text(encoding="utf-8").splitlines()), path) for path in files), reverse=True)


def most_complex_functions(files: list[Path]) -> list[MostComplex]:
    """Return the functions by cyclomatic complexity (McCabe), the highest first; nested ones count separately."""
    found = []
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append(MostComplex(complexity(node), path, node.name))
    return sorted(found, reverse=True)


def complexity(function: ast.AST) -> int:
    """Return 1 and 1 for each branch of a function, those of the functions in it left out."""
    count = 1
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, BRANCHES):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.Match):
            count += len(node.cases)
        pending += ast.iter_child_nodes(node)
    return count


def report(package: str, shown: int) -> str:
    """Return the figures of a package as text."""
    imports = imports_of(package)
    rooms = rooms_of(imports, package)
    height = floors(rooms)
    files = sources(package)
    module_circles = circles(imports)
    lines = [
        f"{package}: {len(imports)} modules, {sum(module.lines for module in longest_modules(files))} lines",
        f"  {len(rooms)} rooms on {max(height.values())} floors, {sum(map(len, rooms.values()))} arrows",
        f"  circles of rooms: {len(circles(rooms))}, of modules: {len(module_circles)}"
        + (f" (the largest of {max(map(len, module_circles))})" if module_circles else ""),
        "  floors, the lowest first:",
    ]
    for floor in range(1, max(height.values()) + 1):
        lines.append(f"    {floor:>2}  {', '.join(sorted(room for room, own in height.items() if own == floor))}")
    lines.append("  longest modules:")
    lines += [f"    {found.lines:>4}  {found.path.relative_to(ROOT)}" for found in longest_modules(files)[:shown]]
    lines.append("  highest cyclomatic complexity:")
    lines += [
        f"    {found.complexity:>4}  {found.path.relative_to(ROOT)} {found.name}"
        for found in most_complex_functions(files)[:shown]
    ]
    return "\n".join(lines)


def main() -> int:
    """Print the figures of the packages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"{' or '.join(FOLDERS)}; both by default")
    parser.add_argument("--show", type=int, default=5, metavar="N", help="modules and functions to list (5)")
    options = parser.parse_args()
    packages = options.packages or list(FOLDERS)
    for package in packages:
        if package not in FOLDERS:
            parser.error(f"there is no package {package}; the packages are {' and '.join(FOLDERS)}")
    sys.path[:0] = map(str, dict.fromkeys(FOLDERS.values()))
    print("\n\n".join(report(package, options.show) for package in packages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
