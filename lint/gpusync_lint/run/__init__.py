"""A run of the linter: the engine, scheduling, worker processes, cache, and rounds of fixes."""
