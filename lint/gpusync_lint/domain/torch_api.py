"""What calls into torch and its neighbors give back: tables, no logic. Source: torch's public documentation."""

from __future__ import annotations

import re

FACTORIES = frozenset(
    {
        "zeros", "ones", "full", "empty", "rand", "randn", "randint", "randperm", "arange", "range", "linspace",
        "logspace", "eye", "tensor", "as_tensor", "asarray", "scalar_tensor", "from_numpy", "Tensor",
        "FloatTensor", "LongTensor", "IntTensor", "BoolTensor", "DoubleTensor", "HalfTensor", "ByteTensor",
        "tril_indices", "triu_indices", "hann_window", "hamming_window", "empty_strided", "sparse_coo_tensor",
        "frombuffer",
    }
)  # fmt: skip
"""`torch.X` that makes a tensor: on the host, unless `device=` says otherwise."""

_TYPE_NAME = re.compile(r"torch\.(cuda\.)?(sparse\.)?[A-Z]\w*Tensor")


def tensor_type(dotted: object) -> str:
    """Where `torch.FloatTensor` and its like put a tensor: `cpu` or `cuda`; empty for any other name."""
    found = _TYPE_NAME.fullmatch(dotted) if isinstance(dotted, str) else None
    return "" if found is None else "cuda" if found[1] else "cpu"


MOVABLE_FACTORIES = frozenset({"zeros", "ones", "full", "empty", "eye", "arange"})
"""Factories whose result is the same wherever it is made: no random numbers, no data to copy."""

FROM_DATA = frozenset({"tensor", "as_tensor", "asarray"})
"""Factories that copy what they are given; with `device=` the copy waits."""

HOST_FUNCTIONS = frozenset(
    {
        "is_tensor", "numel", "is_grad_enabled", "equal", "allclose", "is_nonzero", "typename", "manual_seed",
        "seed", "initial_seed", "is_floating_point", "is_complex", "get_num_threads",
        "set_num_threads", "save", "set_grad_enabled", "set_default_dtype", "set_float32_matmul_precision",
        "can_cast", "broadcast_shapes", "set_printoptions", "set_default_device",
        "get_default_device", "use_deterministic_algorithms",
    }
)  # fmt: skip
HOST_METHODS = frozenset(
    {
        "item", "tolist", "size", "dim", "numel", "nelement", "ndimension", "stride", "storage_offset",
        "element_size", "data_ptr", "is_contiguous", "is_floating_point", "is_complex", "get_device", "equal",
        "allclose", "is_nonzero", "is_pinned", "is_shared", "__len__", "untyped_storage", "storage",
        "register_hook", "backward", "retain_grad", "type_as_string", "has_names", "is_set_to", "is_inference",
    }
)  # fmt: skip
HOST_ATTRIBUTES = frozenset(
    {
        "shape", "ndim", "layout", "requires_grad", "is_leaf", "grad_fn", "names", "is_sparse", "is_quantized",
        "is_meta", "itemsize", "nbytes", "is_mps", "is_xpu", "output_nr", "_version", "volatile", "name",
    }
)  # fmt: skip
SAME_TENSOR_ATTRIBUTES = frozenset({"data", "T", "mT", "H", "mH", "grad", "real", "imag", "values", "indices"})

BOOL_PRODUCERS = frozenset(
    {
        "eq", "ne", "gt", "lt", "ge", "le", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "isclose",
        "isin", "signbit", "logical_and", "logical_or", "logical_not", "logical_xor", "greater", "less",
        "greater_equal", "less_equal", "not_equal", "any", "all", "bool", "isreal",
    }
)  # fmt: skip
"""Functions and methods whose result is a boolean tensor."""
KEEPS_BOOL = frozenset(
    {
        "view", "reshape", "squeeze", "unsqueeze", "flatten", "expand", "expand_as", "view_as", "transpose",
        "permute", "t", "contiguous", "clone", "detach", "repeat", "cuda", "flip", "roll", "cpu", "unflatten",
        "tril", "triu", "scatter", "scatter_", "pin_memory", "index_fill_", "index_fill", "masked_fill",
        "masked_fill_", "fill_", "stack", "cat", "reshape_as", "repeat_interleave", "broadcast_to", "ravel",
        "index_select", "gather", "swapaxes", "movedim", "zeros_like", "ones_like", "empty_like", "full_like",
        "new_zeros", "new_ones", "logical_and_", "logical_or_", "scatter_add_", "chunk", "split", "unbind",
        "to",
    }
)  # fmt: skip
"""Of a boolean tensor these make another."""

