"""Command line, ini file and markers, read into plain values. An invalid value is an error in one line.

A closer setting takes precedence: marker, then command line, then ini file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pytest

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from pytest_gpusync.measure.device_choice import DeviceChoice
    from pytest_gpusync.measure.step_at import StepAt
    from pytest_gpusync.measure.step_on import StepOn
    from pytest_gpusync.model.budgets import Budget, GrowthBudget

RaceMode = Literal["fail", "report", "ignore"]
"""``fail`` a test with a budget in which a race is found; only ``report`` it; ``ignore``: do not look for races."""
RACE_MODES: Final[tuple[RaceMode, ...]] = ("fail", "report", "ignore")

DEVICE_CHOICES: Final[tuple[DeviceChoice, ...]] = ("auto", "cuda", "simulated")

BUDGET_MARKER: Final = "gpu_sync_budget"
GROWTH_MARKER: Final = "gpu_memory_growth"
RACES_MARKER: Final = "gpu_races"
GPU_ONLY_MARKER: Final = "gpu_only"
GPU_FIXTURES: Final = frozenset({"gpu_sync", "gpu_sync_module", "gpu_train", "gpu_infer", "gpu_elapsed", "gpu_memory"})
COUNTING_FIXTURES: Final = GPU_FIXTURES - {"gpu_elapsed"}
"""Fixtures with regions in which syncs are counted."""
TIMING_FIXTURES: Final = frozenset({"gpu_train", "gpu_infer", "gpu_elapsed"})
"""Fixtures that take times, which would be wrong on a GPU that another worker uses."""

MARKERS: Final = (
    (
        f"{BUDGET_MARKER}(max=None, exact=None, warmup=1, step_on=None, step_at=None, percentile=None, over=None, "
        "within=None): "
        "fail the test when a step after warm-up makes more than max GPU syncs, or a number other than exact; a test "
        "without steps is one step. A step ends at optimizer.step(), or at the step() of the class step_on, or when "
        'the function step_on, or the function of the name step_at, returns. percentile=95 and over="1 in 10" let '
        'some steps make more; within="models/*.py" counts only these lines.'
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

if pytest.version_tuple >= (9, 2):
    _NUMBER: Any = int | str
    _FLAG: Any = bool | str
elif pytest.version_tuple >= (9, 0):  # a key has one type
    _NUMBER, _FLAG = "int", "bool"
else:
    _NUMBER = _FLAG = "string"
_SIZE: Any = _NUMBER if pytest.version_tuple >= (9, 2) else "string"
"""Types of ini keys. Files with types of their own (``[tool.pytest]`` of pytest 9) hold numbers and booleans, other
files text."""

_INI_KEYS: Final[dict[str, tuple[Any, str]]] = {
    "gpu_sync_budget": (_NUMBER, "like --gpu-sync-budget"),
    "gpu_sync_warmup": (_NUMBER, "like --gpu-sync-warmup"),
    "gpu_step_at": ("string", "like --gpu-step-at"),
    "gpu_memory_growth": (_SIZE, "like --gpu-memory-growth"),
    "gpu_device": ("string", "like --gpu-device"),
    "gpu_require": (_FLAG, "like --gpu-require: true or false"),
    "gpu_require_measured": (_FLAG, "like --gpu-require-measured: true or false"),
    "gpu_sync_report": ("paths", "like --gpu-sync-report: paths, relative to this file"),
    "gpu_sync_baseline": ("paths", "like --gpu-sync-baseline: a path, relative to this file"),
    "gpu_sync_all_threads": (_FLAG, "like --gpu-sync-all-threads: true or false"),
    "gpu_races": ("string", "like --gpu-races"),
    "gpu_no_values": (_FLAG, "like --gpu-no-values: true or false"),
    "gpu_simulated_memory": (_SIZE, "like --gpu-simulated-memory"),
    "gpu_simulated_devices": (_NUMBER, "like --gpu-simulated-devices"),
    "gpu_sync_lines": (_FLAG, "like --gpu-sync-lines: true or false"),
}
"""The type and the help of each ini key."""

_MARKER_ARGUMENTS: Final = ("max", "exact", "warmup", "step_on", "step_at", "percentile", "over", "within")

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


class Options(NamedTuple):
    """Options of the session."""

    budget: Budget | None = None
    warmup: int | None = None
    """Steps that the budgets of a test leave out, unless its marker says so; None for the default."""
    step_at: StepAt | None = None
    """The function that makes a step of each measured test, unless its marker says what does."""
    growth: GrowthBudget | None = None
    device: DeviceChoice = "auto"
    require: bool = False
    require_measured: bool = False
    """True if the session fails unless something was measured, on either device; always so with `require`."""
    reports: tuple[Path, ...] = ()
    baseline: Path | None = None
    """The session's baseline file."""
    update_baseline: bool = False
    values: bool = True
    """The simulated device computes values, not only shapes."""
    memory: int | None = None
    """Memory of the simulated device in bytes; None for as much as the host has."""
    devices: int | None = None
    """Number of simulated devices; None for one, or under torchrun one per local process."""
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


