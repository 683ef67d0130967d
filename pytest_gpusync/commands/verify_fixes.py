"""The decision which fixes are kept: those after which a command waits less often and does the same."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpusync_lint.model.findings import Source
from gpusync_lint.rewrite import apply
from gpusync_lint.run.runner import run as lint

from pytest_gpusync.commands.verify_run import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpusync_lint.files.discovery import SourceFile
    from gpusync_lint.model.spans import Edit
    from gpusync_lint.run.outcome import Outcome
    from gpusync_lint.run.runner import Request

    from pytest_gpusync.commands.verify_run import RunResult

MAX_ROUNDS: Final = 20
"""The number of rounds after which fixes are assumed to undo each other."""

ONE_BY_ONE: Final = 8
"""With more fixes than these, groups are tried first, and halved where they are refused."""

_NUMBER: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_DIGITS: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fix that can be tried."""

    path: str
    line: int
    lines: frozenset[int]
    """The lines of its findings."""
    code: str
    key: str
    """Identifies it after other fixes have moved its line."""
    title: str
    safe: bool
    edits: tuple[Edit, ...]

    @property
    def identity(self) -> tuple[str, str]:
        """What tells it from other fixes, also in a later round."""
        return self.key, self.title


@dataclass(frozen=True, slots=True)
class Trial:
    """A fix, and what became of it."""

    fix: Candidate
    kept: bool
    reason: str | None
    """Why it was refused."""
    tried: bool = True
    """False if it was refused without a run: the command does not wait on its lines."""
    before: int | None = None
    """The syncs of the command without it; of a group of fixes, without the group."""
    after: int | None = None
    group: int = 1
    """The number of fixes that were tried together."""


@dataclass(slots=True)
class Verified:
    """The result of a verification."""

    trials: list[Trial]
    first: RunResult
    """The command before any fix."""
    last: RunResult
    """The command with all fixes that were kept."""
    raws: dict[str, str]
    """The new texts of the files that changed."""
    outcome: Outcome
    """What the linter reports of the new texts."""
    runs: int


def check_deterministic(first: RunResult, second: RunResult, tolerance: float = 0.0) -> None:
    """Raise CommandError unless two runs of the unchanged project succeeded, measured something and did the same."""
    for result in (first, second):
        if result.problem is not None and result.status <= 0:
            raise CommandError(f"--verify: {result.problem}{_because(result)}")
        if result.status != 0:
            raise CommandError(f"--verify: the command fails before any fix: status {result.status}{_because(result)}")
    why = difference(first, second, tolerance)
    if why is None:
        for place in sorted(first.syncs.keys() | second.syncs.keys()):
            one, other = first.syncs.get(place, 0), second.syncs.get(place, 0)
            if one != other:
                why = f"{place[0]}:{place[1]} made {one} syncs, then {other}"
                break
    if why is not None:
        raise CommandError(
            f"--verify: the command differs from itself without any fix: {why}; seed it, or exclude what may differ "
            "with --verify-mask REGEX or --verify-tolerance X"
        )


def difference(first: RunResult, second: RunResult, tolerance: float = 0.0) -> str | None:
    """What differs between the results of two runs, as a clause; None if they are equal."""
    if first.status != second.status:
        return f"exit status {second.status} instead of {first.status}{_because(second)}"
    for one, other in zip(first.output, second.output, strict=False):
        if not _equal(one, other, tolerance):
            return f"it printed {_short(other)} instead of {_short(one)}"
    if len(first.output) != len(second.output):
        return f"it printed {len(second.output)} lines instead of {len(first.output)}"
    return None


def refusal(original: RunResult, before: RunResult, after: RunResult, tolerance: float = 0.0) -> str | None:
    """Why a fix is refused; None if it is kept.

    Args:
        original: the command before any fix. Results are compared with it, so that small differences do not add up.
        before: the command without this fix.
        after: the command with it.
        tolerance: the relative difference up to which printed numbers are equal.
    """
    if after.problem is not None:
        return after.problem
    found = difference(original, after, tolerance)
    if found is not None:
        return found
    if original.races is not None:
        if after.races is None:
            return "races were not looked for with it"
        known = {_DIGITS.sub("#", race) for race in original.races}
        new = [race for race in after.races if _DIGITS.sub("#", race) not in known]
        if new or len(after.races) > len(original.races):
            return f"a data race: {_short((new or after.races)[0], 200)}"
    if after.total >= before.total:
        return f"syncs did not fall: {before.total} before, {after.total} after"
    return None


