"""Elapsed times on a real GPU: of steps, of two functions compared, of the parts of a step, and of each wait."""
