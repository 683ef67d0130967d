"""The Markdown and HTML reports: what they say, what they leave out, and that nothing in them is markup of its own."""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from gpusync_lint.model.codes import page_of
from measurements import H200, SIMULATED, stepped, sync, whole

from pytest_gpusync.model.budgets import Budget, judge
from pytest_gpusync.model.measurement import CompilerEvent, RegionTimes, Site
from pytest_gpusync.reporting import html_page, markdown
from pytest_gpusync.reporting.files import render, why_unavailable
from pytest_gpusync.reporting.html_charts import axis_ticks, round_numbers, script_data, step_ticks, steps_chart
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

    VOID = frozenset({"meta", "input"})

    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.text, self.attributes, self.scripts = [], [], "", [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.insert(0, dict(attrs).get("type", tag))
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
    text, page = pages(region(whole(sync(line=3))))
    assert "# read" not in text
    for shown in (text, page):
        assert "GS201" in shown
        assert ".sum().item()" in shown


def test_the_page_shows_the_source_around_a_line_with_its_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("".join(f"line_{number} = {number}\n" for number in range(1, 30)))
    page = pages(region(whole(sync(line=10))))[1]
    shown = [int(number) for number in re.findall(r"<i> *(\d+)</i>  line_\1 = \1", page)]
    assert shown == list(range(6, 15))
    assert re.findall(r"<mark><i> *(\d+)</i>", page) == ["10"]


def test_a_path_a_function_a_name_and_a_reason_cannot_become_markup():
    evil = whole(
        sync(path=f"{EVIL}.py", function=EVIL, via=EVIL),
        sync(line=2, allowed=EVIL),
        name=f"test_a.py::test[{EVIL}]",
    )
    missed = unmeasured_document(EVIL, EVIL)
    parsed = Elements(pages(region(evil, Budget(max=0)), missed)[1])
    assert parsed.scripts == ["script", "application/json"]
    assert EVIL in parsed.text


def test_a_source_line_cannot_become_markup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f'"{EVIL}"\n')
    assert Elements(pages(region(whole(sync(line=1))))[1]).scripts == ["script", "application/json"]


def test_the_page_needs_no_network_and_may_run_its_own_script_alone():
    page = pages(region(whole(sync())))[1]
    assert not re.search(
        r"""\ssrc=|\shref="[^#"]|@import|url\(|fetch\(|XMLHttp""", re.sub(r'<a [^>]*href="[^"]*"', "", page)
    )
    [script], [style] = (re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("script", "style"))
    policy = next(value for name, value in Elements(page).attributes if value and value.startswith("default-src"))
    hashes = [b64encode(sha256(content.encode()).digest()).decode() for content in (script, style)]
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert " style=" not in page  # its policy forbids them
    assert not re.search(r"\son\w+=", page)


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


def test_a_warmup_that_would_fill_the_view_is_not_drawn_even_if_nothing_else_waited():
    found = steps_of(timed((1, 1), step_ends=(90, 91), closed=91), 1)
    assert timeline(found) is None
    assert "No syncs in the measured steps; 1 sync outside of them." in pages(found)[1]


def test_without_times_a_warmup_of_more_syncs_than_the_steps_is_not_drawn():
    found = region(stepped([40, 2, 1]))
    drawn = timeline(found)
    assert (drawn.syncs, drawn.warmup_syncs, [span.step for span in drawn.spans]) == (3, 40, [1, 2])
    assert (
        "3 syncs in order, not timed: every sync has the same width; 40 syncs of warm-up not shown" in pages(found)[1]
    )


def test_without_times_a_short_warmup_is_drawn():
    drawn = timeline(region(stepped([2, 2, 1])))
    assert (drawn.syncs, drawn.warmup_syncs) == (5, 0)


def test_without_times_many_syncs_after_the_last_step_are_not_drawn():
    drawn = timeline(region(stepped([1, 1], extra=(sync(None),) * 9)))
    assert (drawn.syncs, drawn.after_syncs) == (2, 9)


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
    bars = steps_chart([0] * 999 + [7], first=1, budget=None).bars
    assert len(bars) == 200
    assert (bars[-1].title, bars[-1].step) == ("worst of steps 996 to 1000: 7 syncs", 1000)


@pytest.mark.parametrize(("exact", "over"), [(False, 1), (True, 2)])
def test_bars_that_break_the_budget_are_marked(exact, over):
    from pytest_gpusync.reporting.page_model import Limit

    assert sum(bar.is_over for bar in steps_chart([1, 2, 3], first=0, budget=Limit(2, exact)).bars) == over


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


