"""Plain data and pure functions: measurements, budgets, estimates. Imports neither torch nor pytest."""
