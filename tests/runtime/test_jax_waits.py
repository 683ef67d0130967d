"""Waits of JAX, counted at its own seam: with a stand-in for it, and with JAX itself on the CPU if installed."""

from __future__ import annotations

import sys
import types

import pytest

from pytest_gpusync import record
from pytest_gpusync.measure.recording import allow, uncounted
from pytest_gpusync.recorders import jax_waits


class Device:
    def __init__(self, platform="gpu", number=0):
        self.platform, self.local_hardware_id = platform, number


class StandIn:
    """An array as JAX's is, as far as its waits go."""

    nbytes = 16

    def __init__(self, device=None, fails=False):
        self._npy_value = None
        self._device = device or Device()
        self._fails = fails

    def devices(self):
        return {self._device}

    @property
    def _value(self):
        if self._fails:
            raise RuntimeError("Array has been deleted")
        self._npy_value = [1.0]
        return self._npy_value

    def block_until_ready(self):
        return self

    def __float__(self):
        return self._value[0]


@pytest.fixture
def jax(monkeypatch):
    """Put the modules of a JAX in place that has only what waits."""
    array, api, dispatch = (types.ModuleType(f"jax._src.{name}") for name in ("array", "api", "dispatch"))
    array.ArrayImpl = type("ArrayImpl", (), dict(StandIn.__dict__))
    api.xc = types.ModuleType("xla_client")
    api.xc.batched_block_until_ready = lambda arrays: [array.block_until_ready() for array in arrays]

    class RuntimeTokenSet:
        def __init__(self, *devices):
            self.current_tokens, self.output_runtime_tokens = {}, dict.fromkeys(devices)

        def block_until_ready(self):
            return None

    dispatch.RuntimeTokenSet = RuntimeTokenSet
    for module in (array, api, dispatch):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "jaxlib", types.ModuleType("jaxlib"))
    return types.SimpleNamespace(Array=array.ArrayImpl, xc=api.xc, Tokens=RuntimeTokenSet)


def kinds(region):
    return [(sync.kind, sync.direction, sync.nbytes) for sync in region.result().all_syncs]


def test_a_value_is_a_copy_that_waits(scripted, jax):
    with record() as region:
        assert float(jax.Array()) == 1.0
    assert kinds(region) == [("copy", "D2H", 16)]
    (sync,) = region.result().all_syncs
    assert sync.site.path.endswith("test_jax_waits.py")
    assert sync.device == 0
    assert sync.blocked_ns >= 0


def test_a_value_that_jax_has_kept_is_no_wait(scripted, jax):
    array = jax.Array()
    with record() as region:
        float(array)
        float(array)
    assert region.syncs == 1


def test_blocking_is_an_event(scripted, jax):
    with record() as region:
        jax.Array().block_until_ready()
    assert kinds(region) == [("event", None, None)]


def test_blocking_for_several_arrays_is_one_wait(scripted, jax):
    with record() as region:
        jax.xc.batched_block_until_ready([jax.Array(), jax.Array()])
    assert region.syncs == 1


def test_waiting_for_effects_is_one_wait_where_there_are_any(scripted, jax):
    with record() as region:
        jax.Tokens().block_until_ready()
        jax.Tokens(Device()).block_until_ready()
    assert region.syncs == 1


def test_what_is_on_the_cpu_does_not_count(scripted, jax):
    with record() as region:
        float(jax.Array(Device("cpu")))
        jax.Array(Device("cpu")).block_until_ready()
    assert region.syncs == 0


def test_what_the_driver_sees_of_it_does_not_count_beside_it(scripted, jax):
    fetch = jax.Array._value.fget

    def fetched(array):
        scripted.sync("pageable")
        scripted.note()
        return fetch(array)

    jax.Array._value = property(fetched)
    with record() as region:
        scripted.note()
        float(jax.Array())
        scripted.note()
    assert sorted(kind for kind, _, _ in kinds(region)) == ["copy", "stream", "stream"]


