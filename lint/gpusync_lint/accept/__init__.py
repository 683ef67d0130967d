"""Accepted findings: allow comments, baselines, and findings that a run confirmed or refuted."""
