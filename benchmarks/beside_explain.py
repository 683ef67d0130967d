"""Graph breaks of thirty functions, line by line: by torch._dynamo.explain, by assert_graph_breaks, and by the linter.

The functions are in benchmarks/compiled_functions.py. Each is also compiled with ``fullgraph=True``, which fails at the
first line that would break the graph even with Dynamo's settings that capture more: what the other columns say must
agree with that. No GPU is needed.

    python benchmarks/beside_explain.py [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from pytest_gpusync import assert_graph_breaks

FOLDER = Path(__file__).resolve().parent
FILE = "compiled_functions.py"
SETTINGS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
"""``fullgraph=True`` implies these."""


@dataclass
class Row:
    """The lines at which the graphs of one function break."""

    name: str
    explain: list[int]
    explain_count: int
    """``graph_break_count``: -1 for a function that Dynamo gave up."""
    ours: list[int]
    effects: list[str]
    linter: list[int]
    fullgraph: int | None
    """Where ``fullgraph=True`` fails; None if it does not."""
    captured: list[int]
    """Those of our lines that break no graph with the settings that ``fullgraph=True`` implies."""

    @property
    def agrees(self) -> bool:
        """Whether each line that explain names is ours, each of ours is explain's unless the function was given up, and
        ``fullgraph=True`` fails at one of ours that is not captured, or does not fail if there is none.
        """
        left = set(self.ours) - set(self.captured)
        fails = self.fullgraph in left if self.fullgraph is not None else not left
        given_up = "function_eager" in self.effects or "rest_eager" in self.effects
        return fails and set(self.explain) <= set(self.ours) and (given_up or self.explain == self.ours)


def main() -> int:
    """Print the table; 1 if a row disagrees."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="also write the rows")
    options = parser.parse_args()
    rows = measure()
    print(f"torch {torch.__version__.partition('+')[0]}, {len(rows)} functions; lines at which graphs break")
    print(f"{'function':<30} {'explain':<14} {'assert_graph_breaks':<22} {'linter':<14} fullgraph=True fails at")
    for row in rows:
        ours = ", ".join(map(str, row.ours)) + (" (eager)" if set(row.effects) - {"resumed"} else "")
        explain = ", ".join(map(str, row.explain)) or ("gave up" if row.explain_count < 0 else "-")
        cells = f"{row.name:<30} {explain:<14} {ours or '-':<22} {', '.join(map(str, row.linter)) or '-':<14}"
        print(f"{cells} {row.fullgraph or '-'}{'' if row.agrees else '   DISAGREES'}")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print(f"{sum(row.agrees for row in rows)} of {len(rows)} functions agree with explain and fullgraph=True")
    return 0 if all(row.agrees for row in rows) else 1


def measure() -> list[Row]:
    """Return the breaks of every function."""
    for name in ("torch._dynamo", "torch.fx", "compiled"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.path.insert(0, str(FOLDER))
    try:
        import compiled_functions
    finally:
        sys.path.remove(str(FOLDER))
    before = os.getcwd()
    os.chdir(FOLDER)
    try:
        spans = {one: _span(one) for one in compiled_functions.FUNCTIONS}
        by_linter = _linted()
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [_row(one, spans[one], by_linter) for one in compiled_functions.FUNCTIONS]
    finally:
        os.chdir(before)


def _row(function: Any, span: range, by_linter: dict[str, list[int]]) -> Row:
    original = function._torchdynamo_orig_callable
    torch.manual_seed(0)
    x = torch.rand(4, 4) - 0.25
    explained = torch._dynamo.explain(original)(x.clone())
    lines = sorted({reason.user_stack[-1].lineno or 0 for reason in explained.break_reasons})
    with assert_graph_breaks(max=99) as seen:
        function(x.clone())
    with torch._dynamo.config.patch(**SETTINGS), assert_graph_breaks(max=99) as more:
        function(x.clone())
    left = {line.site.line for line in more.lines}
    torch.compiler.reset()
    failed: int | None = None
    try:
        torch.compile(original, backend="eager", fullgraph=True)(x.clone())
    except Exception as error:
        stack: Any = getattr(error, "real_stack", None) or getattr(error.__cause__, "real_stack", None) or []
        failed = stack[-1].lineno if stack else 0
    reached = {line.site.line for line in seen.lines} | set(span)
    return Row(
        original.__name__,
        lines,
        explained.graph_break_count,
        sorted({line.site.line for line in seen.lines}),
        sorted({str(line.effect) for line in seen.lines}),
        sorted({line for line in by_linter[FILE] if line in reached}),
        failed,
        sorted({line.site.line for line in seen.lines} - left),
    )


def _span(function: Any) -> range:
    lines = [line for _, _, line in function._torchdynamo_orig_callable.__code__.co_lines() if line]
    return range(min(lines), max(lines) + 1)


def _linted() -> dict[str, list[int]]:
    """Return the lines of which the linter says that they break a graph."""
    from gpusync_lint.model.findings import EngineSettings, Source
    from gpusync_lint.run.engine import analyze

    found = analyze([Source(FILE, (FOLDER / FILE).read_text())], EngineSettings()).findings
    return {FILE: [finding.span.line for finding in found if finding.graph_break is not None]}


if __name__ == "__main__":
    sys.exit(main())
