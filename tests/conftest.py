"""pytester runs real pytest inside tests; pytest takes plugins from the outermost conftest only."""

pytest_plugins = ["pytester"]
