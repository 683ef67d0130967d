"""Elapsed times on a real GPU: steps, comparisons, decompositions, and the cost of each wait."""
