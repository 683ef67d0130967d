"""Each place where people meet pytest-gpusync, in one real run each: transcripts and report files.

    python benchmarks/surfaces.py OUT [--part NAME ...] [--nanogpt TREE] [--mingpt TREE]

Runs on the GPU or, without one, on the simulated device. For each part OUT gets NAME.txt, the commands and what they
printed, and the files that they wrote. What a part promises is checked: a promise that was broken ends its transcript
and the status is 1. Parts:

    terminal    pytest under a budget: plain, -v, -q, --no-header, narrow
    files       every report file, JUnit, annotations of a GitHub job, the action, a gate without a GPU
    baseline    the ratchet: created, kept, grown, improved, gone stale, merged by git
    join        gpusync lint --observed over nanoGPT and minGPT (--nanogpt, --mingpt: checkouts), noise for data
    trace       gpusync trace of a script and a module; doctor
    callbacks   a Lightning and a transformers training that break a budget and keep one
    launchers   gpusync trace of accelerate launch, two ranks (takes accelerate; on GPUs, two)
    notebook    record() in a notebook that is executed (takes jupyter and nbclient)
    tutorial    docs/tutorial.md to the letter
    speed       how long the tutorial's steps take before and after it, at two sizes (takes a GPU)
    xdist       pytest -n 4, its report equal to that of one process; a worker killed
    ranks       torchrun over 4 ranks: all keep the budget, one breaks it, one is killed
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "lint")]

SOURCES = Path(__file__).with_name("surfaces")
EXAMPLES = ROOT / "examples"
LIMIT_SECONDS = 170
AGREES = "outcome, steps, syncs of each step, lines, kinds, rules and verdicts"
FILE_BYTES = 2_000_000
"""A larger file is not kept."""


class Broken(Exception):
    """A promise that was not kept."""


class Scene:
    """A scratch folder, what is typed in it, and what comes back."""

    def __init__(self, name: str, out: Path, bin_folder: Path) -> None:
        self.name = name
        self.out = out
        self.folder = Path(tempfile.mkdtemp(prefix=f"surfaces-{name}-"))
        self._lines: list[str] = []
        self._bin = bin_folder

    def say(self, text: str) -> None:
        """Add a line of explanation."""
        self._lines.append(f"# {text}")

    def run(self, command: str, *, status: int | None = 0, head: int = 0, **variables: str) -> str:
        """Run a line of shell, and return what it printed.

        Args:
            command: what is typed.
            status: what it must end with; None: anything but 0.
            head: lines kept in the transcript; 0: all.
            variables: of the environment.
        """
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "CI"))}
        environment |= {"PATH": f"{self._bin}:{environment['PATH']}", "OMP_NUM_THREADS": "1"} | variables
        if not _is_installed():
            environment["PYTEST_PLUGINS"] = "pytest_gpusync.plugin"
        paths = [str(ROOT), str(ROOT / "lint"), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        shown = " ".join([*(f"{key}={value}" for key, value in variables.items()), command])
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT_SECONDS,
            check=False,
        )
        seconds = time.monotonic() - began
        printed = done.stdout.rstrip("\n").splitlines()
        kept = (
            printed if not head or len(printed) <= head else [*printed[:head], f"... {len(printed) - head} more lines"]
        )
        self._lines += [f"$ {shown}", *kept]
        self._lines.append(f"[status {done.returncode}, {seconds:.1f} s]\n")
        print(f"  {seconds:6.1f} s  {shown}", flush=True)
        if (status is None and done.returncode == 0) or (status is not None and done.returncode != status):
            raise Broken(f"status {done.returncode}, not {'an error' if status is None else status}: {command}")
        return done.stdout

    def promise(self, kept: bool, what: str) -> None:
        """Note a promise, and end here if it is broken."""
        if not kept:
            raise Broken(what)
        self._lines.append(f"# checked: {what}\n")

    def copy(self, source: Path, name: str | None = None) -> None:
        """Put a file or a folder into the scratch folder."""
        target = self.folder / (name or source.name)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(".git", "__pycache__", ".gpusync_cache"))
        else:
            shutil.copy(source, target)

    def keep(self, *names: str) -> None:
        """Keep files of the scratch folder beside the transcript."""
        for name in names:
            if (self.folder / name).stat().st_size <= FILE_BYTES:
                text = scrubbed((self.folder / name).read_text(encoding="utf-8"), self.folder)
                (self.out / f"{self.name}-{Path(name).name}").write_text(text, encoding="utf-8")

    def close(self, problem: str | None) -> None:
        """Write the transcript."""
        if problem is not None:
            self._lines.append(f"# BROKEN: {problem}")
        text = scrubbed("\n".join(self._lines), self.folder).rstrip() + "\n"
        (self.out / f"{self.name}.txt").write_text(text, encoding="utf-8")
        shutil.rmtree(self.folder, ignore_errors=True)


def scrubbed(text: str, folder: Path) -> str:
    """Return a text without the places of this machine."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r" \(UUID: [\w-]+\)| hostname=\"[^\"]*\"", "", text)
    places = [(str(folder), "."), (str(ROOT), "PROJECT"), (sys.prefix, "PYTHON"), (sys.base_prefix, "PYTHON")]
    for place in sys.path:
        if place.endswith(("site-packages", "site", "dist-packages")):
            places.append((place, "SITE"))
    for place, name in sorted(places, key=lambda pair: -len(pair[0])):
        text = text.replace(place, name)
    return text


