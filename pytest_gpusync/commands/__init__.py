"""The ``gpusync`` command and the subcommands that run programs."""
