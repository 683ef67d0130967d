"""The keys of ``[tool.gpusync]``: one table, from which the reader, the JSON schema and ``--show-settings`` follow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What the value of a key is."""

    CODES = "a list of codes"
    PATTERNS = "a list of path patterns"
    CODES_BY_PATTERN = "a table of pattern = [codes]"
    HEAT = "a heat"
    PATH = "the path of a file"
    SWITCH = "true or false"
    NAMES = "a list of strings"
    BARRIERS = "a list of tables, written [[tool.gpusync.barriers]]"
    VERSION = "a version"


@dataclass(frozen=True, slots=True)
class Option:
    """A key of the table."""

    key: str
    kind: Kind
    meaning: str
    """One sentence for people, without a full stop."""
    example: str
    """A value, as written in TOML."""
    default: object = None


OPTIONS = {
    option.key: option
    for option in (
        Option("select", Kind.CODES, "The codes, prefixes or names of the rules to report", '["GS2", "item"]'),
        Option("ignore", Kind.CODES, "The codes, prefixes or names of rules not to report", '["GS401"]', []),
        Option("exclude", Kind.PATTERNS, "Files and folders that are not linted", '["third_party"]', []),
        Option(
            "respect-gitignore",
            Kind.SWITCH,
            "Leave out files that git ignores, unless they are given by name",
            "false",
            True,
        ),
        Option(
            "per-file-ignores",
            Kind.CODES_BY_PATTERN,
            "Rules not to report in some files",
            '{ "tests/**" = ["GS2"] }',
            {},
        ),
        Option("heat", Kind.HEAT, "Warn about lines that run at least this often", '"epoch"', "step"),
        Option(
            "baseline",
            Kind.PATH,
            "The file of accepted warnings, relative to pyproject.toml",
            '"gpusync-lint-baseline.json"',
        ),
        Option(
            "step-functions",
            Kind.NAMES,
            "Functions that run in every step, although no loop of the project calls them",
            '["Agent.act"]',
            [],
        ),
        Option(
            "barriers",
            Kind.BARRIERS,
            "Functions that make the host wait, and that the linter does not know",
            '[{ call = "ourlib.metrics.to_host" }]',
            [],
        ),
        Option("torch-version", Kind.VERSION, "The oldest torch that the project supports", '"2.11"'),
    )
}
"""By key. `baseline` and `torch-version` have no default; without `select`, all rules are reported."""