def on_gpu() -> bool:
    """Tell whether the parts run on a GPU."""
    from pytest_gpusync.machine import devices

    return devices.detect().kind == "cuda"


def terminal(scene: Scene) -> None:
    """pytest in a terminal."""
    _training(scene)
    plain = scene.run("pytest --gpu-sync-budget=5", status=1)
    scene.promise("\x1b" not in plain, "no colour where the output is no terminal")
    scene.promise(plain.count("gpusync: ") == 1, "one header line")
    verbose = scene.run("pytest -v --gpu-sync-budget=1 -k slow", status=1)
    scene.promise("-v shows all" not in verbose, "-v shows every line")
    quiet = scene.run("pytest -q --gpu-sync-budget=5", status=1)
    scene.promise("= gpusync =" not in quiet and "gpusync: " not in quiet, "-q: no header, no summary")
    scene.run("pytest --no-header --no-summary --gpu-sync-budget=5 -k fast")
    narrow = scene.run("pytest --gpu-sync-budget=5", status=1, COLUMNS="60")
    longest = max((line for line in narrow.splitlines() if " " in line.strip()), key=len)
    scene.say(f"the longest line has {len(longest)} columns")
    scene.run("pytest --gpu-sync-budget=5 --color=yes -k slow | grep -c $'\\x1b'")


def files(scene: Scene) -> None:
    """Everything that a run writes."""
    _training(scene)
    reports = " ".join(f"--gpu-sync-report=run{ending}" for ending in (".json", ".md", ".html", ".trace.json"))
    scene.run(f"pytest --gpu-sync-budget=5 --junitxml=junit.xml {reports}", status=1, head=12)
    scene.run("cat run.md")
    scene.run("cat junit.xml", head=40)
    scene.run("gpusync report show run.json")
    if importlib.util.find_spec("jsonschema") is not None:
        schema = ROOT / "docs" / "schemas" / "run-1.schema.json"
        scene.copy(schema)
        scene.run(
            'python -c "import json, jsonschema; '
            "jsonschema.validate(json.load(open('run.json')), json.load(open('run-1.schema.json'))); print('valid')\""
        )
    scene.run("pytest -q --gpu-sync-budget=5 -k slow", status=1, GITHUB_ACTIONS="true")
    action = {"GPUSYNC_PYTHON": sys.executable, "GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_ACTIONS": "true"}
    action |= {"PYTEST_ADDOPTS": "-q"}
    scene.run(f"bash {ROOT}/action/test.sh", status=1, GPUSYNC_TEST="-k slow", GPUSYNC_BUDGET="5", **action)
    scene.run("head -8 summary.md")
    scene.run("pytest -q --gpu-require --gpu-sync-budget=5", status=4, CUDA_VISIBLE_DEVICES="")
    scene.keep("run.json", "run.md", "run.html", "run.trace.json", "junit.xml")


