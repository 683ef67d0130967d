"""Files are divided into units along imports."""

from __future__ import annotations

import growth
from gpusync_lint.model.findings import Source
from gpusync_lint.project import partition


def divided(**files):
    sources = [Source(f"{name.replace('__', '/')}.py", text) for name, text in files.items()]
    found = divide(sources)
    return [[sources[place].path for place in unit.indices] for unit in found]


def divide(sources, roots=None):
    """The units of files; without `roots` a framework reaches all of them."""
    imported = [partition.imports(source.text) for source in sources]
    if roots is None:
        imported = [(*found, ("torch", "")) for found in imported]
    return partition.divide(sources, imported, frozenset({"torch"}) if roots is None else roots)


def test_files_that_no_import_connects_are_apart():
    assert divided(a="import b", b="", c="") == [["a.py", "b.py"], ["c.py"]]


def test_a_chain_of_imports_is_one_unit():
    assert divided(a="import b", b="import c", c="") == [["a.py", "b.py", "c.py"]]


def test_a_relative_import_finds_the_package():
    assert divided(p__a="from .b import f", p__b="", q="") == [["p/a.py", "p/b.py"], ["q.py"]]


def test_an_import_of_a_package_means_its_init():
    sources = [Source("a.py", "from p import f"), Source("p/__init__.py", "")]
    assert [unit.indices for unit in divide(sources)] == [(0, 1)]


def test_an_outside_module_connects_nothing():
    assert divided(a="import torch", b="import torch") == [["a.py"], ["b.py"]]


def test_packages_of_a_very_large_component_are_apart(monkeypatch):
    files = {"p__a": "import q.b", "p__c": "import p.a", "q__b": "x = 1"}
    assert len(divided(**files)) == 1
    monkeypatch.setattr(partition, "MAX_WHOLE", 10)
    monkeypatch.setattr(partition, "PART", 20)
    assert divided(**files) == [["p/a.py", "p/c.py"], ["q/b.py"]]


def test_time_grows_with_the_number_of_files():
    def files(count):
        return {f"p__m{number}": f"from .m{number // 2} import x\nimport os, torch\n" for number in range(count)}

    assert growth.ratio(lambda named: divided(**named), files(500), files(4000), limit=16) < 16
