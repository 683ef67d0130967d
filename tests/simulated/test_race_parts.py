"""The parts that look for races: extents, clocks and histories."""

from __future__ import annotations

import gc
import itertools

import numpy
import pytest
import torch

from pytest_gpusync import record, simulated_cuda
from pytest_gpusync.simulated.races import clocks
from pytest_gpusync.simulated.races.clocks import Timeline
from pytest_gpusync.simulated.races.extents import of_strided, of_tensor, overlap

X = torch.empty(8, 10)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (X[:4], X[4:], False),
        (X[:5], X[4:], True),
        (X[:, :5], X[:, 5:], False),
        (X[:, :6], X[:, 5:], True),
        (X[:, ::2], X[:, 1::2], False),
        (X[::2], X[1::2], False),
        (X[::2, 3], X[::3, 3], True),
        (X.t(), X[7, 9:], True),
        (X[2:4, 2:4], X[3, 4:], False),
        (X[:1].expand(8, 10), X[1:], False),
    ],
)
def test_tensors_share_bytes_or_not(one, other, shared):
    assert overlap(of_tensor(one), of_tensor(other)) is shared
    assert overlap(of_tensor(other), of_tensor(one)) is shared


def test_a_reversed_array_covers_the_bytes_of_its_elements():
    array = numpy.zeros(10, dtype=numpy.float32)
    start = array.__array_interface__["data"][0]
    backwards = array[::-1]
    extent = of_strided(backwards.__array_interface__["data"][0], backwards.shape, backwards.strides, 4)
    assert extent == (start, start + 40, None)


def test_an_event_covers_the_work_before_it():
    one, other = Timeline(0, "one"), Timeline(0, "other")
    first = one.clock
    event = one.snapshot()
    second = one.clock
    other.wait(event)
    assert other.has_seen(one, first)
    assert not other.has_seen(one, second)


def test_waiting_is_transitive():
    streams = [Timeline(0, str(n)) for n in range(3)]
    first = streams[0].clock
    for before, after in itertools.pairwise(streams):
        after.wait(before.snapshot())
    assert streams[2].has_seen(streams[0], first)


@pytest.fixture
def host():
    """A pinned tensor that a copy fills or reads, whether it was ordered, and the region that sees it."""

    def run(use, *, fills: bool = True) -> list[str]:
        with simulated_cuda(), record() as seen:
            x = torch.ones(16, device="cuda")
            pinned = torch.zeros(16, pin_memory=True)
            array = pinned.numpy()
            if fills:
                pinned.copy_(x, non_blocking=True)
            else:
                x.copy_(pinned, non_blocking=True)
            use(pinned, array)
        return [race.kind for race in seen.races]

    return run


