"""The HTML page in a real browser: readable at two widths and in both themes, alone, and with a script that works."""

from __future__ import annotations

import pytest
from browser import CHROMIUM, DRIVER, Browser
from measurements import H200, stepped, sync

from pytest_gpusync.model.budgets import Budget, judge
from pytest_gpusync.model.measurement import RegionTimes
from pytest_gpusync.reporting.files import render
from pytest_gpusync.reporting.run_file import region_document, run_document

pytestmark = pytest.mark.skipif(DRIVER is None or CHROMIUM is None, reason="needs chromium and chromedriver")

VIEWS = [(width, dark) for width in (1280, 390) for dark in (False, True)]
STEPS = 250

CONTRASTS = """
const channel = value => { value /= 255; return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; };
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const colour = text => text.match(/[\\d.]+/g).map(Number);
const ground = element => {
  for (; element; element = element.parentElement) {
    const found = colour(getComputedStyle(element).backgroundColor);
    if (found.length === 3 || found[3] > 0) return found.slice(0, 3);
  }
  return [255, 255, 255];
};
const read = "h1,h2,p,a,b,i,em,mark,td,th,code,li,dt,dd,pre,summary,figcaption,footer,label,button,input,select,output";
return [...document.querySelectorAll(read)].map(element => {
  const [a, b] = [colour(getComputedStyle(element).color), ground(element)].map(luminance);
  return [element.className || element.tagName, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
});
"""


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page of three regions, one of them with 10,000 syncs of long paths."""
    many = [
        sync(number // 40, line=number % 5 + 1, path="a_rather_long_folder/of_a_project/train.py")
        for number in range(10_000)
    ]
    times = RegionTimes(tuple(40 * 10**6 * (step + 1) for step in range(STEPS)), 10**10)
    timed = [
        type(one)(
            **{field: getattr(one, field) for field in one.__slots__} | {"began_ns": n * 10**6, "blocked_ns": 10**5}
        )
        for n, one in enumerate(many)
    ]
    regions = [
        (stepped([0] * STEPS, extra=tuple(timed), times=times, name="tests/test_a.py::test_of_many"), Budget(max=9)),
        (stepped([1, 2, 1], name="tests/test_a.py::test_of_many gpu_sync"), Budget(max=5)),
        (stepped([1, 2, 1], name="tests/test_a.py::test_that_has_a_name_which_goes_on_and_on"), Budget(max=5)),
    ]
    documents = [
        {**region_document(one, [judge(one, budget)]), "test": one.name.partition(" ")[0]} for one, budget in regions
    ]
    document = run_document(H200, documents)
    path = tmp_path_factory.mktemp("page") / "run.html"
    path.write_text(render(document, ".html"), encoding="utf-8")
    return path


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_the_page_fits_its_window(browser, page, width, dark):
    browser.show(page, width=width, dark=dark)
    assert browser.run("return innerWidth") == width
    assert browser.run("const page = document.documentElement; return page.scrollWidth - page.clientWidth") == 0


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_all_text_stands_out_from_its_ground(browser, page, width, dark):
    browser.show(page, width=width, dark=dark)
    faint = {name: ratio for name, ratio in browser.run(CONTRASTS) if ratio < 4.5}
    assert faint == {}


def test_the_theme_is_the_readers(browser, page):
    grounds = []
    for dark in (False, True):
        browser.show(page, dark=dark)
        grounds.append(browser.run("return getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] == "rgb(255, 255, 255)"
    assert grounds[1] != grounds[0]


def test_nothing_is_loaded_and_nothing_complains(browser, page):
    browser.log("browser")
    browser.show(page)
    assert browser.requested() == [page.as_uri()]
    assert browser.log("browser") == []


def test_the_timeline_shows_a_chosen_step(browser, page):
    browser.show(page)
    said, drawn, numbers = browser.run(
        """
        const figure = document.querySelector("figure.timeline[data-steps]");
        figure.querySelector("input").value = 17;
        figure.querySelector("form button").click();
        const lane = figure.querySelectorAll("svg.lane")[1];
        return [figure.querySelector("output").textContent, lane.querySelectorAll(".block").length,
                [...figure.querySelectorAll("svg.axis text")].map(text => text.textContent)];
        """
    )
    assert said.startswith("showing step 17, ")
    assert 8 <= drawn <= 12  # a line makes 8 of the step's 40 syncs; a little of its neighbors is in view
    assert "17" in numbers
    assert any(number.endswith(" ms") for number in numbers)


def test_the_timeline_is_moved_by_keys_and_a_bar_shows_its_step(browser, page):
    browser.show(page)
    said = browser.run(
        """
        const figure = document.querySelector("figure.timeline[data-steps]"), said = [];
        const drawn = figure.querySelector(".drawn"), output = figure.querySelector("output");
        for (const key of ["+", "ArrowRight", "Home"]) {
          drawn.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
          said.push(output.textContent);
        }
        document.querySelector("rect[data-step]").dispatchEvent(new MouseEvent("click", { bubbles: true }));
        return [...said, output.textContent, drawn.tabIndex];
        """
    )
    assert said == [
        "showing steps 63 to 186, 2.5 s to 7.5 s",
        "showing steps 125 to 249, 5 s to 10 s",
        "showing steps 0 to 249, 0 ms to 10 s",
        "showing step 1, 36.8 ms to 83.2 ms",
        0,
    ]


def test_tables_are_sorted_and_nested_regions_stay_below_their_test(browser, page):
    browser.show(page)
    orders = browser.run(
        """
        const table = document.querySelector("table.regions");
        const names = () => [...table.querySelectorAll("tbody th")].map(th => th.textContent);
        const found = [names()];
        const head = [...table.querySelectorAll("thead th")].find(th => th.textContent.startsWith("steps"));
        head.querySelector("button").click();
        found.push(names(), [head.getAttribute("aria-sort")]);
        head.querySelector("button").click();
        found.push(names(), [head.getAttribute("aria-sort")]);
        return found;
        """
    )
    long, nested = "tests/test_a.py::test_of_many", "gpu_sync"
    short = "tests/test_a.py::test_that_has_a_name_which_goes_on_and_on"
    assert orders == [
        [long, nested, short],
        [long, nested, short],
        ["descending"],
        [short, long, nested],
        ["ascending"],
    ]


def test_the_filter_keeps_what_has_every_word(browser, page):
    browser.show(page)
    shown = browser.run(
        """
        const filter = document.getElementById("filter");
        filter.value = "goes TEST_A";
        filter.dispatchEvent(new Event("input"));
        const visible = [...document.querySelectorAll("[data-filter]")].filter(one => one.offsetParent).length;
        return [visible, document.getElementById("shown").textContent];
        """
    )
    assert shown == [2, "2 of 8 shown"]


def test_lines_are_ordered_by_what_is_chosen(browser, page):
    browser.show(page)
    places = browser.run(
        """
        const order = document.getElementById("order");
        order.value = "place";
        order.dispatchEvent(new Event("change"));
        return [...document.querySelectorAll("ol.lines > li")].map(li => li.querySelector("code").textContent);
        """
    )
    assert places == sorted(places)


def test_a_link_to_a_region_opens_it(browser, page):
    browser.show(page)
    assert browser.run(
        """
        const closed = [...document.querySelectorAll("details.region")].find(one => !one.open);
        location.hash = closed.id;
        return new Promise(done => setTimeout(() => done(closed.open), 200));
        """
    )


def test_a_page_of_ten_thousand_syncs_opens_within_a_second(browser, page):
    browser.show(page)
    load = "return performance.getEntriesByType('navigation')[0].loadEventEnd"
    milliseconds = min(browser.show(page) or browser.run(load) for _ in range(5))
    assert 0 < milliseconds < 1000