def compiled(*places, reason="Tensor.item() is not traced"):
    """A measurement whose graphs broke at (path, line, step), and whose function was compiled again in step 1."""
    events = [
        CompilerEvent("graph_break", Site(path, line, "forward", None), reason, step=step)
        for path, line, step in places
    ]
    again = CompilerEvent("recompilation", Site("net.py", 3, "forward", None), "size mismatch of 'x'", step=1)
    return stepped([1, 1, 1], compilation=(*events, again))


def test_both_pages_show_graph_breaks_and_recompilations_of_all_regions_by_line():
    one, other = compiled(("net.py", 7, 0), ("net.py", 7, 1)), compiled(("net.py", 7, 2), ("net.py", 9, 0))
    markdown_page, html = pages(region(one), region(other))
    assert "torch.compile: 4 graph breaks, 2 recompilations" in html
    assert "| `net.py:7` | graph break | 3 |  | Tensor.item() is not traced |" in markdown_page.replace("\\", "")
    assert "| `net.py:3` | compiled again | 2 |  | size mismatch of 'x' |" in markdown_page
    text = " ".join(Elements(html).text.split())
    assert "net.py:7 in forward Tensor.item() is not traced graph break · 3 times, 2 after warm-up" in text


def test_both_pages_mark_the_lines_that_waited_and_broke_a_graph():
    for broken, said in ((1, True), (2, False)):
        for page in pages(region(compiled(("train.py", broken, 0)))):
            assert ("breaks a graph of torch.compile" in page) is said


def test_both_pages_are_silent_about_graphs_without_breaks():
    for page in pages(region(stepped([1, 1], compilation=()))):
        assert "torch.compile" not in page


def test_a_reason_of_dynamo_cannot_become_markup():
    markdown_page, html = pages(region(compiled(("train.py", 1, 0), reason=EVIL)))
    assert EVIL not in html
    assert EVIL not in markdown_page
    Elements(html)


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


@pytest.mark.parametrize(
    ("low", "high", "numbers"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0, 0.5, [0, 0.1, 0.2, 0.3, 0.4, 0.5]), (7, 7, [7]), (101, 299, [150, 200, 250])],
)
def test_the_numbers_of_an_axis_are_round(low, high, numbers):
    assert round_numbers(low, high) == pytest.approx(numbers)


def test_an_axis_of_time_has_units():
    ticks = axis_ticks(timeline(timed((1, 1), (4, 4), closed=8)))
    assert [(tick.place, tick.text) for tick in ticks] == [
        (0, "0 ms"),
        (0.25, "2 ms"),
        (0.5, "4 ms"),
        (0.75, "6 ms"),
        (1, "8 ms"),
    ]


def test_an_axis_of_order_has_the_numbers_of_syncs_and_steps():
    drawn = timeline(region(stepped([1] * 100)))
    assert [tick.text for tick in axis_ticks(drawn)] == ["0", "20", "40", "60", "80", "100"]
    assert [tick.text for tick in step_ticks(drawn.spans)] == ["0", "20", "40", "60", "80"]


def test_the_numbers_of_steps_do_not_overlap():
    drawn = timeline(region(stepped([1, 300, 1, 1, 1, 300, 1])))
    places = [tick.place for tick in step_ticks(drawn.spans)]
    assert min(b - a for a, b in pairwise(places)) >= 0.08


def test_the_script_gets_every_sync_of_a_timeline():
    own, other = sync(line=1, began_ns=10**6, blocked_ns=10**6), sync(line=2, began_ns=10**5, blocked_ns=10**5)
    other = replace(other, background=True, thread="loader")
    drawn = timeline(region(whole(own, other, times=RegionTimes((4 * 10**6,), 4 * 10**6))))
    data = script_data(drawn, 0)
    assert (data["total"], data["starts"], data["waits"]) == (
        40_000,
        [1_000, 9_000],
        [1_000, 10_000],
    )  # units of 0.1 us
    assert ([drawn.lanes[lane].label for lane in data["lanes"]], data["others"]) == (["train.py:2", "train.py:1"], [0])
    assert (data["steps"], data["edges"]) == ([0], [0])


def test_a_page_sends_the_script_a_limited_number_of_syncs(monkeypatch):
    monkeypatch.setattr(html_page, "SYNCS_SENT", 10)
    page = pages(*(region(stepped([0, 6], name=f"test_{number}")) for number in range(3)))[1]
    assert (page.count("application/json"), page.count('<figure class="timeline"')) == (1, 3)


