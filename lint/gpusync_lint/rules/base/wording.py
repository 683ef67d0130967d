"""Findings on accelerators other than CUDA's: which of them a report is about, and what is said about it there."""

from __future__ import annotations

import ast
import re
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from gpusync_lint.domain import accelerators
from gpusync_lint.domain.values import Device, Kind
from gpusync_lint.model.levels import Confidence
from gpusync_lint.model.operations import AddKeyword, Template
from gpusync_lint.syntax.traversal import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusync_lint.catalogue.schema import Accelerator, Barrier
    from gpusync_lint.domain.values import Value
    from gpusync_lint.model.findings import Fix
    from gpusync_lint.rules.base.context import Report, RuleContext

_MEASURED_ON_CUDA = ("GS407", "GS408")
"""The codes of waits inside operators, which were measured with CUDA's libraries."""
_NOUN = re.compile(r"\bGPU\b")
_MODULE = "torch.cuda."
_Operation = TypeVar("_Operation")


def accelerator_of(report: Report, context: RuleContext) -> Accelerator | None:
    """The accelerator that a report is about; None for CUDA's, for an unknown one, and for several."""
    for node in (report.node, report.heat_statement):
        devices = {_device(value) for value in _values(node, context)}
        named = [accelerator for device, accelerator in accelerators.by_device().items() if device in devices]
        if named:
            return named[0] if len(named) == 1 else None
    return only_accelerator(context)


def only_accelerator(context: RuleContext) -> Accelerator | None:
    """The accelerator that a file is written for, by the plugin that it imports.

    None if the file names CUDA too, unless it also imports what makes that mean the accelerator.
    """
    known = accelerators.by_module()
    roots = {dotted.partition(".")[0] for dotted in (*context.file.imports.values(), *context.file.stars)}
    found = {known[root].type: known[root] for root in roots if root in known}
    if len(found) != 1:
        return None
    (accelerator,) = found.values()
    text = context.file.text
    is_replaced = any(name.rpartition(".")[2] in text for name in accelerator.replaces_cuda)
    return accelerator if is_replaced or "cuda" not in text else None


def reworded(report: Report, barrier: Barrier, accelerator: Accelerator) -> Report | None:
    """A report in the words of an accelerator; None if it does not wait there.

    The message and the remedy that a rule chose for the place are kept if the accelerator says nothing of its own. The
    message is still a template, as in the catalogue, unless the rule chose it.
    """
    if barrier.framework != "torch":
        return report
    if barrier.id in accelerator.silent:
        return None
    wording = next((one for one in accelerator.wordings if barrier.id in one.barriers), None)
    message, remedy = report.message or barrier.message, report.remedy or barrier.remedy
    if wording is not None:
        message, remedy = wording.message or message, wording.remedy or remedy
    unknown = barrier.code in _MEASURED_ON_CUDA
    return replace(
        report,
        message=_words(message, accelerator),
        remedy=_words(remedy, accelerator),
        confidence=Confidence.LOW if unknown else report.confidence,
        fix=_fix(report.fix, accelerator),
    )


def _fix(fix: Fix | None, accelerator: Accelerator) -> Fix | None:
    """A fix that names the module of an accelerator; None if that has no such module, or if copies must block there."""
    if fix is None:
        return None
    operations = tuple(_operation(one, accelerator) for one in fix.operations)
    adds = any(isinstance(one, AddKeyword) and one.name == "non_blocking" for one in operations)
    if (adds and not accelerator.copies_in_background) or any(_MODULE in text for text in _texts(operations)):
        return None
    hazard = None if fix.hazard is None else _words(fix.hazard, accelerator)
    return replace(fix, title=_words(fix.title, accelerator), operations=operations, hazard=hazard)


def _operation(operation: _Operation, accelerator: Accelerator) -> _Operation:
    """An operation whose templates name the module of an accelerator instead of CUDA's."""
    changed: dict[str, Any] = {}
    for field in fields(operation):  # type: ignore[arg-type]
        value = getattr(operation, field.name)
        if isinstance(value, Template) and _MODULE in value.text and accelerator.module:
            changed[field.name] = replace(value, text=value.text.replace(_MODULE, f"{accelerator.module}."))
    return replace(operation, **changed) if changed else operation  # type: ignore[type-var]


def _texts(operations: tuple[Any, ...]) -> Iterator[str]:
    for operation in operations:
        for field in fields(operation):
            value = getattr(operation, field.name)
            if isinstance(value, Template):
                yield value.text


def _words(text: str, accelerator: Accelerator) -> str:
    text = _NOUN.sub(accelerator.noun, text)
    return text.replace(_MODULE, f"{accelerator.module}.") if accelerator.module else text


def _values(node: ast.AST | None, context: RuleContext) -> Iterator[Value]:
    for part in walk(node) if node is not None else ():
        if isinstance(part, ast.expr):
            yield context.value(part)


def _device(value: Value) -> Device | None:
    """The device that a value is on, or that it names; None for none."""
    if value.device > Device.ASSUMED:
        return value.device
    return accelerators.named(value.const) if value.kind is Kind.HOST and isinstance(value.const, str) else None
