"""Which waits of the catalogue break a graph of torch.compile, by the installed torch.

Each example of a barrier (GS1xx to GS5xx) that makes the host wait is the body of a function, which is compiled with
``backend="eager"``: with the default settings and, where its graph breaks, with Dynamo's settings that capture more. On
a machine without a GPU the tensors are on the CPU: Dynamo traces them alike, and the examples that need a device are
left out.

    python benchmarks/graph_breaks.py            show what differs from the file
    python benchmarks/graph_breaks.py --write    replace the entry of the installed release

The file is lint/gpusync_lint/catalogue/graph_breaks.json, which the linter reads.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import logging
import sys
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo
from gpusync_lint.catalogue import registry
from gpusync_lint.catalogue.graph_breaks import BREAKS, CAPTURED, DEPENDS, FILE, SETTINGS, form
from gpusync_lint.model.findings import EngineSettings, Source
from gpusync_lint.run.engine import analyze

from pytest_gpusync.recorders import compiler_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.catalogue.schema import Barrier

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAST_CODE = "GS6"
"""Codes from here on are waits inside library calls, or no waits of one line."""

MORE = {"tolist": ("idx.tolist()",), "tensor-to-text": ("out = f'{s}'\nlog.info(out)",)}
"""Statements beside the catalogue's examples: Dynamo treats other operands in another way."""


