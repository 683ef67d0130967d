"""``gpusync trace``: exit codes, what the program sees, and the report, on a scripted recorder."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
from gpusync_lint.files import run_files

from pytest_gpusync.commands import trace
from pytest_gpusync.machine import devices


@pytest.fixture
def program(tmp_path, monkeypatch, scripted):
    """Return a function that traces a program; it makes syncs by calling ``sync()``."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(__builtins__, "sync", scripted.sync)

    def run(source: str, *options: str, name: str = "train.py", arguments: tuple[str, ...] = ()) -> int:
        (tmp_path / name).write_text(textwrap.dedent(source))
        return trace.main([*options, name, *arguments])

    return run


def test_the_lines_that_synced_are_reported(program, capsys):
    assert program("sync()\nsync()\n") == 0
    report = capsys.readouterr().out
    assert "2 syncs" in report
    assert "train.py:1" in report
    assert "recorder scripted, coverage driver" in report


@pytest.mark.parametrize(("options", "syncs"), [((), 1), (("--all-threads",), 2)])
def test_other_threads_count_where_that_is_asked_for(program, tmp_path, options, syncs):
    source = "import threading\nt = threading.Thread(target=sync)\nt.start()\nt.join()\nsync()\n"
    assert program(source, "--json", "run.json", *options) == 0
    (region,) = json.loads((tmp_path / "run.json").read_text())["regions"]
    assert region["syncs"] == syncs


def test_the_program_sees_its_own_arguments_and_folder(program, capsys):
    source = "import sys, os\nprint(sys.argv, __name__, os.path.basename(sys.path[0]) == os.path.basename(os.getcwd()))"
    assert program(source, arguments=("--limit", "3", "-m", "x")) == 0
    assert "['train.py', '--limit', '3', '-m', 'x'] __main__ True" in capsys.readouterr().out


PARSES = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs')\nparser.parse_args()\n"


def test_an_option_of_its_own_that_the_program_refuses_is_said_to_go_before_it(program, capsys):
    assert program(PARSES, arguments=("--steps", "50", "--html=a.html")) == 2
    said = capsys.readouterr().err
    assert (
        "gpusync: passed to the program: --steps and --html; an option of gpusync trace goes before the program" in said
    )


def test_an_option_that_the_program_does_not_know_is_its_own_affair(program, capsys):
    assert program(PARSES, arguments=("--layers", "3")) == 2
    assert "before the program" not in capsys.readouterr().err


@pytest.mark.parametrize(("variable", "colored"), [("FORCE_COLOR", True), ("NO_COLOR", False)])
def test_the_report_obeys_the_variables_about_color(program, capsys, monkeypatch, variable, colored):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv(variable, "1")
    program("sync()\n")
    assert ("\x1b[" in capsys.readouterr().out) is colored


def test_arguments_and_path_are_restored(program):
    before = (sys.argv, list(sys.path))
    program("import sys; sys.path.append('x')")
    assert (sys.argv, sys.path) == before


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import sys; sync(); sys.exit(3)", 3),
        ("import sys; sync(); sys.exit()", 0),
        ("import sys; sync(); sys.exit('no data')", 1),
        ("sync(); 1 / 0", 1),
        ("sync(); raise KeyboardInterrupt", 130),
    ],
)
def test_the_exit_code_is_the_programs_and_the_report_is_kept(program, capsys, source, code):
    assert program(source) == code
    assert "1 sync" in capsys.readouterr().out


def test_a_program_that_raises_shows_its_own_traceback_only(program, capsys):
    program("def f():\n    return 1 / 0\nf()")
    error = capsys.readouterr().err
    assert "ZeroDivisionError" in error
    assert "train.py" in error
    assert "trace.py" not in error


def test_a_module_runs_as_python_m_would(program, tmp_path, capsys):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "__main__.py").write_text("import sys\nsync()\nprint(sys.argv[1:])")
    assert trace.main(["-m", "pkg", "--epochs", "2"]) == 0
    out = capsys.readouterr().out
    assert "['--epochs', '2']" in out
    assert "pkg/__main__.py:2" in out


def test_a_program_is_stopped_at_the_limit_and_reported(program, capsys, monkeypatch):
    monkeypatch.setattr(devices, "cuda_is_initialized", lambda: False)  # so that the limit counts from the sync on
    assert program("import time\nsync()\ntime.sleep(60)", "--limit", "0.3") == 0
    captured = capsys.readouterr()
    assert "stopped the program after 0.3 s" in captured.err
    assert "1 sync" in captured.out


