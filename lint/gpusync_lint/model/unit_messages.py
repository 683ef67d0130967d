"""What a finding says about what its line runs once per: a request, a token or a timestep."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpusync_lint.model.levels import Heat
from gpusync_lint.model.units import Unit

if TYPE_CHECKING:
    from gpusync_lint.model.findings import Finding

_SUFFIXES = {
    Unit.REQUEST: ", once per request: it adds to the latency of this request and of those queued behind it",
    Unit.TOKEN: ", once per token: it adds to the latency of every request in the batch",
    Unit.TIMESTEP: ", once per timestep: it adds to the latency of every sample and lowers the throughput",
}
_READS = "GS2"
"""The beginning of the codes of findings that a value is read to the host."""
_REMEDIES = {
    Unit.REQUEST: "Read the response with one copy, after all work of the request was issued, and keep other values "
    "on the device; if this is that copy, allow it with a comment",
    Unit.TOKEN: "Test for the end of all sequences on the device, and read the result every N tokens, or one token "
    "late from a pinned buffer that `copy_(..., non_blocking=True)` has filled",
    Unit.TIMESTEP: "Read the schedule once before the loop (`timesteps.tolist()`), or compute with the tensor on the "
    "device",
}


def described(finding: Finding) -> Finding:
    """The finding with a message and a remedy that fit its unit."""
    if finding.heat is not Heat.STEP or finding.unit not in _SUFFIXES:
        return finding
    remedy = _REMEDIES[finding.unit] if finding.code.startswith(_READS) else finding.remedy
    return replace(finding, message=finding.message + _SUFFIXES[finding.unit], remedy=remedy)


def unit_name(finding: Finding) -> str | None:
    """The unit of a finding as outputs name it; None unless its heat is `step`."""
    return (finding.unit or Unit.STEP).value if finding.heat is Heat.STEP else None
