"""Tensors of the simulated device: labels, memory, streams, generators, graphs."""
