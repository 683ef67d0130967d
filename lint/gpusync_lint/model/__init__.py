"""Findings and what they are made of: plain data."""
