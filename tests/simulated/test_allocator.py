"""The allocator's books. The figures follow from the sizes that torch documents for its caching allocator."""

from __future__ import annotations

import pytest

from pytest_gpusync.simulated.tensors.caching_allocator import CachingAllocator, OutOfMemory

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30


@pytest.fixture
def allocator():
    return CachingAllocator(GiB)


@pytest.mark.parametrize(
    ("nbytes", "allocated", "reserved"),
    [
        (1, 512, 2 * MiB),
        (512, 512, 2 * MiB),
        (513, 1024, 2 * MiB),
        (MiB, MiB, 2 * MiB),
        (MiB + 1, MiB + 512, 20 * MiB),
        (10 * MiB - 512, 10 * MiB - 512, 20 * MiB),
        (10 * MiB, 10 * MiB, 10 * MiB),
        (11 * MiB + 1, 12 * MiB, 12 * MiB),  # what is left of the segment is too small to be split off
        (19 * MiB, 20 * MiB, 20 * MiB),
    ],
)
def test_sizes(allocator, nbytes, allocated, reserved):
    allocator.allocate(nbytes)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_small_blocks_share_a_segment(allocator):
    for _ in range(4096):
        allocator.allocate(512)
    assert allocator.reserved == 2 * MiB
    allocator.allocate(512)
    assert allocator.reserved == 4 * MiB


def test_what_was_freed_is_used_again(allocator):
    allocator.free(allocator.allocate(30 * MiB))
    allocator.allocate(30 * MiB)
    assert allocator.reserved == 30 * MiB


def test_the_smallest_block_that_fits_is_taken(allocator):
    large, small = allocator.allocate(64 * MiB), allocator.allocate(32 * MiB)
    address = small.address
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(16 * MiB).address == address


def test_neighbours_that_are_free_are_joined(allocator):
    first, second, third = (allocator.allocate(2 * MiB) for _ in range(3))
    for block in (first, third, second):
        allocator.free(block)
    assert allocator.allocate(20 * MiB - 512).size == 20 * MiB
    assert allocator.reserved == 20 * MiB


def test_streams_do_not_share_segments(allocator):
    allocator.free(allocator.allocate(30 * MiB, stream=0))
    allocator.allocate(30 * MiB, stream=1)
    assert allocator.reserved == 60 * MiB


def test_small_and_large_blocks_do_not_share_segments(allocator):
    allocator.free(allocator.allocate(20 * MiB))
    allocator.allocate(512)
    assert allocator.reserved == 22 * MiB


def test_a_graph_has_segments_of_its_own(allocator):
    allocator.free(allocator.allocate(30 * MiB))
    allocator.allocate(30 * MiB, pool=(0, 1))
    assert allocator.reserved == 60 * MiB
    assert allocator.in_private_pools() == 30 * MiB


def test_the_cache_of_a_living_graph_is_kept(allocator):
    allocator.use_pool((0, 1), 1)
    allocator.free(allocator.allocate(30 * MiB, pool=(0, 1)))
    assert allocator.empty_cache() == 0
    allocator.use_pool((0, 1), -1)
    assert allocator.empty_cache() == 1


def test_emptying_the_cache_gives_back_whole_segments_only(allocator):
    kept = allocator.allocate(512)
    allocator.free(allocator.allocate(512))
    allocator.free(allocator.allocate(64 * MiB))
    assert allocator.empty_cache() == 1
    assert allocator.reserved == 2 * MiB
    allocator.free(kept)
    assert allocator.empty_cache() == 1
    assert allocator.reserved == 0


def test_a_full_device_gives_back_its_cache_before_it_refuses(allocator):
    allocator.free(allocator.allocate(600 * MiB))
    allocator.allocate(700 * MiB)
    assert allocator.reserved == 700 * MiB
    assert allocator.statistics()["num_alloc_retries"] == 1
    assert allocator.freed_on_retry == 1


def test_a_full_device_refuses(allocator):
    with pytest.raises(OutOfMemory) as caught:
        allocator.allocate(GiB + 1)
    assert caught.value.nbytes == GiB + 2 * MiB
    assert allocator.statistics()["num_ooms"] == 1


def test_a_limit_is_kept(allocator):
    allocator.limit = 16 * MiB
    with pytest.raises(OutOfMemory):
        allocator.allocate(2 * MiB)


def test_what_is_left_of_a_segment_counts_as_an_inactive_split(allocator):
    block = allocator.allocate(MiB)
    split = allocator.statistics()["inactive_split_bytes"]
    assert split["all"]["current"] == split["small_pool"]["current"] == MiB
    allocator.free(block)
    assert allocator.statistics()["inactive_split_bytes"]["all"]["current"] == 0


def test_peaks_of_both_sizes_together_are_not_the_sum_of_their_peaks(allocator):
    allocator.free(allocator.allocate(MiB))
    allocator.allocate(2 * MiB)
    peaks = {pool: figures["peak"] for pool, figures in allocator.statistics()["allocated_bytes"].items()}
    assert peaks == {"all": 2 * MiB, "small_pool": MiB, "large_pool": 2 * MiB}


def test_peaks_start_again(allocator):
    allocator.free(allocator.allocate(30 * MiB))
    allocator.reset_peaks()
    assert allocator.statistics()["allocated_bytes"]["all"]["peak"] == 0
    assert allocator.statistics()["reserved_bytes"]["all"]["peak"] == 30 * MiB


def test_a_snapshot_lists_every_byte(allocator):
    blocks = [allocator.allocate(nbytes) for nbytes in (512, MiB, 3 * MiB, 40 * MiB)]
    allocator.free(blocks[1])
    segments = allocator.snapshot(0)
    assert sum(segment["total_size"] for segment in segments) == allocator.reserved
    assert sum(block["size"] for segment in segments for block in segment["blocks"]) == allocator.reserved
    assert sum(segment["allocated_size"] for segment in segments) == allocator.allocated


def test_the_books_balance_after_many_events(allocator):
    import random

    generator = random.Random(0)
    living = []
    for _ in range(3000):
        if living and generator.random() < 0.5:
            allocator.free(living.pop(generator.randrange(len(living))))
        else:
            living.append(allocator.allocate(generator.choice([100, 5000, 2 * MiB, 300 * KiB, 12 * MiB]) // 8))
    statistics = allocator.statistics()
    assert allocator.allocated == sum(block.size for block in living)
    inactive = [
        block
        for segment in allocator.snapshot(0)
        if len(segment["blocks"]) > 1
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    assert statistics["inactive_split"]["all"]["current"] == len(inactive)
    assert statistics["inactive_split_bytes"]["all"]["current"] == sum(block["size"] for block in inactive)
    for block in living:
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved == 0
