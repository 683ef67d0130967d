"""Kernels of the CUDA dispatch key, most of which run the CPU's, and the syncs that they make."""
