"""The rules by code: their names, and the pages that ``gpusync rule`` prints."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from gpusync_lint import catalogue, suppression_rules

if TYPE_CHECKING:
    from gpusync_lint.catalogue import RuleDoc

WIDTH = 100
"""Columns of a page's prose."""


def names() -> dict[str, str]:
    """Every code and its rule name, in the order of the codes."""
    return {code: doc.name for code, doc in docs().items()}


def docs() -> dict[str, RuleDoc]:
    """Every rule's documentation by code, in order: those of the catalogues and those about what is accepted."""
    found = dict(suppression_rules.RULES)
    for framework in catalogue.frameworks():
        found.update(catalogue.load(framework).rules)
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
