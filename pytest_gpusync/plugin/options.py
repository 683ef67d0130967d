"""Command line, ini file and markers, read into plain values. An invalid value is an error in one line.

A closer setting takes precedence: marker, then command line, then ini file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

from pytest_gpusync.model.budgets import Budget, GrowthBudget
from pytest_gpusync.model.sizes import parse_size
from pytest_gpusync.reporting.files import ENDINGS as REPORT_ENDINGS
from pytest_gpusync.reporting.files import ending_of

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from pytest_gpusync.measure.device_choice import DeviceChoice

RaceMode = Literal["fail", "report", "ignore"]
"""``fail`` a test with a budget in which a race is found; only ``report`` it; ``ignore``: do not look for races."""
RACE_MODES: Final[tuple[RaceMode, ...]] = ("fail", "report", "ignore")

DEVICE_CHOICES: Final[tuple[DeviceChoice, ...]] = ("auto", "cuda", "simulated")

BUDGET_MARKER: Final = "gpu_sync_budget"
GROWTH_MARKER: Final = "gpu_memory_growth"
RACES_MARKER: Final = "gpu_races"
GPU_ONLY_MARKER: Final = "gpu_only"
GPU_FIXTURES: Final = frozenset({"gpu_sync", "gpu_train", "gpu_elapsed", "gpu_memory"})
TIMING_FIXTURES: Final = frozenset({"gpu_train", "gpu_elapsed"})
"""Fixtures that take times, which would be wrong on a GPU that another worker uses."""

MARKERS: Final = (
    (
        f"{BUDGET_MARKER}(max=None, exact=None, warmup=1): fail the test when a step after warm-up makes more than max "
        "GPU syncs, or a number other than exact; a test without steps is one step."
    ),
    (
        f"{GROWTH_MARKER}(max): fail the test when the memory of its GPU tensors grows by more than max per step, "
        'a size such as "1 MiB"; estimated from the slope over the steps after warm-up.'
    ),
    (
        f'{RACES_MARKER}(ignore="reason"): report the races of the test, on the simulated device, and do not fail it '
        "for them; the reason is required."
    ),
    f"{GPU_ONLY_MARKER}: skip the test if there is no real GPU (pytest-gpusync).",
)

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the session."""

    budget: Budget | None = None
    growth: GrowthBudget | None = None
    device: DeviceChoice = "auto"
    require: bool = False
    reports: tuple[Path, ...] = ()
    baseline: Path | None = None
    """The session's baseline file."""
    update_baseline: bool = False
    values: bool = True
    """The simulated device computes values, not only shapes."""
    memory: int | None = None
    """Memory of the simulated device in bytes; None for as much as the host has."""
    all_threads: bool = False
    """Count the syncs of other threads than the test's own as well."""
    races: RaceMode = "fail"
    """What a race does to a test with a budget."""
    lines: bool = False
    """Record which lines of the project ran."""
    any_given: bool = False
    """True if any option or ini key was given; otherwise the plugin acts only on markers and fixtures."""
    must_measure: bool = False
    """True if the command line itself sets a budget, a baseline or a device: then it is an error if nothing can be
    measured.

    An ini file is also read on machines that can neither run nor simulate a GPU; there it must not fail the session.
    """

    @property
    def measures_every_test(self) -> bool:
        """True if tests without a marker are measured too."""
        return bool(self.budget or self.growth or self.baseline or self.reports)


@dataclass(frozen=True, slots=True)
class MarkerBudget:
    """The arguments of one ``gpu_sync_budget`` marker."""

    budget: Budget | None
    """None: the test is exempt from all budgets, including one for every test."""
    warmup: int | None
    """None if the marker does not set it."""


class MarkerError(ValueError):
    """A marker has invalid arguments; the message says which, and what is valid."""


