"""Code actions: fixes, and comments that allow a finding."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from lsprotocol import types

from gpusync_lint.accept import add_comments, comments
from gpusync_lint.accept.rules import RULES
from gpusync_lint.model import codes
from gpusync_lint.rewrite import apply
from gpusync_lint.rewrite.codemod import Codemod, CodemodError
from gpusync_lint.server.values import overlaps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusync_lint.model.findings import Finding, Fix
    from gpusync_lint.model.operations import Operation
    from gpusync_lint.model.spans import Edit
    from gpusync_lint.server.values import Positions

SAFE = "quickfix.gpusync.safe"
UNSAFE = "quickfix.gpusync.unsafe"
ALLOW = "quickfix.gpusync.allow"
FIX_ALL = "source.fixAll.gpusync"


def offered(
    uri: str,
    positions: Positions,
    within: types.Range,
    wanted: Sequence[str] | None,
    diagnostics: list[types.Diagnostic],
) -> list[types.CodeAction]:
    """The actions for a range of a document.

    Args:
        uri: the address of the document, or of a cell.
        positions: the document, with the findings in it.
        within: the range, usually the cursor.
        wanted: the kinds that the client asks for, with all kinds below them; None for all.
        diagnostics: those that the client shows there.
    """
    editor = _Editor(positions)
    findings = [one.finding for one in positions.checked.reported]
    there = [one for one in findings if overlaps(positions.place(one.span), uri, within)]
    actions = [editor.fix(one, one.fix, _about(one, diagnostics)) for one in there if one.fix is not None]
    actions += [editor.allow(one, _about(one, diagnostics)) for one in there if one.code not in RULES]
    if wanted is not None and _is_wanted(FIX_ALL, wanted):
        actions.append(editor.fix_all(findings))
    return [one for one in actions if one is not None and _is_wanted(str(one.kind), wanted)]


def _is_wanted(kind: str, wanted: Sequence[str] | None) -> bool:
    kinds = None if wanted is None else [str(getattr(one, "value", one)) for one in wanted]
    return kinds is None or any(not one or kind == one or kind.startswith(f"{one}.") for one in kinds)


def _about(finding: Finding, diagnostics: list[types.Diagnostic]) -> list[types.Diagnostic]:
    return [one for one in diagnostics if isinstance(one.data, dict) and one.data.get("key") == finding.key]


class _Editor:
    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._codemod = Codemod(positions.checked.text)

    def fix(self, finding: Finding, fix: Fix, about: list[types.Diagnostic]) -> types.CodeAction | None:
        """The fix of one finding; None if it cannot be written."""
        hazard = "" if fix.safe else f" (unsafe{'' if fix.hazard is None else f': {fix.hazard}'})"
        kind = SAFE if fix.safe else UNSAFE
        return self._action(f"{finding.code}: {fix.title}{hazard}", kind, self._edits(fix.operations), about, fix.safe)

    def allow(self, finding: Finding, about: list[types.Diagnostic]) -> types.CodeAction | None:
        """A comment that allows a finding. Its reason is left to write; until then, GS901 is reported."""
        today = datetime.now().astimezone().date()
        checked = self._positions.checked
        try:
            operations, _ = add_comments.additions(
                [finding], finding.path, checked.text, "", names=codes.names(), today=today
            )
        except comments.UnreadableCommentsError:
            return None
        title = f"Allow {finding.code} with a comment; write the reason after it"
        return self._action(title, ALLOW, self._edits(operations), about, False)

    def fix_all(self, findings: Sequence[Finding]) -> types.CodeAction | None:
        """All safe fixes of the document that can be applied together."""
        chosen = apply.choose(findings, lambda fix: self._edits(fix.operations), unsafe=False)
        return self._action("Apply all safe fixes of gpusync", FIX_ALL, chosen.edits, [], False)

    def _edits(self, operations: Sequence[Operation]) -> tuple[Edit, ...]:
        notebook = self._positions.checked.notebook
        if notebook is not None and not notebook.allows(operation.span for operation in operations):
            return ()
        try:
            return self._codemod.edits(operations)
        except CodemodError:
            return ()

    def _action(
        self, title: str, kind: str, edits: Sequence[Edit], about: list[types.Diagnostic], preferred: bool
    ) -> types.CodeAction | None:
        if not edits:
            return None
        changes: dict[str, list[types.TextEdit]] = {}
        for uri, edit in map(self._positions.edit, edits):
            changes.setdefault(uri, []).append(edit)
        return types.CodeAction(
            title=title,
            kind=kind,
            diagnostics=about or None,
            is_preferred=preferred or None,
            edit=types.WorkspaceEdit(changes=changes),
        )
