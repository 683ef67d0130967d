"""Capture the thirty functions of capture_cases.py: torch's own errors, the simulated device, and the linter.

usage: captures.py [--device {auto,cuda,simulated}] [--json OUT]

On a GPU each function is captured in a process of its own, since a capture that fails leaves torch's allocator in a
state that fails later ones: torch stops at the first offender, and that is what is printed. Then each statement with an
offender is captured alone, after the statements before it have run: torch's own error for each. On the simulated
device, and by the linter, all offenders are found at once. The last lines compare them with the marks in the file.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

CASES = Path(__file__).with_name("capture_cases.py")
_LIMIT = 240
"""Seconds after which a child is ended."""
_AT_ONCE = max(1, (os.cpu_count() or 1) // 2)
"""Children at the same time. Each needs some seconds to load torch and to start CUDA."""
_MARK = re.compile(r"# offends ([\d ]+)$")


@dataclass
class Function:
    """One function, and what was found in it."""

    name: str
    offenders: dict[int, list[int]]
    """The lines of each offender."""
    static: list[int] = field(default_factory=list)
    """The lines that the linter reports with the heat `capture`."""
    simulated: list[int] = field(default_factory=list)
    """The lines that the simulated device reports."""
    simulated_errors: dict[int, str] = field(default_factory=dict)
    torch_error: str | None = None
    """torch's error for the whole function on a GPU, which is that of its first offender; None if it has none."""
    torch_line: int | None = None
    """Its line; 0 if it is raised by the end of the capture."""
    torch_replays: str | None = None
    """How replays compare with eager code on a GPU; None if there is no graph."""
    torch_errors: dict[int, str] = field(default_factory=dict)
    """By line, torch's error for a statement that is captured alone."""

    def missed(self, lines: list[int]) -> list[int]:
        """The offenders of which no line was found."""
        return [number for number, own in self.offenders.items() if not set(own) & set(lines)]

    def extra(self, lines: list[int]) -> list[int]:
        """The lines that were found and are those of no offender."""
        own = {line for each in self.offenders.values() for line in each}
        return sorted(set(lines) - own)


def functions() -> list[Function]:
    """The functions of the file that are to be captured, with their marks; a helper's marks count for its callers."""
    text = CASES.read_text(encoding="utf-8")
    lines = text.splitlines()
    defined = {one.name: one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)}
    found = []
    for name, node in defined.items():
        if name.startswith("_") or name == "capture_all":
            continue
        calls = [one.func.id for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)]
        offenders: dict[int, list[int]] = {}
        for part in [node, *(defined[one] for one in calls if one.startswith("_"))]:
            for number in range(part.lineno, (part.end_lineno or 0) + 1):
                marked = _MARK.search(lines[number - 1])
                for offender in map(int, marked[1].split()) if marked else ():
                    offenders.setdefault(offender, []).append(number)
        found.append(Function(name, offenders))
    return found


def owner_of(every: list[Function]) -> Callable[[int], list[Function]]:
    """Return a function that gives the functions that a line belongs to."""
    tree = ast.parse(CASES.read_text(encoding="utf-8"))
    spans = {one.name: (one.lineno, one.end_lineno or 0) for one in tree.body if isinstance(one, ast.FunctionDef)}

    def owners(line: int) -> list[Function]:
        return [
            one
            for one in every
            if spans[one.name][0] <= line <= spans[one.name][1] or any(line in own for own in one.offenders.values())
        ]

    return owners


def lint(every: list[Function]) -> None:
    """Fill in what the linter finds."""
    from gpusync_lint.model.findings import EngineSettings, Source
    from gpusync_lint.model.levels import Confidence, Heat
    from gpusync_lint.run.engine import analyze

    owners = owner_of(every)
    analysis = analyze([Source(CASES.name, CASES.read_text(encoding="utf-8"))], EngineSettings())
    for finding in analysis.findings:
        if finding.heat is Heat.CAPTURE and finding.confidence is not Confidence.LOW:
            for one in owners(finding.span.line):
                one.static.append(finding.span.line)