def baseline(scene: Scene) -> None:
    """The life of a committed baseline."""
    scene.copy(SOURCES / "test_ratchet.py", "test_steps.py")
    test = "pytest -q --gpu-sync-baseline=gpusync.json"
    show = "cat gpusync.json"
    scene.say("created: a missing file is refused, and written when asked for")
    scene.run(test, status=4)
    scene.run(f"{test} --gpu-sync-update-baseline")
    scene.run(show)
    scene.run("git init -q -b main && git config user.name A && git config user.email a@b.c")
    scene.run("echo 'gpusync.json merge=union' > .gitattributes && git add . && git commit -qm 'With a baseline'")
    scene.say("kept: lines may move, and nothing changes")
    scene.run("sed -i '1i # a comment that moves every line' test_steps.py")
    scene.run(test)
    scene.say("grown: a line that was not there")
    scene.run("git checkout -q . && sed -i 's/    # grows here/    print(total.item())/' test_steps.py")
    scene.run(test, status=1)
    scene.say("improved: a line that waited twice a step waits once")
    scene.run("git checkout -q . && sed -i 's/for value in (total, total)/for value in (total,)/' test_steps.py")
    scene.run(test.replace(" -q", ""))
    scene.run(f"{test} --gpu-sync-update-baseline && git commit -qam Tighter && git show --stat --format=%s")
    scene.say("edited: the text is what a line is known by; the entry of what it was is stale, and what it is has none")
    scene.run("sed -i 's/logged += value.item()/logged = logged + value.item()/' test_steps.py")
    scene.run(test, status=1)
    scene.run(f"{test} --gpu-sync-update-baseline && git commit -qam Edited")
    scene.say("gone stale: the line waits no longer")
    scene.run("sed -i '/norms.append/d' test_steps.py")
    scene.run(test, status=1)
    scene.run(f"{test} --gpu-sync-update-baseline && {show} && git commit -qam 'One line less'")
    scene.say("merged: two branches that each add a test with entries of its own")
    for name in ("one", "two"):
        scene.run(f"git checkout -q -b {name} main && sed 's/_step/_{name}/' test_steps.py > test_{name}.py")
        scene.run(f"{test} --gpu-sync-update-baseline && git add . && git commit -qm {name}")
    scene.run("git checkout -q main && git merge -q one && git merge -q -m merged two")
    scene.run(show)
    scene.run(test)


def join(scene: Scene, nanogpt: Path | None, mingpt: Path | None) -> None:
    """What a run says of the linter's findings, and the linter of a run's lines."""
    if nanogpt is None or mingpt is None:
        raise Broken("this part takes --nanogpt and --mingpt, checkouts of both")
    scene.copy(nanogpt, "nanoGPT")
    scene.copy(mingpt, "minGPT")
    scene.copy(SOURCES / "noise.py")
    scene.run("python noise.py nanoGPT/data/shakespeare_char && cp minGPT/projects/adder/adder.py minGPT")
    scene.copy(SOURCES / "evaluate.py")
    options = "--device=cuda --compile=False --eval_iters=2 --eval_interval=20 --log_interval=5 --max_iters=30 "
    options += "--block_size=64 --batch_size=8 --n_layer=2 --n_head=2 --n_embd=64 --gradient_accumulation_steps=1"
    _join(scene, "nanoGPT", f"train.py config/train_shakespeare_char.py {options}", ".")
    _join(scene, "minGPT", "adder.py --trainer.max_iters=60", "adder.py mingpt")
    scene.say("the same on the CPU: it runs, and nothing of it waits")
    _join(scene, "minGPT", "adder.py --trainer.max_iters=60 --trainer.device=cpu", "adder.py mingpt")
    scene.say("a line that only a run can know of")
    _join(scene, ".", "evaluate.py", "evaluate.py")


