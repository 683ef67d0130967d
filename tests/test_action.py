"""The GitHub action's scripts as a job runs them, and that action.yml gives them what they read."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpusync.machine import devices

ROOT = Path(__file__).parents[1]
ACTION = (ROOT / "action.yml").read_text()

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")

READS = 'import torch\ndef test_reads():\n    for _ in range(2):\n        torch.ones(3, device="cuda").sum().item()\n'


LOGS = """\
import torch

model = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    loss = model(torch.ones(3, 4, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def _is_installed():
    from importlib.metadata import entry_points

    return any(point.value == "pytest_gpusync.plugin" for point in entry_points(group="pytest11"))


@pytest.fixture
def job(tmp_path):
    """Run a script of the action in a job's environment, and return what became of it."""

    def job(script, variables=None, **inputs):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUSYNC_")}
        environment |= {f"GPUSYNC_{name}": value for name, value in inputs.items()}
        environment |= {
            "GPUSYNC_PYTHON": sys.executable,
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(tmp_path),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lint")]),
            "PYTEST_PLUGINS": "" if _is_installed() else "pytest_gpusync.plugin",
            **(variables or {}),
        }
        command = ["bash", str(ROOT / "action" / script)]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    return job


needs_installation = pytest.mark.skipif(
    not _is_installed(), reason="lint.sh ignores PYTHONPATH: the package must be installed"
)


@pytest.mark.parametrize("script", ["install.sh", "lint.sh", "test.sh", "compare.sh"])
def test_the_action_sets_every_variable_that_a_script_reads(script):
    read = set(re.findall(r"GPUSYNC_[A-Z_]+", (ROOT / "action" / script).read_text())) | {"GPUSYNC_PYTHON"}
    step = next(step for step in ACTION.split("- name:") if f"action/{script}" in step)
    assert read == set(re.findall(r"^ +(GPUSYNC_[A-Z_]+):", step, re.MULTILINE))


def test_every_input_of_the_action_is_used_and_none_within_a_script():
    declared = set(re.findall(r"^  ([a-z-]+):$", ACTION.partition("runs:")[0], re.MULTILINE))
    assert declared == set(re.findall(r"inputs\.([a-z-]+)", ACTION))
    # An expression in a script is code: inputs reach the scripts as variables.
    assert not re.search(r"run:.*\$\{\{", ACTION)


def test_action_yml_is_a_composite_action():
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load(ACTION)
    assert action["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" for step in action["runs"]["steps"])


@needs_installation
def test_findings_of_the_linter_are_annotations_and_fail_the_step(job, tmp_path):
    (tmp_path / "my train.py").write_text(LOGS)
    ended = job("lint.sh", LINT="'my train.py'", SARIF="out/lint.sarif")
    assert ended.returncode == 1, ended.stderr
    assert "::warning file=my train.py,line=9," in ended.stdout
    assert json.loads((tmp_path / "out/lint.sarif").read_text())["version"] == "2.1.0"


@needs_installation
def test_arguments_are_words_and_nothing_in_them_is_executed(job, tmp_path):
    (tmp_path / "a.py").write_text("")
    ended = job("lint.sh", LINT="a.py '$(touch bad)' `touch`", LINT_ARGS="--select 'GS2'")
    assert ended.returncode == 2
    assert not (tmp_path / "bad").exists()


PLANTED = """\
import pathlib
pathlib.Path({folder!r}, {name!r}).touch()
"""
MODULES = (
    *("pytest_gpusync", "gpusync_lint", "libcst", "pip", "pytest", "tomllib", "sitecustomize", "usercustomize"),
    *("ast", "argparse", "encodings", "json", "multiprocessing", "os", "re", "runpy", "shlex", "tokenize", "typing"),
)


@pytest.fixture
def executed(tmp_path):
    """A checkout with a module of every name that a job may import; calling this returns those that were executed."""
    marks = tmp_path.with_name(f"{tmp_path.name}-executed")
    marks.mkdir()
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(PLANTED.format(folder=str(marks), name=name))
    (tmp_path / "train.py").write_text(LOGS)
    return lambda: sorted(path.name for path in marks.iterdir())


def old_python(folder):
    """An interpreter without the option -P, as Python 3.10 is."""
    wrapper = folder / "python3.10"
    wrapper.write_text(
        f'#!/bin/bash\nfor word; do case $word in -P) exit 2;; -m|-c) break;; esac; done\nexec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    return str(wrapper)


@needs_installation
@pytest.mark.parametrize("has_safe_path", [True, False])
@pytest.mark.parametrize("path", ["", "."])
def test_a_job_that_lints_executes_no_module_of_the_checkout(job, executed, tmp_path, path, has_safe_path):
    variables = {"PYTHONPATH": path}
    if not has_safe_path:
        variables["GPUSYNC_PYTHON"] = old_python(tmp_path)
    ended = job("lint.sh", variables, LINT="train.py", LINT_ARGS="--no-cache")
    assert "::warning file=train.py,line=9," in ended.stdout, ended.stderr
    assert executed() == []


@pytest.mark.parametrize("path", ["", "."])
def test_installing_executes_no_module_of_the_checkout(job, executed, path):
    ended = job("install.sh", {"PYTHONPATH": path}, INSTALL="--help")
    assert "pip install" in ended.stdout, ended.stderr
    assert executed() == []


def test_the_action_installs_its_own_checkout(job, tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    declared = re.search(r"^  install:\n.*\n    default: (\S+)$", ACTION, re.MULTILINE)
    ended = job("install.sh", {"GPUSYNC_PYTHON": str(python)}, INSTALL=declared[1])
    assert ended.stdout.splitlines()[-1] == f"-P -E -m pip install --quiet {ROOT}"


@needs_installation
def test_links_of_the_checkout_do_not_lead_the_report_elsewhere(job, tmp_path):
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-home")
    elsewhere.mkdir()
    (elsewhere / "profile").write_text("mine")
    (tmp_path / "a.py").write_text("")
    (tmp_path / "lint.sarif").symlink_to(elsewhere / "profile")
    (tmp_path / "out").symlink_to(elsewhere)
    assert job("lint.sh", LINT="a.py", SARIF="lint.sarif").returncode == 0
    assert json.loads((tmp_path / "lint.sarif").read_text())["version"] == "2.1.0"
    refused = job("lint.sh", LINT="a.py", SARIF="out/profile")
    assert refused.returncode == 2
    assert "is a link to a place outside the checkout" in refused.stderr
    assert (elsewhere / "profile").read_text() == "mine"


def test_the_tests_are_held_to_the_budget_and_the_summary_is_shown(job, tmp_path):
    pytest.importorskip("torch")
    if devices.detect().kind == "cuda":
        pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")
    (tmp_path / "test_a.py").write_text(READS)
    (tmp_path / "summary").write_text("before\n")
    ended = job("test.sh", TEST="test_a.py -k 'reads or other' -p no:cacheprovider", BUDGET="1")
    assert ended.returncode == 1, ended.stderr
    assert "::error file=test_a.py,line=4," in ended.stdout
    assert (tmp_path / "summary").read_text().startswith("before\n## GPU syncs\n")
    assert sorted(path.name for path in (tmp_path / "gpusync-report").iterdir()) == ["run.html", "run.json", "run.md"]


def test_a_gate_without_a_gpu_is_red_and_says_why(job, tmp_path):
    if devices.detect().kind == "cuda":
        pytest.skip("there is a GPU here")
    (tmp_path / "test_a.py").write_text("def test_it(): pass\n")
    ended = job("test.sh", TEST="-p no:cacheprovider", REQUIRE="true")
    assert ended.returncode == 4
    assert "--gpu-require: there is no GPU to run on" in ended.stderr
    assert "pytest ended with exit code 4 before the first test" in (tmp_path / "summary").read_text()


def _snippets():
    text = (ROOT / "docs/ci.md").read_text()
    return re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)


def test_every_snippet_of_the_guide_is_yaml():
    yaml = pytest.importorskip("yaml")
    github, compare, comment, gitlab, *_ = (yaml.safe_load(snippet) for snippet in _snippets())
    assert (set(github["jobs"]), set(gitlab)) == ({"lint", "gpu-gate"}, {"include", "gpusync-lint", "gpusync-gate"})
    assert (set(compare), set(comment["jobs"])) == ({"gpu-gate"}, {"comment"})
    # A workflow that may write runs no code of a fork.
    assert not any("checkout" in step.get("uses", "") or "run" in step for step in comment["jobs"]["comment"]["steps"])


def test_the_guide_gives_the_action_only_inputs_that_it_has():
    declared = set(re.findall(r"^  ([a-z-]+):$", ACTION.partition("runs:")[0], re.MULTILINE))
    used = re.findall(r"uses: .*/pytest-gpusync@REF\n +with:\n((?: {10}.*\n)+)", "".join(_snippets()))
    assert len(used) == 4
    assert set(re.findall(r"^ +([a-z-]+):", "".join(used), re.MULTILINE)) <= declared


def test_every_option_that_the_guide_gives_to_pytest_exists():
    given = set(re.findall(r"--gpu-[a-z-]+", (ROOT / "docs/ci.md").read_text()))
    from pytest_gpusync.plugin import options

    known = Path(options.__file__).read_text()
    assert given
    assert all(f'"{option}"' in known for option in given)


def _run_file(path, syncs):
    from pytest_gpusync.model.measurement import Environment, Measurement, Site, Sync
    from pytest_gpusync.reporting.run_file import region_document, run_document, to_text

    environment = Environment("2.13.0", "3.11.9", "simulated", None, None, "simulated", "simulated")
    waits = tuple(Sync("stream", Site("a.py", 3, "f", None), 1) for _ in range(syncs))
    measurement = Measurement("test_a", environment, waits, 2, 1, "optimizer.step()")
    path.parent.mkdir(exist_ok=True)
    path.write_text(to_text(run_document(environment, [region_document(measurement)])))


@needs_installation
@pytest.mark.parametrize(
    ("syncs", "inputs", "code"),
    [
        (2, {"FAIL_ON_MORE": "true"}, 1),
        (2, {}, 0),
        (1, {"FAIL_ON_MORE": "true"}, 0),
        (2, {"COMPARE": "none.json"}, 0),
        (2, {"COMPARE": "none.json", "FAIL_ON_MORE": "true"}, 2),
    ],
)
def test_the_run_is_compared_and_the_comparison_is_in_the_summary(job, executed, tmp_path, syncs, inputs, code):
    _run_file(tmp_path / "base.json", 1)
    _run_file(tmp_path / "gpusync-report" / "run.json", syncs)
    done = job("compare.sh", **{"COMPARE": "base.json", "COMMENT": "true", **inputs})
    assert done.returncode == code, done.stderr
    shown = (tmp_path / "summary").read_text() if (tmp_path / "summary").exists() else ""
    assert ("1 test compared" in shown) == ("COMPARE" not in inputs)
    assert executed() == []
