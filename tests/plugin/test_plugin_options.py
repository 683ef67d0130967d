"""Command line, ini file and markers: what is accepted, what beats what, what is refused."""

from __future__ import annotations

import json

import pytest

from pytest_gpusync.plugin.options import read_options

TRIVIAL = "def test_nothing(): pass"


@pytest.fixture
def options(pytester, plugin):
    """Read the options of a command line, over an ini file given as text."""

    def options(*arguments, ini=""):
        pytester.makeini(f"[pytest]\n{ini}")
        config = pytester.parseconfig(*plugin, *arguments)
        return read_options(config, config.option)

    return options


def test_without_options_nothing_is_asked(options):
    read = options()
    assert (read.budget, read.device, read.require, read.reports, read.any_given) == (None, "auto", False, (), False)


@pytest.mark.parametrize(
    ("ini", "name", "value"),
    [
        ("gpu_device = simulated", "device", "simulated"),
        ("gpu_require = true", "require", True),
        ("gpu_require = off", "require", False),
    ],
)
def test_an_ini_key_works_without_its_option(options, ini, name, value):
    read = options(ini=ini)
    assert (getattr(read, name), read.any_given) == (value, True)


def test_the_ini_budget_names_its_file(options):
    budget = options(ini="gpu_sync_budget = 4").budget
    assert (budget.max, budget.source) == (4, "gpu_sync_budget in tox.ini")


@pytest.mark.parametrize(
    ("argument", "ini", "name", "value"),
    [
        ("--gpu-device=cuda", "gpu_device = simulated", "device", "cuda"),
        ("--gpu-require", "gpu_require = false", "require", True),
        ("--gpu-sync-all-threads", "gpu_sync_all_threads = false", "all_threads", True),
    ],
)
def test_the_command_line_beats_the_ini_file(options, argument, ini, name, value):
    assert getattr(options(argument, ini=ini), name) == value


def test_other_threads_are_asked_for_in_the_ini_file_too(options):
    assert options(ini="gpu_sync_all_threads = yes").all_threads
    assert not options().all_threads


@pytest.mark.skipif(pytest.version_tuple < (9, 2), reason="[tool.pytest] is read since pytest 9, types since 9.2")
@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("gpu_require = true", "require", True),
        ("gpu_require = 'true'", "require", True),
        ("gpu_sync_all_threads = false", "all_threads", False),
        ("gpu_simulated_memory = 1048576", "memory", 1 << 20),
        ("gpu_simulated_memory = '2 MiB'", "memory", 2 << 20),
    ],
)
def test_a_toml_file_gives_values_as_numbers_booleans_or_text(pytester, plugin, line, name, value):
    pytester.makepyprojecttoml(f"[tool.pytest]\n{line}")
    config = pytester.parseconfig(*plugin)
    assert getattr(read_options(config, config.option), name) == value


@pytest.mark.skipif(pytest.version_tuple < (9, 2), reason="[tool.pytest] is read since pytest 9, types since 9.2")
@pytest.mark.parametrize("number", ["3", "'3'"])
def test_a_toml_file_gives_a_budget_as_number_or_text(pytester, plugin, number):
    pytester.makepyprojecttoml(f"[tool.pytest]\ngpu_sync_budget = {number}")
    config = pytester.parseconfig(*plugin)
    budget = read_options(config, config.option).budget
    assert (budget.max, budget.source) == (3, "gpu_sync_budget in pyproject.toml")


@pytest.mark.skipif(pytest.version_tuple < (9, 2), reason="[tool.pytest] is read since pytest 9, types since 9.2")
@pytest.mark.parametrize("value", ["true", "-1", "2.5", "[1]"])
def test_a_budget_of_another_type_is_refused_in_one_line(pytester, run, value):
    pytester.makepyprojecttoml(f"[tool.pytest]\ngpu_sync_budget = {value}")
    result = run(test_a=TRIVIAL)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.errlines if line]
    assert len(lines) == 1
    assert "gpu_sync_budget" in lines[0]


def test_a_command_line_budget_beats_the_ini_file(options):
    assert options("--gpu-sync-budget=0", ini="gpu_sync_budget = 4").budget.max == 0


@pytest.mark.parametrize(
    ("argument", "ini", "must_measure"),
    [
        ("--gpu-sync-budget=1", "", True),
        ("--gpu-device=simulated", "", True),
        ("-v", "gpu_sync_budget = 1\ngpu_device = simulated", False),
        ("--gpu-sync-report=a.json", "", False),
    ],
)
def test_only_the_command_line_insists_on_a_device(options, argument, ini, must_measure):
    assert options(argument, ini=ini).must_measure is must_measure


