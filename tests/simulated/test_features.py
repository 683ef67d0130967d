from __future__ import annotations

import inspect
import io
import re

import pytest
import torch
from torch import nn

from pytest_gpusync import record
from pytest_gpusync.simulated import simulated_cuda


def test_the_device_has_random_numbers_of_its_own(cuda):
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    torch.rand(4, device=cuda)
    assert torch.equal(torch.rand(4), expected)


def test_a_seed_repeats_random_numbers(cuda):
    torch.cuda.manual_seed(3)
    first = torch.randn(4, device=cuda)
    torch.cuda.manual_seed(3)
    assert torch.equal(torch.randn(4, device=cuda), first)


def test_the_state_of_the_generator_can_be_set_back(cuda):
    state = torch.cuda.get_rng_state()
    first = torch.rand(4, device=cuda)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(4, device=cuda), first)


def test_a_generator_of_the_device(cuda):
    generator = torch.Generator(device=cuda).manual_seed(1)
    assert generator.device == torch.device("cuda", 0)
    assert isinstance(generator, torch.Generator)
    first = torch.rand(4, device=cuda, generator=generator)
    generator.manual_seed(1)
    assert torch.equal(torch.rand(4, device=cuda, generator=generator), first)


def test_checkpointing_repeats_dropout(cuda):
    x = torch.ones(64, device=cuda, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(nn.functional.dropout, x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)


def test_a_graph_replays_into_the_same_memory(cuda):
    x = torch.zeros(3, device=cuda)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2 + 1
        y.add_(1)
    x.fill_(3)
    graph.replay()
    assert y.tolist() == [8, 8, 8]


def test_a_graph_is_not_carried_out_while_captured(cuda):
    x = torch.zeros(3, device=cuda)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.add_(1)
    assert x.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("make", "pinned"),
    [
        (lambda: torch.ones(3), False),
        (lambda: torch.ones(3).pin_memory(), True),
        (lambda: torch.ones(3, pin_memory=True), True),
        (lambda: torch.ones(3).pin_memory()[1:], True),
        (lambda: torch.ones(3).pin_memory().clone(), False),
        (lambda: torch.ones(3, device="cuda").to("cpu", non_blocking=True), True),
        (lambda: torch.ones(3, device="cuda").cpu(), False),
        (lambda: torch.ones(3, device="cuda"), False),
    ],
)
def test_pinned_memory_is_told_apart(cuda, make, pinned):
    assert make().is_pinned() is pinned


def test_memory_of_a_freed_pinned_tensor_is_pageable(cuda):
    torch.ones(1000).pin_memory()
    assert not any(torch.ones(1000).is_pinned() for _ in range(50))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_casts_as_on_cuda(cuda, dtype):
    model, x = nn.Linear(4, 4).to(cuda), torch.ones(2, 4, device=cuda)
    with torch.autocast("cuda", dtype=dtype):
        y = model(x)
        assert y.dtype == dtype
        assert y.softmax(-1).dtype == torch.float32


