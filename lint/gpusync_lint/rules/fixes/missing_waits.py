"""The wait that orders two accesses of the same memory."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gpusync_lint.model.operations import InsertAfter, InsertBefore, Template
from gpusync_lint.rules.base.blocks import around

if TYPE_CHECKING:
    from gpusync_lint.model.findings import Fix
    from gpusync_lint.model.operations import Operation
    from gpusync_lint.rules.base.context import RuleContext
    from gpusync_lint.rules.ordering.state import Race

_HOST_WAITS = "The host waits for the copy at this line."
_MARKER = "torch.cuda.current_stream().record_event()"


def wait_for_copy(race: Race, context: RuleContext) -> Fix | None:
    """Record an event after the copy, and wait for it before the host uses the memory."""
    copy, use = race.earlier.statement, race.statement
    name = f"{race.memory.name.replace('.', '_')}_copied"
    if not name.isidentifier() or not _imports_torch(context) or name in context.file.text:
        return None
    if not isinstance(copy, (ast.Assign, ast.AnnAssign, ast.Expr)) or not _always_before(copy, use, context):
        return None
    return _fix(
        "Wait for an event recorded after the copy",
        [
            InsertAfter(context.span(copy), Template(f"{name} = {_MARKER}")),
            InsertBefore(context.span(use), Template(f"{name}.synchronize()")),
        ],
        use,
        context,
        hazard=_HOST_WAITS,
    )


def wait_for_stream(race: Race, context: RuleContext) -> Fix | None:
    """Let the stream of the later access wait for that of the earlier one."""
    if not race.waits or not race.waits_for or not _imports_torch(context) or not _is_here(race, context):
        return None
    place = race.block or race.statement
    if race.block is None and not _always_before(race.earlier.statement, place, context):
        return None  # the stream may not exist yet
    wait = Template(f"{race.waits}.wait_stream({race.waits_for})")
    return _fix("Let the stream wait", [InsertBefore(context.span(place), wait)], place, context)


def record_stream(race: Race, context: RuleContext) -> Fix | None:
    """Tell the allocator which stream uses the memory."""
    use = race.statement
    name = race.memory.name
    if not name.isidentifier() or not _imports_torch(context) or not _is_here(race, context):
        return None
    if not any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(use)):
        return None
    new = Template(f"{name}.record_stream(torch.cuda.current_stream())")
    return _fix("Tell the allocator which stream uses the memory", [InsertBefore(context.span(use), new)], use, context)


def wait_for_collective(race: Race, context: RuleContext) -> Fix | None:
    """Wait for the work of the collective before its tensor is used."""
    if not race.waits_for or not _always_before(race.earlier.statement, race.statement, context):
        return None
    wait = InsertBefore(context.span(race.statement), Template(f"{race.waits_for}.wait()"))
    return _fix("Wait for the collective", [wait], race.statement, context)


def _is_here(race: Race, context: RuleContext) -> bool:
    """Whether both accesses are in the function, and not in one that it calls."""
    statements = [race.statement, race.earlier.statement, *([race.block] if race.block is not None else [])]
    return all(around(context.function, one) for one in statements)


def _fix(
    title: str, operations: list[Operation], place: ast.stmt, context: RuleContext, hazard: str | None = None
) -> Fix | None:
    if isinstance(place, ast.While):
        return None  # its test runs again in each iteration
    return context.fix(title, *operations, safe=hazard is None, hazard=hazard)


def _imports_torch(context: RuleContext) -> bool:
    return context.file.imports.get("torch") == "torch"


def _always_before(first: ast.stmt, second: ast.stmt, context: RuleContext) -> bool:
    """Whether one statement has always run when another one of the function runs."""
    firsts, seconds = around(context.function, first), around(context.function, second)
    for level, ((block, at), (other, place)) in enumerate(zip(firsts, seconds, strict=False)):
        if block is not other:
            return False
        if at != place:
            inside = (held[index] for held, index in firsts[level:-1])
            return at < place and all(isinstance(one, (ast.With, ast.AsyncWith)) for one in inside)
    return False
