"""What README.md, the pages of docs/ and `--help` name is real: options, rules, configuration, fixtures, ini keys."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path

import pytest
from gpusync_lint.model import codes
from gpusync_lint.settings import config, selection

from pytest_gpusync import plugin

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "skills/gpusync/SKILL.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    if path.parent.name != "rules"
}
PAGES["docs/rules"] = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "rules").glob("*.md"))
)
REPORTS = tuple(
    f"report {action}" for action in ("merge", "show", "md", "html", "trace", "import", "diff", "history", "fleet")
)
SUBCOMMANDS = ("", "lint", "rule", "server", "trace", *REPORTS, "doctor")
"""The commands of ours; the empty one is `gpusync` alone."""

OTHERS = {
    "--junitxml": "pytest: the short form of --junit-xml",
    "--simulated": "benchmarks/gpu_experiments.py",
    "--index-url": "pip",
    "--nproc-per-node": "torchrun",
    "--splits": "pytest-split",
    "--group": "pytest-split",
    "--python-backtrace": "nsys profile",
    "--cudabacktrace": "nsys profile",
    "--type": "nsys export",
}
"""Options of other programs that the pages show, outside of a command line of that program."""
EXAMPLES = {
    "GS208": "the rule that CONTRIBUTING.md adds",
    "GS2O1": "the mistake that GS904 is about",
    "gpu_lease": "a module",
    "gpu_to_cpu": "a phase of an experiment",
}
"""What the pages name and what is no rule, fixture or key, each with what it is."""


_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")


@cache
def printed(*command):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lint")]), "COLUMNS": "400"}
    arguments = [sys.executable, "-m", *command]
    return subprocess.run(arguments, capture_output=True, text=True, env=environment, cwd=ROOT, check=True).stdout


@cache
def help_of(command):
    return printed("pytest_gpusync", *command.split(), "--help")


@cache
def options_of(command):
    """Return the options of a command of ours, or of pytest with the plugin."""
    text = pytest_names() if command == "pytest" else help_of(command)
    return {*_OPTION.findall(text), "--help"}


@cache
def pytest_names():
    """Return what pytest says of options, ini keys and markers, and the names of the plugin's fixtures."""
    is_installed = any(point.value == "pytest_gpusync.plugin" for point in entry_points(group="pytest11"))
    loading = [] if is_installed else ["-p", "pytest_gpusync.plugin"]
    shown = (printed("pytest", *loading, "--color=no", option) for option in ("--help", "--markers"))
    return "".join(shown) + " ".join(vars(plugin))


