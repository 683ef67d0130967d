"""Where the interpreter keeps its frames: found where it is as known, refused where it is not."""

from __future__ import annotations

import sys

import pytest

from pytest_gpusync.recorders import frames, gate

pytestmark = pytest.mark.skipif(not gate.supported(), reason="the gate is machine code for Linux on x86-64")


@pytest.mark.skipif(sys.implementation.name != "cpython" or sys.version_info >= (3, 15), reason="not a known layout")
def test_the_layout_of_this_interpreter_is_found():
    assert frames.find_layout() is not None


def test_it_is_found_deep_in_calls_and_in_generators():
    def nested(depth):
        return nested(depth - 1) if depth else next(frames.find_layout() for _ in range(1))

    assert nested(50) == frames.find_layout()


@pytest.mark.parametrize("version", [(3, 9), (3, 99), (4, 0)])
def test_an_unknown_version_has_none(version):
    assert frames.find_layout(version) is None


@pytest.mark.parametrize("wrong", sorted(set(frames._FRAMES.values())))
def test_a_layout_that_does_not_agree_is_refused(wrong):
    if wrong == frames._FRAMES[sys.version_info[:2]]:
        pytest.skip("this is the right one")
    version = next(version for version, offsets in frames._FRAMES.items() if offsets == wrong)
    assert frames.find_layout(version) is None


def test_wrong_instructions_are_refused(monkeypatch):
    code, previous, instruction = frames._FRAMES[sys.version_info[:2]]
    monkeypatch.setitem(frames._FRAMES, sys.version_info[:2], (code, previous, instruction - 8))
    assert frames.find_layout() is None
