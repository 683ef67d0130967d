"""The pages of docs/: in the navigation, and with links that lead somewhere."""

from __future__ import annotations

import re
import runpy
import subprocess
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
    "page",
    [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "skills" / "gpusync" / "SKILL.md"],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
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
    listed = set(re.findall(r"^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES}
    assert pages == listed


GENERATE = runpy.run_path(str(DOCS / "generate.py"))
GENERATED = GENERATE["pages"]()


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_generated_page_is_up_to_date(path):
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    assert written == GENERATED[path], "run python docs/generate.py"


def test_no_page_is_left_of_a_rule_that_is_gone():
    left = {path.name for path in (DOCS / "rules").glob("*.md")} - {path.name for path in GENERATED}
    assert left == set(), "run python docs/generate.py"


def test_the_address_of_the_repository_stands_in_one_place():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is not a checkout of the repository")
    texts = {name: ROOT / name for name in listed.stdout.splitlines() if not name.startswith("benchmarks/results/")}
    holders = {
        name
        for name, path in texts.items()
        if path.suffix in {".md", ".yml", ".yaml", ".toml", ".py", ".sh"}
        and any(GENERATE[pattern].search(path.read_text(encoding="utf-8")) for pattern in ("_ADDRESS", "_ACTION"))
    }
    written = {path.relative_to(ROOT).as_posix() for path in GENERATE["generated"]()}
    assert holders - {"pyproject.toml"} - written | {"mkdocs.yml", "docs/linter.md"} == set(GENERATE["ADDRESSED"])


def test_links_of_the_package_index_lead_to_the_site_and_the_repository():
    urls = {"Documentation": "https://site/", "Source": "https://host/project"}
    made = runpy.run_path(str(ROOT / "hatch_build.py"))["with_absolute_links"]
    text = (
        "[a](docs/linter.md#codes) ![b](docs/waits.svg) [c](docs/rules/README.md) [d](LICENSE) [e](https://x/) [f](#g)"
    )
    assert made(text, urls) == (
        "[a](https://site/linter/#codes) ![b](https://site/waits.svg) [c](https://site/rules/) "
        "[d](https://host/project/blob/HEAD/LICENSE) [e](https://x/) [f](#g)"
    )
    readme = made((ROOT / "README.md").read_text(encoding="utf-8"), urls)
    assert [link for link in LINK.findall(readme) if not link.startswith(("https://", "#"))] == []


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "index.md"], ids=lambda page: page.name)
def test_the_text_of_the_picture_has_the_times_that_it_shows(page):
    text = re.search(r"!\[([^\]]*)\]\((?:docs/)?waits\.svg\)", page.read_text(encoding="utf-8"))[1]
    shown = re.findall(r">([\d.]+ ms)<", (DOCS / "waits.svg").read_text(encoding="utf-8"))
    assert re.findall(r"[\d.]+ ms", text) == shown
