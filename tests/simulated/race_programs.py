"""Programs with several streams, pinned buffers, graphs and collectives that order all they do, and mutants of each.

A mutant replaces parts of a program's text. The lines that race in it are named by the comments at their ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """One wait removed, moved or put in the wrong place; or memory used too early."""

    name: str
    program: str
    changes: tuple[tuple[str, str], ...]
    later: str
    earlier: str


PROGRAMS = {
    "double_buffer": """
buffers = [torch.empty(N, pin_memory=True) for _ in range(2)]
done = [torch.cuda.Event() for _ in range(2)]
weight = torch.ones(N, device="cuda")
total = torch.zeros((), device="cuda")
for step in range(6):
    k = step % 2
    if step >= 2:
        done[k].synchronize()
    buffers[k].fill_(float(step))  # fill
    batch = buffers[k].to("cuda", non_blocking=True)  # copy
    done[k].record()
    total += (batch * weight).sum()
assert total.item() == 15 * N
""",
    "numpy_ring": """
buffers = [torch.empty(4, N, pin_memory=True) for _ in range(3)]
arrays = [buffer.numpy() for buffer in buffers]
done = [None] * 3
out = []
for step in range(7):
    k = step % 3
    if done[k] is not None:
        done[k].synchronize()
    for row in range(4):
        arrays[k][row] = step + row  # fill
    out.append(buffers[k].to("cuda", non_blocking=True))  # copy
    done[k] = torch.cuda.Event()
    done[k].record()
assert torch.stack(out).mean().item() == 4.5
""",
    "prefetcher": """
side = torch.cuda.Stream()
other = torch.cuda.Stream()
main = torch.cuda.current_stream()
pinned = [torch.full((N,), float(step)).pin_memory() for step in range(6)]
weight = torch.ones(N, device="cuda")
def fetch(step):
    with torch.cuda.stream(side):
        return pinned[step].to("cuda", non_blocking=True)  # copy
batch = fetch(0)
for step in range(6):
    main.wait_stream(side)
    current = batch
    current.record_stream(main)
    if step < 5:
        batch = fetch(step + 1)
    result = current * weight  # use
    del current
assert result.mean().item() == 5
""",
    "prefetch_by_event": """
side = torch.cuda.Stream()
ready = [torch.cuda.Event() for _ in range(2)]
free = [torch.cuda.Event() for _ in range(2)]
static = [torch.zeros(N, device="cuda") for _ in range(2)]
host = torch.arange(float(8 * N)).view(8, N).pin_memory()
side.wait_stream(torch.cuda.current_stream())
for step in range(8):
    k = step % 2
    with torch.cuda.stream(side):
        side.wait_event(free[k])
        static[k].copy_(host[step], non_blocking=True)  # copy
        ready[k].record()
    torch.cuda.current_stream().wait_event(ready[k])
    y = static[k] * 2  # use
    free[k].record()
assert y[0].item() == 14 * N
""",
    "offload": """
side = torch.cuda.Stream()
main = torch.cuda.current_stream()
store = [torch.empty(N, pin_memory=True) for _ in range(4)]
done = [torch.cuda.Event() for _ in range(4)]
x = torch.zeros(N, device="cuda")
for layer in range(4):
    x.add_(1)  # compute
    side.wait_stream(main)
    with torch.cuda.stream(side):
        store[layer].copy_(x, non_blocking=True)  # copy
        done[layer].record()
    main.wait_event(done[layer])
for layer in range(4):
    done[layer].synchronize()
    assert store[layer][0] == layer + 1  # read
""",
    "reload": """
side = torch.cuda.Stream()
main = torch.cuda.current_stream()
state = torch.ones(N, pin_memory=True)
for step in range(3):
    with torch.cuda.stream(side):
        on_device = state.to("cuda", non_blocking=True)  # load
    main.wait_stream(side)
    updated = on_device + 1  # update
    side.wait_stream(main)
    with torch.cuda.stream(side):
        state.copy_(updated, non_blocking=True)  # store
    updated.record_stream(side)
    on_device.record_stream(main)
