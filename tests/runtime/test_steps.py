"""Where steps end, from the calls of one or several optimizers."""

from __future__ import annotations

import pytest

from pytest_gpusync.measure.step_boundaries import boundaries


@pytest.mark.parametrize(
    ("calls", "ends"),
    [
        pytest.param("", [], id="none"),
        pytest.param("A", [0], id="one"),
        pytest.param("AAA", [0, 1, 2], id="one-optimizer"),
        pytest.param("DGDGDG", [1, 3, 5], id="gan-two-per-iteration"),
        pytest.param("DGDG D", [1, 3, 4], id="gan-stopped-halfway"),
        pytest.param("DDDGDDDG", [0, 1, 3, 4, 5, 7], id="several-discriminator-steps"),
        pytest.param("ABCABC", [2, 5], id="one-per-parameter-group"),
        pytest.param("AABB", [0, 2, 3], id="one-after-the-other"),
    ],
)
def test_a_step_lasts_until_one_of_its_optimizers_steps_again(calls, ends):
    marks = [(position, ord(name)) for position, name in enumerate(calls.replace(" ", ""))]
    assert boundaries(marks) == ends