def _join(scene: Scene, folder: str, program: str, linted: str) -> None:
    scene.run(f"cd {folder} && gpusync trace --lines --json run.json {program} > out.txt; tail -n 12 out.txt")
    lint = f"gpusync lint --exit-zero --heat epoch --observed run.json {linted}"
    scene.run(f"cd {folder} && {lint}")
    document = json.loads(scene.run(f"cd {folder} && {lint} --output-format json", head=1))
    evidence = Counter(
        (finding["observed"] or {}).get("evidence", "not about waiting") for finding in document["findings"]
    )
    scene.say(f"{program.split()[0]} of {folder}: {dict(evidence)}, gaps: {len(document['observed']['gaps'])}\n")


def trace(scene: Scene) -> None:
    """Programs as they are."""
    _training(scene)
    scene.run("gpusync doctor")
    scene.run("gpusync trace train_slow.py --steps 20")
    scene.run("gpusync trace --json run.json --html run.html --trace run.trace.json -m train_fast --steps 20")
    scene.keep("run.html")


def callbacks(scene: Scene) -> None:
    """Trainings of other people's loops."""
    scene.copy(SOURCES / "with_lightning.py")
    scene.copy(SOURCES / "with_transformers.py")
    python = "python" if on_gpu() else "gpusync trace --quiet"  # which switches the simulated device on
    for name in ("lightning", "transformers"):
        scene.run(f"{python} with_{name}.py 0", status=1)
        scene.run(f"{python} with_{name}.py 20")


def launchers(scene: Scene) -> None:
    """Programs that start the ranks."""
    scene.copy(SOURCES / "with_accelerate.py")
    how = "--num_processes 2 --num_machines 1 --multi_gpu --mixed_precision no --dynamo_backend no"
    trace = "gpusync trace --json run.json"
    scene.run(f"{trace} -m accelerate.commands.launch {how} with_accelerate.py 2> errors.txt")
    regions = _regions(scene.folder / "run.json")
    ranks = [f"with_accelerate.py [rank {number}]" for number in range(2)]
    scene.promise(sorted(regions) == ranks, "both ranks are in the report")


