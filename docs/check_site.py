"""Check the built site: links, anchors, one title and one heading for each page, and the links of README.md to it.

usage: python docs/check_site.py [FOLDER]     (default: build/site)

It reads files only. Links to other hosts are not followed.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    address: str
    links: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    headings: int = 0
    title: str = ""
    images_without_text: int = 0

    def __post_init__(self) -> None:
        """Set up the parser."""
        super().__init__()
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        values = dict(attrs)
        self.ids.update(value for key in ("id", "name") if (value := values.get(key)))
        link = values.get("src") if tag in ("img", "script") else values.get("href")
        if link and tag in ("a", "img", "script", "link"):
            self.links.append(urljoin(self.address, link))
        self.headings += tag == "h1"
        self.images_without_text += tag == "img" and not values.get("alt")
        self._in_title = tag == "title" and not self.title

    def handle_data(self, data: str) -> None:
        """See HTMLParser."""
        if self._in_title:
            self.title, self._in_title = data.strip(), False


def problems(folder: Path, urls: dict[str, str]) -> list[str]:
    """Return a line for each problem of the site in `folder`.

    Args:
        folder: the built site.
        urls: `[project.urls]` of pyproject.toml.
    """
    site = urls["Documentation"]
    pages: dict[str, Page] = {}
    for path in sorted(folder.rglob("*.html")):
        name = path.relative_to(folder).as_posix()
        if name != "404.html":
            address = site + name.removesuffix("index.html")
            pages[address] = page = Page(address)
            page.feed(path.read_text(encoding="utf-8"))
    titles = Counter(page.title for page in pages.values())
    found = [] if pages else [f"{folder} has no pages: zensical build"]
    for address, page in pages.items():
        if page.headings != 1:
            found.append(f"{address}: {page.headings} headings of the first level")
        if not page.title or titles[page.title] > 1:
            found.append(f"{address}: the title {page.title!r} is empty, or that of another page too")
        if page.images_without_text:
            found.append(f"{address}: {page.images_without_text} images without a text")
        found += [
            f"{address}: {problem}" for link in page.links if (problem := _problem(link, site, folder, pages, urls))
        ]
    readme = runpy.run_path(str(ROOT / "hatch_build.py"))["with_absolute_links"](
        (ROOT / "README.md").read_text(encoding="utf-8"), urls
    )
    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    found += [f"README.md: {problem}" for link in links if (problem := _problem(link, site, folder, pages, urls))]
    return list(dict.fromkeys(found))


def _problem(link: str, site: str, folder: Path, pages: dict[str, Page], urls: dict[str, str]) -> str | None:
    """Say what is wrong with a link; None if nothing is, or if it leads to another host."""
    address, _, anchor = link.partition("#")
    edited = f"{urls['Source']}/edit/HEAD/"
    if address.startswith(edited):
        return None if (ROOT / unquote(address.removeprefix(edited))).is_file() else f"no file for the edit link {link}"
    blob = f"{urls['Source']}/blob/HEAD/"
    if address.startswith(blob):
        return None if (ROOT / unquote(address.removeprefix(blob))).exists() else f"no file for {link}"
    if not address.startswith(site):
        return None if urlsplit(address).scheme in ("http", "https", "mailto") else f"strange link {link}"
    if address in pages:
        return f"no anchor for {link}" if anchor and unquote(anchor) not in pages[address].ids else None
    return None if (folder / unquote(urlsplit(address[len(site) :]).path)).is_file() else f"nothing at {link}"


def main() -> int:
    """Print the problems; 1 if there are any."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    urls = runpy.run_path(str(ROOT / "docs" / "generate.py"))["urls"]()
    found = problems(folder, urls)
    print("\n".join(found) or f"{len(list(folder.rglob('*.html')))} pages, no problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
