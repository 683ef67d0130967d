"""A model of torch's caching allocator for one simulated device.

It receives every allocation and free in order, and keeps the same statistics as ``CUDACachingAllocator`` with its
default settings. Sizes are rounded up to 512 bytes. Up to 1 MiB a block is cut from a 2 MiB segment, below 10 MiB from
one of 20 MiB; above that a segment is as large as the block, rounded up to 2 MiB. The smallest free block that fits is
taken, at the lowest address; the rest stays free and is later merged with its neighbors. Streams, small and large
blocks, and the private pools of CUDA graphs do not share segments. Source: c10/cuda/CUDACachingAllocator.cpp of torch
2.11, and torch's notes on CUDA memory management. ``PYTORCH_CUDA_ALLOC_CONF`` is ignored.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, Final, NamedTuple

ROUND: Final = 512
SMALL: Final = 1 << 20
"""Largest size, in bytes, of a block from the small pool."""
SMALL_SEGMENT: Final = 2 << 20
LARGE_SEGMENT: Final = 20 << 20
OWN_SEGMENT: Final = 10 << 20
"""Smallest size, in bytes, of a block with a segment of its own."""
ROUND_SEGMENT: Final = 2 << 20
_FIRST_ADDRESS: Final = 0x7F00_0000_0000

PoolId = tuple[int, int]
SHARED: Final[PoolId] = (0, 0)
"""The pool of everything allocated outside of CUDA graph captures."""
_FreeBlock = tuple[int, int, "Block"]


def max_segment_bytes(nbytes: int) -> int:
    """Return the most bytes that a block of `nbytes` may take from the device: those of its segment."""
    return nbytes + (SMALL_SEGMENT if nbytes <= SMALL or nbytes >= OWN_SEGMENT else LARGE_SEGMENT)


class OutOfMemory(Exception):
    """The device has no room for a segment of `nbytes`."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.nbytes = nbytes


class TraceEntry(NamedTuple):
    """One event of the allocator, with the names of torch's memory history."""

    action: str
    address: int
    nbytes: int
    stream: int


class Counter:
    """A statistic: its current value, its peak, and the total of all increases."""

    __slots__ = ("allocated", "current", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = 0

    def increase(self, by: int) -> None:
        """Add `by`."""
        self.allocated += by
        self.current += by
        if self.current > self.peak:
            self.peak = self.current

    def as_dict(self) -> dict[str, int]:
        """Return the values with the names of ``torch.cuda.memory_stats``."""
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.allocated,
            "freed": self.allocated - self.current,
        }


class _Statistics:
    """The statistics of the small blocks, the large ones, or all."""

    COUNTERS = (
        "allocation",
        "allocated_bytes",
        "requested_bytes",
        "segment",
        "reserved_bytes",
        "inactive_split",
        "inactive_split_bytes",
    )

    __slots__ = COUNTERS

    def __init__(self) -> None:
        self.allocation = Counter()
        self.allocated_bytes = Counter()
        self.requested_bytes = Counter()
        self.segment = Counter()
        self.reserved_bytes = Counter()
        self.inactive_split = Counter()
        self.inactive_split_bytes = Counter()

    def counters(self) -> list[Counter]:
        return [getattr(self, name) for name in self.COUNTERS]

    def block_taken(self, size: int, requested: int) -> None:
        # Counter.increase(), inlined: this is most of the cost of a new tensor.
        counter = self.allocation
        counter.allocated += 1
        counter.current += 1
        if counter.current > counter.peak:
            counter.peak = counter.current
        counter = self.allocated_bytes
        counter.allocated += size
        counter.current += size
        if counter.current > counter.peak:
            counter.peak = counter.current
        counter = self.requested_bytes
        counter.allocated += requested
        counter.current += requested
        if counter.current > counter.peak:
            counter.peak = counter.current

    def block_freed(self, size: int, requested: int) -> None:
        self.allocation.current -= 1
        self.allocated_bytes.current -= size
        self.requested_bytes.current -= requested

    def split_changed(self, blocks: int, nbytes: int) -> None:
        if blocks > 0:
            self.inactive_split.increase(blocks)
        else:
            self.inactive_split.current += blocks
        if nbytes > 0:
            self.inactive_split_bytes.increase(nbytes)
        else:
            self.inactive_split_bytes.current += nbytes


class _Pool:
    """Segments that share their blocks: those of one stream, one size class and one graph's pool, if any."""

    __slots__ = ("free", "id", "small", "statistics", "stream")

    def __init__(self, stream: int, small: bool, pool: PoolId, statistics: _Statistics) -> None:
        self.stream = stream
        self.small = small
        self.id = pool
        self.statistics = statistics
        self.free: list[_FreeBlock] = []
        """Free blocks by size, then address."""


