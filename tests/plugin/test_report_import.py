"""gpusync report import: traces of torch.profiler and Nsight Systems as runs."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import sqlite3
import sys
from pathlib import Path

import pytest
from run_schema import violations

from pytest_gpusync.commands import report

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/run-1.schema.json").read_text())

PROGRAM = """\
import torch
from torch.profiler import ProfilerActivity, profile, schedule


def read(x):
    y = x + 1
    return y.sum().item()


def step(x):
    y = x * 2
    first = y.sum().item()
    for _ in range(2):
        y.max().item()
    return read(y), y.mean().item() if first > 1e9 else y.min().item()


def twice(x):
    first = x.sum().item()
    return first + (
        x.max().item()
    )


def main(path):
    x = torch.ones(8)
    settings = dict(
        activities=[ProfilerActivity.CPU],
        with_stack=True,
        schedule=schedule(wait=0, warmup=1, active=2),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
    )
    with profile(**settings) as profiler:
        for _ in range(3):
            step(x)
            twice(x)
            profiler.step()
"""
STEP, READ, TWICE_FIRST, TWICE_SECOND = 10, 7, 19, 21


pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with the program, and the trace that torch.profiler made of it on the CPU."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "program.py").write_text(PROGRAM)
    sys.path.insert(0, str(folder))
    try:
        sys.modules.pop("program", None)
        importlib.import_module("program").main(str(folder / "trace.json"))
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("program", None)
    return folder, json.loads((folder / "trace.json").read_text())


def with_cuda(trace, extra=()):
    """A trace as it is where the tensors are on a GPU: each read is an asynchronous copy and a synchronize."""
    events = list(trace["traceEvents"])
    for number, read in enumerate([one for one in events if one.get("name") == "aten::_local_scalar_dense"]):
        place = {"ph": "X", "pid": read["pid"], "tid": read["tid"]}
        when, correlation = read["ts"], 1000 + 2 * number
        events += [
            place | {"cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ts": when + 0.002, "dur": 0.01}
            | {"args": {"cbid": 41, "correlation": correlation}},
            place | {"cat": "cuda_runtime", "name": "cudaStreamIsCapturing", "ts": when + 0.015, "dur": 0.001}
            | {"args": {"cbid": 317, "correlation": 0}},
            place | {"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": when + 0.02, "dur": 0.01}
            | {"args": {"cbid": 131, "correlation": correlation + 1}},
            {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "pid": 0, "tid": 7}
            | {"ts": when + 0.01, "dur": 0.01}
            | {"args": {"device": 0, "stream": 7, "bytes": 4, "correlation": correlation}},
        ]  # fmt: skip
    properties = [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 1}]
    return {**trace, "traceEvents": [*events, *extra], "deviceProperties": properties}


@pytest.fixture
def imported(recorded, tmp_path, monkeypatch, capsys):
    """Import a trace in the folder of the program: the run, after a check against the schema."""
    folder, trace = recorded
    monkeypatch.chdir(folder)

    def run(document=None, name="cuda.json"):
        path = tmp_path / name
        text = json.dumps(with_cuda(trace) if document is None else document)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        assert report.main(["import", str(path), "-o", str(tmp_path / "run.json")]) == 0, capsys.readouterr().err
        written = json.loads((tmp_path / "run.json").read_text())
        assert violations(written, SCHEMA) == []
        return written

    return run


def syncs_by_line(run):
    return {(site["path"], site["line"]): site["syncs"] for site in run["regions"][0]["sites"]}


def test_waits_of_a_trace_are_at_their_lines(imported):
    found = syncs_by_line(imported())
    assert found[("program.py", READ)] == 2
    assert found[("program.py", TWICE_FIRST)] == found[("program.py", TWICE_SECOND)] == 2


def test_a_line_that_a_trace_does_not_tell_is_the_first_one_of_its_function(imported):
    run = imported()
    assert syncs_by_line(run)[("program.py", STEP)] == 8  # four reads in each step, some of them in a loop
    (site,) = [site for site in run["regions"][0]["sites"] if site["line"] == STEP]
    assert site["via"] == "aten::_local_scalar_dense, in one of the lines 12, 14, 15"


def test_the_steps_are_the_marks_of_the_schedule(imported):
    (region,) = imported()["regions"]
    assert (region["steps"], region["warmup"], region["step_source"]) == (2, 0, "ProfilerStep#")
    assert (region["per_step"], region["syncs"]) == ([7, 7], 14)


def test_a_copy_and_its_synchronize_are_one_wait_with_a_direction(imported):
    run = imported()
    kinds = {(site["kind"], site["direction"], site["bytes"]) for site in run["regions"][0]["sites"]}
    assert {kind[:2] for kind in kinds} == {("stream", "D2H")}


def test_the_run_says_what_it_was_made_of(imported, recorded):
    run = imported()
    environment = run["environment"]
    assert (environment["recorder"], environment["coverage"]) == ("torch.profiler", "driver")
    assert (environment["gpu"], run["imported"]["tool"]) == ("NVIDIA H200", "torch.profiler")
    assert "it has functions and not lines" in environment["note"]
    assert run["origin"]["commit"] is None


def test_a_compressed_trace_is_the_same(imported):
    assert syncs_by_line(imported(name="cuda.json.gz")) == syncs_by_line(imported())


def test_a_trace_without_stacks_has_waits_without_lines(imported, recorded):
    trace = with_cuda(recorded[1])
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("cat") != "python_function"]
    run = imported(trace)
    assert syncs_by_line(run) == {("<no stack>", 0): 14}
    assert "with_stack=True" in run["environment"]["note"]


@pytest.mark.parametrize(
    ("copied", "nbytes", "expected"),
    [
        ("HtoD (Pageable -> Device)", 4 << 20, ["pageable"]),
        ("HtoD (Pageable -> Device)", 1 << 20, []),
        ("HtoD (Pinned -> Device)", 4 << 20, []),
        ("DtoH (Device -> Pageable)", 4, ["pageable"]),
        ("DtoH (Device -> Pinned)", 4, []),
    ],
)
def test_a_copy_without_a_synchronize_waits_if_its_memory_is_pageable(imported, copied, nbytes, expected):
    events = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0}
        | {"args": {"correlation": 5}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 3.0, "dur": 1.0}
        | {"args": {"correlation": 6}},
        {"ph": "X", "cat": "gpu_memcpy", "name": f"Memcpy {copied}", "pid": 0, "tid": 7, "ts": 1.5, "dur": 0.1}
        | {"args": {"device": 0, "stream": 7, "bytes": nbytes, "correlation": 5}},
    ]  # fmt: skip
    run = imported({"schemaVersion": 1, "traceEvents": events})
    assert [site["kind"] for site in run["regions"][0]["sites"]] == expected


@pytest.mark.parametrize(
    "inner",
    [
        pytest.param([], id="by itself"),
        pytest.param(
            ["torch/autograd/profiler.py(403): __exit__", "torch/cuda/__init__.py(1152): synchronize"],
            id="through torch",
        ),
    ],
)
def test_waits_of_the_profiler_itself_are_not_counted(imported, recorded, inner):
    base = {"ph": "X", "pid": 9, "tid": 9}
    frames = ["torch/profiler/profiler.py(700): stop_trace", *inner]
    extra = [
        base | {"cat": "python_function", "name": name, "ts": 1.0 + 0.1 * depth, "dur": 9.0 - 0.2 * depth}
        for depth, name in enumerate(frames)
    ]
    extra.append(base | {"cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "ts": 2.0, "dur": 1.0})
    run = imported(with_cuda(recorded[1], extra=extra))
    assert run["regions"][0]["syncs"] == 14
    assert run["regions"][0]["not_counted"]["allowed"] == 1


def test_waits_of_a_callback_of_the_profiler_are_counted(imported, recorded):
    base = {"ph": "X", "pid": 9, "tid": 9}
    extra = [
        base
        | {"cat": "python_function", "name": "torch/profiler/profiler.py(700): _transit_action", "ts": 1.0, "dur": 9.0},
        base | {"cat": "python_function", "name": "program.py(7): on_trace_ready", "ts": 1.1, "dur": 8.8},
        base | {"cat": "python_function", "name": "torch/cuda/__init__.py(1152): synchronize", "ts": 1.2, "dur": 8.6},
        base | {"cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "ts": 2.0, "dur": 1.0},
    ]
    run = imported(with_cuda(recorded[1], extra=extra))
    assert run["regions"][0]["not_counted"]["allowed"] == 0


def test_waits_of_another_thread_of_the_program_are_not_counted(imported, recorded):
    base = {"ph": "X", "pid": 9, "tid": 9}
    extra = [
        base
        | {"cat": "python_function", "name": "torch/utils/data/_utils/pin_memory.py(20): _pin", "ts": 1.0, "dur": 9.0},
        base | {"cat": "cuda_runtime", "name": "cudaEventSynchronize", "ts": 2.0, "dur": 1.0},
    ]
    run = imported(with_cuda(recorded[1], extra=extra))
    assert run["regions"][0]["syncs"] == 14
    assert run["regions"][0]["not_counted"]["other_threads"] == 1


def test_a_wait_of_a_thread_of_autograd_is_charged_to_the_call_of_backward(imported):
    main, worker = {"ph": "X", "pid": 1, "tid": 1}, {"ph": "X", "pid": 1, "tid": 2}
    python = {"cat": "python_function"}
    events = [
        main | python | {"name": "program.py(7): read", "ts": 1.0, "dur": 50.0},
        main | python | {"name": "torch/_tensor.py(500): backward", "ts": 2.0, "dur": 40.0},
        main | python | {"name": "torch/autograd/graph.py(800): _engine_run_backward", "ts": 3.0, "dur": 30.0},
        worker | {"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": 9.0, "dur": 1.0, "args": {}},
    ]
    (site,) = imported({"traceEvents": events})["regions"][0]["sites"]
    assert (site["path"], site["function"]) == ("program.py", "read")
    assert site["via"].startswith("torch/_tensor.py:500 backward")


# an export of Nsight Systems

TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUDA_CALLCHAINS (id INTEGER NOT NULL, symbol INTEGER NOT NULL, module INTEGER NOT NULL,
    stackDepth INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT,
    globalTid INTEGER, textId INTEGER);
CREATE TABLE TARGET_INFO_GPU (name TEXT);
"""
PROCESS = 4242
TID = (PROCESS << 24) + PROCESS


