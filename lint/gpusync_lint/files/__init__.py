"""Finding, reading and writing source files and notebooks."""
