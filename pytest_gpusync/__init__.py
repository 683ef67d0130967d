"""Count the syncs of real GPU training steps and hold them to a budget.

Importing this package loads neither torch nor pytest; the names below are resolved on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusync_lint._version import __version__

if TYPE_CHECKING:
    from pytest_gpusync.elapsed.deferred import deferred
    from pytest_gpusync.elapsed.in_flight import limit_in_flight
    from pytest_gpusync.graph_breaks import GraphBreaksExceeded, assert_graph_breaks
    from pytest_gpusync.measure.captures import assert_capturable, check_capture, record_captures
    from pytest_gpusync.measure.recording import allow
    from pytest_gpusync.measure.region import record
    from pytest_gpusync.model.budgets import BudgetExceeded, NotMeasured
    from pytest_gpusync.model.captures import CaptureReport, NotCapturable
    from pytest_gpusync.model.measurement import Measurement, MeasurementError
    from pytest_gpusync.simulated import simulated_cuda

__all__ = [
    "BudgetExceeded",
    "CaptureReport",
    "GraphBreaksExceeded",
    "Measurement",
    "MeasurementError",
    "NotCapturable",
    "NotMeasured",
    "__version__",
    "allow",
    "assert_capturable",
    "assert_graph_breaks",
    "check_capture",
    "deferred",
    "limit_in_flight",
    "record",
    "record_captures",
    "simulated_cuda",
]

_MODULES = {
    "BudgetExceeded": "model.budgets",
    "CaptureReport": "model.captures",
    "GraphBreaksExceeded": "graph_breaks",
    "Measurement": "model.measurement",
    "MeasurementError": "model.measurement",
    "NotCapturable": "model.captures",
    "NotMeasured": "model.budgets",
    "allow": "measure.recording",
    "assert_capturable": "measure.captures",
    "check_capture": "measure.captures",
    "assert_graph_breaks": "graph_breaks",
    "deferred": "elapsed.deferred",
    "limit_in_flight": "elapsed.in_flight",
    "record": "measure.region",
    "record_captures": "measure.captures",
    "simulated_cuda": "simulated",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"{__name__}.{_MODULES[name]}")
    if name == "record":
        module.text_renderer = _text  # type: ignore[attr-defined]
        module.notebook_renderer = _notebook_html  # type: ignore[attr-defined]
    return getattr(module, name)


def _text(measurement: Measurement) -> str:
    """Return a measurement as ``print()`` shows it: its sentence, and a row for each line."""
    from pytest_gpusync.reporting.terminal import render_measurement

    return "\n".join(render_measurement(measurement, verbose=True))


def _notebook_html(measurement: Measurement) -> str | None:
    """Return a measurement as a notebook shows it; None without jinja2, and the notebook shows its text."""
    from importlib.util import find_spec

    if find_spec("jinja2") is None:
        return None
    from pytest_gpusync.reporting.notebook import to_fragment

    return to_fragment(measurement)
