"""The transfer functions: the effect of each kind of syntax on the state of a run. Importing this fills the tables."""

from gpusync_lint.inference.transfer import (
    assignments,
    calls,
    containers,
    definitions,
    expressions,
    instantiation,
    library_calls,
    loops,
    methods,
    names,
    operators,
    statements,
    tensor_methods,
)

__all__ = [
    "assignments",
    "calls",
    "containers",
    "definitions",
    "expressions",
    "instantiation",
    "library_calls",
    "loops",
    "methods",
    "names",
    "operators",
    "statements",
    "tensor_methods",
]