@pytest.mark.parametrize("limit", ["0", "-1", "soon", "inf"])
def test_a_limit_that_is_no_time_is_refused(program, capsys, limit):
    with pytest.raises(SystemExit) as leave:
        program("", "--limit", limit)
    assert leave.value.code == 2
    assert "is not a number of seconds above 0" in capsys.readouterr().err


def test_the_run_of_a_training_can_be_read_again(program, tmp_path):
    source = """
        import torch
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(4):
            sync()
            optimizer.step()
    """
    program(source, "--json", "run.json")
    (region,) = run_files.read_run("run.json", tmp_path).regions
    assert region.order.steps == [0, 1, 2, 3]


def test_the_run_is_written_as_json(program, tmp_path):
    program("sync()\nsync()", "--json", "run.json")
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["schema"] == "gpusync.run/1"
    (region,) = run["regions"]
    assert (region["name"], region["syncs"]) == ("train.py", 2)
    assert {(site["path"], site["line"]) for site in region["sites"]} == {("train.py", 1), ("train.py", 2)}


def test_the_executions_of_a_line_are_written_where_python_can_count_them(program, tmp_path):
    program("for step in range(4):\n    sync() if step else None\nsync()", "--json", "run.json")
    sites = json.loads((tmp_path / "run.json").read_text())["regions"][0]["sites"]
    found = {site["line"]: (site["syncs"], site["executions"]) for site in sites}
    assert found == ({2: (3, 3), 3: (1, 1)} if sys.version_info >= (3, 12) else {2: (3, None), 3: (1, None)})


@pytest.mark.parametrize(("flags", "lines"), [((), None), (("--lines",), {"train.py": [[1, 2], [4, 4]]})])
def test_the_lines_that_ran_are_written_when_asked_for(program, tmp_path, flags, lines):
    program("sync()\nif False or sync():\n    sync()\nsync()", "--json", "run.json", *flags)
    ran = json.loads((tmp_path / "run.json").read_text())["lines"]
    assert (ran and {"train.py": ran["train.py"]}) == lines


@pytest.mark.parametrize(
    ("flag", "start"), [("--md", "## GPU syncs"), ("--html", "<!doctype html>"), ("--trace", '{"displayTimeUnit"')]
)
def test_the_run_is_written_as_a_page(program, tmp_path, flag, start):
    program("sync()", flag, "page")
    assert (tmp_path / "page").read_text().startswith(start)


