"""Conventions of training code: the names of data loaders, and the forms of a call of `backward`."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from gpusync_lint.syntax.names import dotted_path

LOADER_NAMES = ("loader", "batches", "dataiter", "data_iter", "dl")
"""Endings of the names of data loaders, in lower case."""
_ITERATOR_WORDS = frozenset({"it", "iter", "iterator", "loader", "dataloader", "batches", "gen", "generator", "data"})
"""Words in the names of iterators over batches."""
_MODELS = frozenset(
    {
        "model", "net", "network", "unet", "denoiser", "policy", "actor", "critic", "generator", "discriminator",
        "encoder", "decoder", "transformer", "backbone", "vae", "lm", "llm", "classifier", "teacher", "student",
    }
)  # fmt: skip
"""Last words of the names of models."""
MODEL_METHODS = frozenset(
    {
        "generate", "forward", "act", "select_action", "select_actions", "choose_action", "get_action", "get_actions",
        "sample_action", "denoise", "p_sample", "train_step", "training_step", "train_batch", "train_on_batch",
        "optimize_parameters",
    }
)  # fmt: skip
"""Methods that run a model, whatever object has them."""
STEPPED = ("trainer", "engine", "agent", "solver", "env", "envs", "environment", "scheduler")
"""Endings of the names of objects whose method `step` runs a model or an environment if it takes arguments."""
BACKWARD = ("backward", "manual_backward")
"""Methods that run the backward pass."""
_TEST_FILE = re.compile(r"(^|/)((test_[^/]*|[^/]*_test|conftest)\.py$|tests/)")
_ENGINES = ("accelerator", "fabric", "engine", "strategy")
"""Endings of the names of objects that run the backward pass of the loss that they are passed."""


def tests_for_tensor(node: ast.Call) -> bool:
    """Whether a call is `isinstance(x, torch.Tensor)` or `torch.is_tensor(x)`."""
    if not node.args:
        return False
    name = (dotted_path(node.func) or "").rpartition(".")[2]
    if name == "is_tensor":
        return True
    return name == "isinstance" and (dotted_path(node.args[-1]) or "").rpartition(".")[2] == "Tensor"


def backward_of(node: ast.Call) -> ast.expr:
    """The expression that a call of `backward` differentiates: `loss` in each of these forms.

    `loss.backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)`, `self.manual_backward(loss)`.
    """
    func = node.func
    assert isinstance(func, ast.Attribute)
    receiver = func.value
    if node.args:
        is_engine = (dotted_path(receiver) or "").rpartition(".")[2].endswith(_ENGINES)
        if is_engine or func.attr == "manual_backward":
            return node.args[0]
    if isinstance(receiver, ast.Call) and receiver.args and getattr(receiver.func, "attr", "") == "scale":
        return receiver.args[0]
    return receiver


def stops_gradients(node: ast.expr) -> bool:
    """Whether a context manager or decorator switches gradients off: `torch.no_grad()`, `torch.inference_mode()`."""
    path = dotted_path(node.func if isinstance(node, ast.Call) else node)
    return path is not None and path.rpartition(".")[2] in ("no_grad", "inference_mode")


@lru_cache(20_000)
def is_model_name(name: str) -> bool:
    """Whether a function that is called is a model, by its name: `target_net`, `self.unet`, `model2`."""
    return name.lower().rstrip("0123456789").rpartition("_")[2] in _MODELS


def is_mask_name(name: str) -> bool:
    """Whether an attribute is a mask by its name: `batch.attention_mask`."""
    return name == "mask" or name.endswith("_mask")


@lru_cache(maxsize=4096)
def is_test_path(path: str) -> bool:
    """Whether a file contains tests, by the file names that pytest collects, or belongs to a folder of tests."""
    return _TEST_FILE.search(path) is not None


def is_batch_iterator(path: str | None) -> bool:
    """Whether a name or a dotted path is called like an iterator over batches: `train_iter`, `self.it`, `data_gen`."""
    words = (path or "").lower().rpartition(".")[2].split("_")
    return not _ITERATOR_WORDS.isdisjoint(words) or (path or "").lower().endswith(LOADER_NAMES)
