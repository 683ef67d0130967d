"""What a notebook shows of a measured region."""

from __future__ import annotations

from measurements import H200, SIMULATED, stepped, sync, whole

from pytest_gpusync.reporting.notebook import LINES_SHOWN, to_fragment


def test_the_sentence_the_lines_and_the_device_are_shown():
    shown = to_fragment(stepped([1, 2, 2]))
    assert "2 syncs per step" in shown
    assert "train.py:1" in shown
    assert "simulated CUDA device, recorder simulated, coverage simulated" in shown


def test_source_rule_and_remedy_are_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import torch\nfor _ in range(9):\n    torch.ones(3, device='cuda').sum().item()\n"
    )
    shown = to_fragment(whole(sync(line=3)))
    assert "<code>torch.ones(3, device=&#39;cuda&#39;).sum().item()</code>" in shown
    assert "GS201" in shown
    assert "<code>.detach()</code>" in shown


def test_time_is_shown_where_every_sync_was_timed():
    assert "3 ms" in to_fragment(whole(*(sync(blocked_ns=1_500_000) for _ in range(2)), environment=H200))
    assert " ms" not in to_fragment(whole(sync(), environment=SIMULATED))


def test_nothing_in_it_is_markup_of_its_own():
    shown = to_fragment(whole(sync(path="<script>a.py", allowed="<b>")))
    assert "<script>" not in shown
    assert "<b>" not in shown


def test_lines_beyond_the_last_are_counted():
    shown = to_fragment(whole(*(sync(line=number) for number in range(1, LINES_SHOWN + 4))))
    assert "and 3 lines more" in shown


def test_a_region_without_syncs_has_no_table():
    assert "<table>" not in to_fragment(whole())


def test_what_could_not_be_measured_says_why():
    assert "Not measured: no recorder" in to_fragment(whole(problem="no recorder"))
