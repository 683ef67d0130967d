"""The rules by code: their names, and the pages that ``gpusync rule`` prints."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

WIDTH = 100


@dataclass(frozen=True, slots=True)
class RulePage:
    """What a person should know of one rule, in the order in which it is printed."""

    code: str
    name: str
    what: str
    """What it finds."""
    why: str
    """Why it waits and what that costs, measured."""
    example: str
    """Code that waits."""
    instead: str
    """Code that does not."""
    fix: str
    """Whether there is a fix, and whether it is safe."""
    allow: str
    """When the wait does not matter."""


def pages() -> dict[str, RulePage]:
    """The page of every rule, in the order of the codes."""
    from gpusync_lint import suppression_pages

    return {page.code: page for page in suppression_pages.PAGES}


def names() -> dict[str, str]:
    """Every code and its rule name, in the order of the codes."""
    from gpusync_lint import suppressions

    return dict(sorted(suppressions.NAMES.items()))


def render(page: RulePage) -> str:
    """A page as text, ending in a newline."""
    sections = (
        ("What it does", _wrap(page.what)),
        ("Why it matters", _wrap(page.why)),
        ("Example", _code(page.example)),
        ("Use instead", _code(page.instead)),
        ("Fix", _wrap(page.fix)),
        ("When to allow it", _wrap(page.allow)),
    )
    return "\n\n".join([f"{page.code} {page.name}", *(f"{title}\n{body}" for title, body in sections)]) + "\n"


def _wrap(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent="  ", subsequent_indent="  ")


def _code(code: str) -> str:
    return textwrap.indent(code.strip("\n"), "    ")
