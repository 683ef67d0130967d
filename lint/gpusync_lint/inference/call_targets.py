"""Which methods of the project a call may mean when nothing is known of its receiver.

A method that one or two classes of the project define under a name of their own is meant by whoever calls that name.
A name that everything has (`update`, `sample`) is believed only of a receiver that is called like the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusync_lint.domain import torch_api

if TYPE_CHECKING:
    from gpusync_lint.project.resolution import Project
    from gpusync_lint.project.symbols import ClassInfo, FunctionInfo

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
_TENSOR = torch_api.TORCH_ONLY_METHODS | torch_api.TENSOR_FUNCTIONS | torch_api.HOST_METHODS | torch_api.KEEPS_BOOL


def candidates(project: Project, receiver: str, label: str) -> list[FunctionInfo]:
    """The methods that `receiver.label()` may call; empty where that would be a guess."""
    if label.startswith("_") or label in _COMMON or label in _TENSOR:
        return []
    found = project.methods_named(label)
    if not found:
        return []
    if "_" not in label or label in _OF_ANYTHING:
        words = _plain(receiver)
        found = [method for method in found if words and method.cls is not None and _alike(words, method.cls.name)]
    families = {id(_family(project, method.cls)) for method in found if method.cls is not None}
    return found if len(families) <= _MOST and len(found) <= _MOST_IN_ALL else []


def _family(project: Project, cls: ClassInfo) -> ClassInfo:
    """The project's class that a class descends from, through the first of its bases."""
    line = [base for base in project.lineage(cls) if not isinstance(base, str)]
    return line[-1]


def _alike(words: str, name: str) -> bool:
    """Whether a variable is called like a class: `agent` or `sac_agent` and `SACAgent`."""
    plain = _plain(name)
    return len(words) > 2 and (plain.endswith(words) or words.endswith(plain))


def _plain(label: str) -> str:
    return label.replace("_", "").lower()