def test_a_wait_that_raises_counts_and_raises(scripted, jax):
    with record() as region, pytest.raises(RuntimeError, match="deleted"):
        float(jax.Array(fails=True))
    assert region.syncs == 1


def test_waits_are_allowed_and_left_aside_as_others_are(scripted, jax):
    with record() as region:
        with allow("needed"):
            float(jax.Array())
        with uncounted():
            float(jax.Array())
    assert region.syncs == 0
    assert [sync.allowed for sync in region.result().all_syncs] == ["needed"]


def test_the_entry_points_are_restored(scripted, jax):
    before = [vars(owner)[name] for owner, name in ((jax.Array, "_value"), (jax.Array, "block_until_ready"))]
    with record():
        assert vars(jax.Array)["_value"] is not before[0]
    assert [vars(jax.Array)[name] for name in ("_value", "block_until_ready")] == before


def test_a_jax_that_is_imported_in_the_region_is_followed_from_the_next_step_on(scripted, jax, monkeypatch):
    module = sys.modules["jax._src.array"]
    monkeypatch.delitem(sys.modules, "jax._src.array")
    with record(warmup=0) as region:
        float(jax.Array())
        sys.modules["jax._src.array"] = module
        region.mark_step()
        float(jax.Array())
        region.mark_step()
    assert region.syncs == 1


def test_the_note_says_that_jax_is_counted(scripted, jax):
    with record() as region:
        pass
    assert region.result().environment.note == jax_waits.COUNTED


def test_a_jax_that_is_not_as_it_is_known_is_left_alone_and_the_note_says_so(scripted, jax):
    del jax.Array._value
    with record() as region:
        pass
    assert "cannot see waits of JAX" in region.result().environment.note


def test_frameworks_that_are_loaded_are_named(scripted, monkeypatch):
    for name in ("cupy", "numba.cuda"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    with record() as region:
        pass
    assert region.result().environment.note == "CuPy and Numba are counted at the driver"


# With JAX itself. On the CPU numpy reads arrays through the buffer protocol, which JAX does not offer for a GPU.

READS = {
    "float": (lambda x: float(x.sum()), 1),
    "int": (lambda x: int(x.sum()), 1),
    "branch": (lambda x: bool(x[0] > 0), 1),
    "text": (lambda x: str(x), 1),
    "format": (lambda x: f"{x.sum():.2f}", 1),
    "tolist": (lambda x: x.tolist(), 1),
    "device_get": (lambda x: sys.modules["jax"].device_get(x), 1),
    "device_get of two": (lambda x: sys.modules["jax"].device_get([x, x + 1]), 2),
    "nonzero": (lambda x: sys.modules["jax"].numpy.nonzero(x), 1),
    "block_until_ready": (lambda x: x.block_until_ready(), 1),
    "jax.block_until_ready": (lambda x: sys.modules["jax"].block_until_ready(x), 1),
    "jax.block_until_ready of two": (lambda x: sys.modules["jax"].block_until_ready([x, x + 1]), 1),
    "add": (lambda x: x + 1, 0),
    "copy_to_host_async": (lambda x: x.copy_to_host_async(), 0),
    "is_ready": (lambda x: x.is_ready(), 0),
    "shape": (lambda x: x.shape, 0),
}


@pytest.mark.parametrize("name", READS)
def test_jax_itself_is_counted(scripted, monkeypatch, name):
    jax = pytest.importorskip("jax")
    monkeypatch.setattr(jax_waits, "PLATFORMS", frozenset({"cpu"}))
    read, waits = READS[name]
    x = jax.numpy.ones(4)
    read(x * 2)
    y = x * 3
    with record() as region:
        read(y)
    assert region.syncs == waits
    if waits:
        assert region.sites[0].site.path.endswith("test_jax_waits.py")
    assert region.result().environment.note == jax_waits.COUNTED
