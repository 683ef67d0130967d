"""Finds out from the source of a test tree, before any of it is imported, whether it uses this plugin.

Test modules ask torch for its devices while they are imported, so the simulated device must be on by then if any test
is going to be measured. Only files that contain one of the plugin's names are parsed, and nothing is read before torch
is imported.
"""

from __future__ import annotations

import ast
import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gpusync.plugin.options import BUDGET_MARKER, GPU_FIXTURES, GROWTH_MARKER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pytest

_NEVER: Final = ("__pycache__", "node_modules")
"""Folders that hold no tests, in addition to those of ``norecursedirs``."""


_BY_NAME: Final = frozenset({"usefixtures", "getfixturevalue"})
"""Functions that take names of fixtures."""
_DOCTEST: Final = re.compile(r"getfixture\(['\"](\w+)['\"]\)")
"""How a doctest takes a fixture."""


def project_uses_plugin(config: pytest.Config) -> bool:
    """Return whether the tests that this session may collect use a marker or a fixture of the plugin, by their
    source.
    """
    if not GPU_FIXTURES.isdisjoint(config.getini("usefixtures")):
        return True
    scan = UsageScan((BUDGET_MARKER, GROWTH_MARKER), GPU_FIXTURES, config.getini("python_functions"))
    return scan.finds_use(_collected_paths(config), config.rootpath, config.getini("norecursedirs"))


def _collected_paths(config: pytest.Config) -> list[Path]:
    """Return the files and folders that pytest collects from. Before it has read its arguments itself, as it does."""
    invoked, root = config.invocation_params.dir, config.rootpath
    given = getattr(config.known_args_namespace, "file_or_dir", None) or []
    if given:
        names = [argument.partition("::")[0].partition("[")[0] for argument in given]
        paths = [invoked / name for name in names]
        if getattr(config.known_args_namespace, "pyargs", False):
            paths += [Path(place) for name in names for place in _places_of_package(name)]
        return [path for path in paths if path.exists()]
    if invoked == root:
        found = [path for pattern in config.getini("testpaths") for path in sorted(root.glob(pattern))]
        if found:
            return found
    return [invoked]


def _places_of_package(name: str) -> list[str]:
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    return list(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))


class UsageScan:
    """Looks for markers and fixtures of this plugin in the files that a session may import."""

    def __init__(self, markers: Iterable[str], fixtures: Iterable[str], functions: Sequence[str]) -> None:
        """Look for these names; `functions` are the patterns of the ini key ``python_functions``."""
        self._markers = frozenset(markers)
        self._fixtures = frozenset(fixtures)
        self._functions = (*functions, "test")
        names = "|".join(sorted(map(re.escape, self._markers | self._fixtures)))
        self._mentions = re.compile(rb"\b(?:" + names.encode() + rb")\b")

    def finds_use(self, paths: Sequence[Path], root: Path, skipped: Sequence[str]) -> bool:
        """Return whether a test below `paths`, or a conftest that applies to one, uses the plugin.

        Args:
            paths: files and folders that pytest was given.
            root: the folder above which no conftest applies.
            skipped: patterns of folders that pytest does not enter.
        """
        defined: set[str] = set()
        used: set[str] = set()
        for file in dict.fromkeys(_files(paths, root, skipped)):
            found = self._names_in(file)
            if found is None:
                continue
            defined |= found.defined
            used |= found.used
            if used & self._markers:
                return True
        # A project's own fixture of that name is not the plugin's.
        return bool(used - defined)

    def _names_in(self, file: Path) -> _Names | None:
        try:
            source = file.read_bytes()
            if not self._mentions.search(source):
                return None
            tree = ast.parse(source, str(file))
        except (OSError, SyntaxError, ValueError, RecursionError):
            return None  # pytest reports the file when it imports it
        names = _Names(self._markers, self._fixtures, self._functions)
        names.visit(tree)
        return names


class _Names(ast.NodeVisitor):
    """The markers and fixtures of the plugin that a module uses, and the fixtures of these names that it defines."""

    def __init__(self, markers: frozenset[str], fixtures: frozenset[str], functions: Sequence[str]) -> None:
        self._functions = functions
        self._markers = markers
        self._fixtures = fixtures
        self.used: set[str] = set()
        self.defined: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        is_fixture = any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
        if is_fixture and node.name in self._fixtures:
            self.defined.add(node.name)
        if is_fixture or any(node.name.startswith(p) or fnmatch(node.name, p) for p in self._functions):
            arguments = node.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                self._use(argument.arg, self._fixtures)
        self._read_docstring(node)
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._use(node.attr, self._markers)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
        known = {"getattr": self._markers}.get(str(called), self._fixtures if called in _BY_NAME else frozenset())
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                self._use(argument.value, known)
        self.generic_visit(node)

    def _read_docstring(self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for name in _DOCTEST.findall(ast.get_docstring(node, clean=False) or ""):
            self._use(name, self._fixtures)

    def visit_Module(self, node: ast.Module) -> None:
        self._read_docstring(node)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._read_docstring(node)
        self.generic_visit(node)

    def _use(self, name: str, known: frozenset[str]) -> None:
        if name in known:
            self.used.add(name)


def _files(paths: Sequence[Path], root: Path, skipped: Sequence[str]) -> Iterator[Path]:
    """Yield the Python files below `paths`, and the conftests above them up to `root`."""
    for path in paths:
        for folder in (path, *path.parents):
            conftest = folder / "conftest.py"
            if conftest.is_file():
                yield conftest
            if folder == root:
                break
        if path.is_file():
            yield path
        else:
            yield from _files_below(str(path), skipped)


def _files_below(folder: str, skipped: Sequence[str]) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(".py") and entry.is_file():
            yield Path(entry.path)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and not _is_skipped(entry, skipped):
            yield from _files_below(entry.path, skipped)


def _is_skipped(folder: os.DirEntry[str], skipped: Sequence[str]) -> bool:
    if folder.name in _NEVER or any(fnmatch(folder.name, pattern) for pattern in skipped):
        return True
    return os.path.exists(os.path.join(folder.path, "pyvenv.cfg"))
