"""The rules by code: their names, and the pages that ``gpusync rule`` prints."""

from __future__ import annotations

from gpusync_lint import suppressions


def names() -> dict[str, str]:
    """Every code and its rule name, in the order of the codes."""
    return dict(sorted(suppressions.NAMES.items()))
