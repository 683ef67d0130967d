"""Configuration, and which findings it selects."""