def add_options(parser: pytest.Parser) -> None:
    """Register the options and their ini keys. No option has a default value, which would hide its ini key."""
    group = parser.getgroup("gpusync", "GPU syncs of training steps")
    group.addoption(
        "--gpu-sync-budget",
        metavar="N",
        help="fail tests in which a step makes more than N syncs (a test without steps is one step)",
    )
    group.addoption(
        "--gpu-memory-growth",
        metavar="SIZE",
        help='fail tests in which the memory of GPU tensors grows by more than SIZE per step, such as "1 MiB"',
    )
    group.addoption(
        "--gpu-device",
        metavar="{auto,cuda,simulated}",
        help="where steps run; auto: on a real GPU if there is one, else on a simulated CUDA device",
    )
    group.addoption(
        "--gpu-require",
        action="store_const",
        const="true",
        help="fail if there is no real GPU, or if no test was measured",
    )
    group.addoption(
        "--gpu-sync-report",
        metavar="PATH",
        action="append",
        help="write a report to PATH (.json, .trace.json, .md or .html); may be given several times",
    )
    group.addoption(
        "--gpu-sync-baseline",
        metavar="PATH",
        help="fail tests with more syncs on a line than PATH allows, and the session if entries are stale",
    )
    group.addoption(
        "--gpu-sync-update-baseline",
        action="store_true",
        default=None,
        help="write the syncs of this session to the baseline; tests that did not run keep their entries",
    )
    group.addoption(
        "--gpu-sync-lines",
        action="store_const",
        const="true",
        help="add to the .json report which lines of the project ran, for gpusync lint --observed",
    )
    group.addoption(
        "--gpu-sync-all-threads",
        action="store_const",
        const="true",
        help="also count the syncs of other threads (loaders, background transfers)",
    )
    group.addoption(
        "--gpu-races",
        metavar="{fail,report,ignore}",
        help="what a race does on the simulated device: fail a test with a budget (the default), only be reported, or "
        "not be looked for",
    )
    group.addoption(
        "--gpu-no-values",
        action="store_const",
        const="true",
        help="compute only shapes on the simulated device; a test that needs a value fails at that line",
    )
    group.addoption(
        "--gpu-simulated-memory",
        metavar="SIZE",
        help='memory of the simulated device, such as "80 GiB" (default: that of the host)',
    )
    parser.addini("gpu_sync_budget", "like --gpu-sync-budget")
    parser.addini("gpu_memory_growth", "like --gpu-memory-growth")
    parser.addini("gpu_device", "like --gpu-device")
    parser.addini("gpu_require", "like --gpu-require: true or false")
    parser.addini("gpu_sync_report", "like --gpu-sync-report: paths, relative to this file", type="paths")
    parser.addini("gpu_sync_baseline", "like --gpu-sync-baseline: a path, relative to this file", type="paths")
    parser.addini("gpu_sync_all_threads", "like --gpu-sync-all-threads: true or false")
    parser.addini("gpu_races", "like --gpu-races")
    parser.addini("gpu_no_values", "like --gpu-no-values: true or false")
    parser.addini("gpu_simulated_memory", "like --gpu-simulated-memory")
    parser.addini("gpu_sync_lines", "like --gpu-sync-lines: true or false")


def read_options(config: pytest.Config, namespace: argparse.Namespace) -> Options:
    """Return the options of a session.

    Args:
        config: provides the ini file.
        namespace: the parsed command line; ``config.known_args_namespace`` until the first conftest is loaded.

    Raises:
        pytest.UsageError: a value is invalid; one line that names the option and what it takes.
    """
    budget, budget_source = _closest(config, namespace, "gpu_sync_budget")
    growth, growth_source = _closest(config, namespace, "gpu_memory_growth")
    device, device_source = _closest(config, namespace, "gpu_device")
    require, require_source = _closest(config, namespace, "gpu_require")
    reports, reports_source = _closest(config, namespace, "gpu_sync_report")
    baseline, baseline_source = _closest(config, namespace, "gpu_sync_baseline")
    threads, threads_source = _closest(config, namespace, "gpu_sync_all_threads")
    lines, lines_source = _closest(config, namespace, "gpu_sync_lines")
    races, races_source = _closest(config, namespace, "gpu_races")
    no_values, no_values_source = _closest(config, namespace, "gpu_no_values")
    memory, memory_source = _closest(config, namespace, "gpu_simulated_memory")
    update = bool(getattr(namespace, "gpu_sync_update_baseline", None))
    if update and not baseline_source:
        raise pytest.UsageError("--gpu-sync-update-baseline needs the file: add --gpu-sync-baseline=PATH")
    return Options(
        budget=_budget(budget, budget_source) if budget_source else None,
        growth=_growth(growth, growth_source) if growth_source else None,
        device=_device(device, device_source) if device_source else "auto",
        require=_boolean(require, require_source) if require_source else False,
        reports=tuple(_report(config, path, reports_source) for path in reports) if reports_source else (),
        baseline=_baseline(config, baseline, baseline_source) if baseline_source else None,
        update_baseline=update,
        values=not (no_values_source and _boolean(no_values, no_values_source)),
        memory=_size(memory, memory_source) if memory_source else None,
        all_threads=_boolean(threads, threads_source) if threads_source else False,
        races=_race_mode(races, races_source) if races_source else "fail",
        lines=_boolean(lines, lines_source) if lines_source else False,
        any_given=bool(
            budget_source or growth_source or device_source or require_source or reports_source or baseline_source
        ),
        must_measure=any(
            source.startswith("--") for source in (budget_source, growth_source, device_source, baseline_source)
        ),
    )


