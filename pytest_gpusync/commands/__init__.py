"""The ``gpusync`` command and its subcommands that run programs."""
