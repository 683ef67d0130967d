"""Thirty functions for torch.compile, with and without graph breaks. benchmarks/beside_explain.py compiles them."""

import logging

import numpy as np
import torch
from torch.nn.functional import one_hot

log = logging.getLogger("compiled")


def printing(x):
    print("shape", x.shape)
    return x + 1


@torch.compiler.disable
def excluded(x):
    return x.sum().item()


@torch.compile(backend="eager")
def arithmetic(x):
    y = torch.relu(x @ x.T)
    return (y - y.mean()) / (y.std() + 1e-6)


@torch.compile(backend="eager")
def reads_a_value(x):
    scale = x.abs().max().item()
    return x / scale


@torch.compile(backend="eager")
def reads_two_values(x):
    low = x.min().item()
    y = x - low
    high = y.max().item()
    return y / high


@torch.compile(backend="eager")
def converts_to_float(x):
    return x * float(x.sum())


@torch.compile(backend="eager")
def slices_by_a_value(x):
    count = (x > 0).sum().item()
    return x.flatten()[:count]


@torch.compile(backend="eager")
def branches(x):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    return y


@torch.compile(backend="eager")
def branches_on_a_shape(x):
    if x.shape[0] > 2:
        return x + 1
    return x - 1


@torch.compile(backend="eager")
def loops_until(x):
    while x.sum() < 100:
        x = x * 2 + 1
    return x


@torch.compile(backend="eager")
def reads_in_a_loop(x):
    total = 0.0
    for row in x:
        total += row.sum().item()
    return x * total


@torch.compile(backend="eager")
def reads_in_a_comprehension(x):
    sums = [row.sum().item() for row in x]
    return x * sums[0]


@torch.compile(backend="eager")
def prints_a_tensor(x):
    y = x + 1
    print(y.sum())
    return y * 2


@torch.compile(backend="eager")
def calls_a_helper_that_prints(x):
    y = printing(x * 2)
    return y + 1


@torch.compile(backend="eager")
def calls_an_excluded_function(x):
    y = x + 1
    value = excluded(y)
    return y * value


@torch.compile(backend="eager")
def catches_errors(x):
    try:
        value = x.sum().item()
    except RuntimeError:
        value = 1.0
    return x * value


@torch.compile(backend="eager")
def inside_no_grad(x):
    with torch.no_grad():
        y = x + 1
        value = y.sum().item()
        return y * value


@torch.compile(backend="eager")
def lists_integers(x):
    order = x.sum(1).argsort()
    first = order.tolist()[0]
    return x[first]


@torch.compile(backend="eager")
def lists_floats(x):
    values = x[0].tolist()
    return x * values[0]


@torch.compile(backend="eager")
def through_numpy(x):
    array = x.numpy()
    return torch.from_numpy(np.sqrt(np.abs(array)))


@torch.compile(backend="eager")
def copies_to_the_host(x):
    y = (x * 2).cpu()
    return y + 1


@torch.compile(backend="eager")
def finds_nonzero(x):
    rows = (x > 0).nonzero()
    return rows.sum()


@torch.compile(backend="eager")
def selects_by_a_mask(x):
    positive = x[x > 0]
    return positive.mean()


@torch.compile(backend="eager")
def writes_by_a_mask(x):
    y = x.clone()
    y[y < 0] = 0.0
    return y.sum()


@torch.compile(backend="eager")
def finds_unique(x):
    values = x.round().unique()
    return values.sum()


@torch.compile(backend="eager")
def asserts(x):
    assert torch.isfinite(x).all()
    return x + 1


@torch.compile(backend="eager")
def compares_whole_tensors(x):
    y = x + 0
    if torch.equal(x, y):
        return x * 2
    return y


@torch.compile(backend="eager")
def takes_the_larger(x):
    return max(x.sum(), x.mean())


@torch.compile(backend="eager")
def encodes_without_classes(x):
    labels = x.argmax(1)
    return one_hot(labels).float()


@torch.compile(backend="eager")
def logs_a_value(x):
    loss = x.square().mean()
    log.info("loss %s", loss)
    return loss * 2


@torch.compile(backend="eager")
def returns_text(x):
    mean = x.mean()
    return x + 1, f"mean {mean}"


@torch.compile(backend="eager")
def breaks_on_purpose(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


FUNCTIONS = (
    arithmetic, reads_a_value, reads_two_values, converts_to_float, slices_by_a_value, branches, branches_on_a_shape,
    loops_until, reads_in_a_loop, reads_in_a_comprehension, prints_a_tensor, calls_a_helper_that_prints,
    calls_an_excluded_function, catches_errors, inside_no_grad, lists_integers, lists_floats, through_numpy,
    copies_to_the_host, finds_nonzero, selects_by_a_mask, writes_by_a_mask, finds_unique, asserts,
    compares_whole_tensors, takes_the_larger, encodes_without_classes, logs_a_value, returns_text,
    breaks_on_purpose,
)  # fmt: skip


def train(steps=100):
    """Call every function in each step, as a training does on a GPU."""
    weights = torch.randn(4, 4, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    for _ in range(steps):
        x = torch.randn(4, 4, device="cuda")
        arithmetic(x)
        reads_a_value(x)
        reads_two_values(x)
        converts_to_float(x)
        slices_by_a_value(x)
        branches(x)
        branches_on_a_shape(x)
        loops_until(x)
        reads_in_a_loop(x)
        reads_in_a_comprehension(x)
        prints_a_tensor(x)
        calls_a_helper_that_prints(x)
        calls_an_excluded_function(x)
        catches_errors(x)
        inside_no_grad(x)
        lists_integers(x)
        lists_floats(x)
        copies_to_the_host(x)
        finds_nonzero(x)
        selects_by_a_mask(x)
        writes_by_a_mask(x)
        finds_unique(x)
        asserts(x)
        compares_whole_tensors(x)
        takes_the_larger(x)
        encodes_without_classes(x)
        logs_a_value(x)
        returns_text(x)
        breaks_on_purpose(x)
        optimizer.step()
