"""Names and attributes."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gpusync_lint.catalogue import foreign
from gpusync_lint.domain import torch_api
from gpusync_lint.domain.external_names import member
from gpusync_lint.domain.lattice import join_all, join_elements, lookup
from gpusync_lint.domain.tensor_ops import tensor_attribute
from gpusync_lint.domain.values import (
    ARRAY,
    GPU_ABSENT,
    GPU_DEVICE,
    GPU_PRESENT,
    HOST,
    UNKNOWN,
    Device,
    Gradient,
    Kind,
    Value,
    alternatives,
    dict_of,
    external_name,
    foreign_value,
    host_constant,
    list_of,
    modules,
    tensor,
)
from gpusync_lint.inference.tables import evaluates

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusync_lint.inference.frame import Frame
    from gpusync_lint.project.symbols import FunctionDef

_FLAGS = {
    **dict.fromkeys(
        ("cuda", "use_cuda", "use_gpu", "gpu", "is_cuda", "on_gpu", "cuda_available", "has_cuda"), GPU_PRESENT
    ),
    **dict.fromkeys(
        ("no_cuda", "no_gpu", "use_cpu", "cpu_only", "force_cpu", "is_cpu", "on_cpu", "no_accel"), GPU_ABSENT
    ),
}
"""Names of flags that say whether there is a GPU, or whether to use it."""
_KEPT_ON_HOST = re.compile(r"(?<!is)(?<!on)(?<!use)(?<!to)(?<!no)(?<!force)_cpu$")
"""Names of tensors that are kept on the host, such as `loss_cpu`; not the names of flags."""
_BUILTINS = frozenset(
    {
        "abs", "all", "any", "bin", "bool", "bytearray", "bytes", "callable", "chr", "complex", "dict", "dir", "divmod",
        "enumerate", "filter", "float", "format", "frozenset", "getattr", "hasattr", "hash", "hex", "id", "oct",
        "input", "int", "isinstance", "issubclass", "iter", "len", "list", "map", "max", "min", "next",
        "object", "open", "ord", "pow", "print", "range", "repr", "reversed", "round", "set", "setattr",
        "slice", "sorted", "str", "sum", "super", "tuple", "type", "vars", "zip",
    }
)  # fmt: skip
_BUILTIN_VALUES = {builtin: external_name(f"builtins.{builtin}") for builtin in _BUILTINS}
_REFINED_BY_NAME = frozenset({Kind.TENSOR, Kind.UNKNOWN, Kind.MOVED})
"""Kinds of values about which a name may say more."""
_WITH_CLASS = frozenset({Kind.MODULE, Kind.INSTANCE, Kind.RECORDS})
"""Kinds whose `ref` may be a class of the project."""
_DISTRIBUTION_TENSORS = frozenset({"mean", "loc", "scale", "probs", "logits", "stddev", "variance", "mode"})
_ACCELERATOR = external_name("accelerate.Accelerator()")
_TENSORS_OF_ANY = frozenset(
    {
        "grad", "saved_tensors", "logits", "last_hidden_state", "pooler_output", "image_embeds", "text_embeds",
        "prev_sample", "pred_original_sample",
    }
)  # fmt: skip
"""Attributes that hold tensors, whatever has them.

