"""Edit a project through `gpusync server`, and compare what it shows with the command line.

usage: server_latency.py [--tree FOLDER] [--lines N] [--edits N] [--checkpoints N] [--open N] [--seed N] [--out FILE]

Nothing in FOLDER is changed: a copy is edited. Without one, a project of N lines is made, whose modules import each
other, so that it is one component. A client opens some files, and makes one edit after the other, each as soon as the
diagnostics for the one before have arrived: lines that wait are typed into functions and removed again, some of them
half written. The latency of an edit is the time from sending it to the first diagnostics for that text.

At each checkpoint the client waits until the server has analyzed the whole project again, which the server shows as
progress; then the texts are written to disk, and `gpusync lint` runs over the project, without a cache. The diagnostics
of all open files have to be equal to its findings. `settled_s` is the time from the last edit to the end of the
analysis, and `equal_s` the time to the moment from which on the diagnostics were those of the command line, at the
checkpoints at which all open files are valid Python: in a file that is not, findings stay until that end. It needs
/proc.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "lint" / "shell"))

from editor import Editor, session  # noqa: E402

LINT = [sys.executable, "-m", "pytest_gpusync", "lint", "--exit-zero", "--no-cache", "--output-format", "json", "."]
QUIET = 2.0
"""Seconds without a sign of an analysis after which none is to come."""
TYPED = (
    'probe = torch.zeros(3, device="cuda").sum().item()',
    'probe = torch.ones(2, device="cuda").tolist()',
    'torch.cuda.synchronize()',
    'probe = 1  # nothing',
    'probe = torch.zeros(3, device="cuda").su',
    'probe = torch.zeros(3, device=',
)  # fmt: skip


def make(folder: Path, lines: int, seed: int) -> None:
    """Make a project of modules that import each other at random."""
    chance = random.Random(seed)
    count = total = 0
    while total < lines:
        parts = ["import torch"]
        others = sorted(chance.sample(range(count), min(count, 4)))
        parts += [f"from part{other // 20}.module{other} import helper_{other}_0, Net{other}" for other in others]
        for number in range(30):
            call = f"helper_{chance.choice(others)}_0(x)" if others and chance.random() < 0.3 else "x.sum()"
            read = chance.choice([".item()", ".shape", ".mean()", ".cpu()", ""])
            parts += [
                "", "", f"def helper_{count}_{number}(x, scale=1.0):", "    total = torch.zeros_like(x)",
                "    for row in range(3):", "        total = total + x * row * scale", f"    value = {call}",
                "    if total.ndim > 2:", f"        return value{read if call == 'x.sum()' else ''}",
                "    return value",
            ]  # fmt: skip
        parts += [
            "", "", f"class Net{count}(torch.nn.Module):", "    def forward(self, x):",
            f"        return helper_{count}_{chance.randrange(30)}(x)", "", "",
            "def train(loader, opt):", f"    net = Net{count}().cuda()", "    for x in loader:",
            f"        loss = net(x.cuda()) + helper_{count}_{chance.randrange(30)}(x.cuda())",
            "        loss.backward()",
            "        opt.step()", "        print(loss.item())", "",
        ]  # fmt: skip
        at = folder / f"part{count // 20}" / f"module{count}.py"
        at.parent.mkdir(exist_ok=True)
        at.write_text("\n".join(parts))
        total += len(parts)
        count += 1


class Typist:
    """Edits open files at random."""

    def __init__(self, texts: dict[str, str], seed: int) -> None:
        self.texts = dict(texts)
        self._chance = random.Random(seed)
        self._typed: dict[str, tuple[int, str]] = {}

    def edit(self) -> str:
        """Edit a file: type a line into a function, or remove the one that was typed there. Returns the address."""
        uri = self._chance.choice(sorted(self.texts))
        lines = self.texts[uri].split("\n")
        if uri in self._typed:
            at, _ = self._typed.pop(uri)
            del lines[at]
        else:
            places = [number for number, line in enumerate(lines) if line.startswith("    return ")]
            at = self._chance.choice(places)
            word = self._chance.choice(TYPED)
            lines.insert(at, "    " + word)
            self._typed[uri] = (at, word)
        self.texts[uri] = "\n".join(lines)
        return uri


def command_line(root: Path, paths: set[str]) -> tuple[list[Any], float]:
    start = time.perf_counter()
    done = subprocess.run(LINT, cwd=root, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    document = json.loads(done.stdout)
    found = [
        (one["path"], one["code"], one["line"] - 1, one["column"] - 1, one["end_line"] - 1, one["end_column"] - 1,
         f"{one['message']}; remedy: {one['remedy']}")
        for one in document["findings"] if one["path"] in paths
    ]  # fmt: skip
    found += [(one["path"], "error", (one["line"] or 1) - 1) for one in document["errors"] if one["path"] in paths]
    return sorted(found, key=repr), seconds


def shown(editor: Editor, names: dict[str, str]) -> list[Any]:
    found: list[Any] = []
    for uri, name in names.items():
        for one in editor.diagnostics(uri) or ():
            start, end = one.range.start, one.range.end
            if one.code is None:
                found.append((name, "error", start.line))
            else:
                place = (start.line, start.character, end.line, end.character)
                found.append((name, one.code, *place, one.message))
    return sorted(found, key=repr)


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


class Settling:
    """What the server shows after an edit, until it has analyzed the project completely."""

    def __init__(self, editor: Editor, names: dict[str, str]) -> None:
        self._editor = editor
        self._names = names
        self._start = time.perf_counter()
        self._states: list[tuple[float, list[Any]]] = []

    async def wait(self) -> float:
        """Wait for the end of the analysis. Returns the time since the start."""
        finished, ended = self._editor.finished, 0.0
        while True:
            self._record()
            if self._editor.finished > finished:
                finished, ended = self._editor.finished, time.perf_counter() - self._start
            if not await self._editor.news(QUIET) and not self._editor.running:
                return ended or self._states[-1][0]

    def _record(self) -> None:
        state = shown(self._editor, self._names)
        if not self._states or self._states[-1][1] != state:
            self._states.append((time.perf_counter() - self._start, state))

    def equal_since(self, want: list[Any]) -> float | None:
        """From when on the diagnostics were those; None if they are not."""
        at, state = self._states[-1]
        return at if state == want else None


def memory(pid: int) -> float:
    """Resident memory of a process and its children, in MiB."""
    total = 0
    stack = [pid]
    while stack:
        one = stack.pop()
        for line in Path(f"/proc/{one}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                total += int(line.split()[1])
        for task in Path(f"/proc/{one}/task").iterdir():
            stack += map(int, (task / "children").read_text().split())
    return total / 1024


async def measure(editor: Editor, root: Path, arguments: argparse.Namespace, result: dict[str, Any]) -> None:
    chance = random.Random(arguments.seed)
    files = [
        path for path in sorted(root.rglob("*.py"))
        if "import torch\n" in (text := path.read_text(errors="replace")) and text.isascii() and "\n    return " in text
    ]  # fmt: skip
    opened = sorted(chance.sample(files, min(arguments.open, len(files))))
    await editor.start(root)
    names, texts = {}, {}
    for path in opened:
        uri = editor.open(path)
        names[uri], texts[uri] = path.relative_to(root).as_posix(), path.read_text()
    typist = Typist(texts, arguments.seed)
    pid = editor.client._server.pid
    first = await Settling(editor, names).wait()
    want, seconds = command_line(root, set(names.values()))
    if shown(editor, names) != want:
        raise SystemExit("the first diagnostics are not those of the command line")
    result |= {"files": len(list(root.rglob("*.py"))), "opened": len(opened), "first_s": first}
    result |= {"lines": sum(path.read_bytes().count(b"\n") for path in root.rglob("*.py")), "findings": len(want)}
    latencies, settled, equal, rss, lints, different = [], [], [], [], [seconds], 0
    every = max(1, arguments.edits // arguments.checkpoints)
    for number in range(1, arguments.edits + 1):
        uri = typist.edit()
        settling = Settling(editor, names)
        start = time.perf_counter()
        editor.change(uri, typist.texts[uri])
        await editor.until(lambda uri=uri: editor.diagnostics(uri) is not None)
        latencies.append(1000 * (time.perf_counter() - start))
        if number % every:
            continue
        settled.append(await settling.wait())
        for one, name in names.items():
            (root / name).write_text(typist.texts[one])
        want, seconds = await asyncio.to_thread(command_line, root, set(names.values()))
        since = settling.equal_since(want)
        if since is None or shown(editor, names) != want:
            different += 1
            print("different:", set(shown(editor, names)) ^ set(want), file=sys.stderr)
        elif all(map(is_python, typist.texts.values())):
            equal.append(since)
        lints.append(seconds)
        rss.append(memory(pid))
        print(f"{number} edits, {statistics.median(latencies):.0f} ms, {rss[-1]:.0f} MiB", file=sys.stderr, flush=True)
    result |= {
        "edits": len(latencies),
        "latency_ms": {
            "median": statistics.median(latencies),
            "p90": statistics.quantiles(latencies, n=100, method="inclusive")[89],
            "p99": statistics.quantiles(latencies, n=100, method="inclusive")[98],
            "max": max(latencies),
        },
        "checkpoints": len(settled),
        "different": different,
        "settled_s": {"median": statistics.median(settled), "max": max(settled)},
        "equal_s": {"checkpoints": len(equal), "median": statistics.median(equal or [0]), "max": max(equal, default=0)},
        "command_line_s": {"median": statistics.median(lints), "max": max(lints)},
        "rss_mib": {"first": rss[0], "half": rss[len(rss) // 2], "last": rss[-1], "max": max(rss)},
        "messages": editor.messages,
    }
    result["exit_code"] = await editor.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--edits", type=int, default=1000)
    parser.add_argument("--checkpoints", type=int, default=50)
    parser.add_argument("--open", type=int, default=12)
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
        "tree": arguments.tree.name if arguments.tree else f"made, seed {arguments.seed}",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "project"
        if arguments.tree:
            shutil.copytree(arguments.tree, root, ignore=shutil.ignore_patterns(".git", ".gpusync_cache"))
        else:
            root.mkdir()
            make(root, arguments.lines, arguments.seed)
        session(lambda editor: measure(editor, root, arguments, result))
    text = json.dumps(result, indent=1) + "\n"
    if arguments.out:
        arguments.out.write_text(text)
    print(text, end="")
    return 1 if result["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