class MarkerBudget(NamedTuple):
    """The arguments of one ``gpu_sync_budget`` marker."""

    budget: Budget | None
    """None: the test is exempt from all budgets, including one for every test."""
    warmup: int | None
    """None if the marker does not set it."""
    step_on: StepOn = None
    """What ends a step; None if the marker does not set it."""


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
        "--gpu-sync-warmup",
        metavar="N",
        help="leave the first N steps of a test out of its budgets (default: 1; the marker can say otherwise)",
    )
    group.addoption(
        "--gpu-step-at",
        metavar="FUNCTION",
        help="end a step of a measured test whenever FUNCTION returns, or as a generator yields a value: Engine.step; "
        "a measured test that does not call it fails (the marker can say otherwise)",
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
        "--gpu-require-measured",
        action="store_const",
        const="true",
        help="fail if no test was measured, be it on a GPU or on the simulated device, or if a budget is undecided",
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
    group.addoption(
        "--gpu-simulated-devices",
        metavar="N",
        help="simulate N devices (default: one, or under torchrun one per local process)",
    )
    for name, (kind, text) in _INI_KEYS.items():
        parser.addini(name, text, type=kind, default=None)


def any_setting(config: pytest.Config, namespace: argparse.Namespace) -> bool:
    """Return whether the command line or the ini file has a setting of this plugin, valid or not.

    It decides at every start of pytest whether anything else of the plugin is imported.
    """
    if getattr(namespace, "gpu_sync_update_baseline", None):
        return True
    return any(_closest(config, namespace, name)[1] for name in _INI_KEYS)


def read_options(config: pytest.Config, namespace: argparse.Namespace) -> Options:
    """Return the options of a session.

    Args:
        config: provides the ini file.
        namespace: the parsed command line; ``config.known_args_namespace`` until the first conftest is loaded.

    Raises:
        pytest.UsageError: a value is invalid; one line that names the option and what it takes.
    """
    budget, budget_source = _closest(config, namespace, "gpu_sync_budget")
    warmup, warmup_source = _closest(config, namespace, "gpu_sync_warmup")
    step_at, step_at_source = _closest(config, namespace, "gpu_step_at")
    growth, growth_source = _closest(config, namespace, "gpu_memory_growth")
    device, device_source = _closest(config, namespace, "gpu_device")
    require, require_source = _closest(config, namespace, "gpu_require")
    measured, measured_source = _closest(config, namespace, "gpu_require_measured")
    reports, reports_source = _closest(config, namespace, "gpu_sync_report")
    baseline, baseline_source = _closest(config, namespace, "gpu_sync_baseline")
    threads, threads_source = _closest(config, namespace, "gpu_sync_all_threads")
    lines, lines_source = _closest(config, namespace, "gpu_sync_lines")
    races, races_source = _closest(config, namespace, "gpu_races")
    no_values, no_values_source = _closest(config, namespace, "gpu_no_values")
    memory, memory_source = _closest(config, namespace, "gpu_simulated_memory")
    devices, devices_source = _closest(config, namespace, "gpu_simulated_devices")
    requires = bool(require_source and _boolean(require, require_source))
    update = bool(getattr(namespace, "gpu_sync_update_baseline", None))
    if update and not baseline_source:
        raise pytest.UsageError("--gpu-sync-update-baseline needs the file: add --gpu-sync-baseline=PATH")
    return Options(
        budget=_budget(budget, budget_source) if budget_source else None,
        warmup=_count(warmup, warmup_source) if warmup_source else None,
        step_at=_step_at(step_at, step_at_source) if step_at_source else None,
        growth=_growth(growth, growth_source) if growth_source else None,
        device=_device(device, device_source) if device_source else "auto",
        require=requires,
        require_measured=requires or bool(measured_source and _boolean(measured, measured_source)),
        reports=tuple(_report(config, path, reports_source) for path in reports) if reports_source else (),
        baseline=_baseline(config, baseline, baseline_source) if baseline_source else None,
        update_baseline=update,
        values=not (no_values_source and _boolean(no_values, no_values_source)),
        memory=_memory(memory, memory_source) if memory_source else None,
        devices=_device_count(devices, devices_source) if devices_source else None,
        all_threads=_boolean(threads, threads_source) if threads_source else False,
        races=_race_mode(races, races_source) if races_source else "fail",
        lines=_boolean(lines, lines_source) if lines_source else False,
        any_given=bool(
            budget_source
            or growth_source
            or device_source
            or require_source
            or measured_source
            or reports_source
            or baseline_source
        ),
        must_measure=any(
            source.startswith("--")
            for source in (budget_source, growth_source, device_source, baseline_source, measured_source)
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
    unknown = sorted(set(arguments) - set(_MARKER_ARGUMENTS))
    if unknown:
        known = f"{', '.join(_MARKER_ARGUMENTS[:-1])} and {_MARKER_ARGUMENTS[-1]}"
        raise MarkerError(f"the marker {BUDGET_MARKER} has no argument {unknown[0]!r}; it takes {known}")
    if len(mark.args) > 1 or (mark.args and "max" in arguments):
        raise MarkerError(f"the marker {BUDGET_MARKER} takes one positional argument, max")
    limit = mark.args[0] if mark.args else arguments.get("max")
    warmup = arguments.get("warmup")
    if warmup is not None and not _is_count(warmup):
        raise MarkerError(f"warmup of the marker {BUDGET_MARKER} must be an integer of at least 0, not {warmup!r}")
    exact = arguments.get("exact")
    if limit is None and exact is None and (mark.args or "max" in arguments):
        return MarkerBudget(None, warmup)  # max=None exempts the test from all budgets
    if limit is None and exact is None:
        given = f": {' and '.join(sorted(arguments))} alone limits no syncs" if arguments else ""
        raise MarkerError(f"the marker {BUDGET_MARKER} needs max or exact{given}")
    from pytest_gpusync.measure.step_at import chosen
    from pytest_gpusync.model.budgets import Budget, LineGroup, Over

    over, within = arguments.get("over"), arguments.get("within")
    try:
        share = None if over is None else Over.parse(over)
        lines = None if within is None else LineGroup.parse(within)
        budget = Budget(limit, exact, f"marker {BUDGET_MARKER}", arguments.get("percentile"), share, lines)
        step_on = chosen(arguments.get("step_on"), arguments.get("step_at"))
    except ValueError as error:
        raise MarkerError(f"the marker {BUDGET_MARKER}: {error}") from None
    return MarkerBudget(budget, warmup, step_on)


def uses_gpu(item: pytest.Item) -> bool:
    """Return whether a test itself asks to be measured."""
    if not GPU_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        return True
    if item.get_closest_marker(GROWTH_MARKER) is not None:
        return True
    if item.get_closest_marker(BUDGET_MARKER) is None:
        return False
    try:
        marked = marker_budget(item)
    except MarkerError:  # reported when the test is set up
        return True
    return marked is not None and marked.budget is not None


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
    from pytest_gpusync.model.budgets import GrowthBudget

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
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"{name} in {_ini_name(config)}: {error}") from None
    return value, f"{name} in {_ini_name(config)}" if value not in ("", [], None) else ""


def _ini_name(config: pytest.Config) -> str:
    return config.inipath.name if config.inipath is not None else "the ini file"


def _budget(value: int | str, source: str) -> Budget:
    from pytest_gpusync.model.budgets import Budget

    try:
        return Budget(max=int(value), source=source)
    except ValueError:
        raise pytest.UsageError(f"{source} takes a number of syncs per step of at least 0, not {value!r}") from None


def _count(value: int | str, source: str) -> int:
    if not str(value).isdecimal():
        raise pytest.UsageError(f"{source} takes a number of steps of at least 0, not {value!r}")
    return int(value)


def _step_at(value: str, source: str) -> StepAt:
    from pytest_gpusync.measure.step_at import StepAt

    try:
        return StepAt(value)
    except ValueError as error:
        raise pytest.UsageError(f"{source}: {error}") from None


def _growth(value: int | str, source: str) -> GrowthBudget:
    from pytest_gpusync.model.budgets import GrowthBudget

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


def _memory(value: int | str, source: str) -> int:
    from pytest_gpusync.simulated.activation import parse_memory

    try:
        return parse_memory(value)
    except ValueError as error:
        raise pytest.UsageError(f"{source}: {error}") from None


def _device_count(value: int | str, source: str) -> int:
    if not str(value).isdecimal() or not int(value):
        raise pytest.UsageError(f"{source} takes a number of devices of at least 1, not {value!r}")
    return int(value)


def _boolean(value: bool | str, source: str) -> bool:
    if isinstance(value, bool):
        return value
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise pytest.UsageError(f"{source} takes true or false, not {value!r}")


def _report(config: pytest.Config, value: str | Path, source: str) -> Path:
    from pytest_gpusync.reporting.files import ENDINGS, ending_of, why_unavailable

    path = config.invocation_params.dir / value
    ending = ending_of(path.name)
    if ending is None:
        raise pytest.UsageError(f"{source}: {value} must end in {' or '.join(ENDINGS)}")
    if (why := why_unavailable(ending)) is not None:
        raise pytest.UsageError(f"{source}: {why}")
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
