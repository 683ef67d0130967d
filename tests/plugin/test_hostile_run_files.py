"""Run files are untrusted: whatever is in one, a command answers with its output or with one line about the file."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import pytest
from gpusync_lint.accept import observed_runs
from gpusync_lint.files import run_files
from hostile import MARKDOWN, MARKUP, TERMINAL, complete, mutants, places
from measurements import SIMULATED, stepped, sync, whole

from pytest_gpusync.commands import report
from pytest_gpusync.model.budgets import Budget, judge
from pytest_gpusync.model.measurement import Race, Site
from pytest_gpusync.reporting import github
from pytest_gpusync.reporting.notebook import to_fragment
from pytest_gpusync.reporting.run_file import region_document, run_document, to_text
from pytest_gpusync.reporting.summary import caught_lines, summary_lines
from pytest_gpusync.reporting.terminal import render_measurement, render_verdict

MUTANTS = 250
SECONDS = float(os.environ.get("GPUSYNC_FUZZ_SECONDS", "0"))
"""How long to go on with mutants; 0 for the few hundred of each test run. Give pytest --timeout=0 with it."""
SEED = int(os.environ.get("GPUSYNC_FUZZ_SEED", "20261123"))

ACTIONS = ("show", "md", "html", "trace", "merge")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def run(action, *names):
    return report.main([action, *(["out.json"] if action == "merge" else []), *names])


def is_harmless(text):
    """Whether no terminal and no log of a job interprets a text."""
    return all(char.isprintable() or char == "\n" for char in text) and not re.search(r"(?m)^\s*::|##\[", text)


def refusal(capsys, content, action="show", name="run.json"):
    """The one line with which a file is refused."""
    if content is not None:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert run(action, name) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gpusync report: {name}: ")
    return line


def changed(path, value):
    """The text of the complete run with one value replaced."""
    document = complete()
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return json.dumps(document)


def site_run(*paths):
    sites = [sync(path=path, line=line) for line, path in enumerate(paths, start=1)]
    return to_text(run_document(SIMULATED, [region_document(whole(*sites))]))


def test_the_complete_run_is_accepted_by_every_command(folder, capsys):
    (folder / "run.json").write_text(json.dumps(complete()))
    for action in ACTIONS:
        assert run(action, "run.json") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("[" * 200_000, "nested too deeply", id="a deep list"),
        pytest.param('{"a":' * 200_000, "nested too deeply", id="a deep object"),
        pytest.param('{"schema": "gpusync.run/1", "x": NaN}', "NaN is not a JSON number", id="NaN"),
        pytest.param('{"schema": "gpusync.run/1", "x": -Infinity}', "-Infinity is not a JSON", id="infinity"),
        pytest.param(
            '{"schema": "gpusync.run/1", "x": ' + "9" * 5000 + "}", "an integer has 5000 digits", id="5,000 digits"
        ),
        pytest.param('{"schema": 1, "schema": "gpusync.run/1"}', "has the key 'schema' twice", id="a key twice"),
        pytest.param('{"schema": "gpusync.run/2"}', "this version reads gpusync.run/1; install", id="a later schema"),
        pytest.param('{"schema": "gpusync.run/' + "9" * 9000 + '"}', "9…, and this version", id="a long schema"),
        pytest.param('{"schema": "gpusync.run/1\\n\\u001b"}', r"gpusync.run/1\n\x1b, and", id="an odd schema"),
        pytest.param('{"schema": "gpusync.run/1",}', "line 1 column", id="malformed"),
        pytest.param(b'{"schema": "\xff"}', "not utf-8 at byte", id="not UTF-8"),
        pytest.param(b"", "not JSON (Expecting value", id="empty"),
        pytest.param(b"\0" * 9, "not JSON", id="null characters"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_refused_in_one_line(folder, capsys, text, problem):
    assert problem in refusal(capsys, text)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("regions", 0, "sites", 1, "line"), "3", "expected `int`, got `str`, at regions[0].sites[1].line"),
        (("regions", 0, "sites", 1, "line"), True, "expected `int`, got `bool`"),
        (("regions", 0, "sites", 1, "line"), 10**18, "expected `int` <= 2147483647"),
        (("regions", 0, "sites", 1, "line"), -1, "expected `int` >= 0"),
        (("regions", 0, "sites", 1, "code"), "GS201 | <b>", "expected `str` matching regex"),
        (("regions", 0, "sites", 1, "blocked_ms"), 1e300, "expected `float` <= 1e+18"),
        (("regions", 0, "outcome"), MARKUP, "invalid enum value"),
        (("regions", 0, "warmup"), 99, "no steps after warm-up, at regions[0]"),
        (("regions", 0, "steps"), None, "no steps after warm-up, at regions[0]"),
        (("regions", 0, "warmup"), None, "warmup is null, at regions[0]"),
        (("regions", 2, "problem"), None, "problem is null, at regions[2]"),
        (("regions", 0, "order", "sites", 0), 99, "not one of sites, at regions[0]"),
        (("regions", 0, "order", "steps"), [], "different lengths, at regions[0].order"),
        (("regions", 0, "order", "closed_ms"), None, "closed_ms is null"),
        (("regions", 0, "order", "step_ends_ms"), [2.0, 1.0], "step_ends_ms decreases"),
        (("regions", 0, "part"), 9, "a region names none of parts, at the top level"),
        (("parts",), [], "parts is empty"),
        (("environment", "coverage"), None, "device or coverage is null, at environment"),
        (("lines",), {"a.py": [[0, 100_000_000_000]]}, "expected `int` <= 2147483647, at lines[...][0][1]"),
        (("lines",), {"a.py": [[0, 1e11]]}, "expected `int`, got `float`"),
        (("lines",), {"a.py": [[1, 2, 3]]}, "expected `array` of length 2"),
        (("origin", "source_url"), "javascript:alert(1)//", "matching regex"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place_and_a_remedy(folder, capsys, path, value, problem):
    line = refusal(capsys, changed(path, value))
    assert problem in line
    assert line.endswith("; write the file again with gpusync trace --json or pytest --gpu-sync-report")


def test_a_number_too_large_for_a_float_is_refused(folder, capsys):
    assert "at regions[0].sites[0].blocked_ms" in refusal(
        capsys, changed(("regions", 0, "sites", 0, "blocked_ms"), "HERE").replace('"HERE"', "1e999")
    )


@pytest.mark.parametrize("action", ACTIONS)
def test_the_longest_range_of_lines_takes_no_time(folder, action):
    (folder / "run.json").write_text(changed(("parts", 0, "lines"), {"a.py": [[0, 2**31 - 1]]}))
    began = time.process_time()
    assert run(action, "run.json") == 0
    assert time.process_time() - began < 60  # two thousand million steps would take several times as long


def test_a_file_larger_than_the_limit_is_refused_without_reading_it(folder, capsys):
    with open("run.json", "wb") as file:
        file.truncate(run_files.SIZE_LIMIT + 1)
    tracemalloc.start()
    try:
        assert "larger than 268 MB; measure fewer tests per file" in refusal(capsys, None)
        assert tracemalloc.get_traced_memory()[1] < run_files.SIZE_LIMIT / 4
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="needs devices and pipes")
@pytest.mark.parametrize(
    ("target", "problem"),
    [("/dev/zero", "not a regular file; save the run"), ("pipe", "not a regular file"), (".", "cannot be read (Is a")],
)
def test_only_regular_files_are_read(folder, capsys, target, problem):
    if target == "pipe":
        os.mkfifo("pipe")
    os.symlink(target, "run.json")
    assert problem in refusal(capsys, None)


def test_one_bad_file_hides_no_other(folder, capsys):
    for name, text in (("1.json", "{"), ("2.json", json.dumps(complete())), ("3.json", '{"schema": "gpusync.run/9"}')):
        (folder / name).write_text(text)
    assert report.main(["merge", "out.json", "1.json", "2.json", "3.json", "4.json"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["1.json", "3.json", "4.json"]
    assert not (folder / "out.json").exists()


def test_every_region_of_one_name_is_shown(folder, capsys):
    regions = [region_document(stepped(steps, name="train.py")) for steps in ([1, 7], [1, 5])]
    (folder / "run.json").write_text(to_text(run_document(SIMULATED, regions)))
    assert run("show", "run.json") == 0
    assert "up to 7 in a step" in capsys.readouterr().out


@pytest.mark.parametrize("action", ACTIONS[:4])
def test_only_python_files_below_the_working_directory_are_read(folder, capsys, action):
    secret = "SECRET_TOKEN = 1234\n" * 9
    (folder / ".env").write_text(secret)
    (folder.parent / "outside.py").write_text(secret)
    (folder / "linked.py").symlink_to(folder.parent / "outside.py")
    (folder / "up").symlink_to(folder.parent)
    paths = ["/etc/passwd", "../outside.py", str(folder.parent / "outside.py"), "linked.py", "up/outside.py", ".env"]
    (folder / "run.json").write_text(site_run(*paths))
    assert run(action, "run.json") == 0
    shown = capsys.readouterr()
    assert "SECRET_TOKEN" not in shown.out
    assert "root:" not in shown.out
    (note,) = shown.err.splitlines()
    assert note.startswith("gpusync report: note: sources are read from Python files below the working directory only")


def test_a_source_below_the_working_directory_is_shown(folder, capsys):
    (folder / "train.py").write_text("value = loss.item()\n")
    (folder / "run.json").write_text(site_run("train.py"))
    assert run("html", "run.json") == 0
    shown = capsys.readouterr()
    assert ("value = loss.item()" in shown.out, shown.err) == (True, "")


def test_after_a_report_of_a_file_the_runs_of_this_process_show_any_source(folder, capsys):
    from pytest_gpusync.reporting.site_rows import source_text

    (folder.parent / "outside.py").write_text("value = loss.item()\n")
    (folder / "run.json").write_text(site_run("../outside.py"))
    assert run("show", "run.json") == 0
    assert source_text("../outside.py", 1) == "value = loss.item()"


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes")
@pytest.mark.parametrize("action", ACTIONS[:4])
def test_a_pipe_and_an_endless_file_beside_the_source_stop_nothing(folder, action):
    os.mkfifo("pipe.py")
    os.symlink("/dev/zero", "zero.py")
    (folder / "train.py").write_text("import torch\nprint(torch.ones(1, device='cuda').item())\n")
    (folder / "run.json").write_text(site_run("train.py", "train.py", "pipe.py", "zero.py", "a\0b.py", "x" * 9000))
    assert run(action, "run.json") == 0


@pytest.mark.parametrize("cookie", ["rot13", "hex", "zlib", "undefined", "idna", "none-such", "utf-7"])
def test_a_source_of_any_encoding_is_shown(folder, capsys, cookie):
    (folder / "train.py").write_text(f"# -*- coding: {cookie} -*-\nvalue = 1\n")
    (folder / "run.json").write_text(site_run("train.py", "train.py"))
    assert run("html", "run.json") == 0


def strings(value):
    """The places of all texts of a run that may be any text."""
    fixed = {"schema", "outcome", "coverage", "code", "source_url", "device"}
    for path in places(value):
        found = value
        for key in path:
            found = found[key]
        if isinstance(found, str) and path[-1] not in fixed:
            yield path


EVERY_TEXT = sorted({tuple(0 if isinstance(key, int) else key for key in path) for path in strings(complete())})


def poisoned(text):
    """The complete run with each of its texts replaced."""
    document = complete()
    for path in list(strings(document)):
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = f"{text}{path[-1]}"
    document["lines"] = {text: [[1, 2]]}
    return json.dumps(document)


def test_the_complete_run_has_the_texts_that_reports_print():
    named = {path[-1] for path in EVERY_TEXT}
    assert {"name", "path", "function", "via", "thread", "allowed", "message", "sentence", "problem", "note"} <= named
    assert {"label", "gpu", "driver", "recorder", "command", "stream", "torch", "python"} <= named


@pytest.mark.parametrize("action", ["show", "md"])
def test_no_text_of_a_run_file_reaches_the_terminal_or_the_log_of_a_job_as_a_command(folder, capsys, action):
    (folder / "run.json").write_text(poisoned(TERMINAL))
    assert run(action, "run.json") == 0
    assert is_harmless(capsys.readouterr().out)


def test_a_text_that_begins_like_a_workflow_command_is_no_command(folder, capsys):
    (folder / "run.json").write_text(poisoned("::error::planted "))
    assert run("show", "run.json") == 0
    assert not re.search(r"(?m)^\s*::", capsys.readouterr().out)


def test_no_text_of_a_run_file_is_markup_in_markdown(folder, capsys):
    (folder / "run.json").write_text(poisoned(MARKUP + MARKDOWN))
    assert run("md", "run.json") == 0
    outside_code = re.sub(r"(`+).*?\1", "", capsys.readouterr().out)
    assert not re.search(r"<(?!/?sub>)|(?<!\\)\]\(|@\w|https?://", outside_code)


class Tags(HTMLParser):
    """The tags and attributes of a page, and the text around them."""

    def __init__(self):
        super().__init__()
        self.tags, self.scripts, self.attributes, self.text = set(), set(), set(), ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "script":
            self.scripts.add(tuple(attrs))
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("text", [MARKUP, "</script>", "</style>", "{{ 7 * 7 }}", "{% raw %}", "&amp;lt;script&gt;"])
def test_no_text_of_a_run_file_is_markup_in_html(folder, capsys, text):
    (folder / "run.json").write_text(poisoned(text))
    assert run("html", "run.json") == 0
    page = Tags()
    page.feed(capsys.readouterr().out)
    assert not page.tags & {"img", "iframe", "object", "embed", "link", "base"}
    assert page.scripts == {(("type", "application/json"),), ()}
    assert {name for name in page.attributes if name.startswith("on")} | {"action", "style"} & page.attributes == set()
    assert text in page.text


def test_a_name_of_a_file_reaches_the_terminal_escaped(folder, capsys):
    name = "a\x1b[31m\n::error::x.json"
    (folder / name).write_text("{")
    assert run("show", name) == 2
    assert capsys.readouterr().err.startswith(r"gpusync report: a\x1b[31m\n::error::x.json: not JSON")


@pytest.mark.parametrize("action", ACTIONS)
def test_a_path_that_is_not_utf8_is_written(folder, action, capsys):
    (folder / "run.json").write_text(site_run("g\udcff.py"))
    assert run(action, "run.json") == 0
    written = (folder / "out.json").read_text(encoding="utf-8") if action == "merge" else capsys.readouterr().out
    assert ("g\\udcff.py" if action in {"merge", "trace"} else "g\\xff.py") in written  # in JSON as JSON has it
    written.encode()


def outcome_of(action, name, capsys):
    """Run a command on a file, check what must hold for any file, and return its exit code."""
    code = run(action, name)
    shown = capsys.readouterr()
    errors = [line for line in shown.err.splitlines() if ": note: " not in line]
    assert (code, len(errors)) in ((0, 0), (2, 1))
    assert all(char.isprintable() or char == "\n" for char in shown.err)
    if code:
        assert (errors[0].startswith(f"gpusync report: {name}"), shown.out) == (True, "")
    elif action in ("show", "md"):
        assert is_harmless(shown.out)
    elif action == "html":
        assert "<img" not in shown.out
        assert set(re.findall(r"<script[^>]*>", shown.out)) <= {"<script>", '<script type="application/json">'}
        assert shown.out.count("<script>") == 1
    else:
        json.loads(shown.out or Path("out.json").read_bytes())
    return code


def test_mutants_of_a_run_file_are_rendered_or_refused_in_one_line(folder, capsys):
    random, codes, tried, until = Random(SEED), [], 0, time.monotonic() + SECONDS
    for content in mutants(complete(), random):
        Path("run.json").write_bytes(content)
        try:
            codes.append({outcome_of(action, "run.json", capsys) for action in ACTIONS})
            began = time.process_time()
            try:
                observed_runs.load(["run.json"], folder)
            except observed_runs.ObservedError as error:
                assert "\n" not in str(error)
            assert time.process_time() - began < 30
        except BaseException:
            sys.stderr.write(f"mutant {tried} of seed {SEED} is kept in {folder / 'run.json'}\n")
            raise
        tried += 1
        if tried >= MUTANTS and time.monotonic() >= until:
            break
    assert all(len(code) == 1 for code in codes)  # every command agrees on whether the file is valid
    assert {0, 2} <= set().union(*codes)
    if SECONDS:
        with capsys.disabled():
            print(f"{tried} mutants of seed {SEED}: {codes.count({0})} rendered, {codes.count({2})} refused")


HOSTILE = whole(
    sync(path=f"{TERMINAL}.py", function=TERMINAL, via=TERMINAL),
    sync(line=2, allowed=TERMINAL),
    sync(line=3, background=True, thread=TERMINAL),
    name=TERMINAL,
    races=(Race("stream", Site(TERMINAL, 1, TERMINAL), "s", Site("a.py", 1, "f"), "s", None, (2,), 8, TERMINAL),),
)
"""A measurement of this process: paths, reasons and threads have names that the program chose."""


def test_what_a_program_named_reaches_the_terminal_escaped():
    verdict = judge(HOSTILE, Budget(max=0))
    for rows in (
        render_measurement(HOSTILE, verbose=True),
        render_measurement(HOSTILE),
        render_verdict(verdict, HOSTILE),
        summary_lines(None, {TERMINAL: [region_document(HOSTILE, [verdict])]}),
        caught_lines([[region_document(HOSTILE, [verdict])]]),
    ):
        assert is_harmless("\n".join(rows))
        assert all("\n" not in row for row in rows)


def test_what_a_program_named_reaches_a_notebook_escaped():
    assert is_harmless(to_fragment(HOSTILE))


def test_an_annotation_has_no_command_but_its_own(folder):
    region = region_document(HOSTILE, [judge(HOSTILE, Budget(max=0))])
    test = github.FailedTest(TERMINAL, f"{TERMINAL}.py", 3)
    (command,) = github.commands([test], {TERMINAL: [region]}, base=folder, workspace=None)
    assert command.isprintable()
    assert command.startswith("::error file=")
    assert "##[" not in command


def test_a_name_beside_the_run_file_keeps_its_text_in_json(folder):
    document = run_document(SIMULATED, [region_document(HOSTILE)])
    (folder / "run.json").write_text(to_text(document))
    assert run("merge", "run.json") == 0
    assert json.loads((folder / "out.json").read_bytes())["regions"][0]["name"] == TERMINAL