@pytest.fixture
def export(tmp_path, monkeypatch):
    """Write an export: reads of one value in `steps` steps, from a line of the program."""

    def write(stacks=True, steps=3):
        path = tmp_path / "profile.sqlite"
        database = sqlite3.connect(path)
        database.executescript(TABLES)
        strings = ["cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020", "step", "train.py:12", "item", "libtorch.so"]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate([*strings, "ProfilerStep#1"]))
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES ('NVIDIA H200')")
        for step in range(steps):
            start = 1000 * step
            calls = [
                (start + 10, start + 20, 0, TID, 2 * step, 0, 0, 7),
                (start + 30, start + 90, 0, TID, 2 * step + 1, 1, 0, 7),
            ]
            insert = "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            database.executemany(insert, calls if stacks else [(*call[:-1], None) for call in calls])
            copy = (start + 15, start + 25, 0, 1, 7, 2 * step, PROCESS << 24, 4, 2, 3, 1)
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", copy)
            mark = (start, start + 100, 59, None if step else "ProfilerStep#0", TID, 6 if step else None)
            database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", mark)
        database.executemany("INSERT INTO CUDA_CALLCHAINS VALUES (7, ?, ?, ?)", [(4, 5, 0), (2, 3, 1)])
        database.commit()
        database.close()
        (tmp_path / "train.py").write_text("\n" * 11 + "loss.item()\n")
        monkeypatch.chdir(tmp_path)
        return path

    return write


