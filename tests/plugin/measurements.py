"""Hand-made measurements, for tests of what only reads them."""

from __future__ import annotations

from typing import Any

from pytest_gpusync.model.measurement import Environment, Measurement, Site, Sync

SIMULATED = Environment(
    torch="2.13.0",
    python="3.11.9",
    device="simulated",
    gpu=None,
    driver=None,
    recorder="simulated",
    coverage="simulated",
)
H200 = Environment(
    torch="2.15.0",
    python="3.12.1",
    device="cuda",
    gpu="NVIDIA H200",
    driver="580.159",
    recorder="cupti",
    coverage="driver",
)


def sync(step: int | None = 0, *, path: str = "train.py", line: int = 1, **more: Any) -> Sync:
    site = Site(path, line, more.pop("function", "train_step"), more.pop("via", None))
    return Sync(kind=more.pop("kind", "stream"), site=site, step=step, **more)


def whole(*syncs: Sync, **more: Any) -> Measurement:
    """A region without steps."""
    return Measurement(
        name=more.pop("name", "region"),
        environment=more.pop("environment", SIMULATED),
        all_syncs=syncs,
        steps=1,
        warmup=0,
        step_source="whole region",
        **more,
    )


def stepped(per_step: list[int], *, warmup: int = 1, extra: tuple[Sync, ...] = (), **more: Any) -> Measurement:
    """A region whose step i made per_step[i] syncs on one line."""
    syncs = [sync(step) for step, made in enumerate(per_step) for _ in range(made)]
    return Measurement(
        name=more.pop("name", "region"),
        environment=more.pop("environment", SIMULATED),
        all_syncs=(*syncs, *extra),
        steps=len(per_step),
        warmup=warmup,
        step_source="optimizer.step()",
        **more,
    )
