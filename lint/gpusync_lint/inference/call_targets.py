"""Which methods of the project a call may mean when nothing is known of its receiver.

A method that one or two classes of the project define under a name of their own is meant by whoever calls that name.
A name that everything has (`update`, `sample`) is believed only of a receiver that is called like the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.domain import torch_api

if TYPE_CHECKING:
    from gpusync_lint.project.class_hierarchy import ClassHierarchy
    from gpusync_lint.project.symbols import FunctionDef

_MOST = 2
"""Families of classes."""
_MOST_IN_ALL = 8
_COMMON = frozenset(
    {
        "add_argument", "add_argument_group", "add_scalar", "add_scalars", "add_image", "add_figure", "add_text",
        "add_histogram", "from_pretrained", "get_logger", "get_state", "is_available", "load_state_dict", "log_prob",
        "manual_seed", "named_parameters", "named_modules", "parse_args", "save_pretrained", "set_description",
        "set_postfix", "set_state", "state_dict", "to_dict", "zero_grad", "add_module", "register_buffer", "get_lr",
        "set_epoch", "init_process_group", "get_last_lr", "set_device", "get_device", "from_numpy", "add_param_group",
    }
)  # fmt: skip
_OF_ANYTHING = frozenset(label for kind in (dict, list, set, str, bytes) for label in dir(kind)) | _COMMON


def call_targets(classes: ClassHierarchy, receiver: str, name: str) -> list[FunctionDef]:
    """The methods that `receiver.name()` may call; empty where that would be a guess."""
    if name.startswith("_") or name in _COMMON or _is_tensor_method(name):
        return []
    found = classes.methods_named(name)
    if not found:
        return []
    if "_" not in name or name in _OF_ANYTHING:
        words = _plain(receiver)
        found = [method for method in found if words and method.cls is not None and _alike(words, method.cls.name)]
    families = {classes.project_lineage(method.cls)[-1] for method in found if method.cls is not None}
    return found if len(families) <= _MOST and len(found) <= _MOST_IN_ALL else []


def _is_tensor_method(name: str) -> bool:
    known = torch_api.tensors()
    return any(name in names for names in (known.torch_only, known.functions, known.host_methods, known.keep_boolean))


def _alike(words: str, name: str) -> bool:
    """Whether a variable is called like a class: `agent` or `sac_agent` and `SACAgent`."""
    plain = _plain(name)
    return len(words) > 2 and (plain.endswith(words) or words.endswith(plain))


def _plain(label: str) -> str:
    return label.replace("_", "").lower()
