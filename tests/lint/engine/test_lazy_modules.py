"""What is read of the files around a part."""

from gpusync_lint.model.findings import Source
from gpusync_lint.project import lazy_modules
from gpusync_lint.project.lazy_modules import Component, LazyModules, Library

TEXT = "A = 1\n\ndef short(): ...\n\ndef long():\n    return 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9\n"


def lazy_modules_of_a_part():
    library = Library(lambda number: Source("m.py", TEXT))
    return LazyModules(Component({("m",): 0}, frozenset({("m",), ()}), library, True), ())


def test_a_definition_is_read_where_it_is_asked_for():
    found = lazy_modules_of_a_part()
    file = found.read(("m",))
    assert set(file.functions) == set()
    assert found.define(file, "short")
    assert found.define(file, "absent")
    assert set(file.functions) == {"short"}
    assert set(found.dependencies()[0]) == {"", "short", "absent"}


def test_one_that_is_too_long_is_refused_each_time(monkeypatch):
    monkeypatch.setattr(lazy_modules, "MAX_DEFINITION", 30)
    found = lazy_modules_of_a_part()
    file = found.read(("m",))
    assert [found.define(file, "long"), found.define(file, "long"), found.define(file, "short")] == [False, False, True]
    assert set(file.functions) == {"short"}
    assert set(found.dependencies()[0]) == {"", "long?30", "short"}  # that it is too long matters, and no more of it
