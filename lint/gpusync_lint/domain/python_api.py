"""The standard library, NumPy and experiment trackers: names whose results are known."""

from __future__ import annotations

HOST_MODULES = frozenset(
    {
        "math", "random", "os", "sys", "time", "datetime", "re", "json", "pathlib", "string", "itertools",
        "functools", "collections", "logging", "argparse", "copy", "glob", "shutil", "pickle", "csv",
        "operator", "statistics", "io", "subprocess", "hashlib", "uuid", "tempfile", "socket", "platform",
        "warnings", "gc", "psutil", "requests", "yaml", "timeit",
    }
)  # fmt: skip
"""Modules of the standard library, and three common ones outside of it, whose functions create no tensors."""
ARRAY_MODULES = frozenset(
    {"numpy", "pandas", "scipy", "sklearn", "cv2", "PIL", "matplotlib", "gym", "gymnasium", "h5py"}
)
CLOCKS = frozenset({"time", "perf_counter", "monotonic", "perf_counter_ns", "time_ns", "monotonic_ns"})
"""Functions of the module `time` that read a clock which goes on while the host waits."""
NUMPY_OF_NUMBERS = frozenset(
    {
        "log", "log2", "log10", "log1p", "exp", "expm1", "sqrt", "square", "sin", "cos", "tan", "arctan", "arccos",
        "tanh", "abs", "sign", "floor", "ceil", "round", "power", "clip", "minimum", "maximum", "sum", "mean", "prod",
        "float32", "float64", "int32", "int64",
    }
)  # fmt: skip
"""Functions of NumPy that return a number if their arguments are numbers."""
NUMPY_SEVERAL = frozenset(
    {
        "nonzero", "tril_indices", "tril_indices_from", "triu_indices", "triu_indices_from", "diag_indices",
        "diag_indices_from", "mask_indices", "unravel_index", "ix_", "meshgrid", "split", "array_split", "hsplit",
        "vsplit", "dsplit", "broadcast_arrays",
    }
)  # fmt: skip
"""Functions of NumPy that return a tuple or a list of arrays; `where` with a single argument does as well."""
CONVERSIONS = frozenset(
    {
        "builtins.float", "builtins.int", "builtins.complex", "builtins.bool", "builtins.range", "builtins.hex",
        "builtins.bin", "builtins.oct", "builtins.chr", "builtins.bytes", "builtins.bytearray",
        "itertools.islice", "itertools.repeat", "operator.index", "operator.not_", "operator.truth",
        "random.choices", "random.randint", "random.randrange", "random.sample", "time.sleep",
        "statistics.fmean", "statistics.geometric_mean", "statistics.harmonic_mean", "statistics.median",
        "statistics.median_high", "statistics.median_low", "torch.manual_seed",
    }
)  # fmt: skip
"""Functions that convert the tensors among their arguments to numbers, beside those of `math`."""
TAKE_ITEMS = frozenset({"itertools.islice", "itertools.repeat", "random.choices", "random.sample"})
"""Those of them whose first argument is not read."""
COMPUTED = frozenset({"math.prod"})
"""Functions of `math` that only multiply, which tensors do on the device."""
ORDERING = frozenset(
    {"heapq.heappush", "heapq.heappushpop", "heapq.heapreplace", "heapq.heapify", "heapq.nlargest", "heapq.nsmallest"}
)
"""Functions that compare the elements of a list with each other or with another argument."""
LOGGERS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "exception", "log"})
"""Methods of loggers."""
TRACKERS = frozenset(
    {
        "add_scalar", "add_scalars", "add_histogram", "set_postfix", "log_metric", "log_metrics",
        "log_scalar", "add_image", "add_images", "report_scalar",
    }
)  # fmt: skip
"""Methods of experiment trackers and progress bars that convert their arguments to numbers or text."""
