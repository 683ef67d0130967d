"""``python -m pytest_gpusync``: the gpusync command."""

from __future__ import annotations

import sys

from pytest_gpusync.commands.cli import main

sys.exit(main())