RESHAPERS = frozenset(
    {
        "view", "reshape", "expand", "repeat", "permute", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose",
        "chunk", "split", "narrow", "roll", "tile", "unfold", "as_strided", "swapaxes", "movedim", "flip", "select",
        "tensor_split", "resize_", "t", "sum", "mean", "size", "stride",
    }
)  # fmt: skip
"""Methods whose arguments are sizes and dimensions: they do not tell where the tensor lies."""

REDUCTIONS = frozenset(
    {
        "sum", "mean", "max", "min", "prod", "std", "var", "norm", "any", "all", "median", "nansum", "nanmean",
        "argmax", "argmin", "logsumexp", "count_nonzero", "amax", "amin", "dist", "trace", "numel", "nanmedian",
        "quantile", "dot",
    }
)  # fmt: skip
"""Without a dimension these give a 0-dim tensor."""
WITH_INDICES = frozenset({"max", "min", "sort", "topk", "kthvalue", "median", "mode", "cummax", "cummin", "nanmedian"})
"""With a dimension (`sort` and `topk` always) these give (values, indices)."""
ALWAYS_WITH_INDICES = frozenset({"sort", "topk", "kthvalue", "mode", "cummax", "cummin"})
SPLITTERS = frozenset({"split", "chunk", "unbind", "tensor_split", "meshgrid", "broadcast_tensors", "cartesian_prod"})
TUPLES = frozenset(
    {"svd", "eigh", "eig", "qr", "slogdet", "lu", "linalg.svd", "lstsq", "std_mean", "var_mean", "aminmax"}
)

ZERO_DIM_LOSSES = frozenset(
    {
        "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
        "binary_cross_entropy", "kl_div", "binary_cross_entropy_with_logits", "ctc_loss",
        "hinge_embedding_loss", "margin_ranking_loss", "triplet_margin_loss", "cosine_embedding_loss",
        "poisson_nll_loss", "gaussian_nll_loss", "multi_margin_loss", "soft_margin_loss",
        "multilabel_margin_loss", "multilabel_soft_margin_loss", "triplet_margin_with_distance_loss",
    }
)  # fmt: skip
TORCH_ONLY_METHODS = frozenset(
    {
        "detach", "unsqueeze", "permute", "requires_grad_", "softmax", "log_softmax", "sigmoid", "relu",
        "expand_as", "detach_", "view_as", "masked_fill", "masked_fill_", "clamp", "clamp_", "clamp_min",
        "clamp_max", "scatter_", "scatter_add_", "gather", "index_select", "index_add_", "logsumexp",
        "contiguous", "zero_", "fill_", "add_", "mul_", "div_", "sub_", "long", "half", "bfloat16", "addmm",
        "matmul", "bmm", "unfold", "type_as", "narrow", "masked_select", "index_copy_", "normal_", "uniform_",
        "bernoulli_", "random_", "exponential_", "retain_grad",
    }
)  # fmt: skip
"""Methods that numpy and pandas do not have: whoever has them is a tensor (or a distribution's relative)."""

