"""The templates for GitLab and Buildkite: their scripts, run by a shell as a job runs them."""

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

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")

GITLAB = yaml.safe_load((ROOT / "ci/gitlab.yml").read_text())
BUILDKITE = yaml.safe_load((ROOT / "ci/buildkite.yml").read_text())
READS = 'import torch\ndef test_reads():\n    for _ in range({}):\n        torch.ones(3, device="cuda").sum().item()\n'
LOGS = """\
import torch
def train(loader, model):
    for batch in loader:
        print(model(batch.cuda()).item())
"""


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Run lines as one script, with python, gpusync and a stand-in for buildkite-agent on the path."""
    tools = tmp_path / "tools"
    tools.mkdir()
    plugin = "" if _is_installed() else "-p pytest_gpusync.plugin "
    scripts = {
        "python": f'case "$2" in pytest) shift 2; set -- -m pytest {plugin}"$@";; esac; exec {sys.executable} "$@"',
        "gpusync": f'PYTHONPATH={ROOT}:{ROOT / "lint"} exec {sys.executable} -P -m pytest_gpusync "$@"',
        "pip": 'echo "pip $*" >> "$CALLS"',
        "buildkite-agent": 'echo "buildkite-agent $*" >> "$CALLS"; [ "$1" = artifact ] || cat > "$CALLS.$1"',
    }
    for name, body in scripts.items():
        (tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (tools / name).chmod(0o755)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)

    def run(lines, **variables):
        environment = {**os.environ, **variables}
        environment["PATH"] = os.pathsep.join([str(tools), environment["PATH"]])
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "lint")])
        environment["CALLS"] = str(tmp_path / "calls")
        script = "set -eo pipefail\n" + "\n".join(lines)
        return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=300)

    return run


def _is_installed():
    from importlib.metadata import entry_points

    return any(point.value == "pytest_gpusync.plugin" for point in entry_points(group="pytest11"))


def gitlab(shell, name, **variables):
    job = GITLAB[name]
    return shell(job["script"], **{**job["variables"], "GPUSYNC_INSTALL": "", **variables})


def test_gitlab_lint_fails_with_a_report_and_lines_in_the_log(shell, tmp_path):
    Path("train.py").write_text(LOGS)
    ended = gitlab(shell, ".gpusync-lint", GPUSYNC_LINT="train.py")
    assert ended.returncode == 1, ended.stderr
    assert {issue["location"]["path"] for issue in json.loads(Path("gl-code-quality-report.json").read_text())} == {
        "train.py"
    }
    assert "train.py:4:" in ended.stdout


def test_no_template_lints_with_code_of_the_checkout():
    for job in (*GITLAB.values(), *BUILDKITE["steps"]):
        lines = job.get("script") or job["command"].splitlines()
        assert any("pytest " in line or "gpusync " in line for line in lines)
        # `python -m` looks for modules in the working directory first.
        assert not any(re.search(r"python3? -m (pip|pytest_gpusync|gpusync_lint)", line) for line in lines)


def test_no_template_installs_by_a_name_alone():
    """The package is on no index: whoever takes its name there would run code in the jobs of others."""
    for text in ("ci/gitlab.yml", "ci/buildkite.yml", "action.yml"):
        for line in (ROOT / text).read_text().splitlines():
            if "pip install" in line or "GPUSYNC_INSTALL:" in line:
                assert not re.search(r"pytest-gpusync(?!@git\+https)(\s|$)", line), line


def test_gitlab_lint_passes_where_there_is_nothing(shell):
    Path("train.py").write_text("x = 1\n")
    assert gitlab(shell, ".gpusync-lint", GPUSYNC_LINT="train.py").returncode == 0


@pytest.mark.parametrize(("syncs", "code"), [(1, 0), (2, 1)])
def test_gitlab_gate_holds_the_tests_to_the_budget_and_leaves_its_reports(shell, syncs, code):
    pytest.importorskip("torch")
    if devices.detect().kind == "cuda":
        pytest.skip("the simulated device needs a machine without a GPU, or CUDA_VISIBLE_DEVICES= (empty)")
    Path("test_a.py").write_text(READS.format(syncs))
    tests = "test_a.py -p no:cacheprovider"
    ended = gitlab(shell, ".gpusync-gate", GPUSYNC_TESTS=tests, GPUSYNC_BUDGET="1", CI_NODE_INDEX="2")
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert sorted(path.name for path in Path("gpusync").iterdir()) == ["run-2.html", "run-2.json", "run-2.xml"]


def test_gitlab_gate_without_a_gpu_is_red_where_one_is_required(shell):
    if devices.detect().kind == "cuda":
        pytest.skip("there is a GPU here")
    Path("test_a.py").write_text("def test_it(): pass\n")
    ended = gitlab(shell, ".gpusync-gate", GPUSYNC_REQUIRE="true")
    assert ended.returncode == 4
    assert "--gpu-require: there is no GPU to run on" in ended.stderr


def test_every_variable_that_a_gitlab_job_reads_is_declared_in_it():
    for name, job in GITLAB.items():
        read = set(re.findall(r"\$\{?(GPUSYNC_\w+)", json.dumps(job)))
        assert read <= set(job["variables"]), name


def test_buildkite_merges_the_runs_of_its_jobs_into_a_page_and_an_annotation(shell, tmp_path):
    from pytest_gpusync.reporting.run_file import run_document, to_text, unmeasured_document

    Path("gpusync").mkdir()
    for number in range(2):
        document = run_document(None, [unmeasured_document(f"test_{number}", "no recorder")])
        Path(f"gpusync/run-{number}.json").write_text(to_text(document))
    report = BUILDKITE["steps"][2]
    ended = shell(report["command"].replace("$$", "$").splitlines())
    assert ended.returncode == 0, ended.stderr
    assert "test_1" in Path("gpusync/all.html").read_text()
    assert "Merged from 2 runs" in (tmp_path / "calls.annotate").read_text()
    assert "buildkite-agent artifact download gpusync/run-*.json ." in (tmp_path / "calls").read_text()


def test_every_test_that_the_template_for_other_systems_runs_exists():
    text = (ROOT / "ci/other-systems.yml").read_text()
    named = re.findall(r"tests/[\w/.]+", text)
    assert len(named) > 3
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert {step for job in yaml.safe_load(text)["jobs"].values() for step in job} >= {"runs-on", "steps"}


def test_every_option_of_the_templates_exists():
    from pytest_gpusync.plugin import options

    known = Path(options.__file__).read_text()
    given = {option for text in ("gitlab", "buildkite") for option in _options(ROOT / f"ci/{text}.yml")}
    assert len(given) > 3
    assert all(f'"{option}"' in known for option in given)


def _options(path):
    return re.findall(r"--gpu-[a-z-]+", path.read_text())
