"""``gpusync report``: runs of several files merged, shown and drawn."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from measurements import H200, SIMULATED, stepped, sync, whole
from run_schema import SCHEMA, violations

from pytest_gpusync.commands import report
from pytest_gpusync.model.budgets import Budget, judge
from pytest_gpusync.reporting.run_file import region_document, run_document, to_text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, name, *regions, environment=SIMULATED, rank=None, lines=None):
    document = {**run_document(environment, [region_document(one) for one in regions], lines), "rank": rank}
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(to_text(document))
    return name


def merge(folder, *names):
    assert report.main(["merge", "all.json", *names]) == 0
    return json.loads((folder / "all.json").read_text())


def names(document):
    return [region["name"] for region in document["regions"]]


def refused(capsys, *arguments):
    assert report.main(list(arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_merged_run_keeps_the_schema(folder):
    one = write(folder, "a.json", stepped([1, 2]), lines={"train.py": [[1, 3]]}, rank=0)
    two = write(folder, "b.json", stepped([1, 2]), environment=H200, lines={"train.py": [[3, 4], [9, 9]]}, rank=1)
    assert violations(merge(folder, one, two), SCHEMA) == []


def test_regions_of_every_file_are_there(folder):
    a, b = write(folder, "a.json", whole(name="test_a")), write(folder, "b.json", whole(name="test_b"))
    assert names(merge(folder, a, b)) == ["test_a", "test_b"]


def test_regions_of_one_name_get_the_rank(folder):
    files = [write(folder, f"run-{rank}.json", whole(name="train.py"), rank=rank) for rank in (0, 1)]
    assert names(merge(folder, *files)) == ["train.py [rank 0]", "train.py [rank 1]"]


@pytest.mark.parametrize(
    ("files", "labels"),
    [
        (["a.json", "b.json"], ["a", "b"]),
        (["a/run.json", "b/run.json"], ["a/run.json", "b/run.json"]),
        (["run-9.json", "run-10.json"], ["run-9", "run-10"]),
    ],
)
def test_without_ranks_regions_of_one_name_get_their_file(folder, files, labels):
    for file in files:
        write(folder, file, whole(name="t"))
    assert names(merge(folder, *files)) == [f"t [{label}]" for label in labels]


def test_the_order_of_the_files_does_not_matter(folder):
    files = [write(folder, f"run-{n}.json", stepped([n, n]), environment=(H200, SIMULATED)[n % 2]) for n in range(12)]
    assert merge(folder, *files) == merge(folder, *reversed(files))


def test_merging_in_two_stages_is_merging_in_one(folder):
    files = [write(folder, f"{n}.json", whole(name="t"), rank=n) for n in range(4)]
    at_once = merge(folder, *files)
    for node, ranks in (("x.json", files[:2]), ("y.json", files[2:])):
        (folder / node).write_text(json.dumps(merge(folder, *ranks)))
    assert merge(folder, "y.json", "x.json") == at_once


def test_a_merged_run_claims_no_more_than_the_part_that_saw_least(folder):
    a = write(folder, "a.json", whole(), environment=H200)
    b = write(folder, "b.json", whole(), environment=SIMULATED)
    environment = merge(folder, a, b)["environment"]
    assert (environment["device"], environment["coverage"]) == ("simulated", "simulated")


def test_environments_that_differ_are_said(folder):
    a = write(folder, "a.json", whole(), environment=H200)
    b = write(folder, "b.json", whole(), environment=replace(H200, torch="2.11.0"))
    note = merge(folder, a, b)["environment"]["note"]
    assert note == "the parts of this run differ: torch 2.15.0 (a) and 2.11.0 (b)"


def test_a_part_that_measured_nothing_does_not_unsay_what_another_measured(folder):
    a, b = write(folder, "a.json", environment=None), write(folder, "b.json", whole(), environment=H200)
    environment = merge(folder, a, b)["environment"]
    assert environment["recorder"] == "cupti"
    assert environment["note"] == "1 of 2 parts measured nothing"


def test_lines_that_ran_in_any_part_ran(folder):
    a = write(folder, "a.json", lines={"t.py": [[1, 3]]})
    b = write(folder, "b.json", lines={"t.py": [[3, 4], [9, 9]]})
    assert merge(folder, a, b)["lines"] == {"t.py": [[1, 4], [9, 9]]}


def test_lines_are_unknown_where_one_part_did_not_record_them(folder):
    a, b = write(folder, "a.json", lines={"t.py": [[1, 3]]}), write(folder, "b.json")
    assert merge(folder, a, b)["lines"] is None


@pytest.mark.parametrize("ending", [".md", ".html"])
def test_a_merged_run_is_written_by_its_ending(folder, ending):
    a, b = write(folder, "a.json", stepped([1, 2])), write(folder, "b.json", stepped([1, 2]))
    assert report.main(["merge", f"all{ending}", a, b]) == 0
    assert "Merged from 2 runs: a, b" in (folder / f"all{ending}").read_text()


def test_another_ending_is_refused(folder, capsys):
    assert "all.txt: a run can be written as .trace.json, .json" in refused(
        capsys, "merge", "all.txt", write(folder, "a.json")
    )


def test_kinds_are_not_mixed(folder, capsys):
    a = write(folder, "a.json")
    (folder / "lint.json").write_text('{"schema": "gpusync.lint/1", "findings": [], "errors": [], "files": 0}')
    line = refused(capsys, "merge", "all.json", a, "lint.json")
    assert "a.json is a run file and lint.json is findings as JSON; merge one kind at a time" in line


def test_every_output_of_the_linter_that_is_damaged_is_named(folder, capsys):
    good = '{"schema": "gpusync.lint/1", "findings": [], "errors": [], "files": 0}'
    for name, text in (
        ("a.json", good),
        ("b.json", good.replace("[]", "[{}]", 1)),
        ("c.json", good.replace("[]", "3")),
    ):
        (folder / name).write_text(text)
    assert report.main(["merge", "all.json", "a.json", "b.json", "c.json"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("gpusync report: b.json: ")
    assert second.startswith("gpusync report: c.json: ")
    assert not (folder / "all.json").exists()


def test_a_file_given_twice_is_refused(folder, capsys):
    a = write(folder, "a.json")
    assert "./a.json is given twice" in refused(capsys, "merge", "all.json", a, "./a.json")


def test_out_is_not_one_of_the_files(folder, capsys):
    a = write(folder, "a.json")
    assert "give OUT another name" in refused(capsys, "merge", "./a.json", a)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "bad.json: not JSON ("),
        ("[1]", "bad.json: neither a run file nor"),
        ('{"schema": "gpusync.run/1"}', "bad.json: not a valid gpusync.run/1 file"),
        (
            '{"schema": "gpusync.run/1", "environment": {}, "regions": [{"name": "t"}]}',
            "bad.json: not a valid gpusync.run",
        ),
        ('{"schema": "gpusync.run/1", "environment": {}, "regions": []}', "bad.json: not a valid gpusync.run"),
    ],
)
@pytest.mark.parametrize("action", ["merge", "show", "html"])
def test_a_file_that_is_no_run_is_refused_in_one_line(folder, capsys, text, complaint, action):
    (folder / "bad.json").write_text(text)
    assert complaint in refused(capsys, action, *(["out.json"] if action == "merge" else []), "bad.json")
    assert not (folder / "out.json").exists()


def test_a_missing_file_is_refused(folder, capsys):
    assert "none.json: cannot be read (No such file" in refused(capsys, "show", "none.json")


def test_show_draws_the_summary(folder, capsys):
    measurement = stepped([1, 3, 3], name="train.py")
    document = run_document(SIMULATED, [region_document(measurement, [judge(measurement, Budget(max=2))])])
    (folder / "run.json").write_text(to_text(document))
    assert report.main(["show", "run.json"]) == 0
    shown = capsys.readouterr().out
    assert "1 region measured, 1 over budget" in shown
    assert "simulated CUDA device, recorder simulated, coverage simulated" in shown


def test_a_page_goes_to_standard_output_or_a_file(folder, capsys):
    name = write(folder, "run.json", stepped([1, 3, 3], name="train.py"))
    assert report.main(["md", name]) == 0
    assert report.main(["md", name, "-o", "deep/run.md"]) == 0
    assert capsys.readouterr().out == (folder / "deep/run.md").read_text()


def test_a_page_drawn_where_the_source_is_not_keeps_the_codes_of_the_run(folder, capsys):
    document = run_document(SIMULATED, [region_document(whole(sync(path="gone.py")))])
    document["regions"][0]["sites"][0]["code"] = "GS201"
    (folder / "run.json").write_text(to_text(document))
    assert report.main(["html", "run.json"]) == 0
    page = capsys.readouterr().out
    assert "GS201" in page
    assert "the linter has no rule for this line" not in page


@pytest.mark.parametrize(
    ("rank", "size", "known"), [("2", "4", 2), ("0", "1", None), ("x", "4", None), ("2", "", None)]
)
def test_a_run_file_has_the_rank_that_the_launcher_told(monkeypatch, rank, size, known):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    assert run_document(None, [])["rank"] == known
