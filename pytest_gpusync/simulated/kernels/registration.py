"""Registers the kernels of the CUDA dispatch key, once per process.

A fallback alone is not enough: torch prefers an operator's composite kernel to it, which calls other kernels than a GPU
does. So every operator with a CPU kernel gets a CUDA kernel of its own. On a CUDA build, every operator with a CUDA
kernel does too, since nothing that calls the driver may remain reachable. Kernels refuse while the device is off.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from pytest_gpusync.simulated.kernels import (
    batch_norm,
    cpu_backed,
    handwritten,
    nested,
    neural,
    sparse,
    torchvision_ops,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_COMPOSITES = frozenset(
    {
        "aten::_convolution",
        "aten::convolution_backward",
        "aten::clone",
        "aten::fill_.Scalar",
        "aten::zero_",
        "aten::zeros_like",
        "aten::ones_like",
        "aten::full_like",
        "aten::empty_like",
    }
)
"""Composite operators registered as a whole: their parts would need kernels that exist only for cuda, or be slower."""

_SPARSE_KEYS = {"SparseCUDA": "SparseCPU", "SparseCsrCUDA": "SparseCsrCPU"}

_libraries: list[torch.library.Library] = []
"""Kernels live as long as the library that registered them."""
_by_namespace: dict[str, torch.library.Library] = {}
_known: set[str] = set()
derived: set[str] = set()
"""Operators whose kernel was derived from their schema."""


def register() -> None:
    """Register the kernels; the second time, those of operators added since."""
    if _libraries:
        register_late()
        return
    try:
        _register_all()
    except BaseException:
        # Nothing half registered remains: the next call begins anew.
        for library in _libraries:
            library._destroy()
        for names in (_libraries, _by_namespace, _known, derived):
            names.clear()
        raise


def _register_all() -> None:
    with warnings.catch_warnings():
        # torch warns about each kernel that replaces another, which is intended here.
        warnings.simplefilter("ignore")
        everything = torch.library.Library("_", "IMPL")
        _libraries.append(everything)
        everything.fallback(cpu_backed.fallback, "CUDA")
        cpu_backed.replacements.update(neural.replacements())
        cpu_backed.replacements.update(batch_norm.replacements())
        cpu_backed.replacements["aten::_efficientzerotensor"] = handwritten.zero_tensor
        for name, kernel in handwritten.kernels().items():
            _implement(f"aten::{name}", kernel)
        for name in nested.MAKERS:
            _implement(f"aten::{name}", nested.maker_for(overload(f"aten::{name}")))
        for key in ("AutogradCUDA", "CUDA"):
            _implement("aten::scaled_dot_product_attention", neural.scaled_dot_product_attention, key)
        _register_derived(_operators("CPU"))
        _register_derived(_operators("CUDA"))
        _register_derived(
            name
            for name in _operators("CompositeExplicitAutograd")
            if name in _COMPOSITES or name.startswith("aten::_foreach")
        )
        for key, host_key in _SPARSE_KEYS.items():
            for name in {*_operators(host_key), *_operators(key)}:
                op = overload(name)
                if name.startswith("aten::") and op is not None:
                    _implement(name, sparse.kernel_for(op, key), key)
        on_host = set(_operators("NestedTensorCPU")) - nested.ONLY_ON_HOST
        for name in {*_operators("NestedTensorCUDA"), *on_host}:
            op = overload(name)
            if name.startswith("aten::") and op is not None:
                kernel = nested.kernel_for(op) if name in on_host else _refusal(name, "nested")
                _implement(name, kernel, "NestedTensorCUDA")
        for name in {*_operators("QuantizedCUDA"), *_operators("QuantizedCPU")}:
            if name.startswith("aten::"):
                _implement(name, _refusal(name, "quantized"), "QuantizedCUDA")


def register_late() -> None:
    """Register kernels for the CUDA operators of extensions loaded since then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _register_derived(_operators("CUDA"))


def loading(load_library: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``torch.ops.load_library``, followed by :func:`register_late`; torchvision's library may fail to load."""

    def load(path: Any) -> Any:
        try:
            result = load_library(path)
        except OSError:
            if not torchvision_ops.stand_in(path):
                raise
            result = None
        register_late()
        return result

    return load


def known() -> Iterable[str]:
    """Return the operators that have a kernel here."""
    return sorted(_known)


def _operators(key: str) -> list[str]:
    names: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return names


def _register_derived(names: Iterable[str]) -> None:
    for name in names:
        if name in _known:
            continue
        op = overload(name)
        if op is not None:
            _implement(name, cpu_backed.kernel_for(op))
            derived.add(name)


def overload(name: str) -> Any:
    """Return the operator overload called `name`; None for a name that torch registers but does not expose."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    except AttributeError:
        return None


def _implement(name: str, kernel: Callable[..., Any], key: str = "CUDA") -> None:
    namespace, _, rest = name.partition("::")
    library = _by_namespace.get(namespace)
    if library is None:
        library = _by_namespace[namespace] = torch.library.Library(namespace, "IMPL")
        _libraries.append(library)
    if overload(name) is None:
        return
    if namespace == "aten":
        # Newer releases route some operators through Python to the CUDA kernel, which must not remain reachable.
        library.impl(rest, kernel, key, allow_override=True)
    elif f"{namespace}/{rest}/{key}" not in torch.library._impls:
        # An existing kernel is written in Python and calls other operators: it stays.
        library.impl(rest, kernel, key)
    if key == "CUDA":
        _known.add(name)


def _refusal(name: str, kind: str) -> Callable[..., Any]:
    instead = "layout=torch.jagged" if kind == "nested" else "dense tensors"

    def refuse(*arguments: Any, **keywords: Any) -> Any:
        raise NotImplementedError(
            f"the simulated device does not simulate {kind} tensors ({name}): use {instead}, or run on a GPU"
        )

    return refuse
