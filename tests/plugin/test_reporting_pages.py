"""The Markdown and HTML reports: what they say, what they leave out, and that nothing in them is markup of its own."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from measurements import H200, SIMULATED, stepped, sync, whole

from pytest_gpusync.model.budgets import Budget, judge
from pytest_gpusync.model.measurement import RegionTimes
from pytest_gpusync.reporting import html_page, markdown
from pytest_gpusync.reporting.files import render
from pytest_gpusync.reporting.html_charts import steps_chart
from pytest_gpusync.reporting.run_file import region_document, run_document, unmeasured_document
from pytest_gpusync.reporting.timeline import BLOCKS_SHOWN, LANES_SHOWN, timeline

EVIL = "<script>alert('x')</script>"


def region(measurement, budget=None):
    return region_document(measurement, [judge(measurement, budget)] if budget else [])


def pages(*regions, environment=SIMULATED):
    document = run_document(environment, regions)
    return render(document, ".md"), render(document, ".html")


class Elements(HTMLParser):
    """The tags of a page and its visible text; unbalanced tags are an error."""

    VOID = frozenset({"meta", "input", "line", "tr", "th", "td"})

    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.text, self.attributes = [], [], "", []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_both_pages_name_the_broken_budget_and_its_region():
    for page in pages(region(stepped([1, 3, 3], name="test_a.py::test_b"), Budget(max=2))):
        assert "Training step made 3 syncs, budget 2 (worst of 2 steps after warm-up)" in page
        assert "test_a.py::test_b" in page


def test_both_pages_name_device_recorder_and_coverage():
    for page in pages(region(whole(sync())), environment=H200):
        assert "NVIDIA H200 (driver 580.159), recorder cupti, coverage driver" in page


def test_both_pages_say_why_something_was_not_measured():
    for page in pages(unmeasured_document("test_a.py::test_b", "no recorder can run")):
        assert "no recorder can run" in page


@pytest.mark.parametrize("ending", [".md", ".html"])
def test_a_run_without_any_measurement_says_so(ending):
    page = render(run_document(None, []), ending)
    assert "Nothing was measured" in page.replace("**", "")


def test_both_pages_show_source_rule_and_remedy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "import torch\nfor _ in range(9):\n    x = torch.ones(3, device='cuda').sum().item()  # read\n"
    (tmp_path / "train.py").write_text(text)
    for page in pages(region(whole(sync(line=3)))):
        assert "GS201" in page
        assert ".sum().item()" in page
        assert "# read" not in page


def test_a_path_a_function_a_name_and_a_reason_cannot_become_markup():
    evil = whole(
        sync(path=f"{EVIL}.py", function=EVIL, via=EVIL),
        sync(line=2, allowed=EVIL),
        name=f"test_a.py::test[{EVIL}]",
    )
    missed = unmeasured_document(EVIL, EVIL)
    parsed = Elements(pages(region(evil, Budget(max=0)), missed)[1])
    assert "script" not in parsed.tags
    assert EVIL in parsed.text


def test_a_source_line_cannot_become_markup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f'"{EVIL}"\n')
    assert "script" not in Elements(pages(region(whole(sync(line=1))))[1]).tags


def test_the_page_needs_no_network_and_may_run_nothing():
    page = pages(region(whole(sync())))[1]
    assert not re.search(r"https?:|//|@import|url\(", page.replace("<!doctype", ""))
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in Elements(page).attributes


@pytest.mark.parametrize("content", ["a|b", "`tick", "a``b", "line\nbreak", EVIL])
def test_a_code_span_holds_in_a_table_cell(content):
    span = markdown.code(content)
    fence = re.match(r"`+", span)[0]
    inside = span[len(fence) : -len(fence)]
    assert "\n" not in span
    assert fence not in re.findall(r"`+", inside)
    assert "|" not in inside.replace("\\|", "")


def test_markup_in_a_sentence_is_escaped():
    assert markdown.text("*a* <b> |c| `d`") == r"\*a\* &lt;b&gt; \|c\| \`d\`"


def test_every_row_of_a_markdown_table_has_as_many_cells():
    page = pages(region(stepped([1, 3], name="a|b", extra=(sync(1, path="c|d.py"),)), Budget(max=2)), environment=H200)[
        0
    ]
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for table in (rows[:3], rows[3:]):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table}) == 1


@pytest.mark.parametrize(("module", "ending"), [(markdown, ".md"), (html_page, ".html")])
def test_rows_that_are_left_out_are_counted(module, ending, monkeypatch):
    monkeypatch.setattr(module, "REGIONS_SHOWN", 2)
    regions = [region(whole(sync(), name=f"test_{number}")) for number in range(5)]
    assert "and 3 regions more, in the JSON report" in render(run_document(SIMULATED, regions), ending)


def test_a_simulated_timeline_says_that_it_is_not_timed():
    assert "3 syncs in order, not timed: every sync has the same width" in pages(region(stepped([1, 2])))[1]


def timed(*began_and_waited, step_ends=None, closed, left_out=0):
    """A region whose syncs began and were waited for at these milliseconds, each on a line of its own."""
    syncs = [
        sync(0, line=number, began_ns=int(began * 1e6), blocked_ns=int(waited * 1e6))
        for number, (began, waited) in enumerate(began_and_waited, start=1)
    ]
    ends = tuple(int(end * 1e6) for end in step_ends or (closed,))
    return region(whole(*syncs, times=RegionTimes(ends, int(closed * 1e6))))


def test_timed_waits_lie_where_they_were():
    drawn = timeline(timed((1, 1), (4, 4), closed=8))
    assert (drawn.length_ms, drawn.waited_ms) == (8, 5)
    assert {lane.label: [(b.start, b.end) for b in lane.blocks] for lane in drawn.lanes} == {
        "host": [(0.125, 0.25), (0.5, 1.0)],
        "train.py:2": [(0.5, 1.0)],
        "train.py:1": [(0.125, 0.25)],
    }


def test_timed_steps_lie_where_they_ended():
    drawn = timeline(timed((1, 1), step_ends=(2, 6), closed=8))
    assert [(span.step, span.start, span.end) for span in drawn.spans] == [
        (0, 0, 0.25),
        (1, 0.25, 0.75),
        (None, 0.75, 1),
    ]


def test_the_axis_ends_with_the_last_sync_where_later_ones_are_not_listed():
    found = timed((1, 1), (2, 2), step_ends=(2, 6), closed=8)
    found["order"]["left_out"] = 7
    drawn = timeline(found)
    assert (drawn.length_ms, drawn.spans[-1].end) == (4, 1)


def steps_of(region, warmup):
    return {**region, "warmup": warmup}


def test_the_axis_leaves_out_a_warmup_that_leaves_no_room_for_the_steps():
    found = steps_of(timed((1, 1), (101, 1), (103, 1), step_ends=(100, 102, 104), closed=104), 1)
    drawn = timeline(found)
    assert (drawn.length_ms, drawn.waited_ms, drawn.syncs, drawn.warmup_ms) == (4, 2, 2, 100)
    assert [(span.step, span.start, span.end) for span in drawn.spans] == [(1, 0, 0.5), (2, 0.5, 1)]
    assert [(block.start, block.step) for block in drawn.lanes[0].blocks] == [(0.25, 0), (0.75, 0)]
    assert "2 syncs: the host waited 2 ms of 4 ms (50 %); 100 ms of warm-up not shown" in pages(found)[1]


def test_the_axis_leaves_out_what_follows_the_last_step_where_it_leaves_no_room():
    found = steps_of(timed((1, 1), (50, 9), step_ends=(1, 2, 3), closed=100), 1)
    drawn = timeline(found)
    assert (drawn.length_ms, drawn.waited_ms, drawn.after_ms, drawn.warmup_ms) == (3, 1, 97, None)
    assert "97 ms after the last step not shown" in pages(found)[1]


def test_a_short_warmup_is_drawn():
    drawn = timeline(steps_of(timed((1, 1), step_ends=(2, 6), closed=6), 1))
    assert (drawn.length_ms, drawn.warmup_ms, drawn.spans[0].step) == (6, None, 0)


def test_a_region_that_waited_in_warmup_alone_is_drawn_whole():
    drawn = timeline(steps_of(timed((1, 1), step_ends=(90, 91), closed=91), 1))
    assert (drawn.length_ms, drawn.warmup_ms) == (91, None)


def test_waits_of_other_threads_are_not_the_hosts():
    own, other = (sync(line=n, began_ns=0, blocked_ns=10**6, background=n == 2) for n in (1, 2))
    drawn = timeline(region(whole(own, other, times=RegionTimes((2 * 10**6,), 2 * 10**6))))
    assert (drawn.lanes[0].label, len(drawn.lanes[0].blocks), drawn.waited_ms) == ("host", 1, 1)


def test_waits_of_which_one_was_not_timed_are_drawn_in_order_only():
    times = RegionTimes((10**7,), 10**7)
    drawn = timeline(region(whole(sync(began_ns=0, blocked_ns=9_000_000), sync(line=2), times=times)))
    assert (drawn.length_ms, drawn.partly_timed) == (None, True)
    assert {(lane.blocks[0].start, lane.blocks[0].end) for lane in drawn.lanes} == {(0.0, 0.5), (0.5, 1.0)}


def test_steps_lie_side_by_side_and_what_follows_the_last_has_no_number():
    drawn = timeline(region(stepped([1, 2], extra=(sync(None),))))
    assert [(span.step, span.start, span.end) for span in drawn.spans] == [
        (0, 0, 0.25),
        (1, 0.25, 0.75),
        (None, 0.75, 1),
    ]


def test_lines_beyond_the_last_lane_share_one():
    drawn = timeline(region(whole(*(sync(line=line) for line in range(1, LANES_SHOWN + 9)))))
    assert len(drawn.lanes) == LANES_SHOWN
    assert (drawn.lanes[-1].label, sum(block.syncs for block in drawn.lanes[-1].blocks)) == ("9 other lines", 9)


@pytest.mark.parametrize("is_timed", [False, True])
def test_ten_thousand_syncs_are_grouped_and_none_is_lost(is_timed):
    many = [
        sync(number // 40, line=number % 5 + 1, blocked_ns=10**5, began_ns=number * 10**6)
        if is_timed
        else sync(number // 40, line=number % 5 + 1)
        for number in range(10_000)
    ]
    times = RegionTimes(tuple(40 * 10**6 * (step + 1) for step in range(250)), 10**10) if is_timed else None
    found = region(stepped([0] * 250, extra=tuple(many), times=times), Budget(max=9))
    drawn = timeline(found)
    lanes = [lane for lane in drawn.lanes if lane.label != "host"]
    blocks = [block for lane in lanes for block in lane.blocks]
    assert sum(block.syncs for block in blocks) == 10_000
    assert len(blocks) <= 2 * BLOCKS_SHOWN
    assert len(pages(found)[1]) < 500_000


def test_a_long_wait_among_many_short_ones_keeps_its_width():
    short = [(number / 1000, 0.001) for number in range(BLOCKS_SHOWN + 1)]
    drawn = timeline(timed(*short, (1, 1000), closed=1001))
    [block] = drawn.lanes[1].blocks
    assert (drawn.lanes[1].label, block.syncs) == (f"train.py:{BLOCKS_SHOWN + 2}", 1)
    assert block.end - block.start > 0.99


@pytest.mark.parametrize(
    ("began", "closed", "said"),
    [((1, 1), 8, "1 sync: the host waited 1 ms of 8 ms (12.5 %)"), ((0.25, 0.5), 2000, "waited 500 µs of 2 s")],
)
def test_the_timeline_says_how_long_the_host_waited(began, closed, said):
    assert said in pages(timed(began, closed=closed))[1]


def test_no_syncs_have_no_timeline():
    assert timeline(region(whole())) is None


def test_of_very_many_steps_the_worst_of_each_group_is_drawn():
    chart = steps_chart([0] * 999 + [7], first=1, budget=None)
    assert chart.count("<rect") == 200
    assert "worst of steps 996 to 1000: 7 syncs" in chart


@pytest.mark.parametrize(("exact", "over"), [(False, 1), (True, 2)])
def test_bars_that_break_the_budget_are_marked(exact, over):
    from pytest_gpusync.reporting.page_model import Limit

    assert steps_chart([1, 2, 3], first=0, budget=Limit(2, exact)).count('class="over"') == over


def test_the_worst_region_comes_first():
    regions = [
        region(stepped([1, 2], name="fine"), Budget(max=2)),
        region(stepped([1, 2], name="over"), Budget(max=1)),
        region(stepped([1, 9], name="far over"), Budget(max=1)),
    ]
    page = pages(*regions)[0]
    assert page.index("far over") < page.index("`over") < page.index("`fine")


def test_without_times_the_syncs_of_whole_steps_are_grouped_and_the_highest_fills_its_lane():
    many = [sync(number // 10, line=number % 10 + 1) for number in range(2000)]
    drawn = timeline(region(stepped([0] * 200, extra=tuple(many))))
    blocks = [block for lane in drawn.lanes for block in lane.blocks]
    assert {(block.syncs, block.height) for block in blocks} == {(1, 1.0)}
    assert {block.start for block in blocks} == {span.start for span in drawn.spans}


def test_code_in_a_remedy_is_shown_as_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import torch\nfor _ in range(9):\n    torch.ones(3, device='cuda').sum().item()\n"
    )
    as_markdown, as_html = pages(region(whole(sync(line=3))))
    assert "(`.detach()`)" in as_markdown
    assert "(<code>.detach()</code>)" in as_html


def test_a_line_that_waited_outside_the_measured_steps_is_said_to():
    for page in pages(region(stepped([3, 0]))):
        assert "only in warm-up or after the last step" in page


def test_a_sentence_of_two_budgets_is_said_once():
    measurement = stepped([1, 3, 3])
    found = region_document(measurement, [judge(measurement, Budget(max=2, source=source)) for source in "ab"])
    assert pages(found)[0].count("Training step made 3 syncs, budget 2") == 1


def test_more_of_an_axis_is_named_at_a_larger_zoom():
    page = pages(region(stepped([1] * 100)))[1]
    by_zoom = {zoom: page.count(f'class="f{zoom}"') for zoom in (1, 4, 16)}
    assert 0 < by_zoom[1] <= 12
    assert sum(by_zoom.values()) > 80


def test_the_numbers_of_an_axis_do_not_overlap():
    page = pages(region(stepped([1] * 100)))[1]
    places = [float(place) for place in re.findall(r'class="f1" style="left:([\d.]+)%"', page)]
    assert min(b - a for a, b in pairwise(places)) >= 9


def test_a_run_on_two_devices_has_its_syncs_by_device():
    found = region(whole(sync(device=0), sync(device=1, line=2), sync(device=1, line=2), sync(line=3)))
    text, page = pages(found)
    assert "### Syncs by device\n\n- `region`: 1 on cuda:0, 2 on cuda:1, 1 on an unknown device" in text
    elements = Elements(page)
    assert "Syncs by device" in elements.text
    assert "cuda:0cuda:1an unknown deviceregion121" in elements.text.replace("\n", "")
    assert "on cuda:1" in elements.text.partition("train.py:2")[2]


@pytest.mark.parametrize("device", [0, None])
def test_a_run_on_one_device_does_not_name_it(device):
    text, page = pages(region(whole(sync(device=device))))
    assert "Syncs by device" not in text + page
    assert "cuda:0" not in text + page


def test_a_run_of_an_earlier_version_has_no_syncs_by_device():
    found = region(whole(sync(device=1)))
    del found["devices"], found["sites"][0]["devices"]
    text, page = pages(found)
    assert "Syncs by device" not in text + page
