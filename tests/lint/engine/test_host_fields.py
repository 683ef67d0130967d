"""Tensors that a declaration keeps on the host."""

from __future__ import annotations

import pytest
from gpusync_lint.model.findings import Source
from gpusync_lint.project.host_fields import host_fields
from gpusync_lint.project.lazy_modules import Component, LazyModules, Library
from gpusync_lint.project.outline import HOST_FIELDS

FIELDS = """
def fields():
    return dict(pixels=Field("image"), sizes=Field("image", keep_on_cpu=True))
"""
MODEL = """
import torch
from {module} import fields
class Model(torch.nn.Module):
    def forward(self, pixels: torch.Tensor, sizes: torch.Tensor):
        pixels = pixels.cuda()
        self.encode(dict(pixels=pixels, sizes=sizes))
        return {name}.tolist()
    def encode(self, inputs):
        return inputs["{name}"].tolist(), self.unknown["{name}"].data.tolist()
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"sizes": Field("image", keep_on_cpu=True), "pixels": Field("image")}', {"sizes"}),
        ('{"pixels": Field("image"), "sizes": a.b.Field(\n    "image", list(), keep_on_host = True\n)}', {"sizes"}),
        ('config["sizes"] = Field(keep_on_cpu=True)', {"sizes"}),
        ("Config(sizes=Field(keep_on_cpu=True), pixels=Field(keep_on_cpu=False))", {"sizes"}),
        ("Field(keep_on_cpu=True)", set()),
        ("keep_on_cpu=True", set()),
        ("a == Field(keep_on_cpu=True)", set()),
    ],
)
def test_names_are_those_of_the_calls_that_keep_them(text, expected):
    assert host_fields(text) == expected


@pytest.mark.parametrize(("name", "expected"), [("sizes", 0), ("pixels", 2)])
def test_a_declared_tensor_is_on_the_host_where_it_is_read(lint, name, expected):
    found = lint(MODEL.format(name=name, module="declarations"), declarations=FIELDS)
    assert len([one for one in found if one.code == "GS203"]) == expected


def test_a_declaration_in_a_file_that_is_not_imported_says_nothing(lint):
    found = lint(MODEL.format(name="sizes", module="elsewhere"), declarations=FIELDS)
    assert [one.code for one in found if one.code == "GS203"]


def test_a_part_depends_on_the_declared_names_of_another_file_alone():
    library = Library(lambda number: Source("m.py", FIELDS))
    found = LazyModules(Component({("m",): 0}, frozenset({("m",), ()}), library, True), ())
    assert found.host_fields(("m",)) == {"sizes"}
    assert found.dependencies() == {0: {HOST_FIELDS: library.outline(0).digest(HOST_FIELDS)}}
    library.forget(0)
    changed = Library(lambda number: Source("m.py", FIELDS.replace("pixels", "image")))
    assert changed.outline(0).digest(HOST_FIELDS) == library.outline(0).digest(HOST_FIELDS)
