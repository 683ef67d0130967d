"""Messages of the plugin, which may contain what others have written."""

from __future__ import annotations

from typing import NoReturn

import pytest


def escaped(text: str) -> str:
    """Return text that may contain what others have written, such as names and reasons, as one harmless line."""
    from gpusync_lint.escaping import escaped

    return escaped(text)


def fail(message: str) -> NoReturn:
    """Fail the test with a message instead of a traceback."""
    pytest.fail(escaped(message), pytrace=False)


def too_late(nodeid: str) -> str:
    """Return why a test cannot be measured that was found to ask for it after torch was imported."""
    return (
        f"{nodeid} asks to be measured, which could not be seen before torch was imported: modules that "
        "chose their device at import run on the CPU. Add --gpu-device=simulated, or gpu_device = simulated to "
        "the ini file"
    )
