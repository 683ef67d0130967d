"""One run of the linter: scheduling, worker processes, cache."""
