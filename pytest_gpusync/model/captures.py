"""What a capture of a CUDA graph found: operations that are not permitted, and values that a replay does not renew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_gpusync.model.measurement import Site

OffenseRule = Literal["wait", "copy", "call", "stream", "generator"]


@dataclass(frozen=True, slots=True)
class Offender:
    """An operation that the capture of a CUDA graph does not permit."""

    rule: OffenseRule | None
    """What it breaks: it waits, copies pageable memory, is a call that CUDA prohibits, is on a stream outside of the
    capture, or draws from a generator that the graph does not know. None on a GPU, whose error says it."""
    site: Site
    error: str
    """The error of torch or CUDA for it, its first line."""
    times: int = 1

    def __str__(self) -> str:
        rule = "" if self.rule is None else f"[{self.rule}] "
        return f"{_shown(self.site)}: {rule}{self.error}{_times(self.times)}"


@dataclass(frozen=True, slots=True)
class Baked:
    """A kernel that depends on Python at the capture: a replay repeats what it was then."""

    site: Site
    operator: str
    """The first kernel of the line that differs between two captures: ``aten::mul.Tensor``."""
    difference: str
    """How it differs between two captures, as a clause."""
    times: int = 1

    def __str__(self) -> str:
        return f"{_shown(self.site)}: [baked] {self.operator} {self.difference}{_times(self.times)}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A value after a replay that is not the value of eager code with the same inputs."""

    what: str
    """The output, or the kernel that wrote it with its line."""
    difference: str

    def __str__(self) -> str:
        return f"{self.what} {self.difference}"


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """What is known about one function that is to be captured, or about the captures of a block."""

    subject: str
    device: Literal["simulated", "cuda"]
    offenders: tuple[Offender, ...]
    baked: tuple[Baked, ...] = ()
    differences: tuple[Difference, ...] = ()
    kernels: int | None = None
    """Kernels of the graph; None if that is unknown, as on a GPU."""
    replays: int | None = None
    """Replays that were compared with eager code; None if none was."""
    why_not_compared: str = ""
    """Why no replay was compared."""

    @property
    def is_complete(self) -> bool:
        """Whether all offenders are known. A GPU stops at the first one."""
        return self.device == "simulated" or not self.offenders

    @property
    def is_capturable(self) -> bool:
        """Whether nothing was found."""
        return not (self.offenders or self.baked or self.differences)

    def __str__(self) -> str:
        """One sentence, and a line for each finding."""
        return "\n".join([self._sentence(), *(f"  {one}" for one in self._findings())])

    def _findings(self) -> list[str]:
        lines = [str(one) for one in (*self.offenders, *self.baked, *self.differences)]
        if not self.is_complete:
            lines.append(
                "a GPU stops at the first offender: run the same check under simulated_cuda() to see all of them"
            )
        if self.replays is None and not self.offenders:
            lines.append(f"replays were not compared with eager code: {self.why_not_compared or 'there was none'}")
        return lines

    def _sentence(self) -> str:
        where = "on the simulated device" if self.device == "simulated" else "on a GPU"
        if self.offenders:
            count = _count(len(self.offenders), "offender") if self.is_complete else "the first offender"
            more = f", {_count(len(self.baked), 'baked value')}" if self.baked else ""
            return f"{self.subject} cannot be captured as a CUDA graph ({where}): {count}{more}"
        if self.baked or self.differences:
            return (
                f"{self.subject} can be captured as a CUDA graph, but a replay does not do what the function does "
                f"({where}): {_count(len(self.baked), 'baked value')}, "
                f"{_count(len(self.differences), 'different result')}"
            )
        kernels = "" if self.kernels is None else f", {_count(self.kernels, 'kernel')}"
        replays = "" if self.replays is None else f", {_count(self.replays, 'replay')} equal to eager code"
        return f"{self.subject} can be captured as a CUDA graph ({where}){kernels}{replays}"


class NotCapturable(AssertionError):
    """A function cannot be captured as a CUDA graph, or its replays do something else. The text names the lines."""

    def __init__(self, report: CaptureReport) -> None:
        super().__init__(str(report))
        self.report = report


def _shown(site: Site) -> str:
    via = "" if site.via is None else f" (via {site.via})"
    return f"{site.path}:{site.line} {site.function}{via}"


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
