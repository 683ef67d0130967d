"""The tables of docs/experiments.md: the rows of experiments.toml, with what the tests printed and the linter reports.

usage: python docs/generate.py                  write the page
       python docs/write_experiments.py FOLDER  write the programs of the linter's rows into FOLDER, as hazard_1.py,
                                                remedy_1.py and so on, for `gpusync lint FOLDER`

The results are the files of benchmarks/results/*-experiments, which benchmarks/gpu_experiments.py and two_devices.py
and `gpusync trace --json` write. Of several results of a test, the one with most rounds is quoted; of equal ones the
latest.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "benchmarks" / "results"
DEVICES: Final = ("simulated", "h200")
NOT_RUN: Final = "not run"
SKIPPED: Final = "skipped: needs a GPU, or a library that is not installed"

_ROUNDS: Final = re.compile(r", \d+ rounds(?: of \d+ calls)?")
"""The part of a ratio that tells how it was measured, which the result files keep."""


def tables() -> str:
    """Return the tables of the page, a section each."""
    found = {device: _results(device) for device in DEVICES}
    numbers = {id(row): number for number, row in enumerate(_programs(), start=1)}
    parts = []
    for section in _sections():
        if id(section["row"][0]) in numbers:
            heads = ["program", "claim or hazard", "rule", "reported for the hazard", "and for the remedy"]
            rows = [[str(numbers[id(row)]), row["claim"], *_lint_cells(row)] for row in section["row"]]
        else:
            heads = ["claim, exercise or hazard", "covered by", "run", "simulated device", "H200"]
            rows = [
                [
                    row["claim"],
                    _with_links(row["covered"]),
                    _command(row),
                    *(_cell(row, device, found[device]) for device in DEVICES),
                ]
                for row in section["row"]
            ]
        lines = [heads, ["---"] * len(heads), *rows]
        table = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
        parts.append(f"### {section['title']}\n\n{table}\n")
    return "\n".join(parts)


@cache
def _sections() -> list[dict[str, Any]]:
    sections: list[dict[str, Any]] = tomllib.loads((DOCS / "experiments.toml").read_text(encoding="utf-8"))["section"]
    return sections


def _programs() -> list[dict[str, Any]]:
    """Return the rows with programs that the linter reads."""
    return [row for section in _sections() for row in section["row"] if "codes" in row]


def _lint_cells(row: dict[str, Any]) -> list[str]:
    """Return the rule of a row, the lines of its hazard that the linter reports, and what it reports of its remedy.

    Raises:
        ValueError: the linter does not report the hazard, or reports the remedy.
    """
    codes = row["codes"]
    hazard, remedy = (_lint(row.get(kind, ""), codes) for kind in ("hazard", "remedy"))
    # The linter may know lines of a remedy that run once. They are not reported unless the hazard runs once too.
    rates = {finding.heat for finding in hazard}
    left = [finding for finding in remedy if not hazard or finding.heat in rates]
    if ("hazard" in row and {finding.code for finding in hazard} != set(codes)) or left:
        raise ValueError(f"{row['claim']}: the linter reports {hazard} of the hazard and {left} of the remedy")
    lines = dict.fromkeys(row["hazard"].splitlines()[finding.span.line - 1].strip() for finding in hazard)
    return [
        _with_links(", ".join(codes)),
        "<br>".join(f"`{line}`" for line in lines) or "no hazard in it",
        "nothing" if "remedy" in row else "",
    ]


def _lint(program: str, codes: list[str]) -> list[Any]:
    from gpusync_lint.model.findings import EngineSettings, Source
    from gpusync_lint.run.engine import analyze

    found = analyze([Source("program.py", program)], EngineSettings())
    return [finding for finding in found.findings if finding.code in codes]


def _with_links(text: str) -> str:
    """Return a text in which the codes of rules are links to their pages."""
    return re.sub(r"\bGS\d{3}\b", r"[\g<0>](rules/\g<0>.md)", text)


def _results(device: str) -> dict[str, Any]:
    """Return what was measured on a device: the row of each test by name, run files and counts by kind."""
    found: dict[str, Any] = {"tests": {}, "traces": {}, "statements": None}
    for path in sorted(RESULTS.glob(f"*-experiments/{device}*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if "statements" in content:
            found["statements"] = content["statements"]
        elif "regions" in content:
            found["traces"][path.stem.removeprefix(f"{device}-")] = content["regions"][0]
        else:
            for row in content["tests"]:
                before = found["tests"].get(row["test"])
                if row["rounds"][0] and (before is None or _runs(row) >= _runs(before)):
                    found["tests"][row["test"]] = row
    return found


def _runs(row: dict[str, Any]) -> int:
    return 0 if row["skipped"] else int(row["rounds"][0])


def _command(row: dict[str, Any]) -> str:
    if "run" in row:
        return f"`{row['run']}`"
    files = dict.fromkeys(name.partition("::")[0] for name in row.get("tests", ()))
    return "<br>".join(f"`pytest {' '.join([*row.get('options', '').split(), file])}`" for file in files)


def _cell(row: dict[str, Any], device: str, found: dict[str, Any]) -> str:
    if device in row:
        return str(row[device])
    if "trace" in row:
        region = found["traces"].get(row["trace"])
        return NOT_RUN if region is None else "<br>".join(_site(site) for site in region["sites"])
    if "statements" in row:
        return _statements(found["statements"])
    return _tests_cell(row.get("tests", ()), found["tests"])


def _site(site: dict[str, Any]) -> str:
    """Return the syncs of a line by device."""
    counts = ", ".join(f"{count['syncs']} on cuda:{count['device']}" for count in site["devices"])
    return f"`{Path(site['path']).name}:{site['line']}`: {counts}"


def _statements(counts: dict[str, Any] | None) -> str:
    if counts is None:
        return NOT_RUN
    other = next(statement for statement in counts if "synchronize(1)" in statement and "range" in statement)
    return f"{len(counts)} statements, such as `{other}`: {_dictionary(counts[other])}"


def _dictionary(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} syncs on cuda:{device}" for device, number in counts.items())


def _tests_cell(names: list[str], results: dict[str, Any]) -> str:
    """Return what tests printed, and how often they passed, and failed with their hazard."""
    rows = [row for name in names for test, row in results.items() if test == name or test.startswith(f"{name}[")]
    ran = [row for row in rows if not row["skipped"]]
    if not ran:
        return SKIPPED if rows else NOT_RUN
    lines = [_shortened(text, row["test"].partition("[")[2].rstrip("]")) for row in ran for text in row["results"]]
    passed, rounds = min((row["passed"], row["rounds"][0]) for row in ran)
    failed, planted_rounds = min((row["failed_planted"], row["rounds"][1]) for row in ran)
    lines.append(f"<small>passed {passed} of {rounds}; with the hazard, failed {failed} of {planted_rounds}</small>")
    return "<br>".join(lines)


def _shortened(text: str, parameters: str) -> str:
    """Return a printed result without the rounds, and with the parameters of its test if it does not name them."""
    text = _ROUNDS.sub("", text)
    named = parameters.partition("-")[0] in text
    return text if named else f"{parameters}: {text}"


def main(folder: Path) -> None:
    """Write the programs of the linter's rows into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, row in enumerate(_programs(), start=1):
        for kind in ("hazard", "remedy"):
            if kind in row:
                (folder / f"{kind}_{number}.py").write_text(row[kind].lstrip("\n"), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
