"""A catalogue file is read by its schema, and refused in one line where it does not obey it."""

from __future__ import annotations

import pytest
from gpusync_lint.catalogue import registry
from gpusync_lint.catalogue.loading import CatalogueError, load
from gpusync_lint.catalogue.schema import Example

HEAD = 'framework = "acme"\ntitle = "Acme"\nmodules = ["acme"]\nprelude = "import acme"\n'
RULE = """
[[rule]]
code = "GS299"
name = "acme-read"
summary = ""
why = ""
example = ""
use_instead = ""
fix_safety = ""
ignore_when = ""
"""
TYPE = '\n[[type]]\nname = "array"\nmade_by = ["acme.*"]\n'
BARRIER = '\n[[barrier]]\nid = "read"\ncode = "GS299"\nmessage = "m"\nremedy = "r"\nwaits = ["x.read()"]\nsilent = []\n'


@pytest.fixture
def loaded(tmp_path):
    def load_text(text, name="acme"):
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        return load(path)

    return load_text


def test_a_file_is_read_as_the_schema_says(loaded):
    more = 'functions = ["acme.read"]\nof = "array"\nuntil_torch = [2, 14]\nonly_if = { now = true }\n'
    found = loaded(HEAD + RULE + TYPE + 'methods = { at = "array" }\n' + BARRIER + more)
    assert found.modules == ("acme",)
    assert found.rules["GS299"].framework == "acme"
    assert found.types[0].name == "acme.array"
    assert found.types[0].methods == {"at": "acme.array"}
    barrier = found.barriers["acme.read"]
    assert barrier.waits == (Example("x.read()"),)
    assert (barrier.of, barrier.until_torch, barrier.only_if) == ("acme.array", (2, 14), (("now", True),))
    assert found.by_function == {"acme.read": barrier}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEAD + "x = [", "not valid TOML: "),
        ("framework = 'acme'", "the key 'title' is missing"),
        (HEAD.replace("acme", "other"), "framework is 'other'; it must be the name of the file, 'acme'"),
        (HEAD + "module = []", "unknown key 'module'; did you mean 'modules'?"),
        (HEAD + "tensors = ['x']", "the key 'tensors' is for libraries on top of torch, not for other frameworks"),
        (HEAD + "modules_from = 'x'", "modules_from: must be a list of strings, not a string"),
        (HEAD + "modules_from = [1]", "modules_from[0]: must be a string, not an integer"),
        (HEAD + "on = 'jax'", "on: must be one of 'torch', not 'jax'"),
        (HEAD + "barrier = 1", "barrier: must be written as [[barrier]], not an integer"),
        (HEAD + BARRIER + "mesage = ''", "barrier 'read': unknown key 'mesage'; did you mean 'message'?"),
        (HEAD + BARRIER + "functions = ''", "barrier 'read', functions: must be a list of strings, not a string"),
        (HEAD + BARRIER + "masks = 'yes'", "barrier 'read', masks: must be a boolean, not a string"),
        (HEAD + "on = 'torch'" + BARRIER + "masks = true", "barrier 'read': the key 'masks' is for other frameworks, "),
        (
            HEAD + "on = 'torch'" + BARRIER + "takes = ''",
            "barrier 'read', takes: must be one of 'tensor', 'number', not ",
        ),
        (HEAD + BARRIER + "until_torch = [2]", "barrier 'read', until_torch: must be a list of 2, not of 1"),
        (HEAD + BARRIER + "only_if = ['x']", "barrier 'read', only_if: must be a table, not a list"),
        (HEAD + BARRIER + BARRIER, "barrier 'read': is defined twice"),
        (HEAD + BARRIER.replace("remedy", "#"), "barrier 'read': the key 'remedy' is missing"),
        (HEAD + BARRIER.replace("id", "#"), "barrier number 1: the key 'id' is missing"),
        (HEAD + BARRIER.replace('["x.read()"]', '[{ runs = "x" }]'), "barrier 'read', waits[0]: unknown key 'runs'; "),
        (
            HEAD + TYPE + BARRIER + "of = 'aray'",
            "barrier 'read', of: no [[type]] is named 'aray'; did you mean 'array'",
        ),
        (HEAD + RULE.replace("name", "x").replace("why", "name"), "rule 'GS299': unknown key 'x'; "),
        (HEAD + RULE.replace('name = "acme-read"\nsummary = ""', 'summary = ""\nname = ""'), "rule 'GS299': code and "),
    ],
)
def test_what_does_not_obey_the_schema_is_refused_in_one_line(loaded, text, problem):
    with pytest.raises(CatalogueError) as caught:
        loaded(text)
    assert str(caught.value).startswith(f"acme.toml: {problem}")
    assert "\n" not in str(caught.value)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of catalogues in the place of the real one."""
    caches = (registry.catalogue, registry.frameworks, registry.rule_docs, registry.all_barriers)
    monkeypatch.setattr(registry, "FOLDER", tmp_path)
    for each in caches:
        each.cache_clear()
    yield tmp_path
    for each in caches:
        each.cache_clear()


def test_a_code_that_is_documented_nowhere_is_refused(folder):
    (folder / "acme.toml").write_text(HEAD + RULE + BARRIER.replace("GS299", "GS298"))
    message = r"^acme\.toml: barrier 'acme\.read': no rule has the code GS298; did you mean 'GS299'\?$"
    with pytest.raises(CatalogueError, match=message):
        registry.all_barriers()


def test_a_code_that_is_documented_twice_is_refused(folder):
    (folder / "acme.toml").write_text(HEAD + RULE)
    (folder / "other.toml").write_text(HEAD.replace("acme", "other") + RULE)
    with pytest.raises(CatalogueError, match=r"^other\.toml: rule 'GS299': acme\.toml documents it too$"):
        registry.rule_docs()
