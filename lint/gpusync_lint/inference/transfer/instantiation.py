"""Calls of classes of the project, which create instances."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.domain import torch_api
from gpusync_lint.domain.values import UNKNOWN, Device, Kind, Value
from gpusync_lint.inference.tables import Call, calls
from gpusync_lint.inference.transfer.library_calls import data_loader
from gpusync_lint.inference.transfer.torch_calls import made_with
from gpusync_lint.syntax.traversal import walk_block

if TYPE_CHECKING:
    from gpusync_lint.inference.frame import Frame
    from gpusync_lint.project.symbols import ClassDef


@calls(Kind.CLASS)
def instantiate(frame: Frame, call: Call) -> Value:
    """Create an instance. `__init__` gets the arguments; a class without one, such as a dataclass, its fields."""
    cls: ClassDef = call.callee.ref
    instance = _new_instance(frame, cls, call)
    init = frame.analysis.project.classes.method(cls, "__init__")
    if init is not None:
        frame.analysis.call(frame, init, [instance, *call.args], call.kwargs)
    else:
        fields = [
            item.target.id
            for base in reversed(frame.analysis.project.classes.project_lineage(cls))
            for item in base.node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        ]
        for name, value in [*zip(fields, call.args, strict=False), *call.kwargs.items()]:
            if name in fields:
                frame.analysis.instances.set_attribute(instance, name, value)
    return _wrapped(frame, cls, instance, call) if instance.kind is Kind.MODULE else instance


def _wrapped(frame: Frame, cls: ClassDef, instance: Value, call: Call) -> Value:
    """What an instance of a class of modules does: that of a subclass of `DataParallel` calls the module in it."""
    module = next((value for value in call.values if value.kind is Kind.MODULE), None)
    classes = frame.analysis.project.classes
    names = classes.external_bases(cls) if module is not None else ()
    if not any(entry.gives == "argument" for name in names for entry in torch_api.returns(name.removeprefix("torch."))):
        return instance
    if module is None or classes.method(cls, "forward") is None:
        return module or instance
    frame.analysis.instances.set_attribute(instance, "module", module)
    return instance


def _project_loader(frame: Frame, cls: ClassDef, call: Call) -> Value:
    """An instance of a class of data loaders, which may pass a collate function of its own to its base class."""
    dataset = call.args[0] if call.args else call.kwargs.get("dataset", UNKNOWN)
    init = frame.analysis.project.classes.method(cls, "__init__")
    collate = call.kwargs.get("collate_fn")
    if init is not None and collate is None:
        frame.analysis.run_once(init)
        values = frame.analysis.summary(init).values
        passed = [
            values.get(keyword.value, UNKNOWN)
            for node in walk_block(init.node.body)
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "__init__"
            for keyword in node.keywords
            if keyword.arg == "collate_fn"
        ]
        collate = passed[0] if passed else None
    kwargs = call.kwargs if collate is None else {**call.kwargs, "collate_fn": collate}
    return data_loader(frame, "", dataset, kwargs)


def _new_instance(frame: Frame, cls: ClassDef, call: Call) -> Value:
    analysis, kwargs = frame.analysis, call.kwargs
    classes = analysis.project.classes
    if classes.is_module(cls):
        return Value(Kind.MODULE, Device.CPU, ref=cls, made_with=analysis.named.made_of(cls, kwargs))
    if analysis.classes.is_records(cls):
        return Value(Kind.RECORDS, ref=cls)
    external = classes.external_bases(cls)
    if any(base.startswith("torch.optim") for base in external):
        return Value(Kind.OPTIMIZER)
    if any(base.endswith("DataLoader") for base in external):
        return _project_loader(frame, cls, call)
    if any(base.startswith("torch.distributions.") for base in external):
        where = max((value.device for value in call.values if value.kind is Kind.TENSOR), default=Device.UNKNOWN)
        return Value(Kind.INSTANCE, where, ref=cls, made_with=made_with(call, "validate_args"))
    return Value(Kind.INSTANCE, ref=cls)
