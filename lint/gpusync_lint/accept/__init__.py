"""Findings that a comment or a baseline accepts, and what runs measured at their lines."""
