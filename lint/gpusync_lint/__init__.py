"""The linter of pytest-gpusync: finds calls that make the host wait for the GPU on every step.

It reads source and never runs it; it imports neither torch nor pytest, and libcst only for a fix that keeps a layout.
"""

from gpusync_lint._version import __version__

__all__ = ["__version__"]
