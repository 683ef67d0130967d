"""Configuration from pyproject.toml and the command line."""
