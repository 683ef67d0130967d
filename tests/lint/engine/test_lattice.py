"""The laws of the join of values, checked on all combinations of a set with every kind of value."""

from __future__ import annotations

import itertools

import pytest
from gpusync_lint.domain.lattice import join, widened
from gpusync_lint.domain.values import (
    ARRAY,
    ARRAY_ELEMENT,
    BATCH,
    BOOL_DTYPE,
    CPU_DEVICE,
    CPU_TENSOR,
    DTYPE,
    GPU_ABSENT,
    GPU_DEVICE,
    GPU_PRESENT,
    GPU_TENSOR,
    HOST,
    LOADER,
    MOVED,
    NONE,
    UNKNOWN,
    Device,
    Kind,
    Value,
    dict_of,
    external_name,
    host_constant,
    list_of,
    tensor,
    tuple_of,
)

ASSOCIATIVE = [
    UNKNOWN,
    NONE,
    HOST,
    host_constant(1),
    host_constant("cuda"),
    ARRAY,
    ARRAY_ELEMENT,
    MOVED,
    *(
        tensor(device, certain, zero_dim, boolean)
        for device in (Device.CPU, Device.ASSUMED, Device.GPU)
        for certain in (True, False)
        for zero_dim in (None, True)
        for boolean in (False, True)
    ),
]
OTHERS = [
    LOADER,
    Value(Kind.LOADER, Device.GPU, pinned=True, elem=GPU_TENSOR),
    CPU_DEVICE,
    GPU_DEVICE,
    DTYPE,
    BOOL_DTYPE,
    GPU_PRESENT,
    GPU_ABSENT,
    tuple_of([HOST, GPU_TENSOR]),
    tuple_of([BATCH, UNKNOWN]),
    tuple_of([HOST]),
    list_of(None),
    list_of(CPU_TENSOR),
    list_of(HOST),
    dict_of((("x", CPU_TENSOR), ("y", HOST)), None),
    dict_of((("y", GPU_TENSOR), ("z", NONE)), UNKNOWN),
    external_name("torch.FloatTensor"),
    external_name("torch.cuda.FloatTensor"),
    external_name("numpy.zeros"),
    *(
        value
        for kind in (Kind.MODULE, Kind.INSTANCE, Kind.RECORDS, Kind.FUNCTION, Kind.CLASS, Kind.OPTIMIZER, Kind.STREAM)
        for value in (Value(kind, ref="one"), Value(kind, ref="another"))
    ),
]
ALL = ASSOCIATIVE + OTHERS


def normalized(value: Value) -> Value:
    """A value with the keys of dicts in order."""
    return value._replace(items=tuple(sorted(value.items or ()))) if value.kind is Kind.DICT else value


@pytest.mark.parametrize("value", ALL, ids=repr)
def test_a_join_with_itself_is_the_value(value: Value) -> None:
    assert join(value, value) == value


@pytest.mark.parametrize("value", ALL, ids=repr)
def test_none_is_the_least_value(value: Value) -> None:
    assert join(NONE, value) == join(value, NONE) == value


@pytest.mark.parametrize("first", ALL, ids=repr)
def test_a_join_does_not_depend_on_the_order_of_two_paths(first: Value) -> None:
    for second in ALL:
        assert normalized(join(first, second)) == normalized(join(second, first)), second


@pytest.mark.parametrize("first", ASSOCIATIVE, ids=repr)
def test_a_join_of_tensors_and_host_values_does_not_depend_on_the_order_of_three_paths(first: Value) -> None:
    for second, third in itertools.product(ASSOCIATIVE, repeat=2):
        assert join(join(first, second), third) == join(first, join(second, third)), (second, third)


@pytest.mark.parametrize("first", ASSOCIATIVE, ids=repr)
def test_a_join_of_tensors_and_host_values_is_an_upper_bound(first: Value) -> None:
    for second in ASSOCIATIVE:
        bound = join(first, second)
        assert join(first, bound) == join(second, bound) == bound, second


# Two flags join to a host value, which has nothing in common with a flag.
@pytest.mark.parametrize("old", [value for value in ALL if value.kind is not Kind.FLAG], ids=repr)
def test_a_widened_value_is_not_widened_again_by_the_same_values(old: Value) -> None:
    for new in ALL:
        wide = widened(old, new)
        assert widened(wide, old) == wide, new
        assert widened(wide, new) == wide, new
