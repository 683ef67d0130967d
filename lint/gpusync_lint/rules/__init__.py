"""The rules: each decides about one kind of barrier, one topic per file."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gpusync_lint.rules.catalogue_calls import CallByShape, CatalogueCall
from gpusync_lint.rules.control_flow import BooleanOperator, BuiltinComparison, Condition
from gpusync_lint.rules.explicit import ExplicitBarrier
from gpusync_lint.rules.foreign import ForeignBarrier
from gpusync_lint.rules.foreign_shapes import HostArgument
from gpusync_lint.rules.hidden import AttentionMask, DistributionChecks, HiddenStep, Scaler
from gpusync_lint.rules.hidden_calls import (
    AnomalyDetection,
    CaptureAndLoad,
    CumulativeBatchNorm,
    NormBySingularValues,
    ReadingOptimizer,
)
from gpusync_lint.rules.indexing import IndexRead, IndexWrite, MaskGradient
from gpusync_lint.rules.item import Item
from gpusync_lint.rules.named import NamedBarrier, PreparedLoader
from gpusync_lint.rules.pageable import PageableCopy
from gpusync_lint.rules.queue import UnboundedQueue
from gpusync_lint.rules.remote import RemoteInLoop
from gpusync_lint.rules.retention import KeptGraph
from gpusync_lint.rules.scalar import IndexByValue, ScalarConversion, TensorAsNumber
from gpusync_lint.rules.text import TensorToText
from gpusync_lint.rules.timing import UnsynchronisedTiming
from gpusync_lint.rules.to_device import CopyToDevice, PinInStep, TensorFromData
from gpusync_lint.rules.to_host import CopyToHost, StoreToHost

if TYPE_CHECKING:
    from gpusync_lint.rules.base.context import Rule

RULES: tuple[type[Rule], ...] = (
    ExplicitBarrier,
    Item,
    CopyToHost,
    StoreToHost,
    ScalarConversion,
    TensorAsNumber,
    IndexByValue,
    TensorToText,
    Condition,
    BooleanOperator,
    BuiltinComparison,
    CatalogueCall,
    CallByShape,
    IndexRead,
    IndexWrite,
    MaskGradient,
    CopyToDevice,
    TensorFromData,
    Scaler,
    DistributionChecks,
    HiddenStep,
    AttentionMask,
    AnomalyDetection,
    ReadingOptimizer,
    CumulativeBatchNorm,
    CaptureAndLoad,
    NormBySingularValues,
    ForeignBarrier,
    HostArgument,
    NamedBarrier,
    PreparedLoader,
    RemoteInLoop,
    KeptGraph,
    PinInStep,
    PageableCopy,
    UnsynchronisedTiming,
    UnboundedQueue,
)
"""Every rule, in the order in which they look."""


@cache
def by_node(after_others: bool = False) -> dict[type, tuple[Rule, ...]]:
    """The rules that want to see each type of `ast`: those that look first, or those that look late."""
    table: dict[type, list[Rule]] = {}
    for rule in (cls() for cls in RULES if cls.after_others is after_others):
        for node in rule.nodes:
            table.setdefault(node, []).append(rule)
    return {node: tuple(rules) for node, rules in table.items()}
