"""Run the examples of the linter's catalogues: those said to wait must wait, the others must not.

usage: catalogue_truth.py [--device cuda|simulated] [--framework NAME]... [--json OUT] [--table OUT]

Without --framework: every catalogue whose package is installed and whose examples can be run one by one. Each example
runs unmeasured first, then twice measured: again as it is, and after its own set-up. On the simulated device it waits
if it syncs in either. On a GPU it waits if, in either, it returns only after a kernel that was queued before it had
finished; the syncs that the recorder sees are written down beside. The kernel is some 30 ms long, or four times as long
as the example takes without it. JAX is measured behind work of its own, because it has a stream of its own. Barriers
whose wait ends with a version of torch (until_torch) are expected silent from that version on.

--table writes what differs, and what could not be run, as Markdown. Ends with status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

DELAY_S = 0.03
JAX_DELAY = """
import jax, jax.numpy as jnp
_big = jnp.ones((4096, 4096))
def _eight(a):
    for _ in range(8):
        a = a @ _big / 4096
    return a
_slow = jax.jit(_eight)
_slow(_big).block_until_ready()
"""
JAX_PENDING = """
_busy = _big
for _ in range({rounds}):
    _busy = _slow(_busy)
x = x + 0; s = s + 0
"""
"""Queues slow work, and makes the values that the examples read depend on what is queued after it. No loop inside a
compiled function: the host would have to stay with it."""
JAX_MOST_ROUNDS = 24
"""JAX lets some thirty computations be in flight and makes the host wait for the rest."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "simulated"), default="cuda")
    parser.add_argument("--framework", action="append")
    parser.add_argument("--json")
    parser.add_argument("--table")
    options = parser.parse_args()
    warnings.simplefilter("ignore")

    from gpusync_lint.catalogue import registry

    if options.device == "simulated":
        from pytest_gpusync.simulated import switch_on

        switch_on()
    import torch

    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for name in options.framework or registry.frameworks():
        each = registry.catalogue(name)
        why = unusable(each, options.device)
        if why:
            left_out[name] = why
        else:
            rows += framework_rows(each, options.device)
    totals = Counter(row["outcome"] for row in rows)
    for row in rows:
        if row["outcome"] != "as said":
            print(json.dumps(row))
    where = "the simulated device" if options.device == "simulated" else torch.cuda.get_device_name()
    print(f"torch {torch.__version__} on {where}: {dict(totals)}; left out: {left_out or 'nothing'}")
    if options.json:
        data = {"torch": torch.__version__, "device": where, "totals": totals, "left_out": left_out, "rows": rows}
        Path(options.json).write_text(json.dumps(data, indent=1))
    if options.table:
        Path(options.table).write_text(table(rows, totals, left_out, f"torch {torch.__version__} on {where}"))
    return 1 if totals["differs"] else 0


def unusable(each: Any, device: str) -> str:
    """Why the examples of a catalogue cannot be run here; empty when they can."""
    if each.framework == "torch":
        return ""
    if not each.runnable:
        return "its examples need a trainer or several processes"
    if device == "simulated" and not each.on:
        return "not on the simulated device"
    if each.framework == "jax" and importlib.util.find_spec("jax"):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax

        return "" if jax.default_backend() == "gpu" else "JAX has no GPU here"
    missing = [] if any(importlib.util.find_spec(name) for name in each.modules) else list(each.modules)
    return f"not installed: {', '.join(missing)}" if missing else ""


def framework_rows(each: Any, device: str) -> list[dict[str, Any]]:
    """Run every example of one catalogue."""
    import torch

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    shared: dict[str, Any] = {}
    try:
        with silenced():
            exec(each.prelude, shared)
            if each.framework == "jax" and device == "cuda":
                exec(JAX_DELAY, shared)
    except Exception as error:
        return [
            {
                "framework": each.framework,
                "barrier": "",
                "run": "(prelude)",
                "outcome": "not runnable",
                "why": text(error),
            }
        ]
    measure = Simulated() if device == "simulated" else Behind(each.framework, shared)
    rows = []
    for barrier in each.barriers.values():
        gone = barrier.until_torch is not None and version >= barrier.until_torch
        for examples, said in ((barrier.waits, not gone), (barrier.silent, False)):
            for example in examples:
                waits = said or example.meant
                row = {"framework": each.framework, "barrier": barrier.id, "run": example.run.strip(), "said": waits}
                rows.append({**row, **outcome(example, shared, waits, measure)})
    return rows


