"""Keys: what makes an occurrence new, and what leaves it the one it was."""

from __future__ import annotations

import pytest
from gpusync_lint.model.finding_keys import identity

BEFORE = """
import torch
def train(model, loader, optimizer):
    model.cuda()
    for step, x in enumerate(loader):
        loss = model(x.cuda(non_blocking=True)).sum()
        loss.backward()
        optimizer.step()
{body}
        log(loss.item())
"""


@pytest.fixture
def hot_keys(lint):
    """The keys of the warnings about `loss.item()` in a loop with these statements before it."""

    def keys(body: str = "", before: str = "") -> list[str]:
        found = lint(before + BEFORE.format(body=body))
        return [one.key for one in found if one.code == "GS201" and one.heat == "step"]

    return keys


@pytest.mark.parametrize(
    ("body", "before"),
    [
        pytest.param("", "# one line more\n\n", id="the function has moved"),
        pytest.param("        if step % 100 == 0:\n            log(loss.item())", "", id="a note above it"),
        pytest.param("        other = loss.detach()", "", id="another statement above it"),
    ],
)
def test_a_warning_stays_the_one_it_was(hot_keys, body, before):
    assert hot_keys(body, before) == hot_keys()


def test_a_second_occurrence_is_new(hot_keys):
    one, two = hot_keys("        log(loss.item())")
    assert [one] == hot_keys()
    assert (identity(one), one) == (identity(two), two[:-1] + "1")
