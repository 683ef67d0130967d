"""How often the kernels of an operator wait, where that depends on the sizes, types or layouts of its arguments.

Measured on an NVIDIA H100 (torch 2.11, CUDA 13.0): benchmarks/results/2026-11-23-simulated-beside-h100. The numbers of
cuSOLVER's iterative methods depend on the values as well; these are about the least.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch

Count = Callable[[Sequence[Any], Mapping[str, Any]], int]

_BATCHED_UP_TO = 32
"""The most rows and columns of matrices that cuSOLVER decomposes in one batch."""
_JACOBI = range(32, 513)
"""The sizes of a single matrix of float32 whose eigenvalues cuSOLVER finds by Jacobi's method."""
_SMALL = 64
"""The most rows of a matrix whose eigenvalues are found without the method for large matrices."""


def _matrices(x: torch.Tensor) -> int:
    return prod(x.shape[:-2])


def _sweeps(length: int) -> int:
    """The waits of Jacobi's method for one matrix: they grow with the logarithm of its size."""
    return length.bit_length() + 2


def svd(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    """The waits of a singular value decomposition."""
    x = arguments[0]
    if max(x.shape[-2:]) <= _BATCHED_UP_TO:
        return 2
    is_square: bool = x.shape[-2] == x.shape[-1]  # others become square by a QR decomposition, after which it is faster
    return 2 + _matrices(x) * (_sweeps(min(x.shape[-2:])) + is_square)


def eigh(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    """The waits of the eigenvalues of symmetric matrices."""
    x = arguments[0]
    length: int = x.shape[-1]
    matrices = _matrices(x)
    if matrices > 1 and length <= _BATCHED_UP_TO:
        return 1
    if x.dtype is torch.float32 and length in _JACOBI:
        each = _sweeps(length)
    else:
        with_vectors = arguments[2] if len(arguments) > 2 else keywords.get("compute_v", True)
        each = 3 if length >= _JACOBI.stop and with_vectors else min(length, 2) - 1
    return 1 + matrices * each


def eig(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    """The waits of the eigenvalues and eigenvectors of any matrices."""
    x = arguments[0]
    return 4 + 24 * _matrices(x) if x.shape[-1] <= _SMALL else 102 * _matrices(x)


def eigenvalues(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    """The waits of the eigenvalues of any matrices."""
    x = arguments[0]
    return 4 + 18 * _matrices(x) if x.shape[-1] <= _SMALL else 102 * _matrices(x)


_FROM_STRIDED = {torch.sparse_csr: 2, torch.sparse_csc: 2, torch.sparse_bsr: 2, torch.sparse_bsc: 2}
_FROM_SPARSE = {
    (torch.sparse_coo, torch.sparse_csc): 5,
    (torch.sparse_coo, torch.sparse_bsr): 6,
    (torch.sparse_coo, torch.sparse_bsc): 11,
    (torch.sparse_csr, torch.sparse_csc): 1,
    (torch.sparse_csr, torch.sparse_bsr): 6,
    (torch.sparse_csr, torch.sparse_bsc): 7,
    (torch.sparse_csc, torch.sparse_csr): 1,
    (torch.sparse_csc, torch.sparse_bsr): 7,
    (torch.sparse_csc, torch.sparse_bsc): 6,
    (torch.sparse_bsr, torch.sparse_bsc): 1,
    (torch.sparse_bsc, torch.sparse_bsr): 1,
    (torch.sparse_bsr, torch.sparse_coo): 1,
    (torch.sparse_bsc, torch.sparse_coo): 1,
}
"""By the layout before and after. Of the others, all that torch supports were measured, and do not wait."""


def _converted(x: torch.Tensor, layout: torch.layout, dense_dim: int) -> int:
    """The waits of a conversion; a batch of matrices, whose numbers of elements have to agree, makes one more."""
    if x.layout is torch.strided:
        return _FROM_STRIDED[layout] + (x.dim() - dense_dim > 2)
    return _FROM_SPARSE.get((x.layout, layout), 0)


def to_sparse(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    """The waits of `to_sparse`, to any layout."""
    x = arguments[0]
    layout = keywords.get("layout") or torch.sparse_coo
    if layout is not torch.sparse_coo or x.layout is not torch.strided:
        return _converted(x, layout, keywords.get("dense_dim") or 0)
    dims = arguments[1] if len(arguments) > 1 else keywords.get("sparse_dim", x.dim())
    return 1 if dims == x.dim() else 4  # elements that are no numbers


def to_compressed(layout: torch.layout) -> Count:
    """The waits of `to_sparse_csr` and its like."""
    of_blocks = layout in (torch.sparse_bsr, torch.sparse_bsc)

    def count(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> int:
        at = 2 if of_blocks else 1
        dense_dim = arguments[at] if len(arguments) > at else keywords.get("dense_dim")
        return _converted(arguments[0], layout, dense_dim or 0)

    return count


def sparse_product(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    """The waits of a product: it coalesces what is not, and converts columns to rows, or rows to columns.

    The matrices are the last two tensors; before them, `addmm` has another.
    """
    left, right = [value for value in arguments if isinstance(value, torch.Tensor)][-2:]
    layouts = [left.layout, right.layout]
    if torch.strided not in layouts:
        return 7 if torch.sparse_coo in layouts else 6 + layouts.count(torch.sparse_csc)
    if any(value.layout is torch.sparse_coo and not value.is_coalesced() for value in (left, right)):
        return 5
    return int(left.layout is torch.sparse_csc or right.layout is torch.sparse_csr)


COUNTS: Mapping[str, Count] = {
    "svd": svd,
    "eigh": eigh,
    "eig": eig,
    "eigenvalues": eigenvalues,
    "to_sparse": to_sparse,
    "to_sparse_csr": to_compressed(torch.sparse_csr),
    "to_sparse_csc": to_compressed(torch.sparse_csc),
    "to_sparse_bsr": to_compressed(torch.sparse_bsr),
    "to_sparse_bsc": to_compressed(torch.sparse_bsc),
    "sparse_product": sparse_product,
}
"""The functions that `counted_by` of an entry in ``calibration.toml`` names."""