def marker_budget(item: pytest.Item) -> MarkerBudget | None:
    """Return the budget of the closest ``gpu_sync_budget`` marker of a test, if there is one.

    Raises:
        MarkerError: the marker's arguments are invalid.
    """
    mark = item.get_closest_marker(BUDGET_MARKER)
    if mark is None:
        return None
    arguments: dict[str, Any] = dict(mark.kwargs)
    unknown = sorted(set(arguments) - {"max", "exact", "warmup"})
    if unknown:
        raise MarkerError(f"the marker {BUDGET_MARKER} has no argument {unknown[0]!r}; it takes max, exact and warmup")
    if len(mark.args) > 1 or (mark.args and "max" in arguments):
        raise MarkerError(f"the marker {BUDGET_MARKER} takes one positional argument, max")
    limit = mark.args[0] if mark.args else arguments.get("max")
    warmup = arguments.get("warmup")
    if warmup is not None and not _is_count(warmup):
        raise MarkerError(f"warmup of the marker {BUDGET_MARKER} must be an integer of at least 0, not {warmup!r}")
    exact = arguments.get("exact")
    if limit is None and exact is None and (mark.args or "max" in arguments):
        return MarkerBudget(None, warmup)  # max=None exempts the test from all budgets
    try:
        budget = Budget(max=limit, exact=exact, source=f"marker {BUDGET_MARKER}")
    except ValueError as error:
        raise MarkerError(f"the marker {BUDGET_MARKER}: {error}") from None
    return MarkerBudget(budget, warmup)


def marker_growth(item: pytest.Item) -> GrowthBudget | None:
    """Return the budget of the closest ``gpu_memory_growth`` marker of a test, if there is one.

    Raises:
        MarkerError: the marker's arguments are invalid.
    """
    mark = item.get_closest_marker(GROWTH_MARKER)
    if mark is None:
        return None
    arguments = [*mark.args, *mark.kwargs.values()]
    if len(arguments) != 1 or not set(mark.kwargs) <= {"max"}:
        raise MarkerError(f'the marker {GROWTH_MARKER} takes one argument, max, a size such as "1 MiB"')
    try:
        return GrowthBudget.parse(arguments[0], source=f"marker {GROWTH_MARKER}")
    except ValueError as error:
        raise MarkerError(f"the marker {GROWTH_MARKER}: {error}") from None


def marker_ignores_races(item: pytest.Item) -> bool:
    """Return whether the closest ``gpu_races`` marker of a test says that its races do not fail it.

    Raises:
        MarkerError: the marker's arguments are invalid.
    """
    mark = item.get_closest_marker(RACES_MARKER)
    if mark is None:
        return False
    reason = mark.kwargs.get("ignore")
    if mark.args or set(mark.kwargs) != {"ignore"} or not isinstance(reason, str) or not reason.strip():
        raise MarkerError(
            f'the marker {RACES_MARKER} takes one argument, ignore, with the reason: {RACES_MARKER}(ignore="the buffer '
            'is refilled with the same values")'
        )
    return True


def _closest(config: pytest.Config, namespace: argparse.Namespace, name: str) -> tuple[Any, str]:
    """Return the value of an option and its source; an empty source if it was not given."""
    value = getattr(namespace, name, None)
    if value is not None:
        return value, "--" + name.replace("_", "-")
    try:
        value = config.getini(name)
    except TypeError as error:
        raise pytest.UsageError(f"{name} in {_ini_name(config)}: {error}") from None
    return value, f"{name} in {_ini_name(config)}" if value not in ("", [], None) else ""


def _ini_name(config: pytest.Config) -> str:
    return config.inipath.name if config.inipath is not None else "the ini file"


def _budget(value: str, source: str) -> Budget:
    try:
        return Budget(max=int(value), source=source)
    except ValueError:
        raise pytest.UsageError(f"{source} takes a number of syncs per step of at least 0, not {value!r}") from None


def _growth(value: str, source: str) -> GrowthBudget:
    try:
        return GrowthBudget.parse(value, source=source)
    except ValueError as error:
        raise pytest.UsageError(f"{source}: {error}") from None


def _device(value: str, source: str) -> DeviceChoice:
    for choice in DEVICE_CHOICES:
        if value == choice:
            return choice
    raise pytest.UsageError(f"{source} takes auto, cuda or simulated, not {value!r}")


def _race_mode(value: str, source: str) -> RaceMode:
    for mode in RACE_MODES:
        if value == mode:
            return mode
    raise pytest.UsageError(f"{source} takes fail, report or ignore, not {value!r}")


def _size(value: str, source: str) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise pytest.UsageError(f"{source}: {error}") from None


def _boolean(value: str, source: str) -> bool:
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise pytest.UsageError(f"{source} takes true or false, not {value!r}")


def _report(config: pytest.Config, value: str | Path, source: str) -> Path:
    path = config.invocation_params.dir / value
    if ending_of(path.name) is None:
        raise pytest.UsageError(f"{source}: {value} must end in {' or '.join(REPORT_ENDINGS)}")
    if path.is_dir():
        raise pytest.UsageError(f"{source}: {value} is a folder")
    return path


def _baseline(config: pytest.Config, value: str | list[Path], source: str) -> Path:
    values = [value] if isinstance(value, str) else value
    if len(values) > 1:
        raise pytest.UsageError(f"{source} takes one path, not {len(values)}")
    path = config.invocation_params.dir / values[0]
    if path.is_dir():
        raise pytest.UsageError(f"{source}: {values[0]} is a folder")
    return path


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