side.synchronize()
total = state.sum()  # read
assert total == 4 * N
""",
    "deferred_read": """
weight = torch.ones(N, device="cuda")
host = [torch.empty((), pin_memory=True) for _ in range(2)]
done = [torch.cuda.Event() for _ in range(2)]
losses = []
for step in range(6):
    loss = (weight * step).mean()
    k = step % 2
    host[k].copy_(loss, non_blocking=True)  # copy
    done[k].record()
    if step:
        done[1 - k].synchronize()
        losses.append(float(host[1 - k]))  # read
assert losses == [0, 1, 2, 3, 4]
""",
    "graph": """
side = torch.cuda.Stream()
main = torch.cuda.current_stream()
x = torch.zeros(N, device="cuda")
host = [torch.full((N,), float(step)).pin_memory() for step in range(2)]
done = [None, None]
graph = torch.cuda.CUDAGraph()
side.wait_stream(main)
with torch.cuda.stream(side):
    y = x * 2
main.wait_stream(side)
with torch.cuda.graph(graph):
    y = x * 2
results = []
for step in range(4):
    k = step % 2
    if done[k] is not None:
        done[k].synchronize()
    host[k].fill_(float(step))  # fill
    side.wait_stream(main)
    with torch.cuda.stream(side):
        x.copy_(host[k], non_blocking=True)  # copy
        done[k] = side.record_event()
    main.wait_stream(side)
    graph.replay()  # replay
    out = y.to("cpu", non_blocking=True)  # result
    main.synchronize()
    results.append(out[0].item())  # read
assert results == [0, 2, 4, 6]
""",
    "collective": """
grads = [torch.full((N,), float(n), device="cuda") for n in range(3)]
work = []
for grad in grads:
    work.append(dist.all_reduce(grad, async_op=True))  # reduce
for handle, grad in zip(work, grads):
    handle.wait()
    grad.mul_(0.5)  # scale
gathered = torch.empty(N, device="cuda")
handle = dist.all_gather_into_tensor(gathered, grads[1], async_op=True)  # gather
busy = torch.ones(N, device="cuda") * 3
handle.wait()
grads[1].zero_()  # clear
assert gathered.sum().item() == 0.5 * N  # sum
""",
    "short_lived_tensors": """
side = torch.cuda.Stream()
main = torch.cuda.current_stream()
weight = torch.ones(N, device="cuda")
for step in range(20):
    with torch.cuda.stream(side):
        batch = torch.full((N,), float(step), device="cuda")
        batch = batch + 1
    main.wait_stream(side)
    batch.record_stream(main)
    y = (batch * weight + 1).relu() - 1
    for _ in range(3):
        y = y + 1
assert y.mean().item() == 23
""",
    "a_stream_for_each_step": """
main = torch.cuda.current_stream()
kept = []
for step in range(150):
    stream = torch.cuda.Stream()
    stream.wait_stream(main)
    with torch.cuda.stream(stream):
        kept.append(torch.full((N,), float(step), device="cuda"))
    main.wait_stream(stream)
assert torch.stack(kept).mean().item() == 74.5
""",
    "two_halves": """
left, right = torch.cuda.Stream(), torch.cuda.Stream()
main = torch.cuda.current_stream()
x = torch.ones(8, N, device="cuda")
out = torch.empty(8, 2 * N, device="cuda")
left.wait_stream(main)
right.wait_stream(main)
with torch.cuda.stream(left):
    out[:, :N] = x * 2  # left
with torch.cuda.stream(right):
    out[:, N:] = x * 3  # right
