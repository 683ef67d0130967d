"""The options of ``gpusync lint`` and their help."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING, NoReturn

from gpusync_lint import output
from gpusync_lint._version import __version__
from gpusync_lint.escaping import escaped
from gpusync_lint.messages import nearest
from gpusync_lint.model.levels import FREQUENCIES, Confidence
from gpusync_lint.settings.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EPILOG = """\
exit codes: 0 no warnings; 1 warnings; 2 wrong usage or configuration, a file that could not be read or parsed, or an
internal error (other files are still reported).

To accept a warning, put a comment on its statement or above it: # gpusync: allow[GS201] why

Configuration is read from the table [tool.gpusync] of the nearest pyproject.toml that has one. Its keys are
{keys}.

A warning is a finding at the heat of --heat or hotter. Findings that run less often are notes: json and sarif contain
them, text counts them, and they never fail a run.

--write-baseline writes to --baseline FILE, else to the configured baseline, else to gpusync-lint-baseline.json next to
pyproject.toml (without one: in the current folder). It is used only if --baseline or the configuration names it.

Lines and columns count from 1, columns in characters (sarif: in UTF-16 code units). In a notebook, text and json count
lines within the cell, the other formats within the file; cells are numbered from 1, including those without code.
"""


USAGE_ERROR = 2


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, with a suggestion where there is one."""

    def format_help(self) -> str:
        """The help. The output formats are loaded only here, because their descriptions are only needed here."""
        for action in self._actions:
            if action.dest == "output_format":
                action.help = f"{output.described()} (default: %(default)s)"
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """End with one line and exit code 2."""
        self.exit(USAGE_ERROR, f"{self.prog}: error: {escaped(message)} (see {self.prog} --help)\n")

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """As `parse_args`, but the error for an unknown option suggests the nearest known one."""
        parsed, unknown = self.parse_known_args(argv)
        if unknown:
            option = unknown[0].partition("=")[0]
            if not option.startswith("-"):
                self.error(f"unexpected argument {option!r}")
            near = nearest(option, self._option_string_actions)
            hint = f"; did you mean {near}?" if near else ""
            self.error(f"unknown option {option}{hint}")
        return parsed


def lint_parser() -> Parser:
    """The parser of ``gpusync lint``."""
    parser = Parser(
        prog="gpusync lint",
        description="Find the lines that make the host wait for the GPU on every step.",
        epilog=EPILOG.format(keys=_listed(OPTIONS)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    paths_help = "files, notebooks and folders to lint; - reads standard input (default: the current folder)"
    add("paths", nargs="*", metavar="PATH", help=paths_help)
    chosen = parser.add_argument_group("what is reported")
    add = chosen.add_argument
    add("--select", action="append", metavar="CODES", help="report only these codes, prefixes or rule names (GS2,item)")
    add("--ignore", action="append", metavar="CODES", help="do not report these codes, prefixes or rule names")
    add(
        "--extend-select",
        action="append",
        metavar="CODES",
        help="report these, too: added to --select or, without it, to the configured rules",
    )
    heats = [heat.value for heat in FREQUENCIES]
    add("--heat", choices=heats, help="warn about lines that run at least this often (default: step)")
    confidences = [confidence.value for confidence in Confidence]
    add("--confidence", choices=confidences, default="medium", help="least confidence to report (default: %(default)s)")
    add(
        "--show-suppressed",
        action="store_true",
        help="also report warnings that a comment allows, with its reason, and warnings in the baseline",
    )
    fixing = parser.add_argument_group("changing the files")
    add = fixing.add_argument
    add("--fix", action="store_true", help="apply the fixes that do not change values, types or errors")
    add(
        "--unsafe-fixes",
        action="store_true",
        help="with --fix or --diff, also apply the fixes that may",
    )
    add("--add-ignores", metavar="REASON", help="allow all warnings (after --fix) with comments that give this reason")
    add(
        "--diff",
        action="store_true",
        help="print what --fix or --add-ignores would change, and change nothing; exit 1 if there is a change",
    )
    reporting = parser.add_argument_group("output and configuration")
    add = reporting.add_argument
    add("-o", "--output-file", metavar="FILE", help="write the report to FILE instead of standard output")
    add("--output-format", choices=output.names(), default=output.DEFAULT, help="see --help")
    add("--statistics", action="store_true", help="count the warnings of each code (text: do not list them)")
    add("--exit-zero", action="store_true", help="exit 0 even if there are warnings")
    add("--baseline", metavar="FILE", help="accept the warnings listed in FILE; only new warnings fail the run")
    add("--write-baseline", action="store_true", help="accept all current warnings: write the baseline and exit 0")
    add(
        "--observed",
        action="append",
        metavar="RUN.json",
        help="show for each warning what a run measured at its line, most expensive first, and list lines that waited "
        "without a warning; may be repeated",
    )
    add(
        "--no-context",
        action="store_true",
        help="lint files given by name alone: do not read what they import and what imports them",
    )
    add(
        "--respect-gitignore",
        action=argparse.BooleanOptionalAction,
        help="leave out files that git ignores (default: yes); files that are given are linted in any case",
    )
    add("--config", metavar="FILE", help="read the configuration from this pyproject.toml")
    add(
        "--jobs",
        metavar="N",
        type=_count,
        help="number of processes; files that no import connects are analyzed in parallel (default: one per processor)",
    )
    add(
        "--no-cache",
        action="store_true",
        help="do not read or write the cache (.gpusync_cache/ next to pyproject.toml, or in the current folder)",
    )
    add("--stdin-filename", metavar="FILE", help="lint standard input under this name (.ipynb: as a notebook)")
    add("--verbose", action="store_true", help="show the traceback of an internal error")
    other = parser.add_argument_group("instead of linting once")
    add = other.add_argument
    add("--watch", action="store_true", help="lint again whenever a file changes, until Ctrl-C")
    add("--show-files", action="store_true", help="print the files that would be linted")
    add("--show-settings", action="store_true", help="print the settings, and where each comes from")
    add("-V", "--version", action="version", version=f"gpusync {__version__}", help="print the version")
    return parser


def rule_parser() -> Parser:
    """The parser of ``gpusync rule``."""
    parser = Parser(
        prog="gpusync rule",
        description="Explain a rule: what it reports, why, and what to write instead. Without a code, list all rules.",
        allow_abbrev=False,
    )
    parser.add_argument("rule", nargs="?", metavar="CODE", help="a code (GS201), a prefix (GS2) or a name (item)")
    return parser


def _listed(words: Iterable[str]) -> str:
    """Words in a sentence, in lines of 120 characters."""
    *first, last = words
    return "\n".join(textwrap.wrap(f"{', '.join(first)} and {last}", 119))


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number
