"""The machine: GPUs, drivers, native memory, and hooks into the import system."""
