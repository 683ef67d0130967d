"""GS706 to GS709 and GS806: accesses of the same memory that nothing orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gpusync_lint.rules.fixes import missing_waits
from gpusync_lint.rules.ordering.clocks import CURRENT
from gpusync_lint.rules.ordering.rule import UnorderedRule
from gpusync_lint.rules.ordering.state import NAMED, Kind, Race

if TYPE_CHECKING:
    from gpusync_lint.model.findings import Fix
    from gpusync_lint.rules.base.context import RuleContext

_SIDE = "side = torch.cuda.Stream()\n"
_JOIN = "side.wait_stream(torch.cuda.current_stream())\n"
_DIST = "import torch.distributed as dist\n"


class UnorderedHostRead(UnorderedRule):
    """The host reads what a `non_blocking` copy has yet to write: `h = x.to("cpu", non_blocking=True)`, `h.sum()`."""

    kind = Kind.HOST_READ
    barriers = ("unordered-host-read",)
    VALID: ClassVar = (
        "h = x.to('cpu', non_blocking=True)\ntorch.cuda.synchronize()\nh.sum()",
        "h = x.to('cpu', non_blocking=True)\ndone = torch.cuda.Event()\ndone.record()\ndone.synchronize()\nh.clone()",
        (
            "h = x.to('cpu', non_blocking=True)\ndone = torch.cuda.Event()\ndone.record()\n"
            "while not done.query():\n    pass\nh.clone()"
        ),
        "h = x.to('cpu', non_blocking=True)\ns.item()\nh.clone()",
        "h = x.cpu()\nh.clone()",
        "p.copy_(x)\np.clone()",
        "c.copy_(x, non_blocking=True)\nc.clone()",
        "p[:16].copy_(x[:16], non_blocking=True)\np[32:].clone()",
        (
            f"{_SIDE}{_JOIN}"
            "with torch.cuda.stream(side):\n    p.copy_(x, non_blocking=True)\nside.synchronize()\np.clone()"
        ),
        "h = x.to('cpu', non_blocking=True)\nlosses.append(h)",
        "h = x.to('cpu', non_blocking=True)\nh.shape[0]",
    )
    INVALID: ClassVar = (
        "h = x.to('cpu', non_blocking=True)\nh.clone()",
        "h = x.to('cpu', non_blocking=True).numpy().copy()",
        "h = x[:4].to('cpu', non_blocking=True)\nprint(h.tolist())",
        "h = x.to(device='cpu', dtype=torch.float64, non_blocking=True)\nprint(h)",
        f"{_SIDE}h = x.to('cpu', non_blocking=True)\nside.synchronize()\nh.clone()",
        "p.copy_(x, non_blocking=True)\np.clone()",
        "p[:16].copy_(x[:16], non_blocking=True)\np[:16].clone()",
        "torch._foreach_copy_([p], [x], non_blocking=True)\np.clone()",
        "layer = torch.nn.Linear(4, 4).cuda()\nlayer.to('cpu', non_blocking=True)\nlayer.weight.data.clone()",
        (
            f"{_SIDE}{_JOIN}"
            "with torch.cuda.stream(side):\n    p.copy_(x, non_blocking=True)\n"
            "torch.cuda.current_stream().synchronize()\np.clone()"
        ),
    )

    def message(self, race: Race) -> str:
        """One sentence with the names and lines of a race."""
        name, at = _name(race), race.earlier.node.lineno
        return f"{name} is read on the host; the copy at line {at} may not have filled it: nothing waits for it"

    def fix(self, race: Race, context: RuleContext) -> Fix | None:
        """The wait that is missing."""
        return missing_waits.wait_for_copy(race, context)


class UnorderedHostWrite(UnorderedRule):
    """The host refills pinned memory that a copy has yet to read: `p.to(dev, non_blocking=True)`, then `p.fill_(0)`."""

    kind = Kind.HOST_WRITE
    barriers = ("unordered-host-write",)
    VALID: ClassVar = (
        "p.fill_(9.)\nd = p.to(dev, non_blocking=True)\ntorch.cuda.synchronize()",
        "d = p.to(dev, non_blocking=True)\ndone = torch.cuda.Event()\ndone.record()\ndone.synchronize()\np.fill_(9.)",
        "x.copy_(p)\np.fill_(9.)",
        "x.copy_(c, non_blocking=True)\nc.fill_(9.)",
        "x[:16].copy_(p[:16], non_blocking=True)\np[32:] = 9.\ntorch.cuda.synchronize()",
        "x.copy_(c.pin_memory(), non_blocking=True)\nc.fill_(9.)",
        "h = c.pin_memory()\nx.copy_(h, non_blocking=True)\ndel h\nh = torch.empty(9, pin_memory=True)\nh.fill_(9.)",
        (
            "rings = [c.pin_memory(), c.pin_memory()]\ncopied = [torch.cuda.Event(), torch.cuda.Event()]\n"
            "for i in range(3):\n    copied[i % 2].synchronize()\n    rings[i % 2].fill_(0.)\n"
            "    x.copy_(rings[i % 2], non_blocking=True)\n    copied[i % 2].record()"
        ),
    )
    INVALID: ClassVar = (
        "x.copy_(p, non_blocking=True)\np.fill_(9.)",
        "d = p.to(dev, non_blocking=True)\np.zero_()",
        "d = p.cuda(non_blocking=True)\np[0] = 1.",
        "p.copy_(c)\nd = p.to(dev, non_blocking=True)",
        "done = torch.cuda.Event()\ndone.record()\nx.copy_(p, non_blocking=True)\ndone.synchronize()\np.fill_(9.)",
        "view = p.numpy()\nx.copy_(p, non_blocking=True)\nview[:] = 9.",
        "for i in range(2):\n    p.fill_(i)\n    d = p.to(dev, non_blocking=True)",
    )

    def message(self, race: Race) -> str:
        """One sentence with the names and lines of a race."""
        name, at = _name(race), race.earlier.node.lineno
        later, earlier = race.node, race.earlier.node
        before = (later.lineno, later.col_offset) < (earlier.lineno, earlier.col_offset)
        again = " in the iteration before" if before else ""
        verb = "write" if race.earlier.writes else "read"
        return f"{name} is overwritten on the host while the copy at line {at}{again} may still {verb} it"

    def fix(self, race: Race, context: RuleContext) -> Fix | None:
        """The wait that is missing."""
        return missing_waits.wait_for_copy(race, context)


class UnorderedStreams(UnorderedRule):
    """Two streams use the same memory and none waits for the other one."""

    kind = Kind.STREAM
    barriers = ("unordered-streams",)
    VALID: ClassVar = (
        f"{_SIDE}y = x * 2\n{_JOIN}with torch.cuda.stream(side):\n    z = y * 2",
        f"{_SIDE}y = x * 2\ntorch.cuda.synchronize()\nwith torch.cuda.stream(side):\n    z = y * 2",
        (
            f"{_SIDE}with torch.cuda.stream(side):\n    y = x * 2\n"
            "torch.cuda.current_stream().wait_stream(side)\nz = y * 2"
        ),
        (
            f"{_SIDE}with torch.cuda.stream(side):\n    y = x * 2\n    done = side.record_event()\n"
            "torch.cuda.current_stream().wait_event(done)\nz = y * 2"
        ),
        f"{_SIDE}with torch.cuda.stream(side):\n    y = model(x).sum()\ny.backward()\ng = model.weight.grad * 1",
        (
            f"{_SIDE}with torch.cuda.stream(side):\n    d = p.to(dev, non_blocking=True)\n"
            "torch.cuda.current_stream().wait_stream(side)\nd.record_stream(torch.cuda.current_stream())\ny = d * 2"
        ),
        "with torch.cuda.stream(torch.cuda.current_stream()):\n    y = x * 2\nz = y * 2",
    )
    INVALID: ClassVar = (
        f"{_SIDE}y = x * 2\nwith torch.cuda.stream(side):\n    z = y * 2",
        f"{_SIDE}with torch.cuda.stream(side):\n    y = x * 2\nz = y * 2",
        (
            f"{_SIDE}done = torch.cuda.Event()\ndone.record()\ny = x * 2\nside.wait_event(done)\n"
            "with torch.cuda.stream(side):\n    z = y * 2"
        ),
        (f"{_SIDE}{_JOIN}with torch.cuda.stream(side):\n    z = x * 2\nx.fill_(3.)"),
        f"{_SIDE}x.fill_(3.)\nwith torch.cuda.stream(side):\n    p.copy_(x, non_blocking=True)\nside.synchronize()",
        f"{_SIDE}with torch.cuda.stream(side):\n    d = p.to(dev, non_blocking=True)\ny = model(d)",
    )

    def message(self, race: Race) -> str:
        """One sentence with the names and lines of a race."""
        earlier = "writes" if race.earlier.writes else "reads"
        does = "overwritten" if race.writes else "used"
        other = _stream(race.earlier.stream)
        return (
            f"{_name(race)} is {does} on {_stream(race.stream)}, which has not waited for {other}: "
            f"line {race.earlier.node.lineno} {earlier} it there"
        )

    def fix(self, race: Race, context: RuleContext) -> Fix | None:
        """The wait that is missing."""
        return missing_waits.wait_for_stream(race, context)


class FreedOnAnotherStream(UnorderedRule):
    """Memory that a side stream uses is freed, and allocated again before that stream is done."""

    kind = Kind.FREED
    barriers = ("freed-on-another-stream",)
    VALID: ClassVar = (
        (
            f"{_SIDE}t = torch.zeros(4, device=dev)\n{_JOIN}"
            "with torch.cuda.stream(side):\n    y = t + 1\nt.record_stream(side)\ndel t\nz = torch.zeros(4, device=dev)"
        ),
        (
            f"{_SIDE}t = torch.zeros(4, device=dev)\n{_JOIN}"
            "with torch.cuda.stream(side):\n    y = t + 1\ntorch.cuda.current_stream().wait_stream(side)\n"
            "del t\nz = torch.zeros(4, device=dev)"
        ),
        (
            f"{_SIDE}t = torch.zeros(4, device=dev)\n{_JOIN}"
            "with torch.cuda.stream(side):\n    y = t + 1\nlosses.append(t)\ndel t\nz = torch.zeros(4, device=dev)"
        ),
    )
    INVALID: ClassVar = (
        (
            f"{_SIDE}t = torch.zeros(4, device=dev)\n{_JOIN}"
            "with torch.cuda.stream(side):\n    y = t + 1\ndel t\nz = torch.zeros(4, device=dev)"
        ),
        (
            f"{_SIDE}t = torch.zeros(4, device=dev)\n{_JOIN}"
            "with torch.cuda.stream(side):\n    y = t + 1\nt = x + 1\nz = torch.zeros(4, device=dev)"
        ),
        (
            f"{_SIDE}for h in (p, p, p):\n    with torch.cuda.stream(side):\n        d = h.to(dev, non_blocking=True)\n"
            "    torch.cuda.current_stream().wait_stream(side)\n    y = d * 2"
        ),
    )

    def message(self, race: Race) -> str:
        """One sentence with the names and lines of a race."""
        return (
            f"{_name(race)} is freed while {_stream(race.earlier.stream)} may still use it, so the next tensor may get "
            "its memory too early"
        )

    def fix(self, race: Race, context: RuleContext) -> Fix | None:
        """The wait that is missing."""
        return missing_waits.record_stream(race, context)


class UnorderedCollective(UnorderedRule):
    """A tensor of an asynchronous collective is used before `wait()`."""

    kind = Kind.COLLECTIVE
    barriers = ("unordered-collective",)
    VALID: ClassVar = (
        f"{_DIST}work = dist.all_reduce(x, async_op=True)\nwork.wait()\ny = x * 1",
        f"{_DIST}dist.all_reduce(x)\ny = x * 1",
        (
            f"{_DIST}o = torch.zeros(8, device=dev)\nwork = dist.all_gather_into_tensor(o, x, async_op=True)\ndel x\n"
            "z = torch.zeros(4, device=dev)\nwork.wait()\ny = o * 1"
        ),
        f"{_DIST}works = [dist.all_reduce(x, async_op=True)]\nfor work in works:\n    work.wait()\ny = x * 1",
        f"{_DIST}work = dist.all_gather_into_tensor(v, x, async_op=True)\ny = x * 1\nwork.wait()",
    )
    INVALID: ClassVar = (
        f"{_DIST}work = dist.all_reduce(x, async_op=True)\nx.zero_()\nwork.wait()",
        f"{_DIST}work = dist.all_gather_into_tensor(v, x, async_op=True)\ny = v * 1\nwork.wait()",
        f"{_DIST}work = dist.all_gather_into_tensor(v, x, async_op=True)\nx.zero_()\nwork.wait()",
        f"{_DIST}work = dist.irecv(x, 0)\ny = x * 1\nwork.wait()",
        f"{_DIST}dist.all_reduce(x, async_op=True)\ny = x * 1",
    )

    def message(self, race: Race) -> str:
        """One sentence with the names and lines of a race."""
        does = "overwritten" if race.writes else "used"
        verb = "writes" if race.earlier.writes else "reads"
        return f"{_name(race)} is {does} before `wait()`; the collective of line {race.earlier.node.lineno} {verb} it"

    def fix(self, race: Race, context: RuleContext) -> Fix | None:
        """The wait that is missing."""
        return missing_waits.wait_for_collective(race, context)


def _name(race: Race) -> str:
    """The memory, as the source names it."""
    return f"`{race.memory.name}`" if race.memory.name else "This memory"


def _stream(name: str) -> str:
    if name == CURRENT:
        return "the current stream"
    return f"`{name.removeprefix(NAMED)}`" if name.startswith(NAMED) else "the side stream"