def test_several_reports_are_written(options, pytester):
    read = options("--gpu-sync-report=a.json", "--gpu-sync-report=deep/b.json")
    assert read.reports == (pytester.path / "a.json", pytester.path / "deep/b.json")


def test_lines_need_a_run_file_to_go_into(run):
    result = run("--gpu-sync-lines", "--gpu-sync-report=run.html", test_a="def test_a(): pass")
    result.stderr.fnmatch_lines(["*--gpu-sync-lines needs a JSON report: add --gpu-sync-report=PATH.json"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_an_ini_report_lies_beside_the_ini_file(options, pytester):
    folder = pytester.mkdir("below")
    pytester.makeini("[pytest]\ngpu_sync_report = run.json")
    assert options(str(folder), ini="gpu_sync_report = run.json").reports == (pytester.path / "run.json",)


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("--gpu-sync-budget=five", "--gpu-sync-budget takes a number of syncs per step of at least 0, not 'five'"),
        ("--gpu-sync-budget=-1", "--gpu-sync-budget takes a number of syncs per step of at least 0, not '-1'"),
        ("--gpu-device=tpu", "--gpu-device takes auto, cuda or simulated, not 'tpu'"),
        (
            "--gpu-simulated-memory=0",
            "--gpu-simulated-memory: a device needs memory: give a size such as \"80 GiB\", not '0'",
        ),
        ("--gpu-sync-report=run.xml", "--gpu-sync-report: run.xml must end in .trace.json or .json or .md or .html"),
        ("--gpu-sync-report=run", "--gpu-sync-report: run must end in .trace.json or .json or .md or .html"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(run, argument, complaint):
    result = run(argument, test_a=TRIVIAL)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines == [f"ERROR: {complaint}", ""]


@pytest.mark.parametrize(
    ("ini", "complaint"),
    [
        ("gpu_sync_budget = many", "gpu_sync_budget in tox.ini takes a number of syncs per step"),
        ("gpu_require = perhaps", "gpu_require in tox.ini takes true or false, not 'perhaps'"),
    ],
)
def test_a_wrong_ini_value_is_refused_and_names_the_file(run, pytester, ini, complaint):
    pytester.makeini(f"[pytest]\n{ini}")
    result = run(test_a=TRIVIAL)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {complaint}*"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            "maximum=1",
            "has no argument 'maximum'; it takes max, exact, warmup, step_on, step_at, percentile, over and within",
        ),
        ('1, step_on="Adam", step_at="Engine.step"', "give step_on or step_at, not both"),
        (
            '1, step_at="Engine step"',
            'step_at takes the name of a function, such as "generate" or "Engine.step", not \'Engine step\'',
        ),
        ("1, 2", "takes one positional argument, max"),
        ("1, max=2", "takes one positional argument, max"),
        ("", "needs max or exact"),
        ("warmup=3", "needs max or exact: warmup alone limits no syncs"),
        ("1, over='often'", "over of a sync budget is a share of the steps such as \"1 in 10\", not 'often'"),
        ("max=1, exact=1", "takes either max or exact, not both"),
        ("'1'", "max of a sync budget must be an integer of at least 0, not '1'"),
        ("max=-1", "not -1"),
        ("1, warmup=-2", "warmup of the marker gpu_sync_budget must be an integer of at least 0, not -2"),
    ],
)
def test_a_wrong_marker_names_the_test_and_shows_no_traceback(run, arguments, complaint):
    result = run(
        test_a=f"import pytest\n@pytest.mark.gpu_sync_budget({arguments})\ndef test_marked(): pass\n",
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"test_a.py::test_marked: *{complaint}"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*plugin.py*")


def test_markers_are_registered_with_help(run):
    result = run("--markers")
    result.stdout.fnmatch_lines(
        ["@pytest.mark.gpu_sync_budget(max=None, exact=None, warmup=1, *): *", "@pytest.mark.gpu_only: *"]
    )


def test_a_project_without_torch_is_left_alone(run_apart):
    result = run_apart(
        "--gpu-sync-budget=0",
        "--gpu-sync-report=run.json",
        test_a="""
            import sys
            def test_what_is_loaded():
                assert not {"torch", "libcst"} & set(sys.modules)
            """,
    )
    result.assert_outcomes(passed=1)


def test_without_options_nothing_is_printed(run):
    result = run(test_a=TRIVIAL)
    result.stdout.no_fnmatch_line("*gpusync:*")
    result.stdout.no_fnmatch_line("*= gpusync =*")


def test_a_report_of_nothing_says_so_with_nulls(run, pytester):
    run("--gpu-sync-report=run.json", test_a=TRIVIAL)
    document = json.loads((pytester.path / "run.json").read_text())
    assert document["regions"] == []
    assert document["environment"]["recorder"] is None