def test_a_gradient_scaler_skips_a_step_with_infinities(cuda):
    parameter = torch.ones(2, device=cuda, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    scaler.scale((parameter * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [1, 1]
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize("network", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_give_the_values_of_the_cpu(cuda, network):
    torch.manual_seed(0)
    host = network(4, 8, num_layers=2, batch_first=True)
    x = torch.randn(3, 5, 4)
    expected = host(x)[0]
    expected.sum().backward()
    wanted = [parameter.grad.clone() for parameter in host.parameters()]
    device = network(4, 8, num_layers=2, batch_first=True).to(cuda)
    device.load_state_dict(host.state_dict())
    value = device(x.to(cuda))[0]
    value.sum().backward()
    torch.testing.assert_close(value.cpu(), expected)
    for parameter, gradient in zip(device.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), gradient)


def test_the_weights_of_a_recurrent_network_lie_in_one_piece_of_memory(cuda, kinds):
    network = nn.LSTM(4, 3, 2)
    before = [weight.detach().clone() for weight in network.parameters()]
    network.to(cuda)
    assert len({weight.untyped_storage().data_ptr() for weight in network.parameters()}) == 1
    assert all(torch.equal(one, other.cpu()) for one, other in zip(before, network.parameters(), strict=True))
    with kinds() as counted:
        torch.save(network.state_dict(), io.BytesIO())
    assert counted == {"stream": 1}
    network.cpu()
    network(torch.ones(1, 1, 4))[0].sum().backward()


def test_rms_norm_gives_the_values_of_the_cpu(cuda):
    host = torch.randn(3, 8, requires_grad=True)
    device = host.detach().to(cuda).requires_grad_()
    weight = torch.rand(8)
    expected = nn.functional.rms_norm(host, (8,), weight)
    value = nn.functional.rms_norm(device, (8,), weight.to(cuda))
    expected.pow(2).sum().backward()
    value.pow(2).sum().backward()
    torch.testing.assert_close(value.cpu(), expected)
    torch.testing.assert_close(device.grad.cpu(), host.grad)


def test_a_stream_is_current_within_its_block(cuda):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_the_current_device_is_set_and_left():
    with simulated_cuda(devices=2):
        with torch.cuda.device(1):
            assert torch.zeros(1, device="cuda").get_device() == 1
        assert torch.cuda.current_device() == 0


def test_elapsed_time_says_once_that_it_is_modelled(cuda):
    first, second = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    second.record()
    with pytest.warns(UserWarning, match="modelled") as warned:
        assert first.elapsed_time(second) >= 0
        first.elapsed_time(second)
    assert len(warned) == 1


def test_compile_runs_eagerly_and_says_so_once(cuda):
    with pytest.warns(UserWarning, match=r"torch\.compile runs eagerly") as warned:
        double = torch.compile(lambda x: x * 2)

        @torch.compile(fullgraph=True)
        def triple(x):
            return x * 3

    x = torch.ones(2, device=cuda)
    assert (double(x) + triple(x)).tolist() == [5, 5]
    assert len(warned) == 1


def test_legacy_tensor_types(cuda):
    x = torch.cuda.FloatTensor([1.0, 2.0])
    assert x.type() == "torch.cuda.FloatTensor"
    assert isinstance(x, torch.cuda.FloatTensor)
    assert torch.ones(2).type(torch.cuda.DoubleTensor).dtype == torch.float64


def test_a_default_tensor_type_of_the_device(kinds):
    with simulated_cuda():
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        with kinds() as counted:
            assert torch.Tensor([1.0, 2.0]).is_cuda
            assert torch.Tensor(2, 3).is_cuda
            assert torch.ones(2).is_cuda
        assert dict(counted) == {"stream": 1}
        kinds_of = [parameter.kind for parameter in inspect.signature(torch.Tensor.__new__).parameters.values()]
        # torch's compiler refuses another signature than its own, when it is imported.
        assert kinds_of == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
    assert not torch.Tensor([1.0]).is_cuda


@pytest.mark.parametrize(
    "query",
    [
        torch.cuda.memory_summary,
        torch.cuda.memory_snapshot,
        torch.cuda.mem_get_info,
        torch.cuda.is_bf16_supported,
        torch.cuda.get_device_capability,
        torch.cuda.get_arch_list,
        lambda: torch.cuda.get_device_properties(0).total_memory,
        lambda: torch.cuda.nvtx.range_push("step") + torch.cuda.nvtx.range_pop(),
        lambda: torch.cuda.ipc_collect(),
        lambda: torch.accelerator.current_accelerator().type,
    ],
)
def test_queries_answer(cuda, query):
    query()


def test_the_profiler_profiles_the_host(cuda):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        torch.ones(2, device=cuda) + 1
    assert "aten::add" in {event.key for event in profile.key_averages()}


@pytest.fixture
def process_group(cuda):
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel_trains(process_group):
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).to("cuda"), device_ids=[0])
    for _ in range(3):
        model(torch.ones(2, 4, device="cuda")).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_fully_sharded_training_trains(process_group):
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to("cuda")
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_tensors_go_to_the_current_device():
    with simulated_cuda(devices=2), torch.cuda.device(1):
        assert torch.ones(2).cuda().get_device() == 1
        assert torch.ones(2).to("cuda").get_device() == 1


def test_data_parallel_on_two_devices_gives_the_values_of_one():
    with simulated_cuda(devices=2):
        model = nn.Linear(4, 4).to("cuda")
        x = torch.randn(6, 4, device="cuda")
        assert torch.allclose(nn.DataParallel(model)(x), model(x))


def test_generic_streams_and_events_are_those_of_the_device(cuda):
    stream, event = torch.Stream("cuda"), torch.Event("cuda")
    stream.record_event(event)
    assert isinstance(torch.cuda.current_stream(), torch.Stream)
    assert isinstance(event, torch.cuda.Event)
    assert event.query()


def test_a_sync_in_backward_names_its_operator(cuda):
    x = torch.ones(8, device=cuda, requires_grad=True)
    loss = x[x > 0].sum()
    with record() as region:
        loss.backward()
    assert {site.site.via.rpartition(", ")[2] for site in region.sites} == {"in IndexBackward0"}


def test_a_sync_in_backward_names_the_line_of_forward_where_that_waits_too(cuda):
    x = torch.ones(8, device=cuda, requires_grad=True)
    with record() as region:
        for _ in range(2):
            loss = x[x > 0].sum()  # this line
            loss.backward()
    function = test_a_sync_in_backward_names_the_line_of_forward_where_that_waits_too
    line = function.__code__.co_firstlineno + 4
    [via] = {site.site.via for site in region.sites} - {None}
    assert re.search(rf", in IndexBackward0, created at \S+:{line} {function.__name__} or just before$", via)


@pytest.mark.parametrize("records", [True, False])
def test_a_convolution_is_traced_as_on_a_gpu(cuda, records):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2)).to(cuda)
    x = torch.randn(1, 3, 6, 6, device=cuda)
    with torch.set_grad_enabled(records):
        traced = torch.jit.trace(net, x)
    kinds = [node.kind() for node in traced.inlined_graph.nodes() if node.kind().startswith("aten::")]
    assert kinds == ["aten::_convolution", "aten::relu", "aten::_convolution"]
    traced(x).sum().backward()
    expected = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    assert all(torch.equal(parameter.grad, grad) for parameter, grad in zip(net.parameters(), expected, strict=True))


def test_streams_come_from_a_pool_of_32_for_each_device_and_priority():
    with simulated_cuda(devices=2):
        streams = [torch.cuda.Stream() for _ in range(64)]
        assert len(set(streams)) == 32
        assert streams[:32] == streams[32:]
        assert not {torch.cuda.Stream(priority=-1), torch.cuda.Stream(1), torch.cuda.default_stream()} & set(streams)
