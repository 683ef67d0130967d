"""How often frameworks call a function, by conventions about its name, its class and its decorators."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign, library_callbacks
from gpusync_lint.model.levels import Heat
from gpusync_lint.model.placement import Unseen
from gpusync_lint.project.entry_points import unit_of_convention
from gpusync_lint.syntax.names import dotted_path

if TYPE_CHECKING:
    from gpusync_lint.project.class_hierarchy import ClassHierarchy
    from gpusync_lint.project.symbols import ClassDef, FunctionDef

_EVERY_STEP = re.compile(
    r"^(training|validation|test|predict|train|eval|valid|val)_?step$|^(on_)?\w*batch_(start|end|begin)\w*$"
    r"|^on_\w*step_(begin|end|start)$|^compute_loss$|^training_loss$"
    r"|^(before|after|pre|post)_((train|val|valid|test)_)?(iter|iteration|step|batch)$"
)
_PART_OF_STEP = re.compile(
    r"^_?((get|select|choose|take|sample|compute|predict)_actions?|act|loss(_fn|_func|_function)?"
    r"|(?!make|build|create|init|add|log|print|plot|register|configure|setup|test|get_loss)\w+_loss"
    r"|(train|val|valid|eval|test)_(one_|on_)?(step|batch|iter|iteration)"
    r"|(update|optimi[sz]e|learn)_((one|on|with|from)_)?(step|batch|iter|iteration|model|networks?|policy|critics?|actors?"
    r"|discriminator|generator|parameters|weights))$"
)
"""Names of functions that are parts of a step, whoever calls them."""
_MAY_BE_STEP = re.compile(r"^_?(update|learn|step|train_step|infer|inference|predict|encode|decode|sample|run_step)$")
"""Names of functions that are parts of a step if they run a model or train."""
_SET_UP = re.compile(
    r"^_*(init|reset|load|save|from_|build|make|create|set(_|$|up)|configure|export|convert|freeze|unfreeze|register"
    r"|add|remove|count|print|test|profile|warm|compile|fuse|main|demo|summar|visuali[sz]e|plot|flops|dummy|example"
    r"|apply|tie|resize|prune|quantize|dequantize|fit|train($|_model|_epoch)|on_(train|fit|epoch)|enable|disable)"
)
"""Beginnings of the names of methods of modules that are called before or after the steps, or seldom."""
_SELDOM = re.compile(
    r"^_*(get|set|is_|has_|list|find|read|write|parse|open|close|start|stop|check|validate|eval|log|info|debug|repr|stat"
    r"|report|show|draw|render|dump|run|measure|calc|calibrat|bench|time|update_|merge|split|extract|prepare|process"
    r"|preprocess|generate|download|upload|upgrade|migrate|serialize|on_)"
)
"""Beginnings of the names of other methods of modules that may be called at any time. The others compute something."""
_OF_DISTRIBUTIONS = frozenset({"sample", "rsample", "log_prob", "entropy", "cdf", "icdf"})
_OVERRIDES = {
    "Optimizer": frozenset({"step"}),  # torch 2.x
    "Function": frozenset({"forward", "backward", "setup_context", "jvp", "vjp"}),
    "Transform": frozenset({"_call", "_inverse", "log_abs_det_jacobian"}),
    **dict.fromkeys(
        (
            "Distribution", "Normal", "MultivariateNormal", "Categorical", "TransformedDistribution", "Bernoulli",
            "Beta", "Independent",
        ),
        _OF_DISTRIBUTIONS,
    ),
}  # fmt: skip
"""By the name of a class of torch, the methods that training code calls in every step."""
METRIC_BASES = (
    "torchmetrics.Metric",
    "torchmetrics.metric.Metric",
    "ignite.metrics.Metric",
    "ignite.metrics.metric.Metric",
)
_EVERY_TOKEN = ("LogitsProcessor", "LogitsWarper", "StoppingCriteria")
"""Endings of the names of classes whose instances a generation loop calls for every token."""
_RECORD_BASES = ("Dataset", "VisionDataset", "InMemoryDataset")
_FEEDING_BASES = ("Sampler", "BatchSampler", "DistributedSampler", "RandomSampler", "IterableDataset")
"""Classes whose `__iter__` a data loader iterates over."""


def convention_heat(fn: FunctionDef, classes: ClassHierarchy) -> Heat:
    """How often a framework calls a function by convention; `ONCE` if no convention applies."""
    for decorator in getattr(fn.node, "decorator_list", ()):
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "attr", "") == "on" and decorator.args:
            heat = event_heat(decorator.args[0])
            if heat is not None:
                return heat
    if is_task(fn) or unit_of_convention(fn, classes) is not None:
        return Heat.STEP
    if fn.cls is not None and (_EVERY_STEP.match(fn.name) or _is_step_method(fn.name, fn.cls, classes)):
        return Heat.STEP
    return Heat.STEP if fn.name.startswith("collate") or fn.name.endswith("collate_fn") else Heat.ONCE


def unseen_heat(fn: FunctionDef, classes: ClassHierarchy) -> Unseen:
    """What the name of a function says about how often it runs, if no call of it is visible."""
    if _PART_OF_STEP.match(fn.name) or _EVERY_STEP.match(fn.name):
        return Unseen.STEP
    if fn.cls is None and fn.name.endswith("forward") and not fn.name.startswith("test"):
        return Unseen.STEP  # it takes the place of a method: `model.forward = our_forward`
    is_method = fn.cls is not None and not fn.name.startswith("__") and not _SET_UP.match(fn.name)
    if is_method and fn.cls is not None and classes.is_module(fn.cls):
        if fn.kind == "class" or _ends_evaluation(fn, classes):
            return Unseen.NOTHING
        return Unseen.MODEL if _SELDOM.match(fn.name) else Unseen.STEP
    is_part = _MAY_BE_STEP.match(fn.name) or (fn.cls is not None and fn.name == "__call__")
    return Unseen.MODEL if is_part else Unseen.NOTHING


def _ends_evaluation(fn: FunctionDef, classes: ClassHierarchy) -> bool:
    """Whether a method computes a metric from what `update()` has gathered, for an epoch as a rule."""
    if fn.name not in ("compute", "_compute") or fn.cls is None or isinstance(fn.node, ast.Module):
        return False
    return len(fn.node.args.args) == 1 and any(
        base in METRIC_BASES if isinstance(base, str) else "update" in base.methods for base in classes.lineage(fn.cls)
    )


def feeds_loader(fn: FunctionDef, classes: ClassHierarchy) -> bool:
    """Whether a data loader iterates over what a function yields, by its class."""
    if fn.cls is None or fn.name != "__iter__":
        return False
    return any(base.rpartition(".")[2] in _FEEDING_BASES for base in classes.external_bases(fn.cls))


def _is_step_method(name: str, cls: ClassDef, classes: ClassHierarchy) -> bool:
    if name in ("forward", "__call__") and classes.is_module(cls):
        return True
    if name == "__call__" and (_is_called_for_every_token(cls, classes) or "collat" in cls.name.lower()):
        return True
    if name == "torch_call" and "collat" in cls.name.lower():
        return True
    bases = classes.external_bases(cls)
    if name == "update" and any(base in METRIC_BASES for base in bases):
        return True
    if name == "__getitem__" and any(base.rpartition(".")[2] in _RECORD_BASES for base in bases):
        return True
    return any(name in _overrides(base.rpartition(".")[2]) for base in bases)


def is_task(fn: FunctionDef) -> bool:
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


def _overrides(base: str) -> frozenset[str]:
    """The methods of a class outside the project that its library calls in every step."""
    found = _OVERRIDES.get(base, frozenset()) | library_callbacks.per_step(base)
    # A trainer of another library is derived from that of transformers as a rule: `SetFitTrainer`.
    return found | library_callbacks.per_step("Trainer") if base.endswith("Trainer") else found


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
