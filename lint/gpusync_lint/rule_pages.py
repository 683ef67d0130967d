"""The pages of rules, as ``gpusync rule`` prints them and as the files of docs/rules."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Final

from gpusync_lint.accept import rules
from gpusync_lint.catalogue import registry

if TYPE_CHECKING:
    from gpusync_lint.catalogue.schema import Barrier, RuleDoc

WIDTH = 100
"""The line length of prose."""

TOPICS: Final = {
    "GS1": "Explicit barriers",
    "GS2": "Reading values to the host",
    "GS3": "Control flow on device values",
    "GS4": "Shapes that depend on device values",
    "GS5": "Copies to the device and construction",
    "GS6": "Waits inside library calls",
    "GS7": "The pipeline",
    "GS8": "Distributed and remote",
    "GS9": "Allow comments and baselines",
}
"""What the codes with each first digit are about."""

_OPTIONS: Final = {
    "heat": "also warn about code that runs in some steps only, or once per epoch",
    "step-functions": "functions that run in every step, although no loop of the project calls them",
    "torch-version": "the oldest torch that the project supports",
    "barriers": "the calls that this rule reports",
    "baseline": "the file with the accepted warnings",
    "per-file-ignores": "files in which this rule is not applied",
}
"""What the keys of the configuration mean for a rule."""


def docs() -> dict[str, RuleDoc]:
    """The pages of all rules by code, in order: those of the catalogues, and those about comments and baselines."""
    found = dict(rules.RULES)
    for framework in registry.frameworks():
        found.update(registry.catalogue(framework).rules)
    return dict(sorted(found.items()))


def render(doc: RuleDoc) -> str:
    """The page of a rule as text, ending in a newline."""
    sections = (f"{title}\n{_code(body) if code else _prose(body)}" for title, body, code in _sections(doc))
    return "\n\n".join([f"{doc.code} {doc.name}", *sections]) + "\n"


def markdown(doc: RuleDoc) -> str:
    """The page of a rule as Markdown, without the title."""
    sections = (
        f"## {title}\n\n" + (f"```python\n{body.strip(chr(10))}\n```" if code else _markdown_prose(body))
        for title, body, code in _sections(doc)
    )
    return "\n\n".join(sections) + "\n"


def page(doc: RuleDoc) -> str:
    """The file of a rule in docs/rules: its page, and the examples of the catalogues, other frameworks' folded."""
    parts = [f"# {doc.code} {doc.name}", markdown(doc).rstrip("\n")]
    examples = []
    for framework in sorted(registry.frameworks(), key=lambda name: (name != doc.framework, name != "torch", name)):
        catalogue = registry.catalogue(framework)
        entries = [
            _entry(barrier)
            for barrier in catalogue.barriers.values()
            if barrier.code == doc.code and (barrier.waits or barrier.silent)
        ]
        if entries and framework != doc.framework:
            title = catalogue.title[:1].upper() + catalogue.title[1:]
            entries = [f'<details markdown="1">\n<summary>{title}</summary>', *entries, "</details>"]
        examples += entries
    return "\n\n".join([*parts, *(["## More examples"] if examples else []), *examples]) + "\n"


def index() -> str:
    """The list of all rules by topic, docs/rules/README.md."""
    parts = [_INDEX_HEAD]
    for prefix, topic in TOPICS.items():
        rows = [
            f"| [{code} {doc.name}]({code}.md) | {finds} | {doc.frequency} | {fix_kinds(doc)} |"
            for code, doc in docs().items()
            if code.startswith(prefix)
            for finds in [re.sub(r",? in code that runs in every step", "", doc.summary)]
        ]
        table = "\n".join(["| rule | finds | runs | fix |", "|---|---|---|---|", *rows])
        parts.append(f'## {prefix}xx {topic}\n\n<div class="stacked rules" markdown="1">\n\n{table}\n\n</div>')
    return "\n\n".join(parts) + "\n"


_INDEX_HEAD: Final = """\
# Rules

Each rule has a code and a name; comments, options and the configuration accept both. *Runs* is how often a line has to
run to be reported (see [heat](../linter.md#what-is-reported)). *Fix* says whether there is a safe or an unsafe fix."""


def fix_kinds(doc: RuleDoc) -> str:
    """Whether a rule has fixes that are safe, unsafe, or both; "none" without a fix."""
    if doc.fix_safety.startswith("No fix"):
        return "none"
    return ", ".join(
        dict.fromkeys(word.lower() for word in re.findall(r"\b(?:un)?safe\b", doc.fix_safety, re.IGNORECASE))
    )


def _entry(barrier: Barrier) -> str:
    until = barrier.until_torch
    version = f" (before torch {until[0]}.{until[1]})" if until is not None else ""
    message = barrier.message.replace("`{call}`", "the call")
    blocks = []
    for outcome, examples in (("waits", barrier.waits), ("not reported", barrier.silent)):
        runs = dict.fromkeys(example.run.strip("\n") for example in examples)
        if runs:
            apart = "\n\n" if any("\n" in run for run in runs) else "\n"
            blocks.append(f"# {outcome}\n" + apart.join(runs))
    code = "\n\n".join(blocks)
    return f"**{barrier.id}**{version}: {message[:1].upper()}{message[1:]}. {barrier.remedy}.\n\n```python\n{code}\n```"


def options(doc: RuleDoc) -> tuple[str, ...]:
    """The keys of the configuration that change what a rule reports."""
    entries = [entry for name in registry.frameworks() for entry in registry.catalogue(name).barriers.values()]
    keys = {
        "heat": doc.frequency == "every step",
        "step-functions": doc.frequency == "every step",
        "torch-version": any(entry.code == doc.code and entry.until_torch is not None for entry in entries),
        "barriers": doc.code == "GS699",
        "baseline": doc.code == "GS905",
        "per-file-ignores": True,
    }
    return tuple(key for key, applies in keys.items() if applies)


def _sections(doc: RuleDoc) -> tuple[tuple[str, str, bool], ...]:
    """For each section, its title, its body, and whether the body is code."""
    return (
        ("What it does", doc.summary, False),
        ("Why is this bad", doc.why, False),
        ("Example", doc.example, True),
        ("Use instead", doc.use_instead, True),
        ("Fix safety", doc.fix_safety, False),
        ("Options", "\n".join(f"- `{key}`: {_OPTIONS[key]}" for key in options(doc)), False),
        ("When to ignore", doc.ignore_when, False),
    )


def _prose(text: str) -> str:
    """A paragraph or a list as indented text."""
    if text.startswith("- "):
        return "\n".join(
            textwrap.fill(item, WIDTH, initial_indent="  ", subsequent_indent="    ") for item in text.splitlines()
        )
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent="  ", subsequent_indent="  ")


def _markdown_prose(text: str) -> str:
    return text if text.startswith("- ") else " ".join(text.split())


def _code(code: str) -> str:
    return textwrap.indent(code.strip("\n"), "    ")