def test_an_export_of_nsight_systems_has_its_waits_by_line(export, capsys):
    assert report.main(["import", str(export())]) == 0
    run = json.loads(capsys.readouterr().out)
    assert violations(run, SCHEMA) == []
    (region,) = run["regions"]
    assert (region["per_step"], region["step_source"]) == ([1, 1, 1], "ProfilerStep#")
    (site,) = region["sites"]
    assert (site["path"], site["line"], site["function"]) == ("train.py", 12, "step")
    assert (site["kind"], site["direction"], site["thread"]) == ("stream", "D2H", "MainThread")
    assert site["blocked_ms"] == pytest.approx(3 * 80e-6)
    assert (run["environment"]["gpu"], run["imported"]["tool"]) == ("NVIDIA H200", "nsys")


def test_an_export_without_stacks_says_so(export, capsys):
    assert report.main(["import", str(export(stacks=False))]) == 0
    run = json.loads(capsys.readouterr().out)
    assert syncs_by_line(run) == {("<no stack>", 0): 3}
    assert "--python-backtrace=cuda" in run["environment"]["note"]


def test_the_linter_compares_its_findings_with_an_imported_run(export, tmp_path, capsys):
    from gpusync_lint.cli import main

    assert report.main(["import", str(export()), "-o", "run.json"]) == 0
    body = "    loss = torch.randn(4, device='cuda').sum()\n    loss.item()\n"
    (tmp_path / "train.py").write_text(f"import torch\nopt = torch.optim.SGD([], 1)\n{'# ' * 3}\n" + "\n" * 6
                                       + f"for step in range(9):\n{body}    opt.step()\n")  # fmt: skip
    assert main(["train.py", "--observed", "run.json"]) == 1
    assert "observed: 3 syncs, at most 1 per step" in capsys.readouterr().out


