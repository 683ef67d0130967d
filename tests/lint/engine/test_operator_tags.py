"""torch's own tags of its operators, held against the catalogue, so that a new operator cannot slip by."""

from __future__ import annotations

import pytest
from gpusync_lint.catalogue import registry

torch = pytest.importorskip("torch")

TAGS = ("dynamic_output_shape", "data_dependent_output")
UNREACHED = {
    "_unique": "torch.unique calls _unique2",
    "unique_dim_consecutive": "torch.unique_consecutive(dim=) calls unique_consecutive",
}
"""Tagged operators that no public function of torch calls."""
COVERED = {name for barrier in registry.catalogue("torch").barriers.values() for name in barrier.operators}


def tagged():
    names = set()
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space == "aten":
            packet = getattr(torch.ops.aten, name, None)
            overload = getattr(packet, schema.overload_name or "default", None)
            if any(tag.name in TAGS for tag in getattr(overload, "tags", ())):
                names.add(name)
    return names


def test_every_operator_that_torch_tags_is_in_the_catalogue():
    assert tagged() - COVERED - set(UNREACHED) == set()


def test_every_operator_that_the_catalogue_names_is_tagged():
    assert COVERED - tagged() == set()


def test_no_operator_is_both_covered_and_called_unreachable():
    assert COVERED & set(UNREACHED) == set()