def test_reports_are_written_where_they_were_asked_for_though_the_program_goes_elsewhere(program, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    program("import os; os.chdir('elsewhere'); sync()", "--json", "run.json")
    assert (tmp_path / "run.json").is_file()


def test_a_report_over_a_folder_is_refused_before_the_program_runs(program, tmp_path, capsys):
    assert program("print('ran')", "--html", str(tmp_path)) == 2
    assert "ran" not in capsys.readouterr().out


def test_a_json_folder_that_is_missing_is_found_before_the_program_runs(program, capsys):
    assert program("print('ran')", "--json", "nowhere/run.json") == 2
    captured = capsys.readouterr()
    assert "ran" not in captured.out
    assert captured.err.count("\n") == 1
    assert "nowhere/run.json" in captured.err


def test_a_missing_script_is_one_line(scripted, capsys):
    assert trace.main(["no_such.py"]) == 2
    assert (
        capsys.readouterr().err
        == "gpusync trace: no_such.py: no such file; give the path of a Python script, or -m MODULE\n"
    )


def test_without_torch_the_message_says_so(program, capsys, monkeypatch):
    monkeypatch.setattr(devices, "torch_build", lambda: None)
    assert program("print('ran')") == 2
    assert "torch is not installed" in capsys.readouterr().err


def test_a_gpu_that_is_not_there_is_refused_with_the_reason(program, capsys, monkeypatch):
    monkeypatch.setattr(
        devices, "detect", lambda: devices.Device("none", reason="CUDA_VISIBLE_DEVICES hides every GPU")
    )
    assert program("print('ran')", "--device", "cuda") == 2
    assert "--device cuda: no GPU to measure: CUDA_VISIBLE_DEVICES hides every GPU" in capsys.readouterr().err


def test_a_recorder_that_cannot_run_is_one_line_and_the_program_does_not_start(program, scripted, capsys):
    scripted.unavailable = "it is Sunday"
    assert program("print('ran')") == 2
    captured = capsys.readouterr()
    assert "it is Sunday" in captured.err
    assert "ran" not in captured.out


def test_a_blind_recorder_fails_the_command(program, scripted, capsys):
    scripted.blind = True
    assert program("pass") == 2
    assert "Not measured" in capsys.readouterr().out


def test_a_program_that_ignores_exceptions_is_still_stopped_by_the_limit(program, capsys):
    source = """
        import time
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                pass
    """
    assert program(source, "--limit", "0.2") == 0


def test_a_program_that_is_terminated_is_reported(program, capsys):
    assert (
        program("import os, signal\nsync()\nos.kill(os.getpid(), signal.SIGTERM)\nimport time; time.sleep(30)") == 143
    )
    assert "1 sync" in capsys.readouterr().out


def test_a_program_that_handles_sigterm_itself_does_so(program, capsys):
    source = "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nsync()\n"
    assert program(source + "os.kill(os.getpid(), signal.SIGTERM)\nimport time; time.sleep(30)") == 5


def test_quiet_prints_no_report(program, capsys, tmp_path):
    program("sync()", "--quiet", "--json", "run.json")
    assert capsys.readouterr().out == ""
    assert (tmp_path / "run.json").is_file()


def traced(folder, source):
    """Trace a program in a process of its own; return how it ended and the run."""
    (folder / "train.py").write_text(source)
    options = ["--device", "simulated", "--json", "run.json"]
    command = [sys.executable, "-m", "pytest_gpusync", "trace", *options, "train.py"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return ended, json.loads((folder / "run.json").read_text())


@pytest.mark.parametrize("after", ["import os; os.close(1)", "sys.stdout.close()", "sys.stdout = None", ""])
def test_a_program_that_replaces_or_closes_its_output_is_reported_all_the_same(tmp_path, after):
    pytest.importorskip("torch")
    source = """
        import sys, torch
        class Tee:
            def __init__(self, out): self.out = out
            def write(self, text): self.out.write(text)
            def flush(self): self.out.flush()
        sys.stdout = Tee(sys.stdout)
        torch.ones(3, device="cuda").sum().item()
        print("said")
        sys.stdout = sys.stdout.out
        """
    ended, run = traced(tmp_path, textwrap.dedent(source) + (after or "sys.stdout = Tee(sys.stdout)") + "\n")
    is_closed = "close" in after
    assert ended.returncode == 0, ended.stderr
    assert "1 sync\n" in (ended.stderr if is_closed else ended.stdout)
    assert ("standard output was closed by the program" in ended.stderr) == is_closed
    assert "Traceback" not in ended.stderr
    assert run["regions"][0]["syncs"] == 1


def test_a_forked_child_that_runs_to_the_end_leaves_the_report_to_its_parent(tmp_path):
    pytest.importorskip("torch")
    source = """
        import os, sys, torch
        x = torch.ones(3, device="cuda")
        x.sum().item()
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            x.sum().item()
        else:
            print("child")
        """
    ended, run = traced(tmp_path, textwrap.dedent(source))
    assert ended.stdout.count("syncs") == 1
    assert "child" in ended.stdout
    assert run["regions"][0]["syncs"] == 2


TRAINING = """
    import torch, threading
    def train(optimizers=1, device=None):
        nets = [torch.nn.Linear(2, 2) for _ in range(optimizers)]
        made = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
        for step in range(1000):
            for net, optimizer in zip(nets, made):
                net(torch.ones(2)).sum().backward()
                sync()
                optimizer.step()
    """


@pytest.mark.parametrize("optimizers", [1, 2, 3])
def test_a_program_is_stopped_after_the_steps(program, tmp_path, capsys, optimizers):
    source = textwrap.dedent(TRAINING) + f"train({optimizers})\nprint('not reached')"
    assert program(source, "--steps", "4", "--json", "run.json") == 0
    captured = capsys.readouterr()
    assert "stopped the program after 4 measured steps (--steps), at train.py:10" in captured.err
    assert "not reached" not in captured.out
    (region,) = json.loads((tmp_path / "run.json").read_text())["regions"]
    assert (region["steps"], region["warmup"], region["syncs_per_step"]["max"]) == (5, 1, optimizers)


def test_the_set_up_of_a_second_training_is_not_one_of_the_steps(program, tmp_path, capsys):
    source = textwrap.dedent(TRAINING).replace("range(1000)", "range(4)") + "train()\ntrain()\nprint('not reached')"
    assert program(source, "--steps", "5", "--json", "run.json") == 0
    captured = capsys.readouterr()
    assert "stopped the program after 5 measured steps (--steps), at train.py:10" in captured.err
    assert "not reached" not in captured.out
    (region,) = json.loads((tmp_path / "run.json").read_text())["regions"]
    assert len(region["per_step"]) == 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # Python itself says nothing
def test_a_training_on_another_thread_is_stopped_after_the_steps(program, capsys):
    source = textwrap.dedent(TRAINING) + "t = threading.Thread(target=train)\nt.start()\nt.join()\nprint('not reached')"
    assert program(source, "--steps", "2") == 0
    captured = capsys.readouterr()
    assert "stopped the program after 2 measured steps (--steps), at train.py:10" in captured.err
    assert "not reached" not in captured.out
    assert "Traceback" not in captured.err


def test_a_program_that_ends_before_the_steps_says_so(program, capsys):
    source = textwrap.dedent(TRAINING).replace("1000", "3") + "train()"
    assert program(source, "--steps", "20") == 0
    assert "--steps: the program ended after 2 of 20 measured steps" in capsys.readouterr().err


@pytest.mark.parametrize("steps", ["0", "-1", "two", "1.5"])
def test_steps_that_are_no_number_are_refused(program, capsys, steps):
    with pytest.raises(SystemExit) as leave:
        program("", "--steps", steps)
    assert leave.value.code == 2
    assert "is not a number of steps of at least 1" in capsys.readouterr().err


def test_the_limit_counts_from_the_first_use_of_the_device_and_names_the_line(program, capsys, monkeypatch):
    monkeypatch.setattr(devices, "cuda_is_initialized", lambda: False)
    source = "import time\ntime.sleep(0.5)\nprint('loaded')\nsync()\nwhile True:\n    time.sleep(0.01)\n"
    assert program(source, "--limit", "0.2") == 0
    captured = capsys.readouterr()
    assert "loaded" in captured.out
    assert "stopped the program after 0.2 s with the device (--limit), at train.py:" in captured.err


@pytest.mark.parametrize("number", ["0", "-1", "two", ""])
def test_a_number_of_devices_that_is_none_is_refused_in_one_line(number, capsys):
    with pytest.raises(SystemExit) as exit_:
        trace.main([f"--devices={number}", "train.py"])
    assert exit_.value.code == 2
    assert f"--devices: {number!r} is not a number of devices of at least 1" in capsys.readouterr().err


SERVING = """
    class Engine:
        def step(self): sync()
    def generate(engine):
        for _ in range(3):
            engine.step()
            sync()
            yield 1
    engine = Engine()
    for _ in range(2):
        list(generate(engine))
    """


@pytest.mark.parametrize(
    ("options", "head"),
    [
        (
            ("--step-at", "Engine.step"),
            "over 5 steps after 1 step of warm-up (a step ends at a return of Engine.step())",
        ),
        (("--step-at", "generate"), "over 5 steps after 1 step of warm-up (a step ends at a return of generate())"),
        (("--step-at", "Engine.step", "--steps", "2"), "over 2 steps after 1 step of warm-up"),
    ],
)
def test_a_step_ends_where_a_function_of_the_program_returns(program, capsys, options, head):
    assert program(SERVING, *options) == 0
    assert f"2 syncs per step, {head}" in capsys.readouterr().out


def test_a_function_that_was_not_called_is_an_error(program, capsys):
    assert program(SERVING, "--step-at", "Engine.run") == 2
    assert "Not measured: no step ended: Engine.run() was not called" in capsys.readouterr().out


def test_what_is_no_name_of_a_function_is_an_error(program, capsys):
    with pytest.raises(SystemExit) as stop:
        program(SERVING, "--step-at", "Engine step")
    assert stop.value.code == 2
    assert "--step-at: 'Engine step' is not the name of a function, such as Engine.step" in capsys.readouterr().err
