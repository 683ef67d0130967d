"""HTML from the Jinja templates in ``page/``. Every text that they insert is escaped, for HTML and for terminals."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpusync_lint.escaping import escaped

from pytest_gpusync.reporting.by_device import device_label
from pytest_gpusync.reporting.page_model import format_number, text_and_code
from pytest_gpusync.reporting.terminal import plural

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER: Final = Path(__file__).parent / "page"


def fill(name: str, **context: Any) -> str:
    """Return a template, filled in."""
    return _environment().get_template(name).render(context).strip() + "\n"


def asset(name: str) -> Any:
    """Return a file of ours, such as the style sheet, as text that is not escaped."""
    from markupsafe import Markup

    return Markup((_FOLDER / name).read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def page_assets() -> dict[str, Any]:
    """Return the style sheet and the script of a page, and the policy that permits nothing but these two."""
    style, script = asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    return {"style": style, "script": script, "policy": policy}


def _hash(content: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def shown(value: Any) -> Any:
        return escaped(value) if type(value) is str else value  # not Markup, which is escaped already

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=_percent,
        number=format_number,
        plural=plural,
        text_and_code=text_and_code,
        id=id,
        device_label=device_label,
    )
    return environment


def _percent(share: float) -> str:
    """Return a share as a length of SVG."""
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"
