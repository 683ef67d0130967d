"""GS713: unified memory, whose copies and waits no call shows."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.catalogue import registry
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.rules.base.context import Report, Rule, RuleContext, arguments, keyword_is

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENTRIES = {
    name: key
    for key, barrier in registry.all_barriers().items()
    if key.endswith("managed-memory")
    for name in barrier.functions
}
"""The entries of what allocates unified memory, by dotted names."""
_TAKE_ALLOCATOR = ("cupy.cuda.set_allocator", "cupy.cuda.using_allocator", "cupy.cuda.MemoryPool")
"""Functions and classes that are given the function that allocates."""
_SWITCHED = {"rmm.reinitialize": "managed_memory"}
"""Functions that set up unified memory only with an argument."""


class ManagedMemory(Rule):
    """`cuda.managed_array(...)`, `cupy.cuda.set_allocator(cupy.cuda.malloc_managed)`, RMM's managed memory."""

    nodes = (ast.Call,)
    calls = (*_ENTRIES, *_TAKE_ALLOCATOR)
    barriers = tuple(dict.fromkeys(_ENTRIES.values()))
    VALID: ClassVar = (
        "import rmm\nrmm.reinitialize(pool_allocator=True)",
        "import cupy\ncupy.cuda.set_allocator(cupy.cuda.MemoryPool().malloc)",
        "torch.cuda.memory.CUDAPluggableAllocator('a.so', 'alloc', 'free')",
    )
    INVALID: ClassVar = (
        "import rmm\nrmm.reinitialize(managed_memory=True)",
        "import cupy\ncupy.cuda.set_allocator(cupy.cuda.malloc_managed)",
        "import cupy\npool = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)",
        "from numba import cuda\nshared = cuda.managed_array(4, dtype='f4')",
    )

    def check(self, node: ast.Call, context: RuleContext) -> Iterator[Report]:
        """Check a call."""
        called = context.qualified_name(node.func)
        entry = _ENTRIES.get(called)
        if called in _SWITCHED and not keyword_is(node, _SWITCHED[called], const=True):
            return
        if entry is None and called in _TAKE_ALLOCATOR:
            given = (_ENTRIES.get(context.qualified_name(argument)) for argument in arguments(node))
            entry = next((one for one in given if one is not None), None)
        if entry is not None:
            yield Report(entry, node, Confidence.HIGH, heat=Heat.EPOCH)
