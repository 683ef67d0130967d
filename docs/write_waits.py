"""The picture of README.md, docs/waits.svg: the time of a batch with copies that wait, and with copies that do not.

The times are those of `test_blocking_copies_cost_time` in examples/experiments, as measured on an H200 and kept in
benchmarks/results. `python docs/generate.py` writes the picture.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Final, NamedTuple

DOCS = Path(__file__).resolve().parent
TEST: Final = "test_6_transfers_and_batch_sizes.py::test_blocking_copies_cost_time"
NETWORKS: Final = {"resnet18": "ResNet-18", "resnet50": "ResNet-50"}
BATCH: Final = 128

_COMPARED = re.compile(
    r"blocking copies against pinned ones: .*?a took (?P<ratio>[\d.]+) times as long as b "
    r"\(99 % interval (?P<low>[\d.]+) to (?P<high>[\d.]+).*?, (?P<waits>[\d.]+) against (?P<pinned>[\d.]+) ms\)"
)

_WIDTH, _LEFT, _BAR, _SCALE_END = 720, 96, 26, 620
_STYLE = """\
  text { font: 14px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328 }
  .small { font-size: 12px; fill: #59636e }
  .bold { font-weight: 600 }
  .waits { fill: #bc4c00 }
  .pinned { fill: #0969da }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .small { fill: #9198a1 }
    .waits { fill: #db6d28 }
    .pinned { fill: #4493f8 }
  }"""


class Comparison(NamedTuple):
    """The measured times of a network's batch, in milliseconds, and their ratio with its interval."""

    network: str
    waits: float
    pinned: float
    ratio: float
    low: float
    high: float


def comparisons() -> list[Comparison]:
    """Return what was measured for each network.

    Raises:
        ValueError: there is no result for a network.
    """
    tests = runpy.run_path(str(DOCS / "write_experiments.py"))["_results"]("h200")["tests"]
    found = []
    for key, title in NETWORKS.items():
        printed = "\n".join(tests.get(f"{TEST}[{key}-{BATCH}]", {}).get("results", ()))
        if (match := _COMPARED.search(printed)) is None:
            raise ValueError(f"benchmarks/results has no comparison of the copies of {title}")
        found.append(Comparison(title, *(float(match[name]) for name in ("waits", "pinned", "ratio", "low", "high"))))
    return found


def picture() -> str:
    """Return the picture as SVG, for light and dark pages."""
    rows = comparisons()
    longest = max(row.waits for row in rows)
    lines = [
        f'<text class="bold" x="0" y="18">Time per batch of {BATCH} images on an NVIDIA H200: inference</text>',
        '<rect class="waits" x="0" y="34" width="12" height="12"/>',
        '<text class="small" x="18" y="44">pageable copies: the host waits twice per batch</text>',
        '<rect class="pinned" x="400" y="34" width="12" height="12"/>',
        '<text class="small" x="418" y="44">pinned copies: no wait</text>',
    ]
    top = 64
    for row in rows:
        lines.append(f'<text x="0" y="{top + _BAR + 6}">{row.network}</text>')
        for number, (kind, time) in enumerate((("waits", row.waits), ("pinned", row.pinned))):
            y, width = top + number * (_BAR + 2), round((_SCALE_END - _LEFT) * time / longest, 1)
            lines.append(f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{width}" height="{_BAR}"/>')
            lines.append(f'<text x="{_LEFT + width + 8}" y="{y + 18}">{time:.1f} ms</text>')
        lines.append(
            f'<text class="small" x="{_LEFT}" y="{top + 2 * _BAR + 20}">{row.ratio:.2f} times as long with the waits '
            f"(99 % interval {row.low:.2f} to {row.high:.2f})</text>"
        )
        top += 2 * _BAR + 44
    body = "\n".join(f"  {line}" for line in lines)
    title = "; ".join(f"{row.network}: {row.waits:.1f} ms with waits, {row.pinned:.1f} ms without" for row in rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top - 14}" width="{_WIDTH}" role="img">\n'
        f"  <title>{title}</title>\n  <style>\n{_STYLE}\n  </style>\n{body}\n</svg>\n"
    )