MODULE_FUNCTIONS = frozenset(
    {
        "DataParallel",
        "DistributedDataParallel",
        "compile",
        "FullyShardedDataParallel",
        "script",
        "convert_sync_batchnorm",
    }
)
"""Called with a module they give one back that does the same."""
PARTS = {"encoder": "torch.nn.TransformerEncoder", "decoder": "torch.nn.TransformerDecoder"}
"""What classes derived from `torch.nn.Transformer` inherit."""
MODULE_EVIDENCE = frozenset({"parameters", "named_parameters", "eval", "train", "modules", "named_modules"})
"""Methods that show their receiver to be a module."""

ENGINES = ("Accelerator()", "Fabric()")
"""What stands for the objects of Accelerate and Lightning that prepare models and loaders for the device."""
ENGINE_PREPARES = frozenset(
    {
        "prepare", "prepare_model", "prepare_data_loader", "prepare_optimizer", "setup", "setup_dataloaders",
        "setup_module", "setup_optimizers",
    }
)  # fmt: skip
ENGINE_KEEPS = frozenset({"unwrap_model", "skip_first_batches", "free_memory"})
ENGINE_GATHERS = frozenset(
    {"gather", "gather_for_metrics", "reduce", "pad_across_processes", "all_gather", "all_reduce", "to_device"}
)
"""They give back what they were given, from all processes, on the device."""

HOST_MODULES = frozenset(
    {
        "math", "random", "os", "sys", "time", "datetime", "re", "json", "pathlib", "string", "itertools",
        "functools", "collections", "logging", "argparse", "copy", "glob", "shutil", "pickle", "csv",
        "operator", "statistics", "io", "subprocess", "hashlib", "uuid", "tempfile", "socket", "platform",
        "warnings", "gc", "psutil", "requests", "yaml",
    }
)  # fmt: skip
"""Standard modules, and two common ones, that never give back a tensor of their own."""
ARRAY_MODULES = frozenset(
    {"numpy", "pandas", "scipy", "sklearn", "cv2", "PIL", "matplotlib", "gym", "gymnasium", "h5py"}
)
NUMPY_OF_NUMBERS = frozenset(
    {
        "log", "log2", "log10", "log1p", "exp", "expm1", "sqrt", "square", "sin", "cos", "tan", "arctan", "arccos",
        "tanh", "abs", "sign", "floor", "ceil", "round", "power", "clip", "minimum", "maximum", "sum", "mean", "prod",
        "float32", "float64", "int32", "int64",
    }
)  # fmt: skip
"""Functions of numpy that give a number for numbers."""
PRESENCE = frozenset(
    {
        "torch.cuda.is_available", "torch.accelerator.is_available", "torch.cuda.device_count",
        "torch.xpu.is_available", "torch.cuda.is_bf16_supported", "torch.accelerator.device_count",
    }
)  # fmt: skip
"""True, or positive, where there is a GPU."""
ABSENCE = frozenset({"torch.backends.mps.is_available", "torch.backends.mps.is_built", "torch.xpu.is_available"})
"""Asked for machines of another kind; on a machine with a CUDA GPU they are False."""
LOGGERS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "exception", "log"})

TENSOR_FUNCTIONS = frozenset(
    {
        "cat", "stack", "exp", "log", "sqrt", "mean", "sum", "max", "min", "argmax", "argmin", "where", "abs",
        "sigmoid", "tanh", "norm", "mm", "einsum", "isnan", "isinf", "any", "all", "topk", "sort", "eq", "ne",
        "gt", "lt", "ge", "le", "zeros_like", "ones_like", "rand_like", "randn_like", "full_like", "empty_like",
        "unique", "nonzero", "flatten", "multinomial", "cumsum", "logical_and", "logical_or", "logical_not",
        "isfinite", "square", "pow", "sign", "clip",
    }
)  # fmt: skip
"""Functions of torch that give back a tensor whatever is known of their arguments."""

TRACKERS = frozenset(
    {
        "add_scalar", "add_scalars", "add_histogram", "set_postfix", "log_metric", "log_metrics",
        "log_scalar", "add_image", "add_images", "report_scalar",
    }
)  # fmt: skip
"""Methods of experiment trackers and progress bars, which make numbers or text of what they are given."""
