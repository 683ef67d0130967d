"""Where the interpreter keeps its frames: found where it is as known, refused where it is not."""

from __future__ import annotations

import sys

import pytest

from pytest_gpusync.recorders import frames, gate

pytestmark = pytest.mark.skipif(not gate.is_available(), reason="there is no native gate")


THIS = sys.version_info[:2]


@pytest.mark.skipif(THIS not in {*frames._FRAMES, *frames._PUBLISHED}, reason="not a known layout")
def test_the_layout_of_this_interpreter_is_found():
    assert frames.find_layout() is not None


def test_it_is_found_deep_in_calls_and_in_generators():
    def nested(depth):
        return nested(depth - 1) if depth else next(frames.find_layout() for _ in range(1))

    assert nested(50) == frames.find_layout()


@pytest.mark.parametrize("version", [(3, 9), (3, 99), (4, 0)])
def test_an_unknown_version_has_none(version):
    assert frames.find_layout(version) is None


@pytest.mark.parametrize("version", sorted({*frames._FRAMES, *frames._PUBLISHED} - {THIS}))
def test_the_layout_of_another_version_is_refused(version):
    # From 3.12 on frames are laid out alike: what is known of 3.12 may be found to be true of a later version.
    found = frames.find_layout(version)
    assert found is None or found == frames.find_layout()


@pytest.mark.parametrize("field", ["state_to_frame", "code", "previous", "instruction"])
def test_a_layout_that_is_off_by_a_word_is_refused(monkeypatch, field):
    right = frames.find_layout()
    for off in (-8, 8):
        wrong = right._replace(**{field: getattr(right, field) + off})
        monkeypatch.setattr(frames, "_candidates", lambda version, wrong=wrong: [wrong])
        assert frames.find_layout() is None


@pytest.mark.skipif(THIS not in frames._PUBLISHED, reason="this interpreter publishes no offsets")
def test_offsets_that_are_published_by_a_build_without_a_gil_are_not_used(monkeypatch):
    monkeypatch.setattr(frames, "_FREE_THREADED", 1)  # any word that is not 0
    assert frames.find_layout() is None
