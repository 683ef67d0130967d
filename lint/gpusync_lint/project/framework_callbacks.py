"""How often frameworks call a function, by conventions about its name, its class and its decorators."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign
from gpusync_lint.model.levels import Heat
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from gpusync_lint.project.class_hierarchy import ClassHierarchy
    from gpusync_lint.project.symbols import ClassDef, FunctionDef

_EVERY_STEP = re.compile(
    r"^(training|validation|test|predict|train|eval|valid|val)_?step$|^(on_)?\w*batch_(start|end|begin)\w*$"
    r"|^on_\w*step_(begin|end|start)$|^compute_loss$|^training_loss$"
)
_OVERRIDES: tuple[tuple[str, frozenset[str]], ...] = (
    (  # transformers 4.57 and 5.x, trl
        "Trainer",
        frozenset(
            {
                "compute_loss",
                "training_step",
                "prediction_step",
                "_prepare_inputs",
                "_prepare_input",
                "get_batch_samples",
                "floating_point_ops",
                "_generate_and_score_completions",
                "get_batch_loss_metrics",
                "concatenated_forward",
            }
        ),
    ),
    ("TrainerCallback", frozenset({"on_optimizer_step", "on_pre_optimizer_step", "on_prediction_step"})),
    (  # Lightning 2.x
        "LightningModule",
        frozenset(
            {
                "backward",
                "optimizer_step",
                "optimizer_zero_grad",
                "configure_gradient_clipping",
                "on_before_backward",
                "on_after_backward",
                "on_before_optimizer_step",
                "on_before_zero_grad",
                "lr_scheduler_step",
                "transfer_batch_to_device",
                "on_before_batch_transfer",
                "on_after_batch_transfer",
            }
        ),
    ),
    (
        "Callback",
        frozenset({"on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad"}),
    ),
    ("BaseCallback", frozenset({"_on_step"})),  # Stable-Baselines3 2.x
    ("BaseAlgorithm", frozenset({"train", "collect_rollouts", "predict"})),
    ("OnPolicyAlgorithm", frozenset({"train", "collect_rollouts", "predict"})),
    ("OffPolicyAlgorithm", frozenset({"train", "collect_rollouts", "predict", "_store_transition", "_sample_action"})),
    ("BasePolicy", frozenset({"_predict", "predict_values", "evaluate_actions", "obs_to_tensor"})),
    ("ActorCriticPolicy", frozenset({"_predict", "predict_values", "evaluate_actions", "get_distribution"})),
    ("BaseBuffer", frozenset({"add", "sample", "_get_samples"})),
    ("ReplayBuffer", frozenset({"add", "sample", "_get_samples"})),
    ("Env", frozenset({"step"})),  # gymnasium 1.x
    ("Wrapper", frozenset({"step", "observation", "action", "reward"})),
    ("ObservationWrapper", frozenset({"observation"})),
    ("VecEnvWrapper", frozenset({"step_wait", "step_async"})),
    ("Optimizer", frozenset({"step"})),  # torch 2.x
    ("SchedulerMixin", frozenset({"step", "scale_model_input"})),  # diffusers 0.3x
)
"""By the ending of the name of a base class of a library, the methods that the library calls in every step."""
METRIC_BASES = (
    "torchmetrics.Metric",
    "torchmetrics.metric.Metric",
    "ignite.metrics.Metric",
    "ignite.metrics.metric.Metric",
)
_EVERY_TOKEN = ("LogitsProcessor", "LogitsWarper", "StoppingCriteria")
"""Endings of the names of classes whose instances a generation loop calls for every token."""
_RECORD_BASES = ("Dataset", "VisionDataset", "InMemoryDataset")


def convention_heat(fn: FunctionDef, classes: ClassHierarchy) -> Heat:
    """How often a framework calls a function by convention; `ONCE` if no convention applies."""
    for decorator in getattr(fn.node, "decorator_list", ()):
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "attr", "") == "on" and decorator.args:
            heat = event_heat(decorator.args[0])
            if heat is not None:
                return heat
    if _is_task(fn):
        return Heat.STEP
    if fn.cls is not None:
        is_step = _is_step_method(fn.name, fn.cls, classes)
    else:
        is_step = fn.name.startswith("collate") or fn.name.endswith("collate_fn")
    return Heat.STEP if is_step or _EVERY_STEP.match(fn.name) else Heat.ONCE


def _is_step_method(name: str, cls: ClassDef, classes: ClassHierarchy) -> bool:
    if name in ("forward", "__call__") and classes.is_module(cls):
        return True
    if name == "__call__" and _is_called_for_every_token(cls, classes):
        return True
    bases = classes.external_bases(cls)
    if name == "update" and any(base in METRIC_BASES for base in bases):
        return True
    if name == "__getitem__" and any(base.rpartition(".")[2] in _RECORD_BASES for base in bases):
        return True
    return any(name in methods and any(_is_class(base, of) for base in bases) for of, methods in _OVERRIDES)


def _is_task(fn: FunctionDef) -> bool:
    """Whether a function runs elsewhere, once for each call: under `@ray.remote`, or a method that is called so."""
    owner = fn.node if fn.cls is None else fn.cls.node
    if not any(_name(fn, decorator) in foreign.tasks() for decorator in getattr(owner, "decorator_list", ())):
        return False
    return fn.cls is None or f".{fn.name}.remote(" in fn.file.text


def _name(fn: FunctionDef, decorator: ast.expr) -> str:
    """The dotted name of a decorator, with or without arguments, by the imports of its file."""
    path = dotted_path(decorator.func if isinstance(decorator, ast.Call) else decorator) or ""
    root, dot, rest = path.partition(".")
    return f"{fn.file.imports.get(root, root)}{dot}{rest}"


def _is_class(dotted: str, name: str) -> bool:
    """Whether the last word of a dotted name is a class, or one derived from it by its name: `SFTTrainer`."""
    last = dotted.rpartition(".")[2]
    return last == name or (name == "Trainer" and last.endswith(name))


def _is_called_for_every_token(cls: ClassDef, classes: ClassHierarchy) -> bool:
    names = (base if isinstance(base, str) else base.name for base in classes.lineage(cls))
    return any(name.endswith(_EVERY_TOKEN) for name in names)


def event_heat(node: ast.expr) -> Heat | None:
    """How often an event of Ignite, such as `Events.ITERATION_COMPLETED(every=10)`, fires; None for anything else."""
    filters: list[ast.keyword] = []
    if isinstance(node, ast.Call):
        filters = node.keywords
        node = node.func
    name = node.attr if isinstance(node, ast.Attribute) else ""
    if name.startswith(("ITERATION_", "GET_BATCH_")):
        return Heat.GUARDED if filters else Heat.STEP
    return Heat.EPOCH if name.startswith("EPOCH_") else None
