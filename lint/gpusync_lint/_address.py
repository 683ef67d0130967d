"""Where the project is on the web. docs/generate.py writes this file from [project.urls] in pyproject.toml."""

SOURCE = "https://example.com/OWNER/pytest-gpusync"
DOCUMENTATION = "https://example.com/OWNER/pytest-gpusync/docs/"
