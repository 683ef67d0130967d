"""The HTML page in a real browser: readable at two widths and in both themes, alone, and with a zoom that works."""

from __future__ import annotations

import time

import pytest
from browser import CHROMIUM, DRIVER, Browser
from measurements import H200, stepped, sync

from pytest_gpusync.model.budgets import Budget, judge
from pytest_gpusync.model.measurement import RegionTimes
from pytest_gpusync.reporting.files import render
from pytest_gpusync.reporting.run_file import region_document, run_document

pytestmark = pytest.mark.skipif(DRIVER is None or CHROMIUM is None, reason="needs chromium and chromedriver")

VIEWS = [(width, dark) for width in (1280, 420) for dark in (False, True)]
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
const read = "h1,h2,p,td,th,code,li,pre,summary,figcaption,footer,label,.chip";
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
    """A page of two regions, one of them with 10,000 syncs of long paths."""
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
        (stepped([1, 2, 1], name="tests/test_a.py::test_that_has_a_name_which_goes_on_and_on"), Budget(max=5)),
    ]
    document = run_document(H200, [region_document(one, [judge(one, budget)]) for one, budget in regions])
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


def test_the_timeline_can_be_zoomed_and_scrolled(browser, page):
    browser.show(page)
    widths = browser.run(
        """
        const figure = document.querySelector("figure.timeline"), found = [];
        for (const zoom of ["z1", "z4", "z16", "z64"]) {
          const input = figure.querySelector("input." + zoom);
          figure.querySelector(`label[for="${input.id}"]`).click();
          const scroll = figure.querySelector(".scroll");
          found.push(Math.round(scroll.scrollWidth / scroll.clientWidth));
        }
        return found;
        """
    )
    assert widths == [1, 4, 16, 64]


def test_ten_thousand_syncs_are_drawn_at_once(browser, page):
    began = time.monotonic()
    browser.show(page)
    browser.run(
        "document.querySelectorAll('details').forEach(one => one.open = true); return document.body.offsetHeight"
    )
    assert time.monotonic() - began < 10