main.wait_stream(left)
main.wait_stream(right)
total = out.sum()  # sum
assert total.item() == 40 * N
""",
}

_IDLE = ("N = ", "idle = torch.cuda.Stream()\nN = ")
"""A stream that does nothing."""


def _of(program: str, later: str, earlier: str, *mutants: Any) -> list[Mutant]:
    return [Mutant(name, program, tuple(changes), later, earlier) for name, *changes in mutants]


MUTANTS = [
    *_of(
        "double_buffer",
        "fill",
        "copy",
        ("no_wait", ("done[k].synchronize()", "pass")),
        (
            "recorded_before_the_copy",
            ("    done[k].record()\n", ""),
            ("    batch =", "    done[k].record()\n    batch ="),
        ),
        ("one_buffer", ("k = step % 2", "k = 0")),
        (
            "waits_after_the_fill",
            ("    if step >= 2:\n        done[k].synchronize()\n", ""),
            ("    batch =", "    done[k].synchronize()\n    batch ="),
        ),
        ("recorded_on_another_stream", _IDLE, ("done[k].record()", "done[k].record(idle)")),
        ("waits_for_another_stream", _IDLE, ("done[k].synchronize()", "idle.synchronize()")),
    ),
    *_of(
        "numpy_ring",
        "fill",
        "copy",
        ("no_wait", ("done[k].synchronize()", "pass")),
        (
            "recorded_before_the_copy",
            ("    done[k].record()\n", ""),
            ("    done[k] = torch.cuda.Event()\n", ""),
            ("    out.append", "    done[k] = torch.cuda.Event()\n    done[k].record()\n    out.append"),
        ),
        (
            "waits_after_the_fill",
            ("    if done[k] is not None:\n        done[k].synchronize()\n", ""),
            ("    out.append", "    if done[k] is not None:\n        done[k].synchronize()\n    out.append"),
        ),
    ),
    *_of(
        "numpy_ring",
        "refill",
        "copy",
        ("refilled_at_once", ("    done[k].record()\n", "    done[k].record()\n    arrays[k][3] = -1  # refill\n")),
    ),
    *_of(
        "prefetcher",
        "use",
        "copy",
        ("no_wait", ("main.wait_stream(side)", "pass")),
        ("waits_for_another_stream", ("main.wait_stream(side)", "main.wait_stream(other)")),
        (
            "waits_before_the_copy",
            ("    main.wait_stream(side)\n", ""),
            ("def fetch(step):\n", "def fetch(step):\n    main.wait_stream(side)\n"),
        ),
        ("uses_the_next_batch", ("current * weight", "batch * weight")),
    ),
    *_of("prefetcher", "copy", "use", ("no_record_stream", ("    current.record_stream(main)\n", ""))),
    *_of(
        "prefetcher",
        "refill",
        "copy",
        ("refilled_at_once", ("    result =", "    pinned[min(step + 1, 5)].add_(0)  # refill\n    result =")),
    ),
    *_of(
        "prefetch_by_event",
        "use",
        "copy",
        ("no_wait_for_the_copy", ("    torch.cuda.current_stream().wait_event(ready[k])\n", "")),
        (
            "recorded_before_the_copy",
            ("        ready[k].record()\n", ""),
            ("        static[k].copy_", "        ready[k].record()\n        static[k].copy_"),
        ),
        ("recorded_on_the_default_stream", ("ready[k].record()", "ready[k].record(torch.cuda.default_stream())")),
        ("the_wrong_stream_waits", ("torch.cuda.current_stream().wait_event(ready", "side.wait_event(ready")),
    ),
    *_of(
        "prefetch_by_event",
        "copy",
        "use",
        ("no_wait_for_the_use", ("        side.wait_event(free[k])\n", "")),
        (
            "recorded_before_the_use",
            ("    free[k].record()\n", ""),
            ("    y =", "    free[k].record()\n    y ="),
        ),
        ("one_buffer", ("static[k].copy_", "static[0].copy_"), ("static[k] * 2", "static[0] * 2")),
    ),
    *_of(
        "offload",
        "copy",
        "compute",
        ("the_side_stream_does_not_wait", ("    side.wait_stream(main)\n", "")),
        (
            "waits_after_the_copy",
            ("    side.wait_stream(main)\n", ""),
            ("    main.wait_event", "    side.wait_stream(main)\n    main.wait_event"),
        ),
    ),
    *_of(
        "offload",
        "read",
        "copy",
        ("no_wait", ("    done[layer].synchronize()\n", ""), ("    main.wait_event(done[layer])\n", "")),
        ("waits_for_another_stream", _IDLE, ("done[layer].synchronize()", "idle.synchronize()")),
        ("the_event_of_the_layer_before", ("done[layer].synchronize()", "done[max(layer - 1, 0)].synchronize()")),
        (
            "recorded_before_the_copy",
            ("        done[layer].record()\n", ""),
            ("        store[layer].copy_", "        done[layer].record()\n        store[layer].copy_"),
        ),
    ),
    *_of(
        "offload",
        "compute",
        "copy",
        ("overwritten_during_the_copy", ("    main.wait_event(done[layer])\n", "")),
    ),
    *_of("reload", "update", "load", ("no_wait_for_the_load", ("    main.wait_stream(side)\n", ""))),
    *_of("reload", "store", "update", ("no_wait_for_the_update", ("    side.wait_stream(main)\n", ""))),
    *_of(
        "reload",
        "read",
        "store",
        ("no_wait_for_the_store", ("side.synchronize()\n", "")),
        ("waits_for_the_wrong_stream", ("side.synchronize()", "main.synchronize()")),
    ),
    *_of(
        "reload",
        "load",
        "store",
        (
            "stored_by_the_wrong_stream",
            (
                "    with torch.cuda.stream(side):\n        state.copy_",
                "    with torch.cuda.stream(main):\n        state.copy_",
            ),
        ),
    ),
    *_of(
        "deferred_read",
        "read",
        "copy",
        ("no_wait", ("        done[1 - k].synchronize()\n", "")),
        ("reads_this_step", ("float(host[1 - k])", "float(host[k])")),
        (
            "recorded_before_the_copy",
            ("    done[k].record()\n", ""),
            ("    host[k].copy_", "    done[k].record()\n    host[k].copy_"),
        ),
    ),
    *_of(
        "graph",
        "replay",
        "copy",
        ("no_wait", ("    main.wait_stream(side)\n    graph", "    graph")),
        (
            "waits_after_the_replay",
            (
                "    main.wait_stream(side)\n    graph.replay()  # replay\n",
                "    graph.replay()  # replay\n    main.wait_stream(side)\n",
            ),
        ),
        (
            "waits_for_another_stream",
            _IDLE,
            ("    main.wait_stream(side)\n    graph", "    main.wait_stream(idle)\n    graph"),
        ),
    ),
    *_of("graph", "read", "result", ("no_wait_for_the_result", ("    main.synchronize()\n", ""))),
    *_of(
        "graph",
        "refill",
        "copy",
        ("refilled_at_once", ("    graph.replay()", "    host[k].fill_(-1.0)  # refill\n    graph.replay()")),
    ),
    *_of(
        "collective",
        "scale",
        "reduce",
        ("no_wait", ("    handle.wait()\n    grad", "    grad")),
        (
            "waits_after_the_use",
            ("    handle.wait()\n    grad.mul_(0.5)  # scale\n", "    grad.mul_(0.5)  # scale\n    handle.wait()\n"),
        ),
        ("waits_for_the_first_only", ("    handle.wait()", "    work[0].wait()")),
    ),
    *_of(
        "collective",
        "clear",
        "gather",
        ("no_wait_for_the_gather", ("\nhandle.wait()\n", "\n")),
        (
            "cleared_before_the_wait",
            ("\nhandle.wait()\ngrads[1].zero_()  # clear\n", "\ngrads[1].zero_()  # clear\nhandle.wait()\n"),
        ),
    ),
    *_of("two_halves", "right", "left", ("one_column_too_many", ("out[:, N:]", "out[:, N - 1:-1]"))),
    *_of("two_halves", "sum", "left", ("no_wait_for_the_left_half", ("main.wait_stream(left)\n", ""))),
    *_of("two_halves", "sum", "right", ("no_wait_for_the_right_half", ("main.wait_stream(right)\n", ""))),
]