class Verifier:
    """Tries the fixes of the linter with a command."""

    def __init__(
        self,
        files: Sequence[SourceFile],
        request: Request,
        run: Callable[[Mapping[str, bytes]], RunResult],
        note: Callable[[str], None],
        tolerance: float = 0.0,
    ) -> None:
        self._files = {file.source.path: file for file in files}
        self._request = replace(request, fix=False, write=False, edits=True, cache=None, allow_reason=None)
        self._run_files = run
        self._note = note
        self._tolerance = tolerance
        self._unsafe = request.unsafe
        self._raws = {path: file.raw for path, file in self._files.items()}
        self._runs = 0
        self._trials: list[Trial] = []

    def verify(self) -> Verified:
        """Run the command twice as it is, then with fixes, until no fix is left to try.

        Raises:
            CommandError: the command fails, measures nothing or differs from itself.
        """
        self._note("running the command without fixes")
        first = self._run({})
        self._note(f"{first.total} syncs; running it again, to see whether it repeats itself")
        check_deterministic(first, self._run({}), self._tolerance)
        self._original = self._current = first
        known: set[tuple[str, str]] = set()
        for _ in range(MAX_ROUNDS):
            outcome = self._lint()
            found = [one for one in self._candidates(outcome) if one.identity not in known]
            self._taken: dict[str, dict[Edit, None]] = {}
            kept = self._round(found, known)
            if not kept:
                break
            for path, edits in self._taken.items():
                self._raws[path] = apply.apply_edits(self._raws[path], tuple(edits))
        changed = {path: raw for path, raw in self._raws.items() if raw != self._files[path].raw}
        return Verified(self._trials, first, self._current, changed, outcome, self._runs)

    def _round(self, found: Sequence[Candidate], known: set[tuple[str, str]]) -> bool:
        """Try the fixes of one state of the texts; return whether one was kept."""
        tries = []
        for one in found:
            if self._waits(one):
                tries.append(one)
            else:
                known.add(one.identity)
                self._trials.append(Trial(one, False, "the command makes no sync on its lines", tried=False))
        groups = [[one] for one in tries] if len(tries) <= ONE_BY_ONE else [tries]
        any_kept = False
        while groups:
            group = groups.pop(0)
            # A fix that changes the same text as one that was kept is tried in the next round.
            edits: dict[str, dict[Edit, None]] = {path: dict(taken) for path, taken in self._taken.items()}
            together = []
            for one in group:
                taken = edits.setdefault(one.path, {})
                if apply.compatible(one.edits, taken):
                    taken.update(dict.fromkeys(one.edits))
                    together.append(one)
            if not together:
                continue
            left = sum(map(len, groups)) + len(together)
            what = f"{together[0].path}:{together[0].line} {together[0].code}"
            self._note(f"{left} to try: {what if len(together) == 1 else f'{len(together)} fixes together'}")
            before = self._current
            result, problem = self._try(edits)
            if problem is None and result is not None:
                self._taken, self._current, any_kept = edits, result, True
            elif len(together) > 1:
                middle = len(together) // 2
                groups[:0] = [together[:middle], together[middle:]]
                continue
            after = None if result is None or result.problem else result.total
            for one in together:
                known.add(one.identity)
                self._trials.append(Trial(one, problem is None, problem, True, before.total, after, len(together)))
        return any_kept

    def _try(self, edits: Mapping[str, Mapping[Edit, None]]) -> tuple[RunResult | None, str | None]:
        """Run the command with edits of the current texts; the result, and why they are refused."""
        raws = {}
        for path, own in edits.items():
            try:
                raws[path] = apply.apply_edits(self._raws[path], tuple(own))
            except ValueError as error:
                return None, f"{error}; this is a bug in the rule"
            if not apply.compiles(raws[path]):
                return None, "the fixed text does not compile; this is a bug in the rule"
        try:
            result = self._run(raws)
        except UnicodeEncodeError as error:
            return None, f"the new text cannot be encoded as {error.encoding}"
        return result, refusal(self._original, self._current, result, self._tolerance)

    def _run(self, raws: Mapping[str, str]) -> RunResult:
        self._runs += 1
        texts = {path: raw for path, raw in {**self._raws, **raws}.items() if raw != self._files[path].raw}
        return self._run_files({path: apply.encode(self._files[path], raw) for path, raw in texts.items()})

    def _lint(self) -> Outcome:
        files = []
        for path, file in self._files.items():
            raw = self._raws[path]
            text = raw.replace("\r\n", "\n").replace("\r", "\n")
            files.append(file if raw == file.raw else replace(file, raw=raw, source=Source(path, text)))
        return lint(files, (), self._request)

    def _candidates(self, outcome: Outcome) -> list[Candidate]:
        """The fixes of the warnings that can be applied, each once."""
        found: dict[tuple[str, tuple[Edit, ...]], Candidate] = {}
        for finding in sorted(outcome.warnings, key=lambda one: (one.path, one.span, one.code)):
            fix = finding.fix
            if fix is None or not (fix.safe or self._unsafe) or finding.path in outcome.notebooks:
                continue
            edits = outcome.edits_of(finding)
            if not edits:
                continue
            lines = frozenset(range(finding.span.line, finding.span.end_line + 1))
            earlier = found.get((finding.path, edits))
            found[finding.path, edits] = (
                Candidate(finding.path, finding.span.line, lines, finding.code, finding.key, fix.title, fix.safe, edits)
                if earlier is None
                else replace(earlier, lines=earlier.lines | lines)
            )
        return list(found.values())

    def _waits(self, one: Candidate) -> bool:
        """Whether the command waits on the lines of a fix. To be asked before the round has moved lines."""
        return any(self._current.syncs.get((one.path, line)) for line in one.lines)


def _equal(one: str, other: str, tolerance: float) -> bool:
    if one == other:
        return True
    if not tolerance or _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    numbers = [[float(number) for number in _NUMBER.findall(line)] for line in (one, other)]
    pairs = zip(*numbers, strict=True)
    return all(abs(first - second) <= tolerance * max(abs(first), abs(second)) for first, second in pairs)


def _because(result: RunResult) -> str:
    return f" ({_short(result.last_error, 200)})" if result.last_error else ""


def _short(text: str, limit: int = 80) -> str:
    text = text.strip()
    return repr(text if len(text) <= limit else f"{text[: limit - 3]}...")
