"""Write every generated page of docs/, and the address of the repository where it is needed.

The pages are those of rules, catalogue files, output formats and results of experiments. The address is that of
`[project.urls]` in pyproject.toml.

usage: python docs/generate.py
"""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "lint"))

from gpusync_lint import output, rule_pages  # noqa: E402 - it may not be installed
from gpusync_lint.catalogue import registry, roots, schema  # noqa: E402
from gpusync_lint.catalogue.loading import toml_type  # noqa: E402
from gpusync_lint.model import codes  # noqa: E402
from gpusync_lint.settings import json_schema  # noqa: E402

CATALOGUE_HEAD = """\
# Catalogue files

Everything that the linter knows about a framework is in one TOML file of `lint/gpusync_lint/catalogue/frameworks`.
`torch.toml` describes torch. A file with `on = "torch"` describes a library on top of torch, whose values are torch's
tensors. Every other file describes a framework with values of its own.

This page is generated from `lint/gpusync_lint/catalogue/schema.py`, which also reads the files. An unknown key, or a
value of the wrong type, is an error that names the file, the entry and the nearest known key.
"""


ADDRESSED = ("README.md", "mkdocs.yml", "ci/buildkite.yml", "ci/gitlab.yml", "docs/ci.md", "docs/linter.md")
"""The files with the address of the repository."""

_ADDRESS = re.compile(r"https://(?!pypi\.org/|img\.shields\.io/)[\w./-]*?/pytest-gpusync(?![\w-])")
_ACTION = re.compile(r"(?<=uses: )[\w-]+/pytest-gpusync(?=@)")


def pages() -> dict[Path, str]:
    """The text of every generated file."""
    found = generated()
    for name in ADDRESSED:
        path = ROOT / name
        found[path] = with_address(found.get(path) or path.read_text(encoding="utf-8"))
    return found


