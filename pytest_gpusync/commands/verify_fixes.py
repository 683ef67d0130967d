"""The decision which fixes are kept: those after which a command waits less often and does the same."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpusync_lint.model.finding_keys import identity
from gpusync_lint.model.findings import Source
from gpusync_lint.rewrite import apply
from gpusync_lint.run.runner import run as lint

from pytest_gpusync.commands.verify_run import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpusync_lint.files.discovery import SourceFile
    from gpusync_lint.model.spans import Edit
    from gpusync_lint.run.outcome import Outcome
    from gpusync_lint.run.runner import Request

    from pytest_gpusync.commands.verify_run import RunResult
    from pytest_gpusync.reporting.run_figures import Interval

    Edits = Mapping[str, Mapping[Edit, None]]
    """Edits by path, in order."""

MAX_ROUNDS: Final = 20
"""The number of rounds after which fixes are assumed to undo each other."""

ONE_BY_ONE: Final = 8
"""With more fixes than these, groups are tried first, and halved where they are refused."""

_NOT_REACHED: Final = "the command makes no sync on its lines"
_NO_NOTEBOOK: Final = "it is in a notebook, which no command runs"

_CONTEXT: Final = 30
"""Characters of a line that are shown before its first difference."""

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
    title: str
    safe: bool
    edits: tuple[Edit, ...]
    is_notebook: bool = False

    @property
    def kind(self) -> tuple[str, str]:
        """What it has in common with the fixes of equal code in the same function, whose order stays the same."""
        return identity(self.key), self.title


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
            pairs = enumerate(zip(one, other, strict=False))
            start = max(0, next((at for at, (a, b) in pairs if a != b), min(len(one), len(other))) - _CONTEXT)
            return f"it printed {_short(other[start:])} instead of {_short(one[start:])}"
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


def slower(before: Mapping[str, Interval], after: Mapping[str, Interval]) -> str | None:
    """Whose steps take longer, as a clause: their interval lies above the one before. None if no steps do."""
    for name, time in after.items():
        earlier = before.get(name)
        if earlier is not None and time.low > earlier.high:
            return f"slower: a step of {name} takes {time} ms instead of {earlier} ms"
    return None


def joined_times(one: Mapping[str, Interval], other: Mapping[str, Interval]) -> dict[str, Interval]:
    """The times of two runs of the same code, with the interval that covers both."""
    found = dict(one)
    for name, time in other.items():
        there = found.get(name, time)
        value, low, high = max(there.value, time.value), min(there.low, time.low), max(there.high, time.high)
        found[name] = there._replace(value=value, low=low, high=high)
    return found


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
        second = self._run({})
        check_deterministic(first, second, self._tolerance)
        if not first.output:
            self._note("note: the command prints nothing, so of its results only the exit status is compared")
        self._original = first
        self._current = replace(first, step_times=joined_times(first.step_times, second.step_times))
        decided: dict[tuple[str, str], list[bool]] = {}
        for _ in range(MAX_ROUNDS):
            outcome = self._lint(self._raws)
            self._found = self._candidates(outcome)
            self._taken: dict[str, dict[Edit, None]] = {}
            self._kept: set[Candidate] = set()
            self._decided = _decided(self._found, decided)
            self._round([one for one in self._found if one not in self._decided])
            if not self._kept:
                break
            self._raws.update(self._texts(self._taken))
            decided = {}
            for one in self._found:
                if one not in self._kept:
                    decided.setdefault(one.kind, []).append(one in self._decided)
        changed = {path: raw for path, raw in self._raws.items() if raw != self._files[path].raw}
        return Verified(self._trials, first, self._current, changed, outcome, self._runs)

    def _round(self, found: Sequence[Candidate]) -> None:
        """Try fixes of one state of the texts."""
        tries = []
        for one in found:
            why = _NO_NOTEBOOK if one.is_notebook else None if self._waits(one) else _NOT_REACHED
            if why is None:
                tries.append(one)
            else:
                self._decided.add(one)
                self._trials.append(Trial(one, False, why, tried=False))
        groups = [[one] for one in tries] if len(tries) <= ONE_BY_ONE else [tries]
        refused: dict[Candidate, int] = {}
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
                self._taken, self._current = edits, result
                self._kept.update(together)
            elif len(together) > 1:
                middle = len(together) // 2
                groups[:0] = [together[:middle], together[middle:]]
                continue
            after = None if result is None or result.problem else result.total
            for one in together:
                self._decided.add(one)
                if problem is not None:
                    refused[one] = len(self._trials)
                self._trials.append(Trial(one, problem is None, problem, True, before.total, after, len(together)))
        self._together(refused)

    def _together(self, refused: dict[Candidate, int]) -> None:
        """Try again, together, what was refused alone.

        Two fixes can need each other: two sums that the program compares, one of which is rounded. They are mostly in
        one function, so all are tried, then those of each file, then those of each function.

        Args:
            refused: the fixes, with their places among the trials.
        """
        levels: tuple[Callable[[Candidate], object], ...] = (
            lambda _: None,
            lambda one: one.path,
            lambda one: one.key.rsplit("::", 3)[0],
        )
        seen: set[frozenset[Candidate]] = set()
        for level in levels:
            for group in _grouped(refused, level):
                if len(group) < 2 or frozenset(group) in seen:
                    continue
                seen.add(frozenset(group))
                before = self._current
                needed = self._needed(group)
                if needed is None:
                    continue
                group, raws, self._current = needed
                self._raws.update(raws)
                self._taken = {}
                self._kept.update(group)
                for one in group:
                    trial = Trial(one, True, None, True, before.total, self._current.total, len(group))
                    self._trials[refused.pop(one)] = trial

    def _needed(self, group: list[Candidate]) -> tuple[list[Candidate], dict[str, str], RunResult] | None:
        """Return the fixes of a group that need each other, with the texts and the result; None if it is refused."""
        tried = self._with(group)
        if tried is None:
            return None
        found = (group, *tried)
        for one in group:
            fewer = [other for other in found[0] if other is not one]
            without = self._with(fewer) if len(fewer) > 1 else None
            if without is not None and without[1].total <= found[2].total:
                found = (fewer, *without)
        return found

    def _with(self, group: Sequence[Candidate]) -> tuple[dict[str, str], RunResult] | None:
        """Run the command with a group of fixes, and return the texts and the result; None if it is refused."""
        self._note(f"{len(group)} fixes that were refused alone, together: {group[0].path}:{group[0].line}")
        raws = self._with_all(group)
        if raws is None:
            return None
        result, problem = self._run_texts(raws)
        return None if problem is not None or result is None else (raws, result)

    def _with_all(self, group: Sequence[Candidate]) -> dict[str, str] | None:
        """The texts with a group of fixes; None if one of them cannot be applied after the others."""
        edits: dict[str, dict[Edit, None]] = {path: dict(taken) for path, taken in self._taken.items()}
        left, gone = list(group), set(self._kept)
        raws = dict(self._raws)
        while True:
            for one, now in self._again(left, gone, raws):
                taken = edits.setdefault(one.path, {})
                if now is not None and apply.compatible(now.edits, taken):
                    taken.update(dict.fromkeys(now.edits))
                    left.remove(one)
                    gone.add(one)
            if not any(edits.values()):
                return None
            try:
                raws.update(self._texts(edits, raws))
            except ValueError:
                return None
            if not left:
                return raws
            edits = {}

    def _again(
        self, fixes: Sequence[Candidate], gone: set[Candidate], raws: Mapping[str, str]
    ) -> list[tuple[Candidate, Candidate | None]]:
        """Fixes of this round, each as the linter finds it in texts that have those in `gone`; None if it does not."""
        if raws == self._raws:
            return [(one, one) for one in fixes]
        found = self._candidates(self._lint(raws))
        pairs = []
        for one in fixes:
            earlier = self._found[: self._found.index(one)]
            place = sum(other.kind == one.kind and other not in gone for other in earlier)
            alike = [other for other in found if other.kind == one.kind]
            pairs.append((one, alike[place] if place < len(alike) else None))
        return pairs

    def _try(self, edits: Edits) -> tuple[RunResult | None, str | None]:
        """Run the command with edits of the current texts; the result, and why they are refused."""
        try:
            raws = self._texts(edits)
        except ValueError as error:
            return None, f"{error}; this is a bug in the rule"
        return self._run_texts(raws)

    def _run_texts(self, raws: Mapping[str, str]) -> tuple[RunResult | None, str | None]:
        """Run the command with other texts; the result, and why they are refused."""
        try:
            result = self._run(raws)
        except UnicodeEncodeError as error:
            return None, f"the new text cannot be encoded as {error.encoding}"
        problem = refusal(self._original, self._current, result, self._tolerance)
        return self._slower(raws, result) if problem is None else (result, problem)

    def _slower(self, raws: Mapping[str, str], result: RunResult) -> tuple[RunResult, str | None]:
        """The result of texts with the times of all their runs, and why they are refused because of time."""
        before = self._current.step_times
        if slower(before, result.step_times) is None:
            return result, None
        # Another program on the machine makes a run slower, too. Both sides are run once more.
        self._note("a step takes longer; running both sides again")
        again = self._run(self._texts(self._taken)), self._run(raws)
        before = joined_times(before, again[0].step_times)
        self._current = replace(self._current, step_times=before)
        result = replace(result, step_times=joined_times(result.step_times, again[1].step_times))
        return result, slower(before, result.step_times)

    def _texts(self, edits: Edits, raws: Mapping[str, str] | None = None) -> dict[str, str]:
        """The texts of the files that edits change: edits of the given texts, or else of the current ones.

        Raises:
            ValueError: they cannot be applied, or what they give does not compile.
        """
        base = self._raws if raws is None else raws
        changed = {path: apply.apply_edits(base[path], tuple(own)) for path, own in edits.items()}
        if not all(map(apply.compiles, changed.values())):
            raise ValueError("the fixed text does not compile")
        return changed

    def _run(self, raws: Mapping[str, str]) -> RunResult:
        self._runs += 1
        texts = {path: raw for path, raw in {**self._raws, **raws}.items() if raw != self._files[path].raw}
        return self._run_files({path: apply.encode(self._files[path], raw) for path, raw in texts.items()})

    def _lint(self, raws: Mapping[str, str]) -> Outcome:
        files = []
        for path, file in self._files.items():
            raw = raws[path]
            text = raw.replace("\r\n", "\n").replace("\r", "\n")
            files.append(file if raw == file.raw else replace(file, raw=raw, source=Source(path, text)))
        return lint(files, (), self._request)

    def _candidates(self, outcome: Outcome) -> list[Candidate]:
        """The fixes of the warnings that can be applied, each once."""
        found: dict[tuple[str, tuple[Edit, ...]], Candidate] = {}
        for finding in sorted(outcome.warnings, key=lambda one: (one.path, one.span, one.code)):
            fix = finding.fix
            if fix is None or not (fix.safe or self._unsafe):
                continue
            edits = outcome.edits_of(finding)
            if not edits:
                continue
            lines = frozenset(range(finding.span.line, finding.span.end_line + 1))
            earlier = found.get((finding.path, edits))
            found[finding.path, edits] = (
                replace(earlier, lines=earlier.lines | lines)
                if earlier is not None
                else Candidate(
                    finding.path, finding.span.line, lines, finding.code, finding.key, fix.title, fix.safe, edits,
                    finding.path in outcome.notebooks,
                )
            )  # fmt: skip
        return list(found.values())

    def _waits(self, one: Candidate) -> bool:
        """Whether the command waits on the lines of a fix. To be asked before the round has moved lines."""
        return any(self._current.syncs.get((one.path, line)) for line in one.lines)


def _decided(found: Sequence[Candidate], decided: Mapping[tuple[str, str], Sequence[bool]]) -> set[Candidate]:
    """The fixes that an earlier round has decided.

    Args:
        found: all fixes of this round.
        decided: of the fixes of a kind that an earlier round did not keep, in order, whether it decided them.
    """
    left = {kind: iter(states) for kind, states in decided.items()}
    return {one for one in found if next(left.get(one.kind, iter(())), False)}


def _grouped(fixes: Iterable[Candidate], group_of: Callable[[Candidate], object]) -> list[list[Candidate]]:
    groups: dict[object, list[Candidate]] = {}
    for one in fixes:
        groups.setdefault(group_of(one), []).append(one)
    return list(groups.values())


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
