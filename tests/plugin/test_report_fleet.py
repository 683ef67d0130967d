"""``gpusync report fleet``: runs in groups, with filters, budgets and a baseline of each group; filtered merging."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hostile import MARKDOWN, MARKUP, TERMINAL
from measurements import H200, SIMULATED
from test_page_in_browser import CHROMIUM, CONTRASTS, DRIVER, VIEWS, Browser
from test_report_diff import LOG, LOSS, TEST, every, region

from pytest_gpusync.commands import report
from pytest_gpusync.reporting.origin import labels
from pytest_gpusync.reporting.run_file import run_document, to_text, unmeasured_document

H100 = replace(H200, gpu="NVIDIA H100")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, name, *regions, environment=H200, **of_run):
    run = run_document(environment, regions)
    run["origin"] |= {"commit": "1" * 40, "date": "2026-09-01T00:00:00+00:00", "labels": of_run}
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / name).write_text(to_text(run))


@pytest.fixture
def runs(folder):
    """Two models on two GPUs; the larger one waits more."""
    for number, environment in enumerate((H200, H100, H200, H100)):
        for model, syncs in (("gpt", 3), ("vit", 1)):
            waits = region({(3 + number, LOSS): every(syncs)}, environment=environment)
            write(folder, f"{model}-{number}.json", waits, environment=environment, model=model)
    return folder


def grouped(*arguments, code=0):
    assert report.main(["fleet", "runs", "--output-format=json", "-o", "fleet.json", *arguments]) == code
    with open("fleet.json", encoding="utf-8") as file:
        return {tuple(group["values"]): group for group in json.load(file)["groups"]}


def test_runs_are_grouped_by_labels_and_properties(runs):
    found = grouped("--by=model,gpu")
    assert {values: (group["runs"], group["worst"]["syncs"]) for values, group in found.items()} == {
        ("gpt", "NVIDIA H200"): (2, 3),
        ("gpt", "NVIDIA H100"): (2, 3),
        ("vit", "NVIDIA H200"): (2, 1),
        ("vit", "NVIDIA H100"): (2, 1),
    }


def test_a_site_counts_its_runs_and_a_group_names_its_worst_run(runs):
    (group,) = grouped("--by=model", "--where=model=gpt").values()
    assert [(site["source"], site["runs"], site["per_step_max"]) for site in group["sites"]] == [(LOSS, 4, 3)]
    assert group["worst"]["run"].startswith("runs/gpt-")


def test_a_run_without_the_property_is_in_a_group_of_its_own(runs):
    write(runs, "other.json", region({}))
    assert grouped("--by=model")["none",]["runs"] == 1


@pytest.mark.parametrize(
    ("where", "number"),
    [
        (["gpu=*h100*"], 4),
        (["gpu!=*H100*"], 4),
        (["model=gpt", "gpu=*H100*"], 2),
        (["team=*"], 0),
        (["team!=vision"], 8),
        (["file=runs/vit-*"], 4),
        (["commit=111*"], 8),
        (["test=*::test_step"], 8),
        (["test=nothing"], 0),
    ],
)
def test_filters_keep_runs(runs, capsys, where, number):
    options = [f"--where={one}" for one in where]
    if number:
        assert sum(group["runs"] for group in grouped("--by=device", *options).values()) == number
    else:
        assert report.main(["fleet", "runs", *options]) == 2
        assert "no run files found that fulfill the conditions" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("budgets", "code", "failed"),
    [
        ("[[budget]]\nmax = 3\n", 0, set()),
        ("[[budget]]\nmax = 2\n", 1, {"gpt"}),
        ('[[budget]]\nwhere = { model = "gpt" }\nmax = 3\n[[budget]]\nmax = 0\n', 1, {"vit"}),
        ('[[budget]]\nwhere = { gpu = "*H100*", model = "vit" }\nmax = 0\n', 1, {"vit"}),
    ],
)
def test_the_first_budget_that_fits_a_run_applies(runs, budgets, code, failed):
    (runs / "budgets.toml").write_text(budgets)
    found = grouped("--by=model", "--budgets=budgets.toml", code=code)
    assert {values[0] for values, group in found.items() if group["outcome"] == "failed"} == failed


def test_a_group_that_was_not_measured_fails_a_gate(runs):
    write(runs, "blind.json", unmeasured_document(TEST, "no GPU"), environment=None, model="blind")
    (runs / "budgets.toml").write_text("[[budget]]\nmax = 9\n")
    assert grouped("--by=model", code=0)["blind",]["outcome"] == "not_measured"
    grouped("--by=model", "--budgets=budgets.toml", code=1)


def test_a_baseline_is_a_ratchet_for_each_group(runs, capsys):
    grouped("--by=model", "--write-baseline=base.json")
    grouped("--by=model", "--baseline=base.json")
    write(runs, "gpt-9.json", region({(3, LOSS): every(2), (4, LOG): every()}), model="gpt")
    found = grouped("--by=model", "--baseline=base.json", code=1)
    assert [(change["source"], change["before"], change["now"]) for change in found["gpt",]["increases"]] == [
        (LOG, 0, 1)
    ]
    assert found["vit",]["increases"] == []


def test_a_baseline_that_can_be_tightened_says_so(runs, capsys):
    grouped("--by=model", "--write-baseline=base.json")
    text = (runs / "base.json").read_text().replace('"syncs_per_step": 1', '"syncs_per_step": 4')
    (runs / "base.json").write_text(text)
    grouped("--by=model", "--baseline=base.json")
    assert "base.json can be tightened: 1 entries" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--budgets=none.toml"], "none.toml: cannot be read"),
        (["--budgets=bad.toml"], "bad.toml: not TOML"),
        (["--budgets=wrong.toml"], "wrong.toml: Expected `int`, got `str` - at `$.budget[0].max`; write tables"),
        (["--budgets=tests.toml"], "cannot name tests"),
        (["--baseline=none.json"], "none.json does not exist"),
        (["--where=gpu"], "'gpu' is not a filter; write NAME=PATTERN"),
        (["--by=,"], "--by needs a property or a label"),
        (["--branch=nowhere"], "nowhere is not a branch"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(runs, capsys, arguments, complaint):
    (runs / "bad.toml").write_text("[[")
    (runs / "wrong.toml").write_text('[[budget]]\nmax = "3"\n')
    (runs / "tests.toml").write_text('[[budget]]\nmax = 3\nwhere = { test = "a" }\n')
    assert report.main(["fleet", "runs", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("model=gpt-2, team = vision", {"model": "gpt-2", "team": "vision"}),
        ("nightly,=x,", {"nightly": "true"}),
        ("a=" + "b" * 500, {"a": "b" * 100}),
    ],
)
def test_labels_come_from_the_environment(text, found):
    assert labels(text) == found


def test_merging_reads_folders_and_filters(runs):
    assert report.main(["merge", "all.json", "runs", "--where=model=gpt", "--where=gpu=*H100*"]) == 0
    merged = json.loads((runs / "all.json").read_text())
    assert [part["file"] for part in merged["parts"]] == ["runs/gpt-1.json", "runs/gpt-3.json"]
    assert merged["origin"]["labels"] == {"model": "gpt"}
    assert report.main(["merge", "few.json", "all.json", "--where=file=*-3.json"]) == 0
    assert len(json.loads((runs / "few.json").read_text())["parts"]) == 1


def test_a_filter_that_leaves_nothing_writes_nothing(runs, capsys):
    assert report.main(["merge", "all.json", "runs", "--where=model=none"]) == 2
    assert "no run files in it that fulfill --where" in capsys.readouterr().err
    assert not (runs / "all.json").exists()


@pytest.mark.parametrize("output_format", ["text", "md", "json", "html"])
def test_texts_of_a_file_have_no_effect(folder, capsys, output_format):
    pytest.importorskip("jinja2")
    hostile = MARKUP + TERMINAL + MARKDOWN
    waits = region({(3, LOSS): every()}, name=hostile)
    for site in waits["sites"]:
        site |= {"path": hostile, "function": hostile, "source": hostile}
    write(folder, "a.json", waits, model=hostile)
    (folder / "budgets.toml").write_text("[[budget]]\nmax = 0\n")
    arguments = ["--by=model", "--budgets=budgets.toml", f"--output-format={output_format}"]
    assert report.main(["fleet", "runs", *arguments]) == 1
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\n::error" not in shown
    assert output_format != "html" or "<img" not in shown


@pytest.mark.skipif(DRIVER is None or CHROMIUM is None, reason="needs chromium and chromedriver")
def test_the_page_fits_its_window_and_its_text_stands_out(runs):
    (runs / "budgets.toml").write_text("[[budget]]\nmax = 2\n")
    assert report.main(["fleet", "runs", "--by=model,gpu", "--budgets=budgets.toml", "-o", "fleet.html"]) == 1
    browser = Browser()
    try:
        for width, dark in VIEWS:
            browser.show(runs / "fleet.html", width=width, dark=dark)
            browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            assert browser.run("const page = document.documentElement; return page.scrollWidth - page.clientWidth") == 0
            assert {name: ratio for name, ratio in browser.run(CONTRASTS) if ratio < 4.5} == {}
            assert browser.log("browser") == []
    finally:
        browser.close()


def test_the_text_names_groups_lines_and_broken_budgets(folder, capsys):
    write(folder, "a.json", region({(3, LOSS): every(2)}, environment=SIMULATED), environment=SIMULATED)
    (folder / "budgets.toml").write_text("[[budget]]\nmax = 1\n")
    assert report.main(["fleet", "runs", "--budgets=budgets.toml"]) == 1
    assert capsys.readouterr().out == (
        "1 run in 1 group by device, 1 over budget or baseline\n"
        "\n"
        "device simulated: over budget\n"
        "  1 run; 1 commit; 2026-09-01 to 2026-09-01; worst step 2, 2 in the median run; coverage simulated\n"
        f"  over budget: 2 syncs in the worst step of {TEST} (runs/a.json, commit 111111111111)\n"
        f"    train.py:3  {LOSS}  up to 2 per step, in 1 of 1 run\n"
    )