def commands(text):
    """Yield the words of each command line of ours and of pytest in the code blocks and code spans of a page."""
    blocks = re.findall(r"^ *```(?:console|sh|yaml)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    indented = re.findall(r"^ {4}((?:gpusync|pytest) .*)$", text, re.MULTILINE)
    for line in [*lines, *indented, *re.findall(r"`((?:gpusync|pytest) [^`\n]+)`", text)]:
        found = re.search(r"(?:^|[\s;&(])((?:gpusync|pytest) .*)$", line)
        if found is not None:
            yield shlex.split(re.sub(r"\s(?:#|>|\|).*", "", found[1]).replace("'", "").replace('"', ""))


def own_options(words):
    """Return the command that words are a call of, and its own options: those of a traced program are not."""
    if words[0] == "pytest":
        return "pytest", [word for word in words[1:] if word.startswith("--")]
    name = " ".join(words[1:3] if words[1:2] == ["report"] else words[1:2])
    name = "" if name.startswith("-") or name == "COMMAND" else name
    own = []
    for word in words[1:]:
        if name == "trace" and (word == "-m" or word.endswith(".py") or word.startswith("$(")):
            break
        if word.startswith("--"):
            own.append(word)
    return name, own


def unknown_options(text):
    found = []
    for words in commands(text):
        command, own = own_options(words)
        if command not in {"pytest", "report", *SUBCOMMANDS}:
            if command in {"", "COMMAND"} or command in re.findall(r"-[\w-]+", help_of("")):
                continue
            found.append(" ".join(words))
            continue
        known = options_of(command) | (set(OTHERS) if command == "pytest" else set())
        found += [f"{' '.join(words)}: {word}" for word in own if word.partition("=")[0] not in known]
    anywhere = set(OTHERS).union(*(options_of(command) for command in ("pytest", *SUBCOMMANDS)))
    spans = re.findall(r"`(--[a-z][\w-]*)", text)
    return found + [option for option in spans if option not in anywhere]


def unknown_rules(text):
    """Return the codes and names that are no rule's: in the text, beside each other, and in allow comments."""
    names = codes.names()
    found = [code for code in re.findall(r"\bGS\d{3}\b", text) if code not in names]
    pairs = re.findall(r"\b(GS\d{3}) \[([\w-]+)\](?!\()", text) + re.findall(
        r"^# (GS\d{3}) ([\w-]+)$", text, re.MULTILINE
    )
    found += [f"{code} {name}" for code, name in pairs if names.get(code) != name]
    listed = re.findall(r"allow(?:-file)?\[([^\]]+)\]", text) + re.findall(r"\((GS\d*,[\w,-]+)\)", text)
    listed += re.findall(r"\bname \((\w[\w-]*)\)", text)
    listed += [word for words in commands(text) for word in selected(words)]
    for word in (word.strip() for words in listed for word in words.split(",")):
        try:
            selection.resolve(word, names)
        except selection.UnknownCodeError:
            found.append(word)
    return [word for word in found if word not in EXAMPLES]


def selected(words):
    """Return the codes that a command line of the linter, or of `gpusync rule`, names."""
    if words[:2] == ["gpusync", "rule"]:
        return words[2:3]
    pairs = pairwise(words)
    return [value for option, value in pairs if words[1:2] == ["lint"] and option in ("--select", "--ignore")]


@pytest.mark.parametrize("page", PAGES)
def test_every_option_of_a_page_exists(page):
    assert unknown_options(PAGES[page]) == []


@pytest.mark.parametrize("command", SUBCOMMANDS)
def test_every_option_and_rule_of_a_help_text_exists(command):
    text = help_of(command)
    known = options_of(command).union(*(options_of(other) for other in ("lint", "trace")))
    listed = re.findall(r"^ {2,}(?:-\w, )?(--[a-z][\w-]*)", text, re.MULTILINE)
    assert [option for option in _OPTION.findall(text) if option not in {*listed, *known}] == []
    assert unknown_rules(text) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_rule_of_a_page_exists(page):
    assert unknown_rules(PAGES[page]) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_configuration_of_a_page_is_valid(page, tmp_path):
    for block in re.findall(r"^```toml\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL):
        if "tool" not in tomllib.loads(block):
            continue
        written = tmp_path / "pyproject.toml"
        written.write_text(block, encoding="utf-8")
        config.load(written, codes.names())


@pytest.mark.parametrize("page", PAGES)
def test_every_fixture_marker_and_ini_key_of_a_page_exists(page):
    named = set(re.findall(r"(?<![\w./-])gpu_[a-z_]+(?![\w/-]|\.(?:py|json)\b)", PAGES[page]))
    assert named - set(re.findall(r"\w+", pytest_names())) - set(EXAMPLES) == set()


def test_the_settings_of_vs_code_match_the_output():
    block = re.search(r"```json\n(.*?)^```$", PAGES["docs/how-to/editors.md"], re.MULTILINE | re.DOTALL)
    (task,) = json.loads(block[1])["tasks"]
    pattern = task["problemMatcher"]["pattern"]
    line = re.search(r"^train\.py:.*$", PAGES["README.md"], re.MULTILINE)[0]  # checked by test_walkthroughs.py
    found = re.match(pattern["regexp"], line)
    assert [found[pattern[key]] for key in ("file", "line", "code")] == ["train.py", "9", "GS503"]


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("`gpusync lint --fixx .`", "gpusync lint --fixx .: --fixx"),
        ("```console\npytest --gpu-sync-budgets=5\n```\n", "pytest --gpu-sync-budgets=5: --gpu-sync-budgets=5"),
        ("```console\ngpusync trace --step 5 train.py\n```\n", "gpusync trace --step 5 train.py: --step"),
        ("the option `--no-such`", "--no-such"),
        ("`gpusync --no-such bash`", "gpusync --no-such bash: --no-such"),
        ("`gpusync lnit .`", "gpusync lnit ."),
    ],
)
def test_an_option_that_does_not_exist_is_found(text, option):
    assert option in unknown_options(text)


def test_the_options_of_a_traced_program_are_its_own():
    assert unknown_options("`gpusync trace --steps 20 train.py --epochs 1`") == []


@pytest.mark.parametrize(
    "text",
    ["GS299", "GS201 [items]", "# gpusync: allow[item-read] why", "(GS2,item-read)", "`gpusync lint --select GS9O3 .`"],
)
def test_a_rule_that_does_not_exist_is_found(text):
    assert unknown_rules(text) != []
