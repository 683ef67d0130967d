"""Strided nested tensors: the CPU's values, and the waits that torch's own code for them makes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_gpusync.simulated import simulated_cuda

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

torch.manual_seed(0)
PARTS = [torch.randn(2, 8), torch.randn(4, 8)]
WEIGHT = torch.randn(8, 8)


def _nested(device, **options):
    return torch.nested.nested_tensor(PARTS, device=device, **options)


def _values(result):
    return result.to_padded_tensor(0.0) if result.is_nested else result


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + x,
        lambda x: x * 2,
        lambda x: x * 2.5 - x,
        lambda x: x.relu_(),
        lambda x: x.clone().zero_(),
        lambda x: functional.gelu(x),
        lambda x: x.softmax(-1),
        lambda x: functional.linear(x, WEIGHT.to(x.device)),
        lambda x: functional.layer_norm(x, (8,), *[WEIGHT[0].to(x.device)] * 2),
        lambda x: torch.bmm(x, x.transpose(1, 2)),
        lambda x: x @ x.transpose(1, 2),
        lambda x: x.unbind()[1],
        lambda x: x[0],
        lambda x: x.values(),
        lambda x: x.to(torch.bfloat16),
        lambda x: x.to_padded_tensor(-1.0),
    ],
)
def test_values_are_those_of_the_cpu(cuda, compute):
    expected, result = compute(_nested("cpu")), compute(_nested(cuda))
    assert (result.is_cuda, result.is_nested, result.dtype) == (True, expected.is_nested, expected.dtype)
    assert torch.equal(_values(result).cpu(), _values(expected))


def test_it_goes_to_the_device_and_back(cuda, kinds):
    with kinds() as counter:
        there = _nested("cpu").to(cuda)
    assert counter == {"stream": 1}
    assert there.is_nested
    assert there.is_cuda
    with kinds() as counter:
        back = there.cpu()
    assert counter == {"stream": 1}
    assert all(torch.equal(one, other) for one, other in zip(back.unbind(), PARTS, strict=True))


def test_gradients_are_those_of_the_cpu(cuda):
    def gradient(device):
        parts = [part.clone().to(device).requires_grad_() for part in PARTS]
        x = torch.nested.as_nested_tensor(parts)
        functional.linear(x, WEIGHT.to(device)).to_padded_tensor(0.0).square().sum().backward()
        return [part.grad for part in parts]

    for expected, value in zip(gradient("cpu"), gradient(cuda), strict=True):
        assert torch.equal(value.cpu(), expected)


def test_a_transformer_takes_its_fast_path(cuda, kinds):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(2, 4, 8), torch.tensor([[False] * 4, [False, False, True, True]])
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=padding)
        encoder, x, padding = encoder.to(cuda), x.to(cuda), padding.to(cuda)
        with kinds() as counter:
            result = encoder(x, src_key_padding_mask=padding)
    torch.testing.assert_close(result.cpu(), expected)
    # Whether the mask is aligned, and the lengths that it means.
    assert counter == {"stream": 2}


def test_what_a_gpu_does_not_have_is_refused_as_there(cuda):
    with pytest.raises(NotImplementedError, match=r"Could not run 'aten::sum.dim_IntList'.*'NestedTensorCUDA'"):
        _nested(cuda).sum(-1, keepdim=True)


def test_memory_is_counted(cuda):
    before = torch.cuda.memory_allocated()
    x = _nested(cuda)
    assert torch.cuda.memory_allocated() - before == 512
    del x
    assert torch.cuda.memory_allocated() == before


def test_without_values_they_are_refused():
    with simulated_cuda(values=False), pytest.raises(RuntimeError, match="an operator on nested tensors"):
        torch.nested.as_nested_tensor([torch.ones(2, 8, device="cuda")]).to_padded_tensor(0.0)
