"""Write the files of docs/rules anew from the linter's catalogues.

usage: python docs/write_rule_pages.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "lint"))

from gpusync_lint import rule_pages

FOLDER = ROOT / "docs" / "rules"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    pages = {f"{code}.md": rule_pages.page(doc) for code, doc in rule_pages.docs().items()}
    pages["README.md"] = rule_pages.index()
    for old in FOLDER.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
