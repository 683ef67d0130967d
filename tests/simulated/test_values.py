"""Values and aliasing are those of the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def _train(device, optimizer_class, **options):
    torch.manual_seed(0)
    data = [(torch.randn(16, 8), torch.randint(0, 4, (16,))) for _ in range(5)]
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(device)
    optimizer = optimizer_class(model.parameters(), lr=1e-2, **options)
    for x, y in data:
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"foreach": False}),
        (torch.optim.AdamW, {"fused": True}),
    ],
    ids=["sgd", "foreach", "single", "fused"],
)
def test_training_gives_the_same_bits(cuda, optimizer, options):
    reference = _train("cpu", optimizer, **options)
    for expected, value in zip(reference, _train(cuda, optimizer, **options), strict=True):
        assert torch.equal(expected, value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: nn.functional.conv2d(x[None, None], x[None, None, :3, :3]),
        lambda x: nn.functional.scaled_dot_product_attention(*[x.view(1, 2, 8, 4)] * 3, is_causal=True),
        lambda x: nn.functional.scaled_dot_product_attention(*[x.view(2, 8, 4)] * 3),
        lambda x: nn.functional.scaled_dot_product_attention(
            x.view(1, 4, 4, 4), *[x[:4].view(1, 2, 4, 4)] * 2, enable_gqa=True
        ),
        lambda x: nn.functional.batch_norm(x, None, None, training=True),
        lambda x: torch.fft.rfft(x).abs(),
        lambda x: torch.linalg.svdvals(x),
        lambda x: x.softmax(-1).log(),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: x.sort(0).values.cumsum(1),
        lambda x: nn.functional.embedding(torch.arange(4, device=x.device), x),
        lambda x: x.to(torch.bfloat16).float(),
        lambda x: torch.view_as_complex(x.view(8, 4, 2)).conj().real,
    ],
    ids=[
        "conv",
        "sdpa",
        "sdpa, one sequence",
        "sdpa, shared heads",
        "batch-norm",
        "fft",
        "svd",
        "softmax",
        "einsum",
        "sort",
        "embed",
        "cast",
        "conj",
    ],
)
def test_forward_and_gradient_give_the_same_bits(cuda, function):
    torch.manual_seed(0)
    host = torch.randn(8, 8, requires_grad=True)
    device = host.detach().to(cuda).requires_grad_()
    expected, value = function(host), function(device)
    assert torch.equal(expected, value.cpu())
    expected.square().sum().backward()
    value.square().sum().backward()
    assert torch.equal(host.grad, device.grad.cpu())


def _write_through_view(x):
    x[1:, ::2].add_(1)
    return x


def _write_through_transpose(x):
    x.t()[0].mul_(3)
    return x


def _write_through_view_of_view(x):
    x.view(-1).chunk(4)[1].view(2, 4)[:, 1] = 7
    return x


def _out_into_a_slice(x):
    torch.add(x[0], 1, out=x[2])
    return x


def _in_place_under_autograd(x):
    leaf = x.clone().requires_grad_()
    y = leaf * 2
    y[0] *= 3
    y.sum().backward()
    return leaf.grad


def _shared_data(x):
    y = torch.empty_like(x)
    y.data = x
    y += 1
    return x


def _set_storage(x):
    return torch.empty(0, device=x.device).set_(x.untyped_storage(), 3, (2, 2), (8, 1)).add_(1) + x[0, 3]


@pytest.mark.parametrize(
    "function",
    [
        _write_through_view,
        _write_through_transpose,
        _write_through_view_of_view,
        _out_into_a_slice,
        _in_place_under_autograd,
        _shared_data,
        _set_storage,
    ],
)
def test_aliasing_is_that_of_the_cpu(cuda, function):
    host = torch.arange(32.0).view(4, 8)
    device = host.to(cuda)
    expected, value = function(host.clone()), function(device)
    assert torch.equal(expected, value.cpu())
    assert expected.stride() == value.stride()


def test_a_view_shares_the_storage(cuda):
    x = torch.zeros(4, device=cuda)
    assert x[1:].untyped_storage()._cdata == x.untyped_storage()._cdata


def test_a_write_that_breaks_the_graph_is_found(cuda):
    x = torch.ones(2, device=cuda, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_an_output_is_resized(cuda):
    out = torch.empty(0, device=cuda)
    torch.add(torch.ones(3, device=cuda), 1, out=out)
    assert out.tolist() == [2, 2, 2]


def test_saved_tensors_come_back_to_the_device(cuda, tmp_path):
    x = torch.arange(3.0, device=cuda)
    torch.save({"x": x, "view": x[1:]}, tmp_path / "x.pt")
    back = torch.load(tmp_path / "x.pt")
    assert back["x"].device == torch.device("cuda", 0)
    assert back["view"].tolist() == [1, 2]


def test_cpu_tensors_are_left_alone(cuda):
    x = torch.ones(2)
    assert type(x) is torch.Tensor
    assert (x + x).device.type == "cpu"