def urls() -> dict[str, str]:
    """The addresses of the project."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, str] = settings["project"]["urls"]
    return found


def with_address(text: str) -> str:
    """A text with the address of the repository in place of an earlier one."""
    source = urls()["Source"]
    text = _ACTION.sub("/".join(source.split("/")[-2:]), _ADDRESS.sub(source, text))
    return re.sub(r"^site_url: .*$", f"site_url: {urls()['Documentation']}", text, flags=re.MULTILINE)


def generated() -> dict[Path, str]:
    """The text of every file with generated parts, apart from the address."""
    found = {DOCS / "rules" / f"{code}.md": rule_pages.page(doc) for code, doc in rule_pages.docs().items()}
    found[DOCS / "rules" / "README.md"] = rule_pages.index()
    found[DOCS / "catalogue.md"] = catalogue_page()
    linter = (DOCS / "linter.md").read_text(encoding="utf-8")
    linter = with_part(linter, "frameworks", framework_list())
    found[DOCS / "linter.md"] = with_part(linter, "formats", output.table())
    accelerators = (DOCS / "accelerators.md").read_text(encoding="utf-8")
    found[DOCS / "accelerators.md"] = with_part(accelerators, "accelerators", accelerator_list())
    experiments = (DOCS / "experiments.md").read_text(encoding="utf-8")
    tables = runpy.run_path(str(DOCS / "write_experiments.py"))["tables"]()
    found[DOCS / "experiments.md"] = with_part(experiments, "experiments", tables)
    idioms = (DOCS / "idioms.md").read_text(encoding="utf-8")
    counts = runpy.run_path(str(ROOT / "benchmarks" / "idioms.py"))["table_of_results"]()
    found[DOCS / "idioms.md"] = with_part(idioms, "idioms", counts)
    found[DOCS / "schemas" / "partial-gpusync.json"] = json.dumps(json_schema.schema(codes.names()), indent=2) + "\n"
    found[ROOT / "lint" / "gpusync_lint" / "_address.py"] = address_module()
    found[DOCS / "waits.svg"] = runpy.run_path(str(DOCS / "write_waits.py"))["picture"]()
    found[ROOT / "mkdocs.yml"] = with_rules((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return found


def address_module() -> str:
    """The module with the addresses of the project, from `[project.urls]`."""
    head = "Where the project is on the web. docs/generate.py writes this file from [project.urls] in pyproject.toml."
    return f'"""{head}"""\n\nSOURCE = "{urls()["Source"]}"\nDOCUMENTATION = "{urls()["Documentation"]}"\n'


def catalogue_page() -> str:
    """The keys of a catalogue file, from the docstrings of the schema."""
    parts = [CATALOGUE_HEAD]
    for cls, title in _tables().items():
        name = cls.__name__
        docs = _docstrings(name)
        hints = get_type_hints(cls)
        differ = any(one.metadata.get("kinds") for one in fields(cls))
        rows = [f"| key | value | {'in | ' * differ}meaning |", f"|---|---|{'---|' * differ}---|"]
        for one in fields(cls):
            key = one.metadata.get("key", one.name)
            if one.init and key:
                kind = toml_type(hints[one.name]) if "by" not in one.metadata else f"tables, `[[{key}]]`"
                where = f"{', '.join(one.metadata.get('kinds') or ['all'])} | " * differ
                rows.append(f"| `{key}` | {kind}{_required(one)} | {where}{docs[one.name]} |")
        parts.append(f"## {title}\n\n{docs['']}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _tables() -> dict[type, str]:
    """The class of each table of a file, with the keys that contain it as a title."""
    keys: dict[type, list[str]] = {schema.Catalogue: []}
    for cls in (found := [schema.Catalogue]):
        for one in (one for one in fields(cls) if one.init):
            hint = get_type_hints(cls)[one.name]
            inner = next((item for item in _types_in(hint) if is_dataclass(item)), None)
            if inner is not None:
                if inner not in keys:
                    found.append(inner)
                key = one.metadata.get("key", one.name)
                written = key if cls is not schema.Catalogue else f"[[{key}]]" if _is_list(hint) else f"[{key}]"
                keys.setdefault(inner, []).append(f"`{written}`")
    return {cls: " and ".join(names) or "The file" for cls, names in keys.items()}


def _types_in(hint: Any) -> list[Any]:
    return [hint, *(item for arg in get_args(hint) for item in _types_in(arg))]


def _is_list(hint: Any) -> bool:
    return get_origin(hint) in (tuple, dict)


def _required(one: Field[Any]) -> str:
    return ", required" if one.default is MISSING and one.default_factory is MISSING else ""


def _docstrings(name: str) -> dict[str, str]:
    """The docstring of a class of the schema, under an empty name, and those below its fields."""
    tree = ast.parse(Path(schema.__file__).read_text(encoding="utf-8"))
    node = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    found = {"": " ".join((ast.get_docstring(node) or "").split())}
    for item, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(item, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[ast.unparse(item.target)] = " ".join(str(below.value.value).split())
    return found


def framework_list() -> str:
    """The frameworks that have a catalogue."""
    catalogues = [registry.catalogue(name) for name in registry.frameworks() if name != "torch"]
    kinds = {
        "libraries on top of PyTorch": [each for each in catalogues if each.on and each.accelerator is None],
        "[accelerators](accelerators.md) other than CUDA's": [each for each in catalogues if each.accelerator],
        "other frameworks": [each for each in catalogues if not each.on],
    }
    titles = {kind: sorted((each.title for each in found), key=str.lower) for kind, found in kinds.items()}
    return "".join(f"- {kind}: {', '.join(found)}\n" for kind, found in titles.items())


def accelerator_list() -> str:
    """What the catalogue says about each accelerator other than CUDA's."""
    rows = ["| device | copies between host and device | source of the entries | run by us |", "|---|---|---|---|"]
    for name, one in roots.accelerators().items():
        title = registry.catalogue(name).title
        rows.append(f"| `{one.type}`: {title} | {one.copies} | {one.source} | {'yes' if one.was_run else 'no'} |")
    return "\n".join(rows) + "\n"


def with_rules(settings: str) -> str:
    """The settings of the site with the pages of the rules in its navigation, by topic."""
    lines = []
    for prefix, topic in rule_pages.TOPICS.items():
        lines.append(f"      - {topic}:")
        lines += [f"          - rules/{code}.md" for code in rule_pages.docs() if code.startswith(prefix)]
    before, begin, rest = settings.partition("      # rules\n")
    _, end, after = rest.partition("      # end of rules\n")
    return "".join([before, begin, *(f"{line}\n" for line in lines), end, after])


def with_part(page: str, name: str, text: str) -> str:
    """A page with a generated part in its place, between two comments."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


def main() -> None:
    """Write the files, and delete the pages of rules that are gone."""
    written = pages()
    for old in (DOCS / "rules").glob("*.md"):
        if old not in written:
            old.unlink()
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
