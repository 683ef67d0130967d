"""The pages of rules, as ``gpusync rule`` prints them and as the files of docs/rules."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from gpusync_lint.accept import rules
from gpusync_lint.catalogue import registry

if TYPE_CHECKING:
    from gpusync_lint.catalogue.schema import Barrier, RuleDoc

WIDTH = 100
"""The line length of prose."""


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
    """The page of a rule as Markdown, without the heading."""
    sections = (
        f"**{title}**\n\n" + (f"```python\n{body.strip(chr(10))}\n```" if code else " ".join(body.split()))
        for title, body, code in _sections(doc)
    )
    return "\n\n".join(sections) + "\n"


def page(doc: RuleDoc) -> str:
    """The file of a rule in docs/rules: its page and the examples of the catalogues."""
    entries = [
        barrier
        for framework in sorted(registry.frameworks(), key=lambda name: (name != "torch", name))
        for barrier in registry.catalogue(framework).barriers.values()
        if barrier.code == doc.code and (barrier.waits or barrier.silent)
    ]
    parts = [f"# {doc.code} {doc.name}", markdown(doc).rstrip("\n")]
    if entries:
        parts.append("## Barriers with this code")
        parts += [_entry(barrier) for barrier in entries]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """The list of all rules, docs/rules/README.md."""
    rows = [f"| [{code}]({code}.md) | {doc.name} | {doc.summary} |" for code, doc in docs().items()]
    return "\n".join(["# Rules", "", "| code | name | finds |", "|---|---|---|", *rows]) + "\n"


def _entry(barrier: Barrier) -> str:
    until = barrier.until_torch
    version = f" (before torch {until[0]}.{until[1]})" if until is not None else ""
    message = barrier.message.replace("`{call}`", "the call")
    lines = [f"**{barrier.id}**{version}: {message[:1].upper()}{message[1:]}. {barrier.remedy}.", ""]
    for outcome, examples in (("waits", barrier.waits), ("not reported", barrier.silent)):
        runs = list(dict.fromkeys(example.run.strip("\n") for example in examples))
        short = ", ".join(f"`` {run} ``" if "`" in run else f"`{run}`" for run in runs if "\n" not in run)
        if short:
            lines.append(f"- {outcome}: {short}")
        for run in runs:
            if "\n" in run:
                block = textwrap.indent(f"```text\n{run}\n```", "  ")
                lines.append(f"- {outcome}:\n\n{block}\n")
    return "\n".join(lines).rstrip("\n")


def _sections(doc: RuleDoc) -> tuple[tuple[str, str, bool], ...]:
    """For each section, its title, its body, and whether the body is code."""
    return (
        ("What it does", doc.summary, False),
        ("Why it matters", doc.why, False),
        ("Example", doc.example, True),
        ("Use instead", doc.use_instead, True),
        ("Fix safety", doc.fix_safety, False),
        ("When to ignore it", doc.ignore_when, False),
    )


def _prose(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent="  ", subsequent_indent="  ")


def _code(code: str) -> str:
    return textwrap.indent(code.strip("\n"), "    ")
