"""Findings between two complete analyses."""

from __future__ import annotations

import pytest
from gpusync_lint.model.findings import FileError, Finding
from gpusync_lint.model.levels import Confidence, Heat
from gpusync_lint.model.spans import Span
from gpusync_lint.server.analysis import Checked, FolderAnalysis
from gpusync_lint.server.provisional import combined, unchanged_lines
from gpusync_lint.settings.selection import Level, Reported


def checked(text: str, *lines: int, errors: tuple[FileError, ...] = ()) -> Checked:
    found = [
        Reported(
            Finding(
                "GS201",
                "item",
                "a.py",
                Span(line, 1, line, 3),
                "m",
                "r",
                Heat.STEP,
                Confidence.HIGH,
                "torch",
                str(line),
            ),
            Level.WARNING,
        )
        for line in lines
    ]
    return Checked(text, text, tuple(found), errors)


OLD = "a\nb\nc\nd"


@pytest.mark.parametrize(
    ("text", "base", "quick_base", "quick", "want"),
    [
        ("a\nb\nc\nd", (2,), (2,), (2,), [2]),
        ("new\na\nb\nc\nd", (2,), (2,), (3,), [3]),
        ("new\na\nb\nc\nd", (2,), (), (), [3]),  # it follows from another file, and stays
        ("a\nb\nc\nd", (2,), (2,), (), []),  # the edit removed it
        ("a\nB\nc\nd", (2,), (), (), []),  # on the edited line
        ("a\nB\nc\nd", (), (), (2,), [2]),
        ("a\nB\nc\nd", (), (3,), (2, 3), [2]),  # a complete analysis knows that line 3 does not wait
        ("a\nc\nd", (2, 4), (4,), (3,), [3]),
    ],
)
def test_a_result_moves_with_its_lines_and_only_the_effect_of_the_edit_is_added(text, base, quick_base, quick, want):
    found = combined(checked(OLD, *base), checked(OLD, *quick_base), checked(text, *quick))
    assert [one.finding.span.line for one in found.reported] == want


def test_findings_stay_while_the_text_is_not_valid_python():
    error = FileError("a.py", 4, "invalid syntax")
    found = combined(checked(OLD, 1, 2), checked(OLD, 1, 2), checked("a\nb\nc\nd(", errors=(error,)))
    assert [one.finding.span.line for one in found.reported] == [1, 2]
    assert found.errors == (error,)


def test_lines_between_two_edits_are_known():
    assert unchanged_lines(list("abcdef"), list("Xabcdxf")) == {1: 2, 2: 3, 3: 4, 4: 5, 6: 7}


def test_a_new_wait_is_found_at_once_in_a_function_that_only_another_file_calls_in_every_step(tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "train.py").write_text(
        "import torch\nfrom helpers import log\n\n"
        "def train(model, loader, opt):\n    for x in loader:\n        loss = model(x.cuda()).sum()\n"
        "        loss.backward()\n        opt.step()\n        log(3)\n"
    )
    helpers = tmp_path / "helpers.py"
    helpers.write_text("import torch\n\ndef log(value):\n    return value\n")
    edited = helpers.read_text().replace("    return", "    torch.cuda.synchronize()\n    return")

    def found(entries):
        analysis = FolderAnalysis(tmp_path, None, ())
        analysis.scan({}, entries)
        checked = analysis.quick(str(helpers), edited).documents[str(helpers)]
        return [(one.finding.code, one.level) for one in checked.reported]

    complete = FolderAnalysis(tmp_path, None, ()).complete({str(helpers): helpers.read_text()})
    assert complete.entries[("helpers.py", "log")].heat is Heat.STEP
    assert found(complete.entries) == [("GS101", Level.WARNING)]
    assert found({}) == []
    after = FolderAnalysis(tmp_path, None, ()).complete({str(helpers): edited}).documents[str(helpers)]
    assert [(one.finding.code, one.level) for one in after.reported] == [("GS101", Level.WARNING)]
