"""The tests of this project start with the simulated device off, whatever the session that runs them does."""

from __future__ import annotations

import os
import signal

import pytest

# Some virtual machines report AMX and cannot run it: oneDNN then dies of SIGILL at the first bfloat16 product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

pytest_plugins = ["pytester"]

LONG = os.environ.get("GPUSYNC_LONG", "0") not in ("", "0")


def pytest_configure(config):
    # A shell starts what it runs in the background with Ctrl-C ignored, which processes that tests start inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "long: takes long; runs only with GPUSYNC_LONG=1 in the environment")


def pytest_collection_modifyitems(items):
    if not LONG:
        for item in items:
            if item.get_closest_marker("long") is not None:
                item.add_marker(pytest.mark.skip(reason="long form: set GPUSYNC_LONG=1"))


@pytest.fixture(autouse=True)
def simulated_device_off(request):
    """Take the session's own simulated device away for one test: the examples, run beside these tests, switch it on."""
    from pytest_gpusync.plugin.stash_keys import SESSION

    session = request.config.stash.get(SESSION, None)
    if session is None or not session.device._is_on:
        yield
        return
    session.device.close()
    yield
    session.device.switch_on()
