"""Whatever form the code has, the line that makes the call is charged, once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import linecache

import pytest

from pytest_gpusync import record


def lines_of(region):
    """Return (function, text of the line) of every sync."""
    return [
        (
            sync.site.function.rsplit(".", 1)[-1],
            linecache.getline(__file__, sync.site.line).strip().split("#")[0].strip(),
        )
        for sync in region.result().all_syncs
    ]


def test_an_async_function_is_charged_at_its_own_line(scripted):
    async def waits():
        await asyncio.sleep(0)
        scripted.sync()

    async def outer():
        await waits()

    with record() as region:
        asyncio.run(outer())
    assert lines_of(region) == [("waits", "scripted.sync()")]


def test_tasks_that_take_turns_are_each_charged_at_their_own_line(scripted):
    async def one():
        await asyncio.sleep(0)
        scripted.sync()

    async def other():
        scripted.sync(kind="event")
        await asyncio.sleep(0)

    async def both():
        await asyncio.gather(one(), other())

    with record() as region:
        asyncio.run(both())
    assert sorted(lines_of(region)) == [("one", "scripted.sync()"), ("other", 'scripted.sync(kind="event")')]


def test_a_generator_is_charged_at_its_own_line(scripted):
    def batches():
        for number in range(2):
            scripted.sync()
            yield number

    with record() as region:
        assert list(batches()) == [0, 1]
    assert lines_of(region) == [("batches", "scripted.sync()")] * 2


def test_a_generator_expression_is_charged_at_its_line(scripted):
    with record() as region:
        any(scripted.sync() for _ in range(3))
    assert {text for _, text in lines_of(region)} == {"any(scripted.sync() for _ in range(3))"}
    assert region.syncs == 3


def test_a_decorator_of_the_projects_does_not_take_the_charge(scripted):
    def twice(function):
        @functools.wraps(function)
        def wrapper():
            function()
            function()

        return wrapper

    @twice
    def step():
        scripted.sync()

    with record() as region:
        step()
    assert lines_of(region) == [("step", "scripted.sync()")] * 2


def test_a_context_manager_is_charged_where_it_waits(scripted):
    @contextlib.contextmanager
    def timed():
        yield
        scripted.sync()

    with record() as region, timed():
        pass
    assert lines_of(region) == [("timed", "scripted.sync()")]


def test_a_property_and_a_lambda_are_charged_at_their_own_lines(scripted):
    class Meter:
        @property
        def value(self):
            return scripted.sync()

    read = lambda: scripted.sync()  # noqa: E731
    with record() as region:
        Meter().value  # noqa: B018
        read()
    assert [function for function, _ in lines_of(region)] == ["value", "<lambda>"]


def test_code_run_by_exec_is_charged_to_the_line_that_ran_it(scripted):
    with record() as region:
        exec("scripted.sync()", {"scripted": scripted, "__name__": "made_up"})
    ((function, text),) = lines_of(region)
    assert text.startswith('exec("scripted.sync()"')
    assert function == "test_code_run_by_exec_is_charged_to_the_line_that_ran_it"


@pytest.mark.parametrize("filename", ["<ipython-input-7-0123456789ab>", "/tmp/ipykernel_4711/1234.py"])
def test_a_notebook_cell_is_charged_as_itself(scripted, filename):
    cell = compile("x = 1\nscripted.sync()\n", filename, "exec")
    with record() as region:
        exec(cell, {"scripted": scripted, "__name__": "__main__"})
    (site,) = region.sites
    assert (site.site.path, site.site.line) == (filename, 2)


def test_two_cells_of_the_same_text_are_two_sites(scripted):
    text = "scripted.sync()\n"
    with record() as region:
        for number in (1, 2):
            exec(compile(text, f"<ipython-input-{number}-x>", "exec"), {"scripted": scripted})
    assert len(region.sites) == 2


def test_code_whose_file_does_not_exist_is_charged_by_its_name(scripted):
    with record() as region:
        exec(compile("\n\nscripted.sync()", "generated/kernel_wrapper.py", "exec"), {"scripted": scripted})
    (site,) = region.sites
    assert site.site.path.endswith("generated/kernel_wrapper.py")
    assert site.site.line == 3


def test_code_made_in_a_loop_fills_no_memory(scripted, monkeypatch):
    from pytest_gpusync.source import attribution

    monkeypatch.setattr(attribution, "_MAX_CACHED", 8)
    with record() as region:
        for number in range(40):
            exec(compile("scripted.sync()", f"cell_{number}.py", "exec"), {"scripted": scripted})
    assert len(region.sites) == 40
    caches = (attribution._direct, attribution._sites, attribution._described, attribution._class_of_code)
    assert max(len(cache) for cache in caches) <= 8


@pytest.fixture
def compiled():
    """Return torch.compile's eager backend as a decorator; what it makes of functions is forgotten afterwards."""
    torch = pytest.importorskip("torch")
    validates = torch.distributions.Distribution._validate_args
    yield lambda function: torch.compile(function, backend="eager")
    torch._dynamo.reset()
    # To compile anything switches the checks of all distributions off, and with them the waits that other tests count.
    torch.distributions.Distribution.set_default_validate_args(validates)


def test_a_sync_that_breaks_the_graph_of_torch_compile_says_so(scripted, compiled):
    import torch

    waits = torch._dynamo.disable(scripted.sync)

    class Net(torch.nn.Module):
        def forward(self, x):
            y = x * 2
            waits()
            z = y + 1
            waits(kind="event")
            return z

    with record() as region:
        compiled(Net())(torch.ones(3))
    first, second = region.result().all_syncs
    for sync in (first, second):
        assert sync.site.path.endswith("test_attribution_forms.py")
        assert sync.site.function.endswith("forward")
        assert sync.site.via.endswith("graph break of torch.compile")
    assert second.site.line == first.site.line + 2


def test_code_that_torch_compile_wrote_is_charged_to_the_line_that_ran_it(scripted):
    generated = compile("scripted.sync()", "/tmp/torchinductor_me/ab/cabc.py", "exec")
    with record() as region:
        exec(generated, {"scripted": scripted})
    (site,) = region.sites
    assert site.site.path.endswith("test_attribution_forms.py")
    assert site.site.via == "torch.compile's code:1 <module>"