def test_the_regions_of_a_test_are_below_it():
    names = ["a.py::test_x gpu_train", "a.py::test_y", "a.py::test_x", "a.py::test_x gpu_sync"]
    regions = [{**region(stepped([1, 3], name=name)), "test": name.partition(" ")[0]} for name in names]
    page = pages(*regions)[1]
    rows = re.findall(r'<tr( class="nested")?>.*?<th scope="row" class="name"><a[^>]*>([^<]*)', page, re.DOTALL)
    assert [(bool(nested), name) for nested, name in rows] == [
        (False, "a.py::test_x"),
        (True, "gpu_sync"),
        (True, "gpu_train"),
        (False, "a.py::test_y"),
    ]


def test_regions_of_a_test_without_one_of_its_own_have_its_name_above_them():
    regions = [
        {**region(stepped([1, 3], name=f"a.py::test_x {name}")), "test": "a.py::test_x"} for name in ("one", "two")
    ]
    page = pages(*regions)[1]
    assert re.findall(r'<th scope="row" class="name">(?:<a[^>]*>)?([^<]*)', page) == ["a.py::test_x", "one", "two"]


def test_the_page_of_a_program_does_not_speak_of_tests():
    document = run_document(SIMULATED, [region(stepped([1, 3, 2], name="train.py"))])
    document["origin"]["command"] = "gpusync trace train.py"
    page = render(document, ".html")
    assert "<title>GPU syncs of train.py</title>" in page
    text = Elements(re.search(r"<body>.*</footer>", page, re.DOTALL)[0] + "</body>").text
    assert "3 syncs in the worst step, 2.5 in the median, over 2 steps after 1 step of warm-up" in text
    assert not re.search(r"\btests?\b|budget", text)


def test_the_page_of_tests_counts_them():
    regions = [region(whole(sync(), name=f"a.py::test_{name}")) for name in "xy"]
    assert "<title>GPU syncs of 2 tests</title>" in pages(*regions)[1]


def test_a_run_that_two_ranks_made_has_the_title_of_its_program():
    regions = [region(stepped([1, 3], name=f"train.py [rank {rank}]")) for rank in (0, 1)]
    assert "<title>GPU syncs of train.py</title>" in pages(*regions)[1]


def test_a_line_links_to_the_region_in_which_it_waited_most():
    regions = [region(stepped([1, number], name=f"a.py::test_{number}")) for number in (2, 9, 5)]
    page = pages(*regions)[1]
    assert '<a href="#region-0">a.py::test_9</a> and 2 more' in page
    assert re.search(r'<details class="region" id="region-0" open>\s*<summary>a.py::test_9</summary>', page)


def test_the_page_says_where_it_comes_from():
    document = run_document(SIMULATED, [region(whole(sync()))])
    document["origin"] = {"command": "gpusync trace a.py", "commit": "0123456789abcdef" * 2, "version": "9.8.7"}
    document["origin"] |= {"date": "2026-11-23T01:02:03+00:00", "source_url": None}
    text = Elements(render(document, ".html")).text
    for shown in ("gpusync trace a.py", "0123456789ab", "2026-11-23 01:02:03 UTC", "pytest-gpusync 9.8.7"):
        assert shown in text


def test_codes_link_to_their_pages_and_lines_to_their_sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.py").write_text(
        "import torch\nfor _ in range(9):\n    torch.ones(3, device='cuda').sum().item()\n"
    )
    document = run_document(SIMULATED, [region(whole(sync(path="a b.py", line=3)))])
    document["origin"]["source_url"] = None
    assert f'href="{page_of("GS201")}"' in render(document, ".html")
    assert 'href="a%20b.py"' in render(document, ".html")
    assert 'href="../a%20b.py"' in render(document, ".html", tmp_path / "reports")
    document["origin"]["source_url"] = "https://host/o/r/blob/abc/"
    assert 'href="https://host/o/r/blob/abc/a%20b.py#L3"' in render(document, ".html")


def test_every_column_of_a_table_has_a_header_and_every_row_too():
    page = pages(region(stepped([1, 3], name="a"), Budget(max=1)), region(stepped([1, 3], name="b"), Budget(max=9)))[1]
    table = re.search(r"<table.*?</table>", page, re.DOTALL)[0]
    assert table.count('<th scope="col"') == 7
    for row in re.findall(r"<tr>(.*?)</tr>", table.partition("</thead>")[2], re.DOTALL):
        assert (row.count('<th scope="row"'), len(re.findall(r"<t[dh]\b", row))) == (1, 7)


def test_without_jinja2_a_page_is_refused_in_one_line_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert why_unavailable(".md") is None
    assert 'pip install "pytest-gpusync[html]"' in why_unavailable(".html")


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
