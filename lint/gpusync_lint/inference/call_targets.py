"""The methods of the project that a call on an unknown receiver may call, by the name of the method.

If at most two unrelated classes of the project define a method with a specific name (`compute_returns`), a call of that
name calls one of them. A name that many objects have (`update`, `sample`) counts only if the name of the receiver is
similar to that of the class: `agent.update()` and `SACAgent`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.domain import torch_api

if TYPE_CHECKING:
    from gpusync_lint.project.class_hierarchy import ClassHierarchy
    from gpusync_lint.project.symbols import FunctionDef

_MAX_FAMILIES = 2
"""The maximum number of unrelated classes that define the method."""
_MAX_METHODS = 8
_COMMON = frozenset(
    {
        "add_argument", "add_argument_group", "add_scalar", "add_scalars", "add_image", "add_figure", "add_text",
        "add_histogram", "from_pretrained", "get_logger", "get_state", "is_available", "load_state_dict", "log_prob",
        "manual_seed", "named_parameters", "named_modules", "parse_args", "save_pretrained", "set_description",
        "set_postfix", "set_state", "state_dict", "to_dict", "zero_grad", "add_module", "register_buffer", "get_lr",
        "set_epoch", "init_process_group", "get_last_lr", "set_device", "get_device", "from_numpy", "add_param_group",
    }
)  # fmt: skip
_UNSPECIFIC = frozenset(name for cls in (dict, list, set, str, bytes) for name in dir(cls)) | _COMMON


def call_targets(classes: ClassHierarchy, receiver: str, name: str) -> list[FunctionDef]:
    """The methods that `receiver.name()` may call; empty if that would be a guess."""
    if name.startswith("_") or name in _COMMON or _is_tensor_method(name):
        return []
    methods = classes.methods_named(name)
    if not methods:
        return []
    if "_" not in name or name in _UNSPECIFIC:
        methods = [method for method in methods if method.cls is not None and _is_similar(receiver, method.cls.name)]
    families = {classes.project_lineage(method.cls)[-1] for method in methods if method.cls is not None}
    return methods if len(families) <= _MAX_FAMILIES and len(methods) <= _MAX_METHODS else []


def _is_tensor_method(name: str) -> bool:
    tensors = torch_api.tensors()
    groups = (tensors.torch_only, tensors.functions, tensors.host_methods, tensors.keep_boolean)
    return any(name in group for group in groups)


def _is_similar(variable: str, cls: str) -> bool:
    """Whether a variable is named after a class: `agent` or `sac_agent` and `SACAgent`."""
    first, second = _letters(variable), _letters(cls)
    return len(first) > 2 and (second.endswith(first) or first.endswith(second))


def _letters(name: str) -> str:
    return name.replace("_", "").lower()