def outcome(example: Any, shared: dict[str, Any], said: bool, measure: Any) -> dict[str, Any]:
    """Run one example and say whether it did what the catalogue says."""
    scope = dict(shared)
    # An example may leave its loop (`break`) or skip a turn, as step loops do.
    code = compile(f"for step in (1,):\n{indented(example.run)}", "<example>", "exec")
    try:
        with silenced():
            exec(example.setup, scope)
            exec(code, scope)
            again = measure(code, scope, "")
            afresh = measure(code, scope, example.setup)
    except Exception as error:
        return {"outcome": "not runnable", "why": text(error)}
    waited = again["waited"] or afresh["waited"]
    return {"outcome": "as said" if waited == said else "differs", "syncs": max(again["syncs"], afresh["syncs"])}


class Simulated:
    """What syncs on the simulated device waits."""

    def __call__(self, code: Any, scope: dict[str, Any], setup: str) -> dict[str, Any]:
        from pytest_gpusync import record

        exec(setup, scope)
        with record() as seen:
            exec(code, scope)
        return {"waited": seen.syncs > 0, "syncs": seen.syncs}


class Behind:
    """What returns only after a kernel that was queued before it waits."""

    def __init__(self, framework: str, shared: dict[str, Any]) -> None:
        import torch

        self.jax = framework == "jax"
        self.cycles_per_s = 1e9
        self.rounds_per_s = 100.0
        torch.cuda._sleep(1000)
        torch.cuda.synchronize()
        start = time.perf_counter()
        torch.cuda._sleep(50_000_000)
        torch.cuda.synchronize()
        self.cycles_per_s = 50_000_000 / (time.perf_counter() - start)
        if self.jax:
            start = time.perf_counter()
            shared["_slow"](shared["_big"]).block_until_ready()
            self.rounds_per_s = 1 / (time.perf_counter() - start)

    def __call__(self, code: Any, scope: dict[str, Any], setup: str) -> dict[str, Any]:
        import torch

        from pytest_gpusync import record

        exec(setup, scope)
        torch.cuda.synchronize()
        start = time.perf_counter()
        with record() as seen:
            exec(code, scope)
        torch.cuda.synchronize()
        delay = max(DELAY_S, 4 * (time.perf_counter() - start))
        exec(setup, scope)  # what was freed, say, is there to be freed again
        torch.cuda.synchronize()
        if self.jax:
            rounds = min(JAX_MOST_ROUNDS, max(1, round(delay * self.rounds_per_s)))
            exec(JAX_PENDING.format(rounds=rounds), scope)
            exec(code, scope)
            waited = scope["_busy"].is_ready()
            scope["_busy"].block_until_ready()
        else:
            done = torch.cuda.Event()
            torch.cuda._sleep(round(delay * self.cycles_per_s))
            done.record()
            exec(code, scope)
            waited = done.query()
            torch.cuda.synchronize()
        return {"waited": waited, "syncs": seen.syncs}


def table(rows: list[dict[str, Any]], totals: Counter[str], left_out: dict[str, str], where: str) -> str:
    """What differs and what could not be run, as Markdown."""
    lines = [
        f"# Examples of the catalogues: {where}",
        "",
        ", ".join(f"{count} {what}" for what, count in totals.items()),
    ]
    lines += [f"Left out: {name}: {why}" for name, why in left_out.items()]
    lines += ["", "| barrier | example | catalogue says | outcome | syncs or reason |", "|---|---|---|---|---|"]
    for row in rows:
        if row["outcome"] != "as said":
            says = "" if "said" not in row else "waits" if row["said"] else "does not wait"
            shown = row["run"].replace("\n", " ; ").replace("|", "\\|")
            what = str(row.get("syncs", row.get("why", ""))).replace("|", "\\|")
            lines.append(f"| {row['barrier']} | `{shown}` | {says} | {row['outcome']} | {what} |")
    return "\n".join(lines) + "\n"


def silenced() -> contextlib.ExitStack:
    """Keep what examples print away from the report."""
    stack = contextlib.ExitStack()
    stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
    stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
    return stack


def indented(code: str) -> str:
    """A statement as the body of a loop."""
    return "\n".join(f"    {line}" for line in code.strip("\n").splitlines())


def text(error: Exception) -> str:
    """One line about an error."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:120]


if __name__ == "__main__":
    sys.exit(main())
