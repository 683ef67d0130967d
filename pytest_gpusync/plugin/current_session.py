"""The state of the running session: :class:`GpuSession`, made when something of the plugin is used."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpusync.plugin.messages import escaped
from pytest_gpusync.plugin.options import any_setting
from pytest_gpusync.plugin.stash_keys import SESSION

if TYPE_CHECKING:
    import argparse

    from pytest_gpusync.plugin.baseline_check import BaselineCheck
    from pytest_gpusync.plugin.options import Options
    from pytest_gpusync.plugin.session import GpuSession


def session_of(config: pytest.Config) -> GpuSession | None:
    """Return the state of this session; None as long as nothing of the plugin is used."""
    return config.stash.get(SESSION, None)


def begin_session(config: pytest.Config, namespace: argparse.Namespace | None = None) -> GpuSession:
    """Return the state of this session; the first call makes it, from the command line in `namespace`."""
    gpu = config.stash.get(SESSION, None)
    if gpu is None:
        from pytest_gpusync.plugin.options import read_options
        from pytest_gpusync.plugin.session import GpuSession

        try:
            options = read_options(config, namespace if namespace is not None else config.option)
            baseline = _baseline_check(config, options)
        except pytest.UsageError as error:  # it quotes the ini file, which may be a stranger's
            raise pytest.UsageError(*map(escaped, error.args)) from None
        if options.any_given and options.device != "simulated":
            from pytest_gpusync.machine.gpu_lease import take_own_gpu

            take_own_gpu()
        gpu = config.stash[SESSION] = GpuSession(options, baseline)
        # Not in pytest_unconfigure, which does not run for a configuration that was read but never configured.
        config.add_cleanup(gpu.device.close)
    return gpu


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process runs tests for another one, which draws the reports (pytest-xdist)."""
    return hasattr(config, "workerinput")


def prepare_device(config: pytest.Config, namespace: argparse.Namespace) -> None:
    """Let the simulated device be switched on when torch is imported, if the settings or the tests ask for it. Their
    source is read only then.
    """
    gpu = begin_session(config, namespace) if any_setting(config, namespace) else None
    if gpu is not None and (gpu.options.measures_every_test or gpu.options.device == "simulated"):
        gpu.device.switch_on_with_torch()
        return

    def torch_imported() -> None:
        from pytest_gpusync.plugin.usage_scan import project_uses_plugin

        if project_uses_plugin(config):
            begin_session(config, namespace).device.switch_on()

    if "torch" in sys.modules:
        torch_imported()
        return
    from pytest_gpusync.machine.import_hooks import AfterImport

    finder = AfterImport("torch", torch_imported)
    sys.meta_path.insert(0, finder)
    config.add_cleanup(finder.remove)


def _baseline_check(config: pytest.Config, options: Options) -> BaselineCheck | None:
    if options.baseline is None:
        return None
    from pytest_gpusync.plugin.baseline_check import BaselineCheck
    from pytest_gpusync.reporting.baseline_file import Folders

    folders = Folders(config.rootpath, config.invocation_params.dir)
    return BaselineCheck(options.baseline, folders, update=options.update_baseline)
