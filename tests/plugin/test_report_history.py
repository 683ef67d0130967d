"""``gpusync report history``: runs of a folder, of zip files and of a branch over commits, and where they changed."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from random import Random

import pytest
from hostile import MARKDOWN, MARKUP, TERMINAL, mutants
from measurements import H200, SIMULATED, stepped
from test_page_in_browser import CHROMIUM, CONTRASTS, DRIVER, VIEWS, Browser
from test_report_diff import LOG, LOSS, MEAN, TEST, every, region, tenth

from pytest_gpusync.commands import report, run_inputs
from pytest_gpusync.reporting.run_file import region_document, run_document, to_text, unmeasured_document

pytest.importorskip("jinja2")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def name_of(number):
    return f"{number:040x}"


def document(number, *regions, environment=SIMULATED):
    """The run of a commit, whose name is its number; later numbers are later."""
    run = run_document(environment, regions)
    run["origin"] |= {"commit": name_of(number), "date": f"2026-09-{1 + number:02d}T00:00:00+00:00"}
    return run


def write(folder, runs):
    (folder / "runs").mkdir(exist_ok=True)
    for number, run in enumerate(runs):
        # The names of the files are in another order than the commits.
        (folder / "runs" / f"{number * 7 % 31:02d}.json").write_text(to_text(run))


def drawn(*arguments, code=0):
    assert report.main(["history", "--output-format", "json", "-o", "history.json", *arguments]) == code
    with open("history.json", encoding="utf-8") as file:
        return json.load(file)


def changes(history):
    """The changes of sites: commit, source, before and after."""
    found = []
    for change in history["changes"]:
        for series in (history["series"][number] for number in change["series"]):
            if series["site"] is not None:
                commit = int(history["moments"][change["moment"]]["commit"], 16)
                found.append((commit, series["site"]["source"], change["before"], change["after"]))
    return sorted(found)


def points(history, source=None):
    """The commits and figures of a site, or of the test."""
    (series,) = [one for one in history["series"] if (one["site"] and one["site"]["source"]) == source]
    commits = [int(history["moments"][moment]["commit"], 16) for moment in series["moments"]]
    return dict(zip(commits, series["values"], strict=True))


def test_changes_are_at_their_commits(folder):
    write(folder, [document(n, region({(3, LOSS): every(1 if n < 12 else 2)})) for n in range(20)])
    history = drawn("runs")
    assert changes(history) == [(12, LOSS, 1, 2)]
    (of_test,) = [change for change in history["changes"] if history["series"][change["series"][0]]["site"] is None]
    assert of_test["is_explained_by_site"]


def test_lines_that_move_or_are_edited_are_no_change(folder):
    sites = [(3, LOSS)] * 6 + [(9, LOSS)] * 6 + [(9, f"{LOSS} + 0")] * 8
    write(folder, [document(n, region({site: every()})) for n, site in enumerate(sites)])
    history = drawn("runs")
    assert changes(history) == []
    assert list(points(history, f"{LOSS} + 0").values()) == [1] * 20


@pytest.mark.parametrize(
    ("later", "syncs", "found"),
    [(MEAN, 2, [(9, MEAN, 1, 2)]), (LOG, 1, [(9, LOG, 0, 1), (9, LOSS, 1, 0)])],
)
def test_a_line_with_similar_text_is_an_edited_one(folder, later, syncs, found):
    write(
        folder, [document(n, region({(3, LOSS if n < 9 else later): every(1 if n < 9 else syncs)})) for n in range(18)]
    )
    assert changes(drawn("runs")) == found


def test_a_test_that_was_not_measured_has_no_point_and_a_line_that_did_not_wait_has_zero(folder):
    runs = [document(n, region({(3, LOSS): every()} if n != 4 else {})) for n in range(8)]
    runs[6] = document(6, unmeasured_document(TEST, "no GPU"))
    write(folder, runs)
    history = drawn("runs")
    assert points(history, LOSS) == {0: 1, 1: 1, 2: 1, 3: 1, 4: 0, 5: 1, 7: 1}


def test_runs_that_cannot_be_compared_are_other_series(folder):
    runs = [document(n, region({(3, LOSS): every(1)})) for n in range(8)]
    other = [document(n, region({(3, LOSS): every(3)}, environment=H200), environment=H200) for n in range(8, 16)]
    write(folder, runs + other)
    history = drawn("runs")
    assert changes(history) == []
    assert {series["group"] for series in history["series"]} == {
        "simulated, coverage simulated",
        "NVIDIA H200, coverage driver",
    }


def test_a_change_with_another_version_of_torch_says_so(folder):
    newer = replace(SIMULATED, torch="2.15.0")
    runs = [document(n, region({(3, LOSS): every(1)})) for n in range(6)]
    write(folder, runs + [document(n, region({(3, LOSS): every(2)}), environment=newer) for n in range(6, 12)])
    assert {tuple(change["notes"]) for change in drawn("runs")["changes"]} == {("torch 2.13.0 -> 2.15.0",)}


def test_different_numbers_of_steps_are_no_change(folder):
    write(
        folder, [document(n, region({(3, LOSS): tenth, (4, LOG): every()}, steps=18 + 7 * (n % 5))) for n in range(20)]
    )
    history = drawn("runs")
    assert changes(history) == []


@pytest.mark.parametrize("seed", range(4))
def test_all_planted_changes_are_found_and_none_is_invented(folder, seed):
    chance = Random(seed)
    rates = {slot: chance.randrange(3) for slot in range(8)}
    planted, runs = [], []
    ready = dict.fromkeys(rates, 8)
    for number in range(28):
        slot = chance.randrange(16)
        if slot in rates and ready[slot] <= number:
            after = chance.choice([rate for rate in range(4) if rate != rates[slot]])
            planted.append((number, f"x[{slot}].item()", rates[slot], after))
            rates[slot], ready[slot] = after, number + 6
        varying = {(99, "x[m]"): every(chance.randrange(3))}
        sites = {(slot + number, f"x[{slot}].item()"): every(rate) for slot, rate in rates.items() if rate}
        runs.append(document(number, region(sites | varying, steps=4)))
    write(folder, runs)
    assert planted
    assert changes(drawn("runs")) == planted


def test_zip_files_are_read_as_folders(folder):
    write(folder, [document(n, region({(3, LOSS): every()})) for n in range(4)])
    (folder / "artifacts").mkdir()
    with zipfile.ZipFile(folder / "artifacts" / "a.zip", "w") as archive:
        for file in sorted((folder / "runs").iterdir()):
            archive.write(file, f"deep/{file.name}")
        archive.writestr("baseline.json", "[]")
    assert drawn("artifacts") == drawn("runs")


def git(*arguments, **more):
    settings = ["-c", "user.name=n", "-c", "user.email=n@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *settings, *arguments], check=True, capture_output=True, text=True, **more)
    return done.stdout.strip()


def test_the_versions_of_a_file_in_a_branch_are_its_runs(folder):
    git("init", "-q")
    for number in range(6):
        (folder / "run.json").write_text(to_text(document(number, region({(3, LOSS): every(1 + (number > 3))}))))
        git("add", "run.json")
        git("commit", "-qm", "run")
    git("branch", "runs")
    git("rm", "-q", "run.json")
    git("commit", "-qm", "none")
    assert points(drawn("--branch", "runs"), LOSS) == {0: 1, 1: 1, 2: 1, 3: 1, 4: 2, 5: 2}
    assert report.main(["history", "--branch", "nowhere"]) == 2


def test_commits_are_in_the_order_of_the_repository(folder):
    git("init", "-q")
    names = []
    for number in range(5):  # commits of one second, run in another order
        when = {"GIT_COMMITTER_DATE": "2026-09-01T00:00:00Z", "GIT_AUTHOR_DATE": "2026-09-01T00:00:00Z"}
        git("commit", "-q", "--allow-empty", "-m", f"Commit {number}", env=when)
        names.append(git("rev-parse", "HEAD"))
    runs = []
    for number, name in enumerate(names):
        run = document(9 - number, region({}))
        run["origin"]["commit"] = name
        runs.append(run)
    write(folder, runs)
    assert [moment["subject"] for moment in drawn("runs")["moments"]] == [f"Commit {number}" for number in range(5)]


def test_a_commit_of_a_run_file_is_no_option_of_git(folder, monkeypatch):
    git("init", "-q")
    given = []
    monkeypatch.setattr(run_inputs, "_git", lambda arguments, text=None: given.append(text))
    run = document(1, region({}))
    run["origin"]["commit"] = f"--output=x\n{name_of(1)}"
    write(folder, [run, document(2, region({}))])
    drawn("runs")
    assert given == [name_of(2)]


def test_a_long_run_shows_its_progress_on_a_terminal(folder, monkeypatch, capsys):
    write(folder, [document(n, region({})) for n in range(3)])
    monkeypatch.setattr(run_inputs, "_SHOW_AFTER", 0.0)
    drawn("runs")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    drawn("runs")
    shown = capsys.readouterr().err
    assert shown.startswith("Reading run files: 1 ...\x1b[K\r")
    assert shown.endswith("\x1b[K")


def test_runs_of_one_commit_are_one_point(folder):
    runs = [document(n // 2, region({(3, LOSS): every(1 + n % 2)})) for n in range(12)]
    write(folder, runs)
    history = drawn("runs")
    assert (len(history["moments"]), history["runs"], changes(history)) == (6, 12, [])


def test_a_file_that_cannot_be_read_is_named_and_hides_no_other(folder, capsys):
    write(folder, [document(n, region({})) for n in range(3)])
    (folder / "runs" / "bad.json").write_text("{")
    (folder / "runs" / "bad.zip").write_bytes(b"PK")
    (folder / "runs" / "other.json").write_text('{"schema": "gpusync.lint/1"}')
    assert len(drawn("runs", code=2)["moments"]) == 3
    errors = capsys.readouterr().err.splitlines()
    assert [error.split(":")[1].strip() for error in errors] == ["runs/bad.json", "runs/bad.zip"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["empty"], "no run files found"),
        (["none"], "none does not exist"),
        ([], "give a folder with run files, or --branch REF"),
    ],
)
def test_without_runs_there_is_no_history(folder, capsys, arguments, complaint):
    (folder / "empty").mkdir()
    assert report.main(["history", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_the_text_names_commit_line_and_change(folder, capsys):
    write(folder, [document(n, region({(3, LOSS): every(1 if n < 12 else 2)})) for n in range(20)])
    assert report.main(["history", "runs"]) == 0
    assert capsys.readouterr().out == (
        "20 commits, 20 runs, 2026-09-01 to 2026-09-20\n"
        "  simulated, coverage simulated\n"
        "\n"
        f"{name_of(12)[:12]}  2026-09-13\n"
        f"  more syncs: train.py:3  {LOSS}\n"
        f"    1 -> 2 syncs per step; in {TEST}\n"
        "\n"
        "1 test, 1 site: 1 × more syncs\n"
    )


@pytest.mark.parametrize("output_format", ["text", "json", "html"])
def test_texts_of_a_file_have_no_effect(folder, capsys, output_format):
    hostile = MARKUP + TERMINAL + MARKDOWN
    runs = [document(n, region({(3, LOSS): every(1 + (n > 5))}, name=hostile)) for n in range(12)]
    for run in runs:
        run["origin"]["date"] += hostile
        run["environment"]["torch"] = hostile
        for site in run["regions"][0]["sites"]:
            site |= {"path": hostile, "function": hostile, "source": hostile}
    write(folder, runs)
    assert report.main(["history", "--output-format", output_format, "runs"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\n::error" not in shown
    assert output_format != "html" or "<img" not in shown


def test_mutants_of_run_files_never_end_in_a_traceback(folder, capsys):
    seed = document(1, region_document(stepped([1, 2, 3])), region({(3, LOSS): every()}, steps=3))
    (folder / "runs").mkdir()
    for number, mutant in zip(range(150), mutants(seed, Random(5)), strict=False):
        (folder / "runs" / f"{number}.json").write_bytes(mutant)
    for output_format in ("text", "html"):
        assert report.main(["history", "--output-format", output_format, "runs"]) == 2
        assert all(line.startswith("gpusync report: ") for line in capsys.readouterr().err.splitlines())


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of many commits, with long names, a gap and times."""
    folder = tmp_path_factory.mktemp("page")
    sites = {(3, "a_rather_long_line_of_source(" + "of_a_step, " * 30 + ")"): every(), (4, LOG): tenth}
    runs = []
    for number in range(28):
        more = {(5, LOSS): every(3)} if 9 < number < 20 else {}
        names = [f"tests/a_rather_long_folder/test_a.py::test_with_a_long_name_{n}" for n in range(3)]
        runs.append(document(number, *(region(sites | more, name=name) for name in names[: 1 + (number % 9 > 0)])))
    write(folder, runs)
    assert report.main(["history", str(folder / "runs"), "-o", str(folder / "history.html")]) == 0
    return folder / "history.html"


