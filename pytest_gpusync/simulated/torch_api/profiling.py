"""Keeps ``torch.profiler`` from requesting CUDA events of a device that does not exist: it profiles the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C._profiler import ProfilerActivity

if TYPE_CHECKING:
    from pytest_gpusync.simulated.base.patches import Patches


def install(patches: Patches) -> None:
    """Replace everything; `patches` restores it."""
    import torch.autograd.profiler as autograd_profiler
    import torch.profiler as profiler

    autograd: Any = torch.autograd
    supported = autograd._supported_activities

    def without_cuda() -> set[Any]:
        return {activity for activity in supported() if activity != ProfilerActivity.CUDA}

    for module, name in (
        (autograd, "_supported_activities"),
        (autograd_profiler, "_supported_activities"),
        (profiler, "supported_activities"),
        (profiler.profiler, "supported_activities"),
    ):
        patches.set(module, name, without_cuda)
    initialize = autograd_profiler.profile.__init__

    def on_host(self: Any, *arguments: Any, **keywords: Any) -> None:
        if keywords.get("use_device") == "cuda":
            keywords["use_device"] = None
        keywords.pop("use_cuda", None)
        initialize(self, *arguments, **keywords)

    patches.set(autograd_profiler.profile, "__init__", on_host)
