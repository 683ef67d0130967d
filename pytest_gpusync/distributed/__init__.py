"""Runs of several ranks: exchanging measurements, and noticing a rank that died."""