def main() -> int:
    """Compare with the file, or write it; 1 if it differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="replace the entry of the installed release")
    options = parser.parse_args()
    release = ".".join(torch.__version__.split(".")[:2])
    measured = {barrier.id: merged(results) for barrier, results in measure(barriers())}
    entry = {"torch": torch.__version__.partition("+")[0], "device": DEVICE}
    entry |= {"effects": {name: effects for name, effects in sorted(measured.items()) if effects}}
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    if options.write:
        known[release] = entry
        FILE.write_text(_text(known))
        return 0
    before = known.get(release, {}).get("effects", {})
    differing = {name for name in measured if measured[name] != before.get(name, {})}
    for name in sorted(differing):
        print(f"{name}: {before.get(name)} in the file, {measured[name]} measured")
    print(f"torch {release} on {DEVICE}: {len(measured)} barriers, {len(differing)} differ")
    return 1 if differing else 0


def barriers() -> list[Barrier]:
    """The barriers of torch whose examples are single statements that wait."""
    found = registry.catalogue("torch").barriers.values()
    # Explicit barriers are functions of the device: without one, they do nothing.
    first = "GS1" if DEVICE == "cuda" else "GS2"
    return [barrier for barrier in found if first < barrier.code < LAST_CODE and barrier.waits]


def measure(which: list[Barrier]) -> Iterator[tuple[Barrier, dict[str, list[str]]]]:
    """Yield for each barrier the effects of its examples, by the form of the reported expression."""
    logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
    logging.getLogger("torch.fx").setLevel(logging.CRITICAL)
    for barrier in which:
        results: dict[str, list[str]] = {}
        statements = [(example.run, example.setup) for example in barrier.waits]
        statements += [(statement, "") for statement in MORE.get(barrier.id, ())]
        for statement, setup in statements:
            effect = effect_of(statement, setup)
            if effect is not None:
                results.setdefault(form_of(barrier, statement, setup), []).append(effect)
        yield barrier, results


def merged(results: dict[str, list[str]]) -> dict[str, str]:
    """Return the effects by form, and as ``*`` that of a form without an example, if all have much in common."""
    every = _common([effect for effects in results.values() for effect in effects])
    found = {form: _common(effects) for form, effects in results.items() if form}
    single = {form: effect for form, effect in sorted(found.items()) if effect not in (None, every)}
    return {form: effect for form, effect in (("*", every), *single.items()) if effect is not None}


def _common(effects: list[str]) -> str | None:
    """Return what all of several effects say: None if some break the graph and some do not."""
    if not effects or (CAPTURED in effects and len(set(effects)) > 1):
        return None
    return effects[0] if len(set(effects)) == 1 else DEPENDS


def effect_of(statement: str, setup: str = "") -> str | None:
    """Return what Dynamo does with a statement; None if it cannot run here."""
    function, arguments = _function(statement, setup)
    if function is None:
        return None
    if (broke := _breaks(function, arguments)) is not True:
        return None if broke is None else CAPTURED
    for settings, effect in SETTINGS.items():
        if _breaks(function, arguments, **dict.fromkeys(settings, True)) is False:
            return effect
    return BREAKS


def _function(statement: str, setup: str) -> tuple[Any, list[Any]]:
    """Return a function that runs the statement between two operations, and its arguments."""
    names: dict[str, Any] = {"__name__": "example"}
    prelude = registry.catalogue("torch").prelude
    try:
        for text in (prelude, setup):
            exec(text.replace('"cuda"', f'"{DEVICE}"').replace("'cuda'", f"'{DEVICE}'").replace(_PIN, ""), names)
    except Exception:
        return None, []
    tensors = [name for name, value in names.items() if isinstance(value, torch.Tensor)]
    source = f"def function({', '.join(tensors)}):\n    before = x * 2\n    result = None\n"
    source += f"{textwrap.indent(_kept(statement), '    ')}\n    return before + 1, result\n"
    # Its results must be used: Dynamo computes nothing that nobody asks for.
    exec(compile(source, "<example>", "exec"), names)
    return names["function"], [names[name] for name in tensors]


_PIN = "" if DEVICE == "cuda" else ".pin_memory()"


def _kept(statement: str) -> str:
    """Return a statement that keeps the value of its last expression as ``result``."""
    tree = ast.parse(statement)
    if isinstance(last := tree.body[-1], ast.Expr):
        tree.body[-1] = ast.Assign([ast.Name("result", ast.Store())], last.value)
    return ast.unparse(ast.fix_missing_locations(tree))


def _breaks(function: Any, arguments: list[Any], **settings: bool) -> bool | None:
    """Return whether the graph of a function breaks; None if it fails."""
    seen: list[Any] = []
    torch._dynamo.reset()
    compiler_events.listen(seen.append)
    try:
        with (
            torch._dynamo.config.patch(**settings),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            torch.compile(function, backend="eager")(*(each.clone() for each in arguments))
    except Exception:
        return True if settings else None
    finally:
        compiler_events.stop_listening(seen.append)
    return any(event.kind == "graph_break" for event in seen)


def form_of(barrier: Barrier, statement: str, setup: str) -> str:
    """Return the form of the expression that the linter reports in a statement."""
    before = f"{registry.catalogue('torch').prelude}\n{setup}\n"
    source = f"{before}for step in range(100):\n{textwrap.indent(statement, '    ')}\n"
    first = before.count("\n") + 1
    found = [
        finding
        for finding in analyze([Source("example.py", source)], EngineSettings()).findings
        if finding.code == barrier.code and finding.span.line > first
    ]
    spans = {(one.span.line, one.span.column - 1, one.span.end_line, one.span.end_column - 1) for one in found}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.expr):
            end = (node.end_lineno, node.end_col_offset)
            if any(span[2:] == end and (node.lineno, node.col_offset) <= span[:2] for span in spans):
                return form(node)
    return ""


def _text(known: dict[str, Any]) -> str:
    """Return the file: one line for each barrier."""
    releases = []
    for release, entry in sorted(known.items(), key=lambda item: [int(part) for part in item[0].split(".")]):
        rows = (f"      {json.dumps(name)}: {json.dumps(value)}" for name, value in entry["effects"].items())
        effects = ",\n".join(rows)
        head = f'"torch": {json.dumps(entry["torch"])}, "device": {json.dumps(entry["device"])}'
        releases.append(f'  "{release}": {{\n    {head},\n    "effects": {{\n{effects}\n    }}\n  }}')
    return "{\n" + ",\n".join(releases) + "\n}\n"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main())