# what is no trace

DEEP = '{"a": ' + "[" * 100_000
WRONG = {
    "empty": b"",
    "text": b"hello",
    "number": b"5",
    "cut": b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "a"',
    "cut between": b'{"traceEvents": [',
    "no events": b'{"schemaVersion": 1}',
    "no CUDA": b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1, "tid": 1}]}',
    "event is a list": b'{"traceEvents": [[]]}',
    "no time": b'{"traceEvents": [{"ph": "X", "cat": "cuda_runtime", "name": "cudaFree"}]}',
    "time is text": b'{"traceEvents": [{"ph": "X", "cat": "cuda_runtime", "name": "cudaFree", "ts": "1", "dur": 1}]}',
    "time is infinite": b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1e999, "dur": 1}]}',
    "time is NaN": b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": NaN, "dur": 1}]}',
    "category is a list": b'{"traceEvents": [{"ph": "X", "cat": [], "name": "a", "ts": 1, "dur": 1}]}',
    "deep": DEEP.encode(),
    "binary": bytes(range(256)) * 8,
    "gzip cut": gzip.compress(b'{"traceEvents": []}' * 100)[:-9],
    "gzip of nothing": gzip.compress(b""),
    "sqlite cut": b"SQLite format 3\0" + b"\xff" * 200,
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_what_is_no_trace_is_one_line_and_nothing_is_written(content, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace\x1b.json").write_bytes(content)
    assert report.main(["import", "trace\x1b.json", "-o", "run.json"]) == 2
    message = capsys.readouterr().err
    assert re.fullmatch(r"gpusync report: trace\\x1b\.json: [^\n\x1b]+\n", message), message
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize("name", ["missing.json", ".", "pipe"])
def test_what_is_no_file_is_one_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    assert report.main(["import", name]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_export_with_other_tables_is_one_line(tmp_path, capsys):
    database = sqlite3.connect(tmp_path / "a.sqlite")
    database.execute("CREATE TABLE other (a)")
    database.commit()
    database.close()
    assert report.main(["import", str(tmp_path / "a.sqlite")]) == 2
    assert "it has no calls of CUDA; profile with nsys" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "end", "text"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "bytes", b"\xff"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "bytes", 2**62),
        ("NVTX_EVENTS", "start", 1e300),
    ],
)
def test_an_export_with_values_of_another_type_is_one_line(export, capsys, table, column, value):
    with sqlite3.connect(export()) as database:
        database.execute(f"UPDATE {table} SET {column} = ?", (value,))
    database.close()
    assert report.main(["import", "profile.sqlite"]) == 2
    assert re.fullmatch(r"gpusync report: profile\.sqlite: [^\n]+\n", capsys.readouterr().err)


def test_step_marks_that_overlap_are_left_out(export, capsys):
    with sqlite3.connect(export()) as database:
        database.execute("INSERT INTO NVTX_EVENTS VALUES (5, 2500, 59, 'ProfilerStep#9', 1, NULL)")
    database.close()
    assert report.main(["import", "profile.sqlite"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert run["regions"][0]["per_step"] == [1, 1, 1]
    assert "1 of 4 step marks overlap others" in run["environment"]["note"]


def test_a_trace_is_not_written_over(imported, tmp_path, capsys):
    (tmp_path / "trace.json").write_text("{}")
    assert report.main(["import", str(tmp_path / "trace.json"), "-o", str(tmp_path / "trace.json")]) == 2
    assert "give the run another name" in capsys.readouterr().err


def test_events_across_chunks_are_read_alike(monkeypatch, imported):
    from pytest_gpusync.imported import trace_file

    whole = imported()["regions"]
    monkeypatch.setattr(trace_file, "_CHUNK", 7919)
    assert imported()["regions"] == whole


def test_a_trace_that_is_too_large_is_one_line(monkeypatch, tmp_path, capsys):
    from pytest_gpusync.imported import kineto, trace_file

    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1, "tid": 1}] * 99})
    )
    monkeypatch.setattr(kineto, "CALL_LIMIT", 50)
    assert report.main(["import", str(path)]) == 2
    assert "more than 50 events; profile fewer steps" in capsys.readouterr().err
    monkeypatch.setattr(trace_file, "SIZE_LIMIT", 1 << 10)
    assert report.main(["import", str(path)]) == 2
    assert "profile fewer steps" in capsys.readouterr().err
