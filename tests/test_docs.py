"""The pages of docs/: in the navigation, and with links that lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page):
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.*)$", without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def links(page):
    return LINK.findall(re.sub(r"`[^`\n]*`", "", without_blocks(page)))


def without_blocks(page):
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_every_link_leads_somewhere(page):
    broken = []
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES}
    assert {page for page in pages if not page.startswith("rules/GS")} == listed


GENERATED = runpy.run_path(str(DOCS / "generate.py"))["pages"]()


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_generated_page_is_up_to_date(path):
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    assert written == GENERATED[path], "run python docs/generate.py"


def test_no_page_is_left_of_a_rule_that_is_gone():
    left = {path.name for path in (DOCS / "rules").glob("*.md")} - {path.name for path in GENERATED}
    assert left == set(), "run python docs/generate.py"
