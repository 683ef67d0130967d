"""Plain data shared by all parts of the linter: findings, levels, keys."""