def load() -> ModuleType:
    """Import the file. The device must be there."""
    spec = importlib.util.spec_from_file_location(CASES.stem, CASES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def simulate(every: list[Function]) -> None:
    """Fill in what the simulated device finds. It must be on."""
    from pytest_gpusync import check_capture

    module = load()
    for one in every:
        report = check_capture(getattr(module, one.name), module.x)
        for offender in report.offenders:
            one.simulated_errors.setdefault(offender.site.line, offender.error)
        for baked in report.baked:
            one.simulated_errors.setdefault(baked.site.line, f"{baked.operator} {baked.difference}")
        one.simulated = sorted(one.simulated_errors)
        if report.differences and not one.simulated:
            one.simulated = [0]  # values differ, and no line is known


def in_child(*arguments: str) -> Any:
    """Run this program with arguments that make it print JSON, in a process that starts the device for itself."""
    command = [sys.executable, "-W", "ignore", __file__, *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"it took more than {_LIMIT} s"}
    # A failed capture may make torch's own tear-down fail, so the exit status says nothing.
    last = run.stdout.rstrip().rpartition("\n")[2]
    try:
        return json.loads(last)
    except ValueError:
        return {"failed": run.stderr.strip().rpartition("\n")[2] or f"it ended with status {run.returncode}"}


def on_gpu(every: list[Function]) -> None:
    """Fill in torch's errors."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        whole = [pool.submit(in_child, "--one", one.name) for one in every]
        alone = [
            (one, line, pool.submit(in_child, "--one", one.name, "--line", str(line)))
            for one in every
            for line in sorted({line for own in one.offenders.values() for line in own})
        ]
        for one, running in zip(every, whole, strict=True):
            result = running.result()
            one.torch_error, one.torch_line = result.get("error") or result.get("failed"), result.get("line")
            one.torch_replays = result.get("replays")
        for one, line, running in alone:
            result = running.result()
            error = result.get("error") or result.get("failed")
            if error:
                one.torch_errors[line] = error


def _capture_whole(name: str) -> dict[str, Any]:
    from pytest_gpusync import check_capture

    module = load()
    report = check_capture(getattr(module, name), module.x)
    if report.offenders:
        first = report.offenders[0]
        return {"error": first.error, "line": first.site.line}
    if report.replays is None:
        return {"replays": f"not compared: {report.why_not_compared}"}
    different = "; ".join(map(str, report.differences))
    return {"replays": different or "equal to eager code"}


def _capture_statement(name: str, line: int) -> dict[str, Any]:
    """Run the statements of a function up to the one with a line, and capture that one alone."""
    import torch

    module = load()
    tree = ast.parse(CASES.read_text(encoding="utf-8"))
    defined = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    function = defined[name]
    index = next((at for at, one in enumerate(function.body) if one.lineno <= line <= (one.end_lineno or 0)), None)
    if index is None:  # the line of a helper: the statement that calls it
        helper = next(one for one in defined if defined[one].lineno <= line <= (defined[one].end_lineno or 0))
        index = next(at for at, one in enumerate(function.body) if f"{helper}(" in ast.unparse(one))
    scope = vars(module)
    for _ in range(3):
        scope["x"] = scope["x"].clone()
        getattr(module, name)(scope["x"])
    for statement in function.body[:index]:
        _run(statement, scope)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            _run(function.body[index], scope)
    except Exception as error:
        first: BaseException = error
        while isinstance(first.__context__, RuntimeError):
            first = first.__context__
        return {"error": f"{type(first).__name__}: {str(first).splitlines()[0]}"}
    return {}


def _run(statement: ast.stmt, scope: dict[str, Any]) -> None:
    if isinstance(statement, ast.Return) and statement.value is not None:
        statement = ast.copy_location(ast.Expr(statement.value), statement)
    if not isinstance(statement, (ast.Global, ast.Return)):
        exec(compile(ast.Module([statement], []), str(CASES), "exec"), scope)


def rows(every: list[Function], has_gpu: bool) -> Iterator[str]:
    """The lines to print."""
    for one in every:
        yield f"{one.name}: {len(one.offenders)} offenders"
        if has_gpu:
            first = f"line {one.torch_line}: {one.torch_error}" if one.torch_error else one.torch_replays
            yield f"  torch, first: {first}"
            yield from (f"  torch, line {line} alone: {error}" for line, error in sorted(one.torch_errors.items()))
        yield f"  static: lines {one.static}"
        yield from (f"  simulated, line {line}: {error}" for line, error in sorted(one.simulated_errors.items()))
    offenders = sum(len(one.offenders) for one in every)
    for title, lines in (("static", lambda one: one.static), ("simulated", lambda one: one.simulated)):
        missed = [(one.name, number) for one in every for number in one.missed(lines(one))]
        extra = [(one.name, line) for one in every for line in one.extra(lines(one))]
        yield f"{title}: {offenders - len(missed)} of {offenders} offenders, missed {missed}, beyond them {extra}"
    if has_gpu:
        named = [one for one in every if one.torch_error]
        agreed = [one for one in named if one.torch_line in one.simulated]
        at_end = [one for one in named if not one.torch_line]
        yield (
            f"torch stops in {len(named)} functions, in {len(at_end)} at the end of the capture, without a line; its "
            f"line is one of the simulated device's in {len(agreed)}"
        )
        same = [
            (one.name, line)
            for one in every
            for line, error in one.torch_errors.items()
            if one.simulated_errors.get(line, "?") in error
        ]
        total = sum(len(one.torch_errors) for one in every)
        yield f"the text of torch's error is that of the simulated device at {len(same)} of {total} lines"


def main() -> None:
    """Run, print, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("auto", "cuda", "simulated"), default="auto", help="where to capture")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write what was found")
    parser.add_argument("--one", metavar="FUNCTION", help="only capture this function and print torch's error as JSON")
    parser.add_argument("--line", type=int, help="with --one: the statement at this line alone")
    arguments = parser.parse_args()
    from pytest_gpusync import simulated_cuda
    from pytest_gpusync.machine import devices

    if arguments.one:
        line = arguments.line
        print(json.dumps(_capture_whole(arguments.one) if line is None else _capture_statement(arguments.one, line)))
        sys.stdout.flush()
        os._exit(0)  # a failed capture may make torch's own tear-down fail
    has_gpu = arguments.device != "simulated" and devices.detect().kind == "cuda"
    if arguments.device == "cuda" and not has_gpu:
        sys.exit("captures.py: there is no GPU; use --device simulated")
    every = functions()
    lint(every)
    if has_gpu:
        on_gpu(every)
    with simulated_cuda():
        simulate(every)
    print("\n".join(rows(every, has_gpu)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(one) for one in every], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
