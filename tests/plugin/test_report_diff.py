"""``gpusync report diff``: what is new, gone, more and fewer between two runs, and what cannot be compared."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hostile import MARKDOWN, MARKUP, TERMINAL, complete
from measurements import H200, SIMULATED, stepped, sync, whole

from pytest_gpusync.commands import report
from pytest_gpusync.model.measurement import RegionTimes
from pytest_gpusync.reporting.merging import merge_runs
from pytest_gpusync.reporting.run_file import region_document, run_document, to_text, unmeasured_document

TEST = "test_train.py::test_step"
LOSS, LOG, MASK = "losses.append(loss.item())", "log(acc.item())", "y = x[mask]"
MEAN = "losses.append(loss.mean().item())"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def region(sites, *, name=TEST, steps=20, environment=SIMULATED, **more):
    """The region of a test in which each site, (line, source), waits in the steps given by a function of the step."""
    waits = tuple(
        sync(step, line=line, function=more.get("function", "train"))
        for (line, _), waited in sites.items()
        for step in range(steps)
        for _ in range(int(waited(step)))
    )
    document = region_document(stepped([0] * steps, name=name, environment=environment, extra=waits))
    sources = dict(sites)
    for site in document["sites"]:
        site["source"] = next(source for line, source in sources if line == site["line"])
    return document


def every(syncs=1):
    return lambda step: syncs


def tenth(step):
    return step % 10 == 0


def write(folder, name, *regions, environment=SIMULATED):
    (folder / name).write_text(to_text(run_document(environment, regions)))
    return name


def diff(folder, before, after, *options):
    """The comparison of two lists of regions as JSON."""
    paths = [write(folder, f"{name}.json", *regions) for name, regions in (("a", before), ("b", after))]
    return compared(folder, *paths, *options)


def compared(folder, *arguments):
    assert report.main(["diff", "--output-format", "json", "-o", "diff.json", *arguments]) == 0
    return json.loads((folder / "diff.json").read_text())


def states(document):
    return {site["source"]: site["state"] for site in document["sites"]}


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        ({}, {(3, LOSS): every()}, {LOSS: "new"}),
        ({(3, LOSS): every()}, {}, {LOSS: "gone"}),
        ({(3, LOSS): every(1)}, {(3, LOSS): every(2)}, {LOSS: "more"}),
        ({(3, LOSS): every(2)}, {(3, LOSS): every(1)}, {LOSS: "fewer"}),
        ({(3, LOSS): tenth}, {(3, LOSS): every()}, {LOSS: "more"}),
        ({(3, LOSS): every()}, {(9, LOSS): every()}, {}),
        ({(3, LOSS): every(), (4, LOSS): every()}, {(8, LOSS): every(2)}, {}),
        ({(3, LOSS): every()}, {(3, MEAN): every()}, {MEAN: "edited"}),
        ({(3, LOSS): every()}, {(3, MEAN): every(2)}, {MEAN: "more"}),
        ({(3, LOSS): every(2)}, {(3, MEAN): every()}, {MEAN: "fewer"}),
        ({(3, LOSS): every(), (4, LOG): every()}, {(3, MEAN): every()}, {LOG: "gone", MEAN: "edited"}),
        ({(3, LOSS): every()}, {(3, MASK): every()}, {LOSS: "gone", MASK: "new"}),
        ({(3, LOSS): lambda step: step == 0}, {(3, LOSS): lambda step: 5 * (step == 0)}, {}),  # warm-up
    ],
)
def test_a_site_that_changed_has_a_state_and_one_that_moved_has_none(folder, before, after, state):
    assert states(diff(folder, [region(before)], [region(after)])) == state


@pytest.mark.parametrize(
    ("before", "steps_before", "after", "steps_after", "state"),
    [
        (every(), 20, every(), 100, {}),
        (tenth, 18, tenth, 100, {}),
        (tenth, 18, every(), 100, {LOSS: "more"}),
        (every(2), 20, every(1), 100, {LOSS: "fewer"}),
    ],
)
def test_different_numbers_of_steps_are_compared_per_step(folder, before, steps_before, after, steps_after, state):
    found = diff(
        folder, [region({(3, LOSS): before}, steps=steps_before)], [region({(3, LOSS): after}, steps=steps_after)]
    )
    assert states(found) == state
    assert found["differences"] == [
        f"{steps_before - 1} steps after warm-up, and now {steps_after - 1}; compared per step"
    ]


def test_runs_without_source_text_are_matched_by_function(folder):
    old = region({(3, LOSS): every()})
    for site in old["sites"]:
        del site["source"]
    (folder / "a.json").write_text(json.dumps(run_document(SIMULATED, []) | {"regions": [old]}))
    write(folder, "b.json", region({(7, LOSS): every(2)}))
    (site,) = compared(folder, "a.json", "b.json")["sites"]
    assert (site["state"], site["source"], site["function"]) == ("more", "", "train")


def test_what_was_not_measured_is_not_gone(folder):
    before = [region({(3, LOSS): every()}), region({(3, LOSS): every()}, name="test_b")]
    found = diff(folder, before, [unmeasured_document(TEST, "no GPU")])
    assert (found["sites"], found["tests"]) == ([], [])
    assert found["not_compared"] == [
        {"test": TEST, "reason": "not measured: no GPU"},
        {"test": "test_b", "reason": "only in the first run"},
    ]


def test_a_site_that_a_less_able_recorder_does_not_see_is_not_gone(folder):
    write(folder, "a.json", region({(3, LOSS): every()}, environment=H200), environment=H200)
    write(folder, "b.json", region({}, environment=SIMULATED))
    found = compared(folder, "a.json", "b.json")
    assert states(found) == {LOSS: "unseen"}
    assert found["differences"] == [
        "device: NVIDIA H200, and now simulated",
        "recorder: cupti, and now simulated",
        "coverage: driver, and now simulated",
        "torch: 2.15.0, and now 2.13.0",
        "python: 3.12.1, and now 3.11.9",
        "the second run sees less than the first: a site that it did not see may still be there",
    ]


def test_a_site_that_was_allowed_is_told_from_one_that_is_gone(folder):
    allowed = region_document(stepped([0] * 20, name=TEST, extra=(sync(3, line=3, function="train", allowed="log"),)))
    allowed["sites"][0]["source"] = LOSS
    (site,) = diff(folder, [region({(3, LOSS): every()})], [allowed])["sites"]
    assert (site["state"], site["allowed"]) == ("allowed", "log")


def test_the_ranks_of_a_run_count_with_their_worst(folder):
    runs = [(f"{rank}.json", run_document(SIMULATED, [region({(3, LOSS): every(rank + 1)})])) for rank in range(3)]
    for name, kept in (("a.json", runs[:2]), ("b.json", runs)):
        (folder / name).write_text(to_text(merge_runs(kept)))
    (site,) = compared(folder, "a.json", "b.json")["sites"]
    assert (site["state"], site["before"]["per_step_max"], site["after"]["per_step_max"]) == ("more", 2, 3)


def test_programs_of_other_names_are_compared(folder):
    found = diff(folder, [region({}, name="train.py")], [region({(3, LOSS): every()}, name="train2.py")])
    assert states(found) == {LOSS: "new"}
    assert found["differences"] == ["the programs differ: train.py and train2.py"]


def timed(step_ms):
    ends = tuple(int(1e6 * step_ms * (step + 1) + 1e4 * (step % 3)) for step in range(30))
    measurement = stepped([0] * 30, environment=H200, name=TEST, times=RegionTimes(ends, ends[-1]))
    return run_document(H200, [region_document(measurement)])


@pytest.mark.parametrize(
    ("after", "result"), [(10.004, "no difference that can be told"), (12, "longer"), (8, "shorter")]
)
def test_times_differ_where_their_intervals_are_apart(folder, capsys, after, result):
    for name, step_ms in (("a.json", 10), ("b.json", after)):
        (folder / name).write_text(to_text(timed(step_ms)))
    assert report.main(["diff", "a.json", "b.json"]) == 0
    assert f"ms: {result}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ([region({})], [region({(3, LOSS): every()})], 1),
        ([region({(3, LOSS): every(2)})], [region({(3, LOSS): every(1)})], 0),
        ([region({})], [], 1),
        ([], [region({})], 1),
        ([region({}), region({}, name="b")], [region({}), unmeasured_document("b", "no GPU")], 1),
        ([region({}), region({}, name="b")], [region({})], 0),
    ],
)
def test_the_exit_status_of_a_gate(folder, capsys, before, after, code):
    paths = [write(folder, f"{name}.json", *regions) for name, regions in (("a", before), ("b", after))]
    assert report.main(["diff", *paths]) == 0
    assert report.main(["diff", "--exit-nonzero-on-more", *paths]) == code


def test_every_file_that_cannot_be_read_is_named(folder, capsys):
    (folder / "bad.json").write_text("{")
    (folder / "other.json").write_text("[]")
    assert report.main(["diff", "bad.json", "other.json"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("gpusync report: bad.json: not JSON")
    assert second.startswith("gpusync report: other.json: not a run file")


def test_the_text_has_the_line_its_rates_and_its_test(folder, capsys):
    write(folder, "a.json", region({(3, LOSS): every(1)}))
    write(folder, "b.json", region({(5, LOSS): every(2), (6, LOG): tenth}))
    assert report.main(["diff", "a.json", "b.json"]) == 0
    shown = capsys.readouterr().out
    assert f"More often:\n  train.py:5  {LOSS}\n    1 per step -> 2 per step; in {TEST}\n" in shown
    assert f"New:\n  train.py:6  {LOG}\n    up to 1 per step, in 1 of 19; in {TEST}\n" in shown
    assert shown.endswith("\n1 test compared: 1 new, 1 more often\n")


@pytest.mark.parametrize("output_format", ["text", "md", "json"])
def test_texts_of_a_file_have_no_effect(folder, capsys, output_format):
    """The files may be those of a stranger's pull request, and the comparison a comment or a log."""
    before, after = complete(), complete()
    hostile = MARKUP + TERMINAL + MARKDOWN
    for region_found in after["regions"]:
        region_found["name"] = hostile + region_found["name"]
        for site in region_found["sites"]:
            site |= {"path": hostile, "function": hostile, "source": hostile, "allowed": None}
    after["environment"]["torch"] = hostile
    (folder / "a.json").write_text(json.dumps(before))
    (folder / "b.json").write_text(json.dumps(after))
    assert report.main(["diff", "--output-format", output_format, "a.json", "b.json"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\n::error" not in shown
    if output_format == "md":
        outside_code = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", shown)
        assert "[c]" in shown
        assert "<img" not in outside_code
        assert "[c](" not in outside_code


def test_a_whole_program_is_counted_in_all(folder, capsys):
    for name, number in (("a.json", 2), ("b.json", 3)):
        document = region_document(whole(*[sync() for _ in range(number)], name="train.py"))
        write(folder, name, document)
    assert report.main(["diff", "a.json", "b.json"]) == 0
    assert "2 in all -> 3 in all" in capsys.readouterr().out


def test_another_version_of_torch_is_said(folder):
    newer = replace(SIMULATED, torch="2.15.0")
    write(folder, "a.json", region({}))
    write(folder, "b.json", region({}, environment=newer), environment=newer)
    assert compared(folder, "a.json", "b.json")["differences"] == ["torch: 2.13.0, and now 2.15.0"]
