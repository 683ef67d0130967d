"""What training programs do before their first step."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

CUDA = torch.device("cuda", 0)


@pytest.fixture
def default(cuda):
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


MAKERS = {
    "zeros": lambda: torch.zeros(2),
    "tensor": lambda: torch.tensor([1.0]),
    "as_tensor": lambda: torch.as_tensor([1, 2]),
    "randn": lambda: torch.randn(2),
    "arange": lambda: torch.arange(3),
    "empty": lambda: torch.empty(2, pin_memory=False),
    "layer": lambda: nn.Linear(2, 2).weight,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_default_device_holds_what_is_made(default, make):
    torch.set_default_device("cuda")
    assert (make().device, torch.get_default_device()) == (CUDA, CUDA)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_device_as_a_block_holds_what_is_made(cuda, make):
    with torch.device("cuda"):
        inside = make()
    assert (inside.device, make().device) == (CUDA, torch.device("cpu"))


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@pytest.mark.parametrize("kind", ["torch.cuda.FloatTensor", "torch.cuda.DoubleTensor", "torch.cuda.HalfTensor"])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_default_tensor_type_is_a_device_and_a_data_type(default, kind, by_name):
    cls = getattr(torch.cuda, kind.rpartition(".")[2])
    torch.set_default_tensor_type(kind if by_name else cls)
    made = torch.zeros(2)
    torch.set_default_tensor_type(torch.FloatTensor)
    assert (made.device, made.dtype, made.type()) == (CUDA, cls.dtype, kind)
    assert (torch.zeros(2).device.type, torch.zeros(2).dtype) == ("cpu", torch.float32)


def test_a_default_tensor_type_of_integers_is_refused(default):
    with pytest.raises(TypeError, match="only floating-point types"):
        torch.set_default_tensor_type("torch.cuda.LongTensor")
    assert torch.zeros(2).device.type == "cpu"


ORDINALS = {
    "to": lambda: torch.zeros(2).to(0).device,
    "layer to": lambda: nn.Linear(2, 2).to(0).weight.device,
    "cuda": lambda: torch.zeros(2).cuda(0).device,
    "device=": lambda: torch.zeros(2, device=0).device,
    "generator": lambda: torch.Generator(device=0).device,
    "device()": lambda: torch.device(0),
    "current": lambda: torch.device("cuda", torch.cuda.current_device()),
}


@pytest.mark.parametrize("where", ORDINALS.values(), ids=ORDINALS)
def test_a_device_is_named_by_its_number(cuda, where):
    assert where() == CUDA


def test_a_tensor_of_the_device_cannot_be_pinned(cuda):
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.tensor([1.0], device="cuda:0").pin_memory()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_autocast_in_its_old_spelling(cuda):
    with torch.cuda.amp.autocast():
        assert nn.Linear(2, 2).cuda()(torch.ones(2, 2, device="cuda")).dtype == torch.float16


SETTINGS = {
    "bf16": torch.cuda.is_bf16_supported,
    "properties": lambda: torch.cuda.get_device_properties(0).total_memory,
    "summary": torch.cuda.memory_summary,
    "peak": lambda: torch.cuda.reset_peak_memory_stats() or True,
    "seed": lambda: torch.cuda.manual_seed_all(1) or True,
    "precision": lambda: torch.set_float32_matmul_precision("high") or True,
    "capability": lambda: torch.float32 in torch.accelerator.get_device_capability()["supported_dtypes"],
    "cudnn version": lambda: torch.backends.cudnn.version() is None,
    "cudnn": lambda: not torch.backends.cudnn.is_available(),
    "fraction": lambda: torch.cuda.set_per_process_memory_fraction(0.9) or True,
}


@pytest.mark.parametrize("ask", SETTINGS.values(), ids=SETTINGS)
def test_settings_are_answered(cuda, ask):
    before = torch.get_float32_matmul_precision()
    assert ask()
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "prefer",
    [
        lambda: torch.backends.cuda.preferred_linalg_library("magma").name == "Magma",
        lambda: torch.backends.cuda.preferred_blas_library("cublaslt").name == "Cublaslt",
    ],
)
def test_a_preferred_library_is_remembered(cuda, prefer):
    assert prefer()


def test_the_plan_cache_of_ffts_is_empty_and_remembers_its_limit(cuda):
    torch.fft.fft(torch.ones(4, device=cuda))
    plans = torch.backends.cuda.cufft_plan_cache
    assert (plans.size, plans.max_size) == (0, 4096)
    plans[0].max_size = 10
    plans.clear()
    assert plans.max_size == 10


def test_tf32_is_allowed(cuda):
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    allowed, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, before
    assert allowed


@pytest.mark.parametrize("backend", ["MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"])
def test_attention_runs_whichever_backend_is_asked_for(cuda, backend):
    query = torch.randn(2, 2, 8, 4, device="cuda", requires_grad=True)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
    assert query.grad.shape == query.shape
