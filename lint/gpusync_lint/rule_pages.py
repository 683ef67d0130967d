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
    """Every rule's documentation by code, in order: those of the catalogues and those about allow comments."""
    found = dict(suppression_rules.RULES)
    for framework in catalogue.frameworks():
        found.update(catalogue.load(framework).rules)
    return dict(sorted(found.items()))


def render(doc: RuleDoc) -> str:
    """A rule's page as text, ending in a newline."""
    sections = (
        ("What it does", _prose(doc.summary)),
        ("Why it matters", _prose(doc.why)),
        ("Example", _code(doc.example)),
        ("Use instead", _code(doc.use_instead)),
        ("Fix safety", _prose(doc.fix_safety)),
        ("When to ignore it", _prose(doc.ignore_when)),
    )
    return "\n\n".join([f"{doc.code} {doc.name}", *(f"{title}\n{body}" for title, body in sections)]) + "\n"


def _prose(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent="  ", subsequent_indent="  ")


def _code(code: str) -> str:
    return textwrap.indent(code.strip("\n"), "    ")