They are those of a parameter, of the context of an autograd function, and of the outputs of models and schedulers of
transformers and diffusers.
"""
_RESULT_FIELDS = frozenset(
    {
        "U", "S", "Vh", "Q", "R", "P", "L", "LU", "LD", "pivots", "info", "eigenvalues", "eigenvectors", "sign",
        "logabsdet", "solution", "residuals", "inverse", "min", "max", "hist", "bin_edges", "mantissa", "exponent",
    }
)  # fmt: skip
"""The names of parts of what functions of `torch` and `torch.linalg` return."""
ITEMS = "[]"
"""The attribute under which the items of an instance of a class derived from `dict` or `list` are kept."""
_EMPTY = {"dict": dict_of((), None), "list": list_of(None)}
_MODULE_TENSORS = frozenset({"weight", "bias"})
_ARRAY_FACTS = frozenset({"shape", "dtype", "size", "ndim"})


@evaluates(ast.Name)
def name_value(frame: Frame, node: ast.Name) -> Value:
    """`name`."""
    label = node.id
    value = frame.names.get(label)
    if value is None:
        value = frame.analysis.scopes.outer_name(frame.reader, label) or _BUILTIN_VALUES.get(label, UNKNOWN)
    return by_convention(frame, label, label, value) if value.kind in _REFINED_BY_NAME else value


@evaluates(ast.Attribute)
def attribute_value(frame: Frame, node: ast.Attribute) -> Value:
    """`base.attribute`."""
    base, path = value_and_path(frame, node.value)
    return attribute(frame, node, base, f"{path}.{node.attr}" if path is not None else None)


def value_and_path(frame: Frame, node: ast.expr) -> tuple[Value, str | None]:
    """The value of an expression and, for a chain of attributes on a name, its dotted path, in one traversal."""
    if isinstance(node, ast.Attribute):
        base, path = value_and_path(frame, node.value)
        if path is not None:
            path = f"{path}.{node.attr}"
        value = attribute(frame, node, base, path)
        if value.kind:
            frame.values[node] = value
        return value, path
    return frame.eval(node), node.id if isinstance(node, ast.Name) else None


def by_convention(frame: Frame, path: str, last: str, value: Value) -> Value:
    """Refine the value of a name or path by the conventions for names; `last` is its last word."""
    if last in frame.host_fields or (last[-4:] == "_cpu" and _KEPT_ON_HOST.search(last)):
        return kept_on_host(value)
    if frame.evidence.fn is not None:
        shown = _shown_by_use(frame, path, value)
        if shown is not None:
            return shown
    if value.kind is not Kind.UNKNOWN:
        return value
    if last == "device":
        return Value(Kind.DEVICE, frame.assumed_device())
    return _ACCELERATOR if last == "accelerator" else _FLAGS.get(last, value)


def _shown_by_use(frame: Frame, path: str, value: Value) -> Value | None:
    """What the uses of a path in the function show about its value; None for nothing."""
    evidence = frame.evidence
    if path in evidence.distributions and not frame.analysis.project.classes.methods_named("log_prob"):
        return Value(Kind.DISTRIBUTION, max(value.device, frame.assumed_device()))
    differentiated = path in evidence.backward
    if value.kind is Kind.TENSOR:
        # A tensor on which `backward()` is called is certainly one, and has one element.
        return value._replace(certain=True, zero_dim=True) if differentiated else None
    if differentiated:
        return tensor(Device.GPU if value.kind is Kind.MOVED else frame.assumed_device(), zero_dim=True)
    if path in evidence.modules:
        return Value(Kind.MODULE, Device.GPU if value.kind is Kind.MOVED else frame.assumed_device())
    if value.kind is Kind.UNKNOWN and evidence.shows_tensor(path):
        return Value(Kind.TENSOR, frame.assumed_device())
    return None


def attribute(frame: Frame, node: ast.Attribute, base: Value, path: str | None) -> Value:
    """The value of an attribute. `base` is the object, `path` the dotted path of the attribute, if it has one."""
    attr = node.attr
    if path is not None:
        value = frame.names.get(path)
        if value is not None and value.kind:
            return value
    value = attribute_of(frame, base, attr)
    if value.kind in _REFINED_BY_NAME:
        if path is not None:
            return by_convention(frame, path, attr, value)
        if attr in frame.host_fields or (attr[-4:] == "_cpu" and _KEPT_ON_HOST.search(attr)):
            return kept_on_host(value)
    return value


def attribute_of(frame: Frame, base: Value, attr: str) -> Value:
    """The value of an attribute of a value."""
    kind = base.kind
    if kind is Kind.UNKNOWN:
        part = Value(Kind.TENSOR, frame.assumed_device(), certain=False) if attr in _TENSORS_OF_ANY else UNKNOWN
        return list_of(part) if attr == "saved_tensors" else part
    if kind is Kind.UNION or (kind is Kind.MODULE and base.ref is None and base.items):
        each = alternatives(base) if kind is Kind.UNION else modules(base)
        return join_all([attribute_of(frame, one, attr) for one in each])
    if kind in _WITH_CLASS and base.ref is not None and not isinstance(base.ref, str):
        return _instance_attribute(frame, base, attr)
    handler = _ATTRIBUTES.get(kind)
    return UNKNOWN if handler is None else handler(frame, base, attr)


def _host_attribute(frame: Frame, base: Value, attr: str) -> Value:
    return HOST


def _tensor_attribute(frame: Frame, base: Value, attr: str) -> Value:
    if base.elem is not None:
        of_container = _ATTRIBUTES[base.elem.kind](frame, base.elem, attr) if base.elem.kind in _ATTRIBUTES else UNKNOWN
        return of_container if of_container.kind else tensor_attribute(base._replace(elem=None), attr)
    return tensor_attribute(base, attr)


def _external_attribute(frame: Frame, base: Value, attr: str) -> Value:
    """An attribute of a module of the project, or of something outside, by its dotted name."""
    ref = base.ref
    return member(ref, attr) if ref.__class__ is str else frame.analysis.scopes.member(frame.reader, ref, attr)


def _module_attribute(frame: Frame, base: Value, attr: str) -> Value:
    if attr in _MODULE_TENSORS:
        return Value(Kind.TENSOR, base.device)
    if attr == "module":
        return base
    return Value(Kind.DEVICE, base.device) if attr == "device" else UNKNOWN


def _class_attribute(frame: Frame, base: Value, attr: str) -> Value:
    classes = frame.analysis.project.classes
    method = classes.method(base.ref, attr)
    if method is not None:
        return _bound(method, base)
    if attr == "apply" and classes.is_autograd_function(base.ref):
        forward = classes.method(base.ref, "forward")
        if forward is not None:
            context = Value(Kind.INSTANCE, ref=base.ref) if classes.receives_context(forward) else None
            return Value(Kind.FUNCTION, ref=forward, bound=context)
    return frame.analysis.instances.attribute(frame.reader, base.ref, attr) or UNKNOWN


def _list_attribute(frame: Frame, base: Value, attr: str) -> Value:
    """A part of what a function of torch returns: `torch.linalg.svd(x).S`."""
    return base.elem if base.elem is not None and attr in _RESULT_FIELDS else UNKNOWN


def _optimizer_attribute(frame: Frame, base: Value, attr: str) -> Value:
    """The state of an optimizer, which is on the device of the parameters, except its count of steps."""
    device = frame.assumed_device()
    if attr == "state":
        return dict_of((), dict_of((("step", tensor(Device.CPU)),), tensor(device)))
    if attr == "param_groups":
        return list_of(dict_of((("params", list_of(tensor(device, gradient=Gradient.FLOWS))),), HOST))
    return UNKNOWN


def _batch_attribute(frame: Frame, base: Value, attr: str) -> Value:
    """An attribute of an object that was moved to a device as a whole."""
    if torch_api.is_batch_attribute(attr):
        return HOST
    if attr == "device":
        return GPU_DEVICE
    return Value(Kind.TENSOR, Device.GPU, certain=False, boolean=attr == "mask" or attr.endswith("_mask"))


def _foreign_attribute(frame: Frame, base: Value, attr: str) -> Value:
    described = foreign.types()[base.ref]
    return (
        HOST if attr in described.host_attributes else foreign_value(described.methods.get(attr, described.attribute))
    )


def _tuple_attribute(frame: Frame, base: Value, attr: str) -> Value:
    """`values` and `indices` of the result of `x.max(dim)`, and the fields of a named tuple."""
    if base.ref.__class__ is tuple:
        return lookup(base, base.ref.index(attr)) if attr in base.ref else UNKNOWN
    if attr in ("values", "indices") and len(base.items or ()) == 2:
        return lookup(base, 0 if attr == "values" else 1)
    return UNKNOWN


def _array_attribute(frame: Frame, base: Value, attr: str) -> Value:
    return HOST if attr in _ARRAY_FACTS else ARRAY


def _distribution_attribute(frame: Frame, base: Value, attr: str) -> Value:
    return Value(Kind.TENSOR, base.device) if attr in _DISTRIBUTION_TENSORS else UNKNOWN


_ATTRIBUTES: dict[Kind, Callable[[Frame, Value, str], Value]] = {
    Kind.HOST: _host_attribute,
    Kind.DEVICE: _host_attribute,
    Kind.TENSOR: _tensor_attribute,
    Kind.NAME: _external_attribute,
    Kind.MODULE: _module_attribute,
    Kind.CLASS: _class_attribute,
    Kind.MOVED: _batch_attribute,
    Kind.FOREIGN: _foreign_attribute,
    Kind.TUPLE: _tuple_attribute,
    Kind.LIST: _list_attribute,
    Kind.ARRAY: _array_attribute,
    Kind.DISTRIBUTION: _distribution_attribute,
    Kind.OPTIMIZER: _optimizer_attribute,
}


def _instance_attribute(frame: Frame, base: Value, attr: str) -> Value:
    """An attribute of an instance of a project class."""
    classes = frame.analysis.project.classes
    method = classes.method(base.ref, attr) if base.bound is None else classes.next_method(base.bound.ref, attr)
    if method is not None:
        if method.kind == "property":
            return frame.analysis.call(frame, method, [base], {})
        return join_all([_bound(one, base) for one in classes.implementations(method)])
    if attr == "__dict__":
        held = tensor_attributes(frame, base)
        return UNKNOWN if held is None else dict_of((), held)
    found = frame.analysis.instances.attribute(frame.reader, base.ref, attr)
    if found is None:
        return _inherited_attribute(frame, base, attr)
    if base.kind is Kind.MODULE and found.kind is Kind.MODULE and found.device is Device.CPU:
        return found._replace(device=base.device)  # created in a mixin, moved with its parent
    return found


def held_items(frame: Frame, owner: Value) -> Value | None:
    """The dict or list that an instance of a project class is by its base: `class Meter(dict)`. None for others."""
    if owner.kind is not Kind.INSTANCE or owner.definition is None:
        return None
    empty = _EMPTY.get(frame.analysis.project.classes.container(owner.ref))
    return empty and (frame.analysis.instances.attribute(frame.reader, owner.ref, ITEMS) or empty)


def tensor_attributes(frame: Frame, owner: Value) -> Value | None:
    """Any tensor among the attributes of an instance of a project class; None if it holds none."""
    if owner.kind is not Kind.INSTANCE or owner.definition is None:
        return None
    found = frame.analysis.instances.tensor_attributes(frame.reader, owner.definition)
    return join_all(list(found.values())) if found else None


def _inherited_attribute(frame: Frame, base: Value, attr: str) -> Value:
    """An attribute that a base class outside the project may define."""
    if base.kind is Kind.MODULE and (attr == "module" or attr in _MODULE_TENSORS):
        return _module_attribute(frame, base, attr)
    if attr == "device":
        return Value(Kind.DEVICE, max(base.device, frame.assumed_device()))
    if attr == "param_groups" and frame.analysis.project.classes.is_optimizer(base.ref):
        return _optimizer_attribute(frame, base, attr)
    delegates = frame.analysis.project.classes.method(base.ref, "__getattr__")
    if delegates is not None and delegates.is_short:
        found = frame.analysis.call(frame, delegates, [base, host_constant(attr)], {})
        if found.kind:
            return found
    part = torch_api.TRANSFORMER_PARTS.get(attr)
    if part is not None and "torch.nn.Transformer" in frame.analysis.project.classes.lineage(base.ref):
        return Value(Kind.MODULE, base.device, ref=part)
    return _attribute_of_subclasses(frame, base, attr)


def _attribute_of_subclasses(frame: Frame, base: Value, attr: str) -> Value:
    """An attribute that only subclasses have: of a mixin class, or of a base class that they complete."""
    classes = frame.analysis.project.classes
    found = []
    for cls in classes.subclasses(base.ref):
        method = classes.method(cls, attr)
        if method is not None:
            owner = base._replace(ref=cls)
            is_property = method.kind == "property"
            found.append(frame.analysis.call(frame, method, [owner], {}) if is_property else _bound(method, owner))
        else:
            value = frame.analysis.instances.attribute(frame.reader, cls, attr)
            if value is not None:
                found.append(value)
    return join_elements(list(dict.fromkeys(found)))


def _bound(method: FunctionDef, owner: Value) -> Value:
    return Value(Kind.FUNCTION, ref=method, bound=None if method.kind == "static" else owner)


def kept_on_host(value: Value) -> Value:
    """A value whose name or declaration says that it is on the host, unless it certainly is on the device."""
    assumed = value.kind is Kind.TENSOR and value.device <= Device.ASSUMED
    return Value(Kind.TENSOR, Device.CPU, certain=False) if assumed or value.kind is Kind.UNKNOWN else value
