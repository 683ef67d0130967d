"""The machine: GPUs, NVML, native memory, and hooks into the import system."""
