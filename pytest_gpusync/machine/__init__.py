"""The machine: GPUs, drivers, native libraries, and hooks into the import system."""
