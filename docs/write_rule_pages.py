"""Write the files of docs/rules anew from the linter's catalogues.

usage: python docs/write_rule_pages.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Write a page for every rule and a list of them, and delete the pages of rules that are gone."""
    sys.path.insert(0, str(ROOT / "lint"))
    from gpusync_lint import rule_pages

    folder = ROOT / "docs" / "rules"
    folder.mkdir(exist_ok=True)
    pages = {f"{code}.md": rule_pages.page(doc) for code, doc in rule_pages.docs().items()}
    pages["README.md"] = rule_pages.index()
    for old in folder.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
