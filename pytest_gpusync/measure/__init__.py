"""Measured regions: open one, record its syncs, steps, phases and memory, get a measurement."""
