"""What a person reads, over hand-made measurements and a file that exists."""

from __future__ import annotations

import os

import pytest
from measurements import H200, stepped, sync, whole

from pytest_gpusync.model.budgets import Budget, judge
from pytest_gpusync.reporting import site_rows, terminal
from pytest_gpusync.reporting.rule_names import Rule
from pytest_gpusync.reporting.run_file import region_document, run_document
from pytest_gpusync.reporting.summary import document_lines
from pytest_gpusync.reporting.terminal import render_measurement, render_verdict, wrap_line

SOURCE = """\
def train_step(x, device):
    x = x.to(device)
    loss = model(x)
    total += loss.item()  # the running loss
    if epoch % 10 == 0: print(f"a long line that reports the loss of this epoch {loss.item()} and then some")
"""


@pytest.fixture
def train_py(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(site_rows, "rules_for", lambda path, line: ())
    return tmp_path / "train.py"


def failed(measurement, **options):
    return render_verdict(judge(measurement, Budget(max=0), subject="Test"), measurement, **options)


@pytest.mark.usefixtures("train_py")
def test_a_failure_is_the_sentence_the_aligned_lines_and_the_device(monkeypatch):
    rules = {
        4: Rule("GS201", "item", "keep the sum on the device", 25),
        2: Rule("GS501", "to", "use pin_memory and non_blocking=True", 21),
    }
    monkeypatch.setattr(site_rows, "rules_for", lambda path, line: (rules[line],))
    measurement = stepped(
        [0, 0, 0],
        extra=tuple(sync(step, line=line) for step in (1, 2) for line in (2, 2, 4)),
        environment=H200,
    )
    assert failed(measurement) == [
        "Training step made 3 syncs, budget 0 (worst of 2 steps after warm-up)",
        "  train.py:2  x = x.to(device)      GS501  2 per step   use pin_memory and non_blocking=True",
        "  train.py:4  total += loss.item()  GS201  1 per step   keep the sum on the device",
        "  NVIDIA H200 (driver 580.159), recorder cupti, coverage driver",
    ]


@pytest.mark.usefixtures("train_py")
@pytest.mark.parametrize(
    ("syncs", "rate"),
    [
        ([sync(1), sync(2)], "1 per step"),
        ([sync(1), sync(2), sync(2)], "up to 2 per step"),
        ([sync(2)], "up to 1 per step, in 1 of 2"),
    ],
)
def test_a_line_says_how_regularly_it_syncs(syncs, rate):
    measurement = stepped([0, 0, 0], extra=tuple(syncs))
    assert failed(measurement)[1].endswith(f"  {rate}")


@pytest.mark.usefixtures("train_py")
def test_a_line_of_a_region_without_steps_has_a_plain_number():
    assert failed(whole(sync(line=2), sync(line=2)))[1] == "  train.py:2  x = x.to(device)  2 syncs"


@pytest.mark.usefixtures("train_py")
def test_the_library_frame_is_named():
    line = failed(whole(sync(line=2, via="torch/optim/adam.py:77 step")))[1]
    assert line.endswith("via torch/optim/adam.py:77 step")


@pytest.mark.usefixtures("train_py")
def test_a_line_with_several_library_frames_is_one_row_that_names_the_busiest():
    busiest = sync(line=2, via="torch/_tensor_str.py:177 format")
    text = failed(whole(sync(line=2, via="torch/_tensor.py:9 item"), busiest, busiest, sync(line=2)))
    assert text[1].endswith("4 syncs   via torch/_tensor_str.py:177 format and 1 more")


@pytest.mark.usefixtures("train_py")
def test_allowed_syncs_are_listed_apart_with_their_reason():
    text = failed(whole(sync(line=2), sync(line=4, allowed="early stop")))
    assert text[0].startswith("Test made 1 sync")
    assert text[2:4] == ["  not counted:", "  train.py:4  total += loss.item()  1 sync   allowed: early stop"]


@pytest.mark.usefixtures("train_py")
@pytest.mark.parametrize(
    ("rules", "shown"),
    [
        ((), 'if epoch % 10 == 0: print(f"a long line tha…'),
        ((Rule("GS201", "item", "", 5),), 'if epoch % 10 == 0: print(f"a long line tha…'),
        (
            (Rule("GS201", "item", "", SOURCE.splitlines()[4].index("item()") + 7),),
            "…eports the loss of this epoch {loss.item()…",
        ),
    ],
)
def test_a_long_line_is_cut_with_its_barrier_in_sight(rules, shown):
    assert site_rows.shortened_source("train.py", 5, rules) == shown
    assert len(shown) == site_rows.SOURCE_WIDTH


@pytest.mark.usefixtures("train_py")
def test_a_line_whose_file_is_gone_is_told_by_function_and_kind():
    assert "in train_step: stream synchronize" in failed(whole(sync(path="gone.py")))[1]


@pytest.mark.usefixtures("train_py")
@pytest.mark.parametrize(("lines", "more"), [(10, 0), (11, 1), (13, 3)])
def test_ten_lines_are_shown_and_the_rest_counted(lines, more):
    text = failed(whole(*[sync(line=line + 100) for line in range(lines)]))
    assert len([row for row in text if "train.py:" in row]) == 10
    assert [row for row in text if "more" in row] == (
        [f"  and {more} line{'s' if more > 1 else ''} more (-v shows all)"] if more else []
    )


@pytest.mark.usefixtures("train_py")
def test_no_limit_shows_every_line():
    text = failed(whole(*[sync(line=line + 100) for line in range(13)]), limit=None)
    assert len([row for row in text if "train.py:" in row]) == 13


@pytest.mark.usefixtures("train_py")
@pytest.mark.parametrize(
    ("measurement", "sentence"),
    [
        (whole(sync()), "1 sync"),
        (
            stepped([9, 2, 2]),
            "2 syncs per step, over 2 steps after 1 step of warm-up (a step ends at optimizer.step())",
        ),
        (
            stepped([1, 1, 5], warmup=0),
            "1 sync per step, 5 in the worst, over 3 steps (a step ends at optimizer.step())",
        ),
        (whole(problem="the GPU fell off the bus"), "Not measured: the GPU fell off the bus"),
    ],
)
def test_a_measurement_is_told_in_one_sentence(measurement, sentence):
    assert render_measurement(measurement)[0] == sentence


@pytest.mark.usefixtures("train_py")
def test_rows_are_cut_to_the_width_unless_verbose():
    measurement = whole(sync(line=2, via="torch/" + "x" * 100))
    assert len(render_measurement(measurement, width=60)[1]) == 60
    assert len(render_measurement(measurement, width=60, verbose=True)[1]) > 100


@pytest.mark.usefixtures("train_py")
def test_verbose_adds_the_lines_that_only_warm_up_ran():
    text = render_measurement(stepped([0, 1], extra=(sync(0, line=77),)), verbose=True)
    assert "  train.py:77  in train_step: stream synchronize  1 sync" in text


@pytest.mark.parametrize("width", ["40", "60", "200"])
def test_a_line_is_broken_between_words_where_the_terminal_ends(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    line = "  train.py:12  loss.item()  GS201  3 syncs   Keep the value on the device, and read it once after the loop"
    rows = wrap_line(line)
    assert all(len(row) <= int(width) for row in rows)
    assert " ".join(" ".join(rows).split()) == " ".join(line.split())
    assert all(row.startswith("      ") for row in rows[1:])


def test_a_word_longer_than_the_terminal_stays_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert "tests/test_training.py::test_step" in wrap_line("     3  budget 2  tests/test_training.py::test_step")[-1]


def test_where_the_output_is_no_terminal_lines_stay_whole(monkeypatch):
    monkeypatch.setattr(terminal, "get_terminal_size", os.terminal_size)
    assert wrap_line("word " * 100) == ["word " * 100]


TWO_DEVICES = [sync(device=0, blocked_ns=3_000_000), sync(device=1, blocked_ns=500_000), sync(device=1, line=9)]


def test_syncs_of_several_devices_are_told_by_device():
    rows = render_measurement(whole(*TWO_DEVICES, environment=H200), verbose=True)
    assert rows[:2] == ["3 syncs", "  by device: 1 on cuda:0 (3 ms), 2 on cuda:1 (0.5 ms)"]
    assert "1 on cuda:0 (3 ms), 1 on cuda:1 (0.5 ms)" in rows[2]
    assert "on cuda:1" in rows[3]


def test_allowed_syncs_are_left_out_of_the_counts_by_device():
    rows = render_measurement(whole(sync(device=1), sync(device=1, allowed="early stop")))
    assert rows[1] == "  by device: 1 on cuda:1"


def test_the_summary_of_a_run_adds_the_devices_of_its_regions_up():
    regions = [region_document(whole(sync(device=device), name=f"rank {device}")) for device in (0, 1)]
    assert "by device: 1 on cuda:0, 1 on cuda:1" in document_lines(run_document(H200, regions))