class Block:
    """A part of a segment; `before` and `after` are its neighbors."""

    __slots__ = ("address", "after", "before", "free", "pool", "requested", "size")

    def __init__(self, pool: _Pool, address: int, size: int) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.requested = 0
        self.free = False
        self.before: Block | None = None
        self.after: Block | None = None


class CachingAllocator:
    """The allocator of one device with `capacity` bytes, of which it may use `limit`."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.limit: int | None = None
        self.retries = self.ooms = self.synchronized = self.freed_on_retry = 0
        self.trace: list[TraceEntry] | None = None
        """Events since tracing started; None while it is off."""
        self._all = _Statistics()
        self._sizes = {True: _Statistics(), False: _Statistics()}
        self._pools: dict[tuple[int, bool, PoolId], _Pool] = {}
        self._segments: dict[int, tuple[Block, int]] = {}
        """First block and size of each segment, by address."""
        self._next_address = _FIRST_ADDRESS
        self._graphs: dict[PoolId, int] = {}
        """Number of live graphs that use a private pool."""

    @property
    def reserved(self) -> int:
        """Bytes reserved from the device."""
        return self._all.reserved_bytes.current

    @property
    def allocated(self) -> int:
        """Bytes of the blocks in use."""
        return self._all.allocated_bytes.current

    def in_private_pools(self) -> int:
        """Bytes of the blocks in use in the pools of CUDA graphs."""
        return sum(
            block.size
            for first, _ in self._segments.values()
            if first.pool.id != SHARED
            for block in _blocks_from(first)
            if not block.free
        )

    def allocate(self, nbytes: int, stream: int = 0, pool: PoolId = SHARED) -> Block:
        """Return a block of at least `nbytes` bytes, which must not be 0.

        Raises:
            OutOfMemory: there is no room, even after freeing the cache.
        """
        size = -(-nbytes // ROUND) * ROUND
        small = size <= SMALL
        holder = self._pools.get((stream, small, pool))
        if holder is None:
            holder = self._pools[stream, small, pool] = _Pool(stream, small, pool, self._sizes[small])
        free = holder.free
        place = bisect_left(free, (size,))
        block = free.pop(place)[2] if place < len(free) else self._segment(holder, size)
        was_split = block.before is not None or block.after is not None
        rest = block.size - size
        if rest >= ROUND if small else rest > SMALL:
            remainder = Block(holder, block.address + size, rest)
            remainder.free = True
            remainder.before, remainder.after = block, block.after
            if block.after is not None:
                block.after.before = remainder
            block.after = remainder
            block.size = size
            insort(free, (rest, remainder.address, remainder))
            self._split_changed(holder, 0 if was_split else 1, -size if was_split else rest)
        elif was_split:
            self._split_changed(holder, -1, -block.size)
        block.free = False
        block.requested = nbytes
        self._all.block_taken(block.size, nbytes)
        holder.statistics.block_taken(block.size, nbytes)
        if self.trace is not None:
            self.trace.append(TraceEntry("alloc", block.address, nbytes, stream))
        return block

    def free(self, block: Block) -> None:
        """Return a block to the cache."""
        pool = block.pool
        self._all.block_freed(block.size, block.requested)
        pool.statistics.block_freed(block.size, block.requested)
        if self.trace is not None:
            self.trace.append(TraceEntry("free_completed", block.address, block.requested, pool.stream))
        blocks = nbytes = 0
        before, after = block.before, block.after
        if before is not None and before.free:
            blocks, nbytes = blocks - 1, nbytes - before.size
            _remove(pool.free, before)
            block.address, block.size = before.address, block.size + before.size
            block.before = before.before
            if block.before is not None:
                block.before.after = block
            elif block.address in self._segments:
                self._segments[block.address] = (block, self._segments[block.address][1])
        if after is not None and after.free:
            blocks, nbytes = blocks - 1, nbytes - after.size
            _remove(pool.free, after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        block.free = True
        insort(pool.free, (block.size, block.address, block))
        if block.before is not None or block.after is not None:
            blocks, nbytes = blocks + 1, nbytes + block.size
        if blocks or nbytes:
            self._split_changed(pool, blocks, nbytes)

    def empty_cache(self) -> int:
        """Free the empty segments; return how many, each of which is a ``cudaFree`` on a GPU."""
        self.synchronized += 1
        freed = 0
        for pool in self._pools.values():
            if pool.id != SHARED and self._graphs.get(pool.id):
                continue
            kept = []
            for entry in pool.free:
                block = entry[2]
                if block.before is not None or block.after is not None:
                    kept.append(entry)
                    continue
                del self._segments[block.address]
                for statistics in (self._all, pool.statistics):
                    statistics.segment.current -= 1
                    statistics.reserved_bytes.current -= block.size
                if self.trace is not None:
                    self.trace.append(TraceEntry("segment_free", block.address, block.size, pool.stream))
                freed += 1
            pool.free[:] = kept
        return freed

    def use_pool(self, pool: PoolId, by: int) -> None:
        """Count a graph that starts (1) or stops (-1) using a private pool; the cache of an unused pool can
        be freed.
        """
        self._graphs[pool] = self._graphs.get(pool, 0) + by

    def reset_peaks(self) -> None:
        """Reset every peak to the current value."""
        for statistics in (self._all, *self._sizes.values()):
            for counter in statistics.counters():
                counter.peak = counter.current

    def reset_sums(self) -> None:
        """Reset the totals."""
        for statistics in (self._all, *self._sizes.values()):
            for counter in statistics.counters():
                counter.allocated = counter.current
        self.retries = self.ooms = 0

    def statistics(self) -> dict[str, Any]:
        """Return the statistics as ``torch._C._cuda_memoryStats`` does."""
        result: dict[str, Any] = {}
        for name in _Statistics.COUNTERS:
            result[name] = {
                "all": getattr(self._all, name).as_dict(),
                "small_pool": getattr(self._sizes[True], name).as_dict(),
                "large_pool": getattr(self._sizes[False], name).as_dict(),
            }
        # No block is ever still in use on another stream, so what is allocated is active.
        result["active"], result["active_bytes"] = result["allocation"], result["allocated_bytes"]
        nothing = Counter().as_dict()
        segments = result["segment"]["all"]
        return {
            **result,
            "oversize_allocations": nothing,
            "oversize_segments": nothing,
            "max_split_size": -1,
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
            "num_sync_all_streams": self.synchronized,
            "num_device_alloc": segments["allocated"],
            "num_device_free": segments["freed"],
        }

    def snapshot(self, device: int) -> list[dict[str, Any]]:
        """Return the segments and their blocks, as ``torch.cuda.memory_snapshot`` lists them."""
        segments = []
        for address, (first, nbytes) in sorted(self._segments.items()):
            blocks: list[dict[str, Any]] = [
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": 0 if block.free else block.requested,
                    "state": "inactive" if block.free else "active_allocated",
                    "frames": [],
                }
                for block in _blocks_from(first)
            ]
            used = [block for block in blocks if block["state"] != "inactive"]
            segments.append(
                {
                    "device": device,
                    "address": address,
                    "total_size": nbytes,
                    "allocated_size": sum(block["size"] for block in used),
                    "active_size": sum(block["size"] for block in used),
                    "requested_size": sum(block["requested_size"] for block in used),
                    "stream": first.pool.stream,
                    "segment_type": "small" if first.pool.small else "large",
                    "segment_pool_id": first.pool.id,
                    "is_expandable": False,
                    "frames": [],
                    "blocks": blocks,
                }
            )
        return segments

    def _segment(self, pool: _Pool, size: int) -> Block:
        if pool.small:
            nbytes = SMALL_SEGMENT
        elif size < OWN_SEGMENT:
            nbytes = LARGE_SEGMENT
        else:
            nbytes = -(-size // ROUND_SEGMENT) * ROUND_SEGMENT
        limit = self.capacity if self.limit is None else min(self.limit, self.capacity)
        if self.reserved + nbytes > limit:
            self.freed_on_retry += self.empty_cache()
            self.retries += 1
            if self.reserved + nbytes > limit:
                self.ooms += 1
                raise OutOfMemory(nbytes)
        block = Block(pool, self._next_address, nbytes)
        self._next_address += nbytes
        self._segments[block.address] = (block, nbytes)
        for statistics in (self._all, pool.statistics):
            statistics.segment.increase(1)
            statistics.reserved_bytes.increase(nbytes)
        if self.trace is not None:
            self.trace.append(TraceEntry("segment_alloc", block.address, nbytes, pool.stream))
        return block

    def _split_changed(self, pool: _Pool, blocks: int, nbytes: int) -> None:
        self._all.split_changed(blocks, nbytes)
        pool.statistics.split_changed(blocks, nbytes)


def _remove(free: list[_FreeBlock], block: Block) -> None:
    del free[bisect_left(free, (block.size, block.address))]


def _blocks_from(first: Block) -> list[Block]:
    blocks: list[Block] = []
    block: Block | None = first
    while block is not None:
        blocks.append(block)
        block = block.after
    return blocks
