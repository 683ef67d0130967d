"""Callbacks that hold a training run of somebody else's loop to a budget; each module needs its framework."""