READS = {
    "operator": lambda t, a: t + 1,
    "item": lambda t, a: t[3].item(),
    "tolist": lambda t, a: t.tolist(),
    "print": lambda t, a: str(t),
    "bool": lambda t, a: bool(t[0]),
    "iteration": lambda t, a: [float(x) for x in t],
    "copy.deepcopy": lambda t, a: __import__("copy").deepcopy(t),
    "pickle": lambda t, a: __import__("pickle").dumps(t),
    "torch.save": lambda t, a: torch.save(t, __import__("io").BytesIO()),
    "numpy.asarray": lambda t, a: numpy.asarray(t),
    "array element": lambda t, a: a[3],
    "array method": lambda t, a: a.sum(),
    "array operator": lambda t, a: a + 1,
    "array function": lambda t, a: numpy.concatenate([a, a]),
    "array view": lambda t, a: a.reshape(4, 4)[1:].max(),
    "array iteration": lambda t, a: list(a),
    "array print": lambda t, a: str(a),
    "stack": lambda t, a: torch.stack([t, t]),
    "view": lambda t, a: t.view(4, 4)[1].clone(),
    "linear": lambda t, a: torch.nn.functional.linear(t.view(4, 4), torch.ones(4, 4)),
}
WRITES = {
    "fill": lambda t, a: t.fill_(2),
    "copy": lambda t, a: t.copy_(torch.ones(16)),
    "out": lambda t, a: torch.add(torch.ones(16), 1, out=t),
    "element": lambda t, a: t.__setitem__(2, 5.0),
    "view": lambda t, a: t[4:].zero_(),
    "array element": lambda t, a: a.__setitem__(2, 5.0),
    "array slice": lambda t, a: a[2:].__setitem__(slice(None), 5.0),
    "array in place": lambda t, a: a.__iadd__(1),
    "array out": lambda t, a: numpy.add(1.0, 2.0, out=a),
    "array fill": lambda t, a: a.fill(3),
    "numpy.copyto": lambda t, a: numpy.copyto(a, 3),
    "foreach": lambda t, a: torch._foreach_add_([t], 1.0),
}
HARMLESS = {
    "shape": lambda t, a: (t.shape, a.shape, t.numel(), len(t)),
    "view": lambda t, a: t.view(4, 4)[1:],
    "detach": lambda t, a: t.detach(),
    "like": lambda t, a: torch.zeros_like(t),
    "array view": lambda t, a: a.reshape(4, 4)[1:],
    "is_pinned": lambda t, a: t.is_pinned(),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_of_memory_that_a_copy_fills_is_seen(host, name):
    assert set(host(READS[name])) == {"host-read"}


@pytest.mark.parametrize("name", READS)
def test_memory_that_a_copy_reads_may_be_read(host, name):
    assert host(READS[name], fills=False) == []


@pytest.mark.parametrize("name", WRITES)
def test_a_write_to_memory_that_a_copy_reads_is_seen(host, name):
    assert "host-write" in host(WRITES[name], fills=False)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_looks_at_no_element_is_silent(host, name):
    assert host(HARMLESS[name]) == []


@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_after_a_wait_the_host_may_do_anything(host, name):
    use = {**READS, **WRITES}[name]

    def wait_first(tensor, array):
        torch.cuda.current_stream().synchronize()
        use(tensor, array)

    assert host(wait_first) == host(wait_first, fills=False) == []


def test_an_array_over_pinned_memory_behaves_as_any_other():
    with simulated_cuda(), record():
        array = torch.arange(6.0).pin_memory().numpy()
        assert isinstance(array, numpy.ndarray)
        assert repr(array) == repr(numpy.arange(6, dtype=numpy.float32))
        assert (array * 2).tolist() == [0, 2, 4, 6, 8, 10]
        assert type(array.copy()) is numpy.ndarray
        array += 1
        assert array.sum() == 21


def test_a_later_region_knows_nothing_of_copies_before_it():
    with simulated_cuda():
        x = torch.ones(4, device="cuda")
        with record() as before:
            host = x.to("cpu", non_blocking=True)
        with record() as seen:
            host.sum()
    assert (before.races, seen.races) == ((), ())


def test_the_same_two_lines_are_one_race_that_happened_several_times():
    with simulated_cuda(), record() as seen:
        x = torch.ones(4, device="cuda")
        for _ in range(3):
            x.to("cpu", non_blocking=True).sum()
    (race,) = seen.races
    assert (race.times, race.site.line, race.other.line) == (3, race.site.line, race.site.line)


def test_a_region_that_does_not_look_for_races_says_so():
    with simulated_cuda(), record(races=False) as seen:
        torch.ones(4, device="cuda").to("cpu", non_blocking=True).sum()
    assert seen.result().races is None


def test_steps_are_followed_again_when_a_side_stream_is_used_at_a_new_line():
    with simulated_cuda(), record() as seen:
        side = torch.cuda.Stream()
        x = torch.ones(4, device="cuda")
        for step in range(30):
            with torch.cuda.stream(side):
                pass
            if step == 20:
                x.add_(1)
                with torch.cuda.stream(side):
                    x.mul(2)
                with torch.cuda.stream(side):
                    x.mul(2)
            x.add_(1)
            seen.mark_step()
    assert {race.kind for race in seen.races} == {"stream"}


def test_a_stream_of_the_pool_exists_while_one_of_its_objects_does():
    with simulated_cuda():
        first = torch.cuda.Stream()
        later = [torch.cuda.Stream() for _ in range(32)]
        assert later[-1] == first
        del later
        gc.collect()
        assert clocks.any_side_stream()
        del first
        gc.collect()
        assert not clocks.any_side_stream()


def test_a_dispatch_mode_of_the_program_sees_operators_on_pinned_memory(cuda):
    from torch.utils.flop_counter import FlopCounterMode

    pinned = torch.ones(4, 4).pin_memory()
    with FlopCounterMode(display=False) as counter:
        result = pinned @ pinned
        copied = pinned.to("cuda", non_blocking=True)
    assert (counter.get_total_flops(), result[0, 0].item(), copied.sum().item()) == (2 * 4**3, 4.0, 16.0)


@pytest.mark.parametrize("releases", [False, True], ids=["bound to the next tensor", "deleted"])
@pytest.mark.parametrize("records", [False, True], ids=["not recorded", "recorded"])
def test_memory_of_a_side_stream_is_given_out_again_while_the_main_stream_reads_it(cuda, releases, records):
    side, host = torch.cuda.Stream(), torch.ones(1 << 18).pin_memory()
    main = torch.cuda.current_stream()
    with record() as seen:
        for _ in range(6):
            with torch.cuda.stream(side):
                x = host.to("cuda", non_blocking=True)
            main.wait_stream(side)
            _y = x * 2  # memory of the main stream, which is in order
            if records:
                x.record_stream(main)
            if releases:
                del x
    assert [race.kind for race in seen.races] == ([] if records else ["allocator"])