@pytest.fixture(scope="module")
def browser():
    if DRIVER is None or CHROMIUM is None:
        pytest.skip("needs chromium and chromedriver")
    browser = Browser()
    yield browser
    browser.close()


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_the_page_fits_its_window_and_its_text_stands_out(browser, page, width, dark):
    browser.log("browser")
    browser.show(page, width=width, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert browser.run("const page = document.documentElement; return page.scrollWidth - page.clientWidth") == 0
    assert {name: ratio for name, ratio in browser.run(CONTRASTS) if ratio < 4.5} == {}
    assert browser.requested() == [page.as_uri()]
    assert browser.log("browser") == []


def test_every_chart_is_drawn_and_has_a_name(browser, page):
    browser.show(page)
    charts = browser.run(
        """
        document.querySelectorAll("details").forEach(one => { one.open = true; });
        return [...document.querySelectorAll("svg.bars")].map(one =>
          [one.getAttribute("aria-label"), one.querySelector("path").getBBox().width]);
        """
    )
    assert len(charts) == 8
    assert all(label.startswith("syncs ") and width > 800 for label, width in charts)


def test_the_filter_keeps_changes_and_tests_that_have_every_word(browser, page):
    browser.show(page)
    shown = browser.run(
        """
        const filter = document.getElementById("filter");
        filter.value = "name_1";
        filter.dispatchEvent(new Event("input"));
        return document.getElementById("shown").textContent;
        """
    )
    assert shown == "1 of 4 shown"
