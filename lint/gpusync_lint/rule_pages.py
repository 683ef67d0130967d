"""The rules by code: their names, the pages that ``gpusync rule`` prints, and the same as files of docs/rules."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from gpusync_lint.accept import rules
from gpusync_lint.catalogue import registry

if TYPE_CHECKING:
    from gpusync_lint.catalogue.schema import Barrier, RuleDoc

WIDTH = 100
"""Columns of a page's prose."""


def docs() -> dict[str, RuleDoc]:
    """Every rule's documentation by code, in order: those of the catalogues and those about what is accepted."""
    found = dict(rules.RULES)
    for framework in registry.frameworks():
        found.update(registry.catalogue(framework).rules)
    return dict(sorted(found.items()))


def render(doc: RuleDoc) -> str:
    """A rule's page as text, ending in a newline."""
    sections = (f"{title}\n{_code(body) if code else _prose(body)}" for title, body, code in _sections(doc))
    return "\n\n".join([f"{doc.code} {doc.name}", *sections]) + "\n"


def markdown(doc: RuleDoc) -> str:
    """The same page as Markdown, without its heading."""
    sections = (
        f"**{title}**\n\n" + (f"```python\n{body.strip(chr(10))}\n```" if code else " ".join(body.split()))
        for title, body, code in _sections(doc)
    )
    return "\n\n".join(sections) + "\n"


def page(doc: RuleDoc) -> str:
    """The file of a rule in docs/rules: its page, and the catalogue's examples of what waits and what does not."""
    entries = [
        barrier
        for framework in sorted(registry.frameworks(), key=lambda name: (name != "torch", name))
        for barrier in registry.catalogue(framework).barriers.values()
        if barrier.code == doc.code and (barrier.waits or barrier.silent)
    ]
    parts = [f"# {doc.code} {doc.name}", markdown(doc).rstrip("\n")]
    if entries:
        parts.append("## What the catalogue knows")
        parts += [_entry(barrier) for barrier in entries]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """The file that lists all rules."""
    rows = [f"| [{code}]({code}.md) | {doc.name} | {doc.summary} |" for code, doc in docs().items()]
    return "\n".join(["# Rules", "", "| code | name | finds |", "|---|---|---|", *rows]) + "\n"


def _entry(barrier: Barrier) -> str:
    until = barrier.until_torch
    version = f" (before torch {until[0]}.{until[1]})" if until is not None else ""
    message = barrier.message.replace("`{call}`", "the call")
    lines = [f"**{barrier.id}**{version}: {message[:1].upper()}{message[1:]}. {barrier.remedy}.", ""]
    for said, examples in (("waits", barrier.waits), ("not reported", barrier.silent)):
        runs = list(dict.fromkeys(example.run.strip("\n") for example in examples))
        short = ", ".join(f"`` {run} ``" if "`" in run else f"`{run}`" for run in runs if "\n" not in run)
        if short:
            lines.append(f"- {said}: {short}")
        for run in runs:
            if "\n" in run:
                block = textwrap.indent(f"```text\n{run}\n```", "  ")
                lines.append(f"- {said}:\n\n{block}\n")
    return "\n".join(lines).rstrip("\n")


def _sections(doc: RuleDoc) -> tuple[tuple[str, str, bool], ...]:
    """Title, body, and whether the body is code."""
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