def notebook(scene: Scene) -> None:
    """A notebook that is executed, and what its last cell shows."""
    _training(scene)
    cells = [
        "from contextlib import nullcontext\n\nimport torch\nfrom train_slow import train",
        "from pytest_gpusync import record, simulated_cuda",
        "device = nullcontext() if torch.cuda.is_available() else simulated_cuda()",
        "with device, record(warmup=1) as seen:\n    history = train(5, 'cuda')\nseen",
    ]
    code = [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": one} for one in cells
    ]
    empty = {"cells": code, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (scene.folder / "waits.ipynb").write_text(json.dumps(empty, indent=1))
    scene.run("python -m jupyter execute --inplace waits.ipynb")
    outputs = json.loads((scene.folder / "waits.ipynb").read_text())["cells"][-1]["outputs"]
    shown = next(one["data"] for one in outputs if "data" in one)
    html = "".join(shown["text/html"])
    scene.promise("10 syncs per step" in html and "train_slow.py:37" in html, "the cell shows its lines as a table")
    scene.say(f"as text: {''.join(shown['text/plain'])}")
    (scene.folder / "cell.html").write_text(f"<!doctype html><meta charset=utf-8><title>a cell</title>{html}\n")
    scene.keep("waits.ipynb", "cell.html")


def tutorial(scene: Scene) -> None:
    """The tutorial, block by block."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    for name, copy in re.findall(r"examples/char_gpt/(\w+\.py)(?: tutorial/(\w+\.py))?", text):
        if "train_fast" not in name:
            scene.copy(EXAMPLES / "char_gpt" / name, copy or name)
    scene.copy(EXAMPLES / "char_gpt" / "train_slow.py", "before.py")
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if kind == "console":
            for command in block.splitlines():
                printed = scene.run(f"{command} || true", COLUMNS="160")
        elif kind == "diff":
            (scene.folder / "change.diff").write_text(block)
            scene.run("git apply --unidiff-zero change.diff")
        elif kind == "python":
            (scene.folder / "test_training.py").write_text(block)
    scene.promise("No warnings" in printed, "the last command of the tutorial finds nothing left")


def speed(scene: Scene) -> None:
    """What the tutorial's changes are worth, at two sizes."""
    if not on_gpu():
        raise Broken("this part times steps: it takes a GPU")
    for name in ("gpt.py", "sums.py"):
        scene.copy(EXAMPLES / "char_gpt" / name)
    scene.copy(EXAMPLES / "char_gpt" / "train_slow.py", "before.py")
    scene.copy(EXAMPLES / "char_gpt" / "train_fast.py", "after.py")
    scene.copy(SOURCES / "test_before_and_after.py")
    scene.run("pytest -q -s --gpu-require test_before_and_after.py")


def xdist(scene: Scene) -> None:
    """Workers that share GPUs."""
    for number in range(4):
        scene.copy(SOURCES / "test_worker.py", f"test_{number}.py")
    _training(scene, budget=12)
    if on_gpu():
        scene.run("nvidia-smi -L")
    test = "pytest --gpu-sync-budget=12"
    scene.run(f"{test} --gpu-sync-report=serial.json")
    scene.run(f"{test} -n 4 --gpu-sync-report=parallel.json --gpu-sync-report=parallel.md")
    serial, parallel = (_comparable(scene.folder / name) for name in ("serial.json", "parallel.json"))
    scene.promise(serial == parallel, f"one process and four workers agree in {len(serial)} regions: {AGREES}")
    once = _total(scene.folder / "parallel.json") - _total(scene.folder / "serial.json")
    scene.say(f"syncs in all: {_total(scene.folder / 'serial.json')}, of four workers {once:+d}")
    scene.say("(on a GPU each process sets libraries up in its first steps, which are warm-up)\n")
    scene.say("a worker is killed in the middle of the run")
    scene.copy(SOURCES / "test_dies.py")
    scene.run(f"{test} -n 4 --gpu-sync-report=killed.json", status=1)
    killed = _comparable(scene.folder / "killed.json")
    lost = [name for name, region in killed.items() if region["outcome"] == "not_measured"]
    scene.promise(lost == ["test_dies.py::test_dies"], "only the test that the worker died of was not measured")
    scene.promise(serial == {name: killed[name] for name in serial}, "the results of all others are kept")
    scene.keep("serial.json", "parallel.json", "killed.json")


def ranks(scene: Scene) -> None:
    """torchrun, a pytest per rank."""
    if on_gpu():
        scene.run("nvidia-smi -L")
    scene.copy(SOURCES / "test_ranks.py")
    launch = "torchrun --standalone --nproc-per-node=4 --local-ranks-filter=0 -m pytest -q -p no:cacheprovider"

    def torchrun(name: str, tests: str, status: int) -> str:
        report = f"--gpu-sync-report={name}.json --gpu-sync-report={name}.md"
        printed = scene.run(f"{launch} {report} test_ranks.py -k '{tests}' 2> errors.txt", status=status)
        regions = _regions(scene.folder / f"{name}.json")
        for region, found in regions.items():
            scene.say(f"{name}.json: {region}: {found['outcome']}, {found['problem'] or found['syncs_per_step']}")
        return printed

    torchrun("keeps", "keeps", 0)
    printed = torchrun("breaks", "breaks", 1)
    scene.promise("rank 1 failed" in printed, "the rank that broke its budget is named")
    scene.run("tail -n 8 errors.txt")
    scene.run("cat breaks.md", head=24)
    began = time.monotonic()
    printed = torchrun("dies", "keeps or dies", 1)
    seconds = time.monotonic() - began
    scene.run("tail -n 8 errors.txt")
    scene.promise(seconds < 60, f"the whole run, start included, took {seconds:.0f} s: less than 60")
    scene.promise("rank 2 is gone" in printed, "the rank that was killed is named")
    passed = sum(region["outcome"] == "passed" for region in _regions(scene.folder / "dies.json").values())
    scene.promise(passed >= 3, "earlier results of the others are kept")
    scene.keep("dies.json", "dies.md")


def _regions(path: Path) -> dict[str, dict[str, Any]]:
    return {region["name"]: region for region in json.loads(path.read_text())["regions"]}


def _comparable(path: Path) -> dict[str, dict[str, Any]]:
    """Return what the regions of a run say of their measured steps, by name; times differ from run to run."""
    kept = ("outcome", "problem", "steps", "warmup", "step_source", "syncs_per_step", "per_step", "verdicts")
    named = ("path", "line", "function", "code", "kind", "steps", "per_step_max", "via", "phase", "allowed")
    found = {}
    for name, region in _regions(path).items():
        found[name] = {key: region[key] for key in kept}
        sites = [{key: site[key] for key in named} for site in region["sites"] if site["steps"]]
        found[name]["sites"] = sorted(sites, key=repr)
    return found


def _total(path: Path) -> int:
    return sum(region["syncs"] or 0 for region in _regions(path).values())


def _training(scene: Scene, budget: int | None = None) -> None:
    for name in ("gpt.py", "sums.py", "train_slow.py", "train_fast.py"):
        scene.copy(EXAMPLES / "char_gpt" / name)
    scene.copy(SOURCES / "test_training.py")


def _is_installed() -> bool:
    return any(point.value == "pytest_gpusync.plugin" for point in entry_points(group="pytest11"))


def _commands(folder: Path) -> None:
    """Put the commands that people type into a folder, whether or not the project is installed."""
    commands = {
        "python": "",
        "gpusync": " -m pytest_gpusync",
        "pytest": " -m pytest -p no:cacheprovider --show-capture=no",
        "torchrun": " -m torch.distributed.run",
    }
    for name, arguments in commands.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        (folder / name).chmod(0o755)


def main() -> int:
    """Play the parts, and return the status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for transcripts and files")
    parser.add_argument("--part", action="append", help="one of the parts above; all of them without it")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of karpathy/nanoGPT")
    parser.add_argument("--mingpt", type=Path, help="a checkout of karpathy/minGPT")
    options = parser.parse_args()
    parts: dict[str, Callable[[Scene], None]] = {
        "terminal": terminal,
        "files": files,
        "baseline": baseline,
        "join": lambda scene: join(scene, options.nanogpt, options.mingpt),
        "trace": trace,
        "callbacks": callbacks,
        "launchers": launchers,
        "notebook": notebook,
        "tutorial": tutorial,
        "speed": speed,
        "xdist": xdist,
        "ranks": ranks,
    }
    unknown = set(options.part or ()) - set(parts)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    options.out.mkdir(parents=True, exist_ok=True)
    broken = 0
    with tempfile.TemporaryDirectory() as bin_folder:
        _commands(Path(bin_folder))
        for name in options.part or parts:
            print(name, flush=True)
            scene, problem = Scene(name, options.out, Path(bin_folder)), None
            try:
                parts[name](scene)
            except (Broken, subprocess.TimeoutExpired) as error:
                problem = str(error)
                broken += 1
                print(f"  BROKEN: {problem}", flush=True)
            finally:
                scene.close(problem)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
