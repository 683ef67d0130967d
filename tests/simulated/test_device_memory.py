"""What torch.cuda says of the simulated device's memory."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from pytest_gpusync.simulated import simulated_cuda
from pytest_gpusync.simulated.tensors import memory

MiB = 1 << 20


def megabytes(number: float) -> torch.Tensor:
    return torch.empty(int(number * MiB), dtype=torch.uint8, device="cuda")


def test_what_another_thread_makes_while_the_books_are_written_is_not_forgotten(cuda, monkeypatch):
    take = memory._allocate
    # From here on the device is known to have room: a new tensor looks into no books.
    kept = torch.ones(3).to(cuda)
    assert torch.cuda.memory_allocated() == 512

    def meanwhile(*arguments):
        monkeypatch.undo()
        thread = threading.Thread(target=lambda: torch.ones(3).to(cuda))
        thread.start()
        thread.join(timeout=10)
        return take(*arguments)

    monkeypatch.setattr(memory, "_allocate", meanwhile)
    x = torch.ones(3).to(cuda)
    assert torch.cuda.memory_allocated() == 1024
    assert torch.cuda.memory_allocated() == 1024
    assert memory._allocate is take
    del x, kept
    assert torch.cuda.memory_allocated() == 0


def test_allocated_memory_follows_the_tensors(cuda):
    x = torch.empty(1000, device=cuda)
    view = x[10:]
    assert torch.cuda.memory_allocated() == 4096
    del x
    assert torch.cuda.memory_allocated() == 4096
    del view
    assert torch.cuda.memory_allocated() == 0


def test_memory_of_a_tensor_that_dies_in_an_exception_is_given_back(cuda):
    def fails():
        x = torch.empty(1 << 20, device=cuda)
        raise ValueError(x.shape)

    with pytest.raises(ValueError, match="1048576"):
        fails()
    assert torch.cuda.memory_allocated() == 0


def test_memory_of_a_cycle_is_given_back_when_it_is_collected(cuda):
    cycle = [megabytes(1)]
    cycle.append(cycle)
    del cycle
    assert torch.cuda.memory_allocated() == MiB
    gc.collect()
    assert torch.cuda.memory_allocated() == 0


def test_memory_that_another_thread_frees_is_given_back(cuda):
    held = [megabytes(1)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert torch.cuda.memory_allocated() == 0


def test_the_peak_counts_what_lived_together(cuda):
    megabytes(3)
    both = megabytes(1), megabytes(1)
    del both
    assert torch.cuda.max_memory_allocated() == 3 * MiB


def test_the_peak_of_many_operators_is_exact(cuda):
    x = megabytes(2)
    for _ in range(50):
        x = x + 1
    assert torch.cuda.max_memory_allocated() == 4 * MiB


def test_the_peak_starts_again(cuda):
    megabytes(3)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0


def test_the_cache_is_reserved_until_it_is_emptied(cuda):
    megabytes(30)
    assert torch.cuda.memory_reserved() == 30 * MiB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_emptying_the_cache_waits_once_for_each_segment(cuda, kinds):
    large = megabytes(30), megabytes(40)
    small = megabytes(0.5)
    del large, small
    with kinds() as counted:
        torch.cuda.empty_cache()
        torch.cuda.empty_cache()
    assert dict(counted) == {"free": 3}


def test_free_memory_is_what_is_not_reserved(cuda):
    free, total = torch.cuda.mem_get_info()
    assert free == total == torch.cuda.get_device_properties(0).total_memory
    kept = megabytes(0.1)
    assert torch.cuda.mem_get_info()[0] == total - 2 * MiB
    del kept


def test_a_stream_has_a_cache_of_its_own(cuda):
    megabytes(30)
    with torch.cuda.stream(torch.cuda.Stream()):
        megabytes(30)
    assert torch.cuda.memory_reserved() == 60 * MiB


def test_a_captured_graph_keeps_its_memory_apart(cuda):
    megabytes(30)
    graph = torch.cuda.CUDAGraph()
    x = megabytes(30)
    with torch.cuda.graph(graph):
        y = x + 1
    del y
    assert torch.cuda.memory_reserved() == 60 * MiB
    pools = {tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot()}
    assert len(pools) == 2


def test_a_device_as_large_as_asked_for_runs_out():
    with simulated_cuda(memory="64 MiB"):
        kept = [megabytes(30), megabytes(30)]
        with pytest.raises(torch.OutOfMemoryError) as caught:
            megabytes(10)
        assert str(caught.value).startswith(
            "CUDA out of memory. Tried to allocate 10.00 MiB. GPU 0 has a total capacity of 64.00 MiB of which "
            "4.00 MiB is free. Including non-PyTorch memory, this process has 60.00 MiB memory in use. "
            "Of the allocated memory 60.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
            "unallocated."
        )
        del kept
        megabytes(64)
        assert torch.cuda.memory_stats()["num_alloc_retries"] == 2


def test_giving_back_the_cache_of_a_full_device_waits(kinds):
    with simulated_cuda(memory="64 MiB"):
        megabytes(40)
        with kinds() as counted:
            megabytes(60)
        assert dict(counted) == {"free": 1}


def test_what_the_host_has_no_room_for_does_not_fit_the_device(cuda):
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 1048576\.00 GiB"):
        torch.empty(1 << 50, dtype=torch.uint8, device=cuda)


def test_a_fraction_of_the_memory_is_a_limit(cuda):
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(16 * MiB / total)
    with pytest.raises(torch.OutOfMemoryError, match=r"16\.00 MiB allowed; "):
        megabytes(17)


def test_a_sharded_storage_gives_its_memory_back_and_takes_it_again(cuda):
    storage = megabytes(1).untyped_storage()
    storage.resize_(0)
    assert (storage.size(), torch.cuda.memory_allocated()) == (0, 0)
    storage.resize_(MiB)
    assert (storage.size(), torch.cuda.memory_allocated()) == (MiB, MiB)
    del storage
    assert torch.cuda.memory_allocated() == 0


def test_every_pool_is_told_of(cuda):
    kept = megabytes(0.5), megabytes(2)
    statistics = torch.cuda.memory_stats()
    assert statistics["allocated_bytes.small_pool.current"] == MiB // 2
    assert statistics["allocated_bytes.large_pool.current"] == 2 * MiB
    assert statistics["segment.all.current"] == statistics["num_device_alloc"] == 2
    del kept


def test_a_history_lists_what_was_allocated_and_freed(cuda):
    torch.cuda.memory._record_memory_history(max_entries=100)
    megabytes(3)
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    assert [(event["action"], event["size"]) for event in events] == [
        ("segment_alloc", 20 * MiB),
        ("alloc", 3 * MiB),
        ("free_completed", 3 * MiB),
    ]


def test_steps_that_keep_nothing_reserve_nothing_more(cuda):
    weight = torch.nn.Parameter(torch.ones(256, 256, device=cuda))
    optimizer = torch.optim.AdamW([weight])
    reserved = []
    for _ in range(6):
        (torch.ones(64, 256, device=cuda) @ weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        reserved.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert len(set(reserved[1:])) == 1


def test_raw_memory_is_counted(cuda):
    address = torch.cuda.caching_allocator_alloc(3 * MiB)
    assert torch.cuda.memory_allocated() == 3 * MiB
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == 0
